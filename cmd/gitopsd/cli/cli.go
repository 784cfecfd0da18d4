// Package cli is gitopsd's command line: flags, wiring, output and exit status.
// It is the only package that knows every concrete type of the others.
//
// Output rules: results go to stdout, everything else to stderr. An error is one message that
// starts with "gitopsd: " and says what is wrong, where, and what to do. Progress is shown on
// a terminal only. The exit status is 0, or 1 for an error, or, where a command's help says
// so, 2 for a difference. A result that could not be written is an error of every command.
//
// Most commands have a file of their name. graph.go is part of lock, planpackages.go and
// promoted.go of plan, definitions.go, typesobjects.go and pin.go of types, whypackage.go of
// why, and forget.go of migrate. Commands share flags: options.go (registries, Git, output), fleet.go (the
// working tree and its desired state), connect.go and places.go (clusters), wait.go. run.go
// wires the daemon from settings.go, certificates.go, targets.go, applications.go,
// conversionlisten.go, etcd.go and etcdlisten.go. environment.go, values.go and arguments.go check
// variables, values and arguments, complete.go completes them, log.go and progress.go write to
// stderr, and documents.go reads and replaces files.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"gitopsd.dev/cmd/gitopsd/show"
)

// Env is what a command line runs in.
type Env struct {
	// Args are the arguments, without the program's name.
	Args           []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// LookupEnv reads the environment, as [os.LookupEnv] does.
	LookupEnv func(string) (string, bool)
	// Environ lists the environment, as [os.Environ] does. If nil, variables that set no
	// flag are not reported.
	Environ func() []string
}

// getenv returns a variable of the environment, empty if it is not set.
func (e *Env) getenv(name string) string {
	value, _ := e.LookupEnv(name)
	return value
}

// exitError ends the program with this exit status, without a message.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// output is stdout. It remembers its first error, so that commands need not check each line
// that they print. A reader that wants no more, as in a pipe to head, is no error.
type output struct {
	w   io.Writer
	err error
}

// Write implements [io.Writer].
func (o *output) Write(p []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.w.Write(p)
	if !errors.Is(err, syscall.EPIPE) {
		o.err = err
	}
	return n, err
}

// Run runs a command line and returns the exit status.
func Run(ctx context.Context, env Env) int {
	out := &output{w: env.Stdout}
	env.Stdout = out
	root := newRoot(&env)
	root.SetArgs(append([]string{}, env.Args...)) // cobra takes nil for the arguments of this process
	root.SetIn(env.Stdin)
	root.SetErr(env.Stderr)
	if env.getenv("TERM") == "dumb" { // its lines cannot be replaced, as progress does on terminals
		root.SetErr(struct{ io.Writer }{env.Stderr})
	}
	if len(env.Args) > 0 && strings.HasPrefix(env.Args[0], cobra.ShellCompRequestCmd) {
		completeFromEnvironment(root, env.LookupEnv)
	}
	cmd, err := root.ExecuteContextC(ctx)
	if exit := exitError(0); out.err != nil && (err == nil || errors.As(err, &exit)) {
		err = out.err // some of the result is missing
	}
	var exit exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		err = errors.New("interrupted")
	}
	err = fmt.Errorf("%w%s", err, variablesIn(cmd.Flags(), err.Error()))
	if format, _ := cmd.Flags().GetString("log-format"); format == "json" { // an error means that there are no flags yet
		(&global{env: &env, logFormat: format}).log(false).Error("gitopsd failed", "error", show.Clean(err.Error()))
		return 1
	}
	report(env.Stderr, err)
	return 1
}

// report writes an error. Its text may come from anywhere.
func report(w io.Writer, err error) {
	if err != nil {
		fmt.Fprintf(w, "gitopsd: %s\n", show.Clean(err.Error()))
	}
}

// global are the flags of every command.
type global struct {
	env       *Env
	logFormat string
	verbose   bool
}

