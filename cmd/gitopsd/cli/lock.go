package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/local"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/resolve"
)

func newLock(g *global) *cobra.Command {
	var (
		o      fleetOptions
		check  bool
		update string
		tidy   bool
		graph  string
	)
	cmd := &cobra.Command{
		Use:   "lock",
		Short: "Record what every package reference resolves to",
		Long: `Lock resolves the packages that the registered clusters declare, and writes
clusters.lock: what each cluster selects, and the digests of each version.

Existing records are checked and stay; missing ones are added. A lock with Git's
conflict markers is merged from the versions that Git has of it. If both sides
changed the same line differently, the error names both lines: delete one, or use
--update. With ` + "`gitopsd lock merge`" + ` as Git's merge driver there are no other conflicts.

--check writes nothing: it looks up every tag again, and exits with status 1 if
one was moved or if the lock does not match the declarations. --update resolves
all packages again, --update=REPOSITORY that one, and replaces their records.
--tidy removes the records of versions that no cluster selects. As long as they
are there, a revert goes back to such a version without resolving anything.

--graph writes nothing: it prints the dependencies in each cluster, as a tree or
for Graphviz.`,
		Example: `  gitopsd lock
  gitopsd lock --graph=dot | dot -Tsvg > packages.svg
  gitopsd lock --check
  gitopsd lock --update=xpkg.crossplane.io/crossplane-contrib/provider-helm`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: completeNothing,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if check && (update != "" || tidy) {
				return errors.New("--check writes nothing and cannot be combined with --update or --tidy")
			}
			switch {
			case graph == "":
			case graph != "text" && graph != "dot":
				return fmt.Errorf("--graph=%s: use text or dot", graph)
			case check || update != "" || tidy:
				return errors.New("--graph prints what is selected and cannot be combined with --check, --update or --tidy")
			default:
				return runGraph(cmd, g, &o, graph)
			}
			return runLock(cmd, g, &o, check, update, tidy)
		},
	}
	o.register(cmd)
	cmd.AddCommand(newLockMerge())
	cmd.Flags().BoolVar(&check, "check", false, "write nothing; exit with status 1 if a tag was moved or the lock is not up to date")
	cmd.Flags().StringVar(&update, "update", "", "resolve all packages again, or with =REPOSITORY that one")
	cmd.Flags().Lookup("update").NoOptDefVal = "all"
	cmd.Flags().BoolVar(&tidy, "tidy", false, "remove records that no cluster selects")
	cmd.Flags().StringVar(&graph, "graph", "", "print the dependencies, as text or with =dot for Graphviz; write nothing")
	cmd.Flags().Lookup("graph").NoOptDefVal = "text"
	return cmd
}

func runGraph(cmd *cobra.Command, g *global, o *fleetOptions, format string) error {
	fleet, err := o.open(cmd, g)
	if err != nil {
		return err
	}
	defer fleet.Close()
	writeGraphs(cmd.OutOrStdout(), format, graphs(fleet.State))
	return fleet.Err()
}

func runLock(cmd *cobra.Command, g *global, o *fleetOptions, check bool, update string, tidy bool) error {
	tree, err := o.tree.open()
	if err != nil {
		return err
	}
	defer tree.Close()
	before, mended, err := mendLock(tree)
	if err != nil {
		return err
	}
	mode := resolve.Add
	if check {
		if mended {
			return fmt.Errorf("%s has merge conflicts; run `gitopsd lock`", sources.LockFile)
		}
		mode = resolve.Check
	}
	var updated func(string) bool
	if update != "" {
		updated = func(repository string) bool { return update == "all" || update == repository }
	}
	computer, err := o.registry.computer(g.log(false), mode, updated, nil)
	if err != nil {
		return err
	}
	p := startProgress(cmd.ErrOrStderr())
	defer p.stop()
	p.step("resolving packages")
	commit := tree.commit
	if mended {
		commit.Files = withLock{commit.Files, before}
	}
	state, err := computer.Compute(cmd.Context(), commit, desired.Earlier{})
	p.stop()
	if err != nil {
		return err
	}
	if update != "" && update != "all" && !selects(state.Lock, update) {
		return fmt.Errorf("--update=%s: no registered cluster selects that repository", update)
	}
	if tidy {
		state.Lock.Tidy()
	}
	text := state.Lock.Format()
	old := ""
	if !mended {
		old = string(before.Format())
	}
	for _, line := range lockDiff(before, state.Lock) {
		fmt.Fprintln(cmd.OutOrStdout(), line)
	}
	if check {
		if string(text) != old && state.Err() == nil {
			return fmt.Errorf("%s is not what the declarations ask for; run `gitopsd lock` and commit the change", sources.LockFile)
		}
		return state.Err()
	}
	if string(text) != old {
		// Partial success is kept.
		if err := local.WriteLock(tree.root, text); err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "wrote %s\n", filepath.Join(tree.root, sources.LockFile))
	}
	return state.Err()
}

func selects(f *lockfile.File, repository string) bool {
	for _, name := range f.Clusters() {
		for _, s := range f.Selections(name) {
			if s.Repository == repository {
				return true
			}
		}
	}
	return false
}

// lockDiff lists the lines that differ, as a diff without context.
func lockDiff(before, after *lockfile.File) []string {
	lines := func(f *lockfile.File) map[string]bool {
		set := make(map[string]bool)
		for l := range strings.Lines(string(f.Format())) {
			set[strings.TrimSuffix(l, "\n")] = true
		}
		return set
	}
	old, now := lines(before), lines(after)
	var diff []string
	for l := range strings.Lines(string(before.Format())) {
		if l = strings.TrimSuffix(l, "\n"); !now[l] {
			diff = append(diff, "- "+l)
		}
	}
	for l := range strings.Lines(string(after.Format())) {
		if l = strings.TrimSuffix(l, "\n"); !old[l] {
			diff = append(diff, "+ "+l)
		}
	}
	return diff
}

// withLock is a tree with another lock.
type withLock struct {
	fs.FS
	lock *lockfile.File
}

// ReadFile implements fs.ReadFileFS.
func (w withLock) ReadFile(name string) ([]byte, error) {
	if name == sources.LockFile {
		return w.lock.Format(), nil
	}
	return fs.ReadFile(w.FS, name)
}
