package cli

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gitopsd.dev/sources"
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

// emptyCounts is the annotation of flags that an empty variable sets too.
const emptyCounts = "gitopsd-empty-counts"

// annotate adds an annotation to a flag.
func annotate(flags *pflag.FlagSet, flag, annotation string, values ...string) {
	_ = flags.SetAnnotation(flag, annotation, values) // an error means that the flag does not exist
}

// flagsFromEnvironment sets flags from GITOPSD_<FLAG>, unless the command line sets them. Most
// empty variables set nothing, since manifests have them for settings that are left out.
func flagsFromEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		value, ok := lookup(variable(f.Name))
		_, counts := f.Annotations[emptyCounts]
		if f.Changed || !ok || value == "" && !counts || f.Name == "help" {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s: %w", variable(f.Name), err))
		}
	})
	return errors.Join(errs...)
}

// serviceVariable matches the variables that Kubernetes sets in pods for a Service with a name
// that begins with gitopsd.
var serviceVariable = regexp.MustCompile(`_(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT(?:_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)$`)

// unknownVariables finds variables with our prefix that set no flag of any command. A name
// that differs from a known one by a letter or two is an error, like a misspelt flag: the
// intended flag would keep its default. The others are notes, since they may be for another
// version or program.
func unknownVariables(root *cobra.Command, environment []string) (notes []string, err error) {
	known := knownVariables(root)
	flags := make([]string, len(known)) // the prefix is always the same
	for i, name := range known {
		flags[i] = strings.TrimPrefix(name, variablePrefix)
	}
	var errs []error
	for _, entry := range slices.Sorted(slices.Values(environment)) {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, variablePrefix) || value == "" || slices.Contains(known, name) || serviceVariable.MatchString(name) {
			continue
		}
		const near = 2
		short := strings.TrimPrefix(name, variablePrefix)
		if meant := sources.Closest(short, flags); meant != "" && sources.Distance(short, meant) <= near {
			errs = append(errs, fmt.Errorf("environment variable %s: no flag has that name; did you mean %s?", name, variablePrefix+meant))
		} else {
			notes = append(notes, fmt.Sprintf("environment variable %s is ignored: no flag has that name", name))
		}
	}
	return notes, errors.Join(errs...)
}

// checkEnvironment returns an error for misspelt variables, and reports others that nothing
// reads.
func (g *global) checkEnvironment(root *cobra.Command) error {
	if g.env.Environ == nil {
		return nil
	}
	notes, err := unknownVariables(root, g.env.Environ())
	for _, note := range notes {
		if g.logFormat == "json" {
			g.log(false).Warn(note)
		} else {
			fmt.Fprintf(g.env.Stderr, "gitopsd: %s\n", note)
		}
	}
	return err
}

// knownVariables returns the variables of all commands, sorted. A variable for another
// command is no error.
func knownVariables(root *cobra.Command) []string {
	known := []string{passwordVariable}
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, flags := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
			flags.VisitAll(func(f *pflag.Flag) { known = append(known, variable(f.Name)) })
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
	slices.Sort(known)
	return slices.Compact(known)
}