func newRoot(env *Env) *cobra.Command {
	g := &global{env: env}
	root := &cobra.Command{
		Use:   "gitopsd",
		Short: "go.sum for the APIs of a Kubernetes fleet",
		Long: `gitopsd keeps the APIs of a fleet of Kubernetes clusters as a Git repository
declares them. It resolves packages of types and controllers to digests, and
records these in clusters.lock: two clusters with the same lines there have the
same APIs.

A fleet repository has clusters.yaml, the registry of clusters, a kustomization
for each cluster, and clusters.lock, which gitopsd writes.

Flags can also be set by environment variables: --kubeconfig-dir by
GITOPSD_KUBECONFIG_DIR, and so on. Text has colours on a terminal; CLICOLOR_FORCE=1
asks for them elsewhere too, and NO_COLOR=1 declines them.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := flagsFromEnvironment(cmd.Flags(), env.LookupEnv); err != nil {
				return err
			}
			if err := g.checkEnvironment(cmd); err != nil {
				return err
			}
			if g.logFormat != "text" && g.logFormat != "json" {
				return fmt.Errorf("--log-format %q: use text or json", g.logFormat)
			}
			once, _ := cmd.Flags().GetBool("once") // an error means that the command has no such flag
			return checkFiles(cmd.Flags(), cmd.Name() == "run" && !once, func() *slog.Logger { return g.log(true) })
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.Version = version()
	root.SetVersionTemplate(versionLine())
	root.Flags().Bool("version", false, "print the version")
	annotate(root.Flags(), "version", noVariable) // GITOPSD_VERSION is what somebody has installed
	root.PersistentFlags().StringVar(&g.logFormat, "log-format", "text", "format of the log on stderr: text or json")
	root.PersistentFlags().BoolVarP(&g.verbose, "verbose", "v", false, "log what is done and why")
	root.AddCommand(newRun(g), newStatus(g), newPlan(g), newLock(g), newOutdated(g), newBump(g), newRender(g), newWhy(g), newTypes(g), newVerify(g), newHealth(), newConvert(g), newConversionServer(g), newEtcd(g), newEtcdProxy(g), newMigrate(g), newPackage(g), newVersion(g))
	root.SetOut(env.Stdout) // where the completion commands, which cobra makes, print
	root.InitDefaultCompletionCmd()
	explainHelp(root)
	for _, c := range root.Commands() {
		if c.RunE == nil && c.Run == nil { // completion, whose arguments cobra does not check otherwise
			c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
		if slices.Contains([]string{"completion", "health", "status", "version"}, c.Name()) {
			logsNothing(c)
		}
	}
	explainArguments(root)
	boundDurations(root)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w%s\nSee `%s --help`", err, meantFlag(cmd, err), cmd.CommandPath())
	})
	return root
}

// completeFromEnvironment sets the flags of all commands from the environment, since
// completion skips PersistentPreRunE. The command itself reports variables that cannot be
// used.
func completeFromEnvironment(cmd *cobra.Command, lookup func(string) (string, bool)) {
	_ = flagsFromEnvironment(cmd.Flags(), lookup)
	for _, c := range cmd.Commands() {
		completeFromEnvironment(c, lookup)
	}
}

// logsNothing hides the log flags in the help of a command that does not log, and in the
// help of its subcommands. The flags are still accepted.
func logsNothing(cmd *cobra.Command) {
	help := cmd.Root().HelpFunc()
	cmd.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		for _, name := range []string{"log-format", "verbose"} {
			if f := cmd.InheritedFlags().Lookup(name); f != nil {
				f.Hidden = true
			}
		}
		help(cmd, args)
	})
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f := fileOf(w)
	return f != nil && term.IsTerminal(int(f.Fd()))
}

// fileOf returns the file that w writes to, nil if it is none.
func fileOf(w io.Writer) *os.File {
	if o, ok := w.(*output); ok {
		w = o.w
	}
	f, _ := w.(*os.File)
	return f
}

// columns returns the width of w if it is a terminal, else 0.
func columns(w io.Writer) int {
	if !isTerminal(w) {
		return 0
	}
	width, _, err := term.GetSize(int(fileOf(w).Fd()))
	if err != nil {
		return 0
	}
	return width
}

// colour reports whether to write colours to w: NO_COLOR is not set, and w is a terminal or
// CLICOLOR_FORCE is set (https://no-color.org, https://bixense.com/clicolors).
func (g *global) colour(w io.Writer) bool {
	forced := g.env.getenv("CLICOLOR_FORCE")
	switch {
	case g.env.getenv("NO_COLOR") != "":
		return false
	case forced != "" && forced != "0":
		return true
	}
	return isTerminal(w) && g.env.getenv("CLICOLOR") != "0" && g.env.getenv("TERM") != "dumb"
}
