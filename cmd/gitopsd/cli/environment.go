package cli

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git"
)

// variablePrefix begins the names of the environment variables that set flags.
const variablePrefix = "GITOPSD_"

// passwordVariable has the password for Git. There is no flag for it, since other users of a
// machine can read command lines.
const passwordVariable = variablePrefix + "GIT_PASSWORD"

// variable returns the environment variable that sets a flag.
func variable(flag string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// The annotations of flags that say when their variable counts. All commands share the
// variables: one that is meant for another command must not make a command fail.
const (
	// emptyCounts is on flags that an empty variable sets too.
	emptyCounts = "gitopsd-empty-counts"
	// noVariable is on flags that only the command line sets, since the same name means
	// something else in another command.
	noVariable = "gitopsd-no-variable"
	// needs names flags: the variable counts only together with one of them.
	needs = "gitopsd-needs"
	// yields names flags: the variable does not count if one of them is on the command line.
	yields = "gitopsd-yields"
	// directory is on flags whose variable does not count if it has the address of a
	// repository, for another command.
	directory = "gitopsd-directory"
	// fromVariable is on flags that a variable has set.
	fromVariable = "gitopsd-from-variable"
)

// annotate adds an annotation to a flag.
func annotate(flags *pflag.FlagSet, flag, annotation string, values ...string) {
	_ = flags.SetAnnotation(flag, annotation, values) // an error means that the flag does not exist
}

func annotated(f *pflag.Flag, annotation string) bool {
	_, ok := f.Annotations[annotation]
	return ok
}

// flagsFromEnvironment sets flags from GITOPSD_<FLAG>, unless the command line sets them. An empty
// variable sets only flags for which empty has a meaning: manifests have empty variables for
// settings that are left out, and these flags must keep their defaults.
func flagsFromEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var errs []error
	var set func(f *pflag.Flag)
	set = func(f *pflag.Flag) {
		name := variable(f.Name)
		value, ok := lookup(name)
		if f.Changed || !ok || value == "" && !annotated(f, emptyCounts) || annotated(f, noVariable) || f.Name == "help" {
			return
		}
		if serviceVariable.MatchString(name) && strings.Contains(value, "://") || annotated(f, directory) && git.IsAddress(value) {
			return
		}
		given := func(name string) bool {
			other := flags.Lookup(name)
			return other != nil && other.Changed
		}
		typed := func(name string) bool { return given(name) && !annotated(flags.Lookup(name), fromVariable) }
		if slices.ContainsFunc(f.Annotations[yields], typed) {
			return
		}
		if others := f.Annotations[needs]; len(others) > 0 {
			for _, other := range others {
				set(flags.Lookup(other))
			}
			if !slices.ContainsFunc(others, given) {
				return
			}
		}
		if d, err := time.ParseDuration(value); err == nil && d == 0 && f.Value.Type() == "duration" && f.DefValue != "0" {
			return // 0 has always been the default here
		}
		if err := flags.Set(f.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s: %w", name, err))
			return
		}
		annotate(flags, f.Name, fromVariable)
	}
	flags.VisitAll(set)
	return errors.Join(errs...)
}

// variablesIn returns a line for each flag that an error names and that a variable has set,
// since nobody has typed it.
func variablesIn(flags *pflag.FlagSet, err string) string {
	var b strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		if annotated(f, fromVariable) && regexp.MustCompile(`(^|[^\w-])--`+regexp.QuoteMeta(f.Name)+`($|[^\w-])`).MatchString(err) {
			fmt.Fprintf(&b, "\n--%s is set by the environment variable %s", f.Name, variable(f.Name))
		}
	})
	return b.String()
}

// serviceVariable matches the variables that Kubernetes sets in pods for a Service with a name
// that begins with gitopsd.
var serviceVariable = regexp.MustCompile(`_(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT(?:_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)$`)

// unknownVariables finds variables with our prefix that set no flag of any command. One whose
// name is near to that of a flag of cmd is an error, like a misspelt flag: the intended flag
// would keep its default. The others are notes, since they may be for another command, version
// or program.
func unknownVariables(cmd *cobra.Command, environment []string) (notes []string, err error) {
	known := knownVariables(cmd.Root())
	flags := make([]string, len(known)) // the prefix is always the same
	for i, name := range known {
		flags[i] = strings.TrimPrefix(name, variablePrefix)
	}
	own := variablesOf(cmd.Flags())
	if cmd.Name() == "run" {
		own = append(own, passwordVariable)
	}
	var errs []error
	for _, entry := range slices.Sorted(slices.Values(environment)) {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, variablePrefix) || value == "" || slices.Contains(known, name) || serviceVariable.MatchString(name) {
			continue
		}
		short, hint := strings.TrimPrefix(name, variablePrefix), ""
		if meant := sources.Closest(short, flags); meant != "" && sources.Distance(short, meant) <= mostSlips(short) {
			hint = "; did you mean " + variablePrefix + meant + "?"
			if slices.Contains(own, variablePrefix+meant) {
				errs = append(errs, fmt.Errorf("environment variable %s: no flag has that name%s", name, hint))
				continue
			}
		}
		notes = append(notes, fmt.Sprintf("environment variable %s is ignored: no flag has that name%s", name, hint))
	}
	return notes, errors.Join(errs...)
}

// mostSlips returns by how many letters a misspelt name may differ from the intended one. Short
// names, such as PATH and DATA, are near to many.
func mostSlips(name string) int {
	switch {
	case len(name) <= 4:
		return 0
	case len(name) <= 7:
		return 1
	}
	return 2
}

// checkEnvironment returns an error for misspelt variables of a command, and reports others
// that nothing reads.
func (g *global) checkEnvironment(cmd *cobra.Command) error {
	if g.env.Environ == nil {
		return nil
	}
	notes, err := unknownVariables(cmd, g.env.Environ())
	for _, note := range notes {
		if g.logFormat == "json" {
			g.log(false).Warn(note)
		} else {
			fmt.Fprintf(g.env.Stderr, "gitopsd: %s\n", note)
		}
	}
	return err
}

// variablesOf returns the variables that set flags.
func variablesOf(flags *pflag.FlagSet) []string {
	var names []string
	flags.VisitAll(func(f *pflag.Flag) {
		if !annotated(f, noVariable) {
			names = append(names, variable(f.Name))
		}
	})
	return names
}

// knownVariables returns the variables of all commands, sorted.
func knownVariables(root *cobra.Command) []string {
	known := []string{passwordVariable}
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		known = append(known, variablesOf(cmd.Flags())...)
		known = append(known, variablesOf(cmd.PersistentFlags())...)
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
	slices.Sort(known)
	return slices.Compact(known)
}
