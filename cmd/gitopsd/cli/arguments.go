package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gitopsd.dev/sources"
)

// explainArguments replaces cobra's errors about the arguments of a command and its
// subcommands. Cobra says the same about a misspelt command and about an extra argument.
func explainArguments(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		explainArguments(sub)
	}
	check := cmd.Args
	if check == nil {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if err == nil || !cobraSaid(err) {
			return err
		}
		return fmt.Errorf("%w\nSee `%s --help`", wrongArguments(cmd, args), cmd.CommandPath())
	}
}

// explainHelp has the command help, which cobra makes, refuse commands that do not exist.
func explainHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	for _, help := range root.Commands() {
		if help.Name() != "help" {
			continue
		}
		help.Args = func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err == nil && len(rest) == 0 {
				return nil
			}
			if len(rest) == 0 {
				rest = args
			}
			return fmt.Errorf("%s has no command %q%s\nSee `%[1]s --help`", cmd.CommandPath(), rest[0], sources.Meant(rest[0], subcommands(cmd)))
		}
		root.RemoveCommand(help) // cobra adds it again
	}
}

// subcommands returns the names of a command's subcommands.
func subcommands(cmd *cobra.Command) []string {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return names
}

// cobraSaid reports whether an error about arguments is cobra's (args.go there).
func cobraSaid(err error) bool {
	return slices.ContainsFunc([]string{"unknown command ", "accepts ", "requires "}, func(prefix string) bool { return strings.HasPrefix(err.Error(), prefix) })
}

func wrongArguments(cmd *cobra.Command, args []string) error {
	if cmd.HasAvailableSubCommands() && len(args) > 0 {
		if meant := sources.Meant(args[0], subcommands(cmd)); meant != "" || cmd.Flags().Lookup("cluster") == nil {
			return fmt.Errorf("%s has no command %q%s", cmd.CommandPath(), args[0], meant)
		}
	}
	_, parameters, _ := strings.Cut(cmd.Use, " ")
	switch takes := parameters != "" && !strings.HasPrefix(parameters, "-"); {
	case len(args) == 0:
		return fmt.Errorf("an argument is missing: want %s %s", cmd.CommandPath(), parameters)
	case takes:
		return fmt.Errorf("want %s %s, have %s", cmd.CommandPath(), parameters, quoted(args))
	case len(args) == 1:
		return fmt.Errorf("%s takes no argument %q%s", cmd.CommandPath(), args[0], meantByArgument(cmd, args[0]))
	default:
		return fmt.Errorf("%s takes no arguments, have %s", cmd.CommandPath(), quoted(args))
	}
}

// meantByArgument suggests the flag that an argument is the value of, if that can be told.
func meantByArgument(cmd *cobra.Command, arg string) string {
	// The value of a flag that also stands alone must be joined to it.
	var joined string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.NoOptDefVal != "" && f.Value.Type() == "string" && f.Value.String() == f.NoOptDefVal {
			joined = "; for the value of the flag write --" + f.Name + "=" + arg
		}
	})
	if joined != "" {
		return joined
	}
	repo := cmd.Flags().Lookup("repo")
	if repo != nil && cmd.Flags().Lookup("cluster") != nil {
		tree := treeOptions{repo: repo.Value.String()}
		if registered, _ := tree.registered(); slices.Contains(registered, arg) {
			return "; for a cluster write --cluster " + arg
		} else if meant := sources.Closest(arg, registered); meant != "" {
			return "; for a cluster write --cluster; did you mean " + meant + "?"
		}
	}
	if info, err := os.Stat(arg); err == nil && info.IsDir() && repo != nil {
		return "; for a directory write --repo " + arg
	}
	if cmd.Flags().Lookup("against") != nil {
		return "; for a revision write --against " + arg
	}
	return ""
}

func quoted(args []string) string {
	all := make([]string, len(args))
	for i, arg := range args {
		all[i] = fmt.Sprintf("%q", arg)
	}
	return strings.Join(all, " ")
}

// meantFlag suggests a flag in place of one that does not exist.
func meantFlag(cmd *cobra.Command, err error) string {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || len(unknown.GetSpecifiedName()) < 2 {
		return "" // short flags are all alike
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if meant := sources.Closest(unknown.GetSpecifiedName(), names); meant != "" {
		return "; did you mean --" + meant + "?"
	}
	return ""
}
