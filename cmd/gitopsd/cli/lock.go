package cli

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/upgrade"
	"gitopsd.dev/render/edit"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/local"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/resolve"
)

func newLock(g *global) *cobra.Command {
	var (
		o      fleetOptions
		check  bool
		update lockUpdate
		tidy   bool
		graph  string
	)
	cmd := &cobra.Command{
		Use:   "lock",
		Short: "Record what every package reference resolves to",
		Long: `Lock resolves the packages that the registered clusters declare, and writes
clusters.lock: what each cluster selects, and the digests of each version.

Existing records are checked and stay; missing ones are added. A lock that Git has not
merged is merged from the versions in Git. If both sides changed the same
line differently, the error names both lines: delete one, or use --update. With
` + "`gitopsd lock merge`" + ` as Git's merge driver there are no other conflicts.

--check writes nothing: it looks up every tag again, and exits with status 1 if a tag
was moved or if the lock does not match the declarations. A tag is not looked up if a
declaration names its digest, which counts whatever the registry has. With --offline or
--vendor it asks no registry: it compares the records with the packages in the cache or
in that directory, and lists the tags that it did not look up.

--update resolves all packages again, --update=REPOSITORY (or its last part) only that
one, and replaces their records. With --cluster it does so in the named clusters only; a tag that other
clusters select too keeps its records. Without --update a new dependency gets the
highest version in another cluster that suits, or else the newest one that suits.

--tidy removes the records of versions that no cluster selects. Until then a revert
goes back to such a version without resolving anything.

--graph writes nothing: it prints the dependencies in each cluster, as a tree or
for Graphviz.`,
		Example: `  gitopsd lock
  gitopsd lock --graph=dot | dot -Tsvg > packages.svg
  gitopsd lock --check
  gitopsd lock --update=xpkg.crossplane.io/crossplane-contrib/provider-helm
  gitopsd lock --update --cluster dev`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: completeNothing,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if update.clusters != nil && update.what == "" {
				return errors.New("--cluster says where --update moves versions, and is used with it")
			}
			if o.registry.offline && !check {
				return errors.New("--offline is for --check: nothing can be added to the lock without a registry")
			}
			if check && (update.what != "" || tidy) {
				return errors.New("--check writes nothing and cannot be combined with --update or --tidy")
			}
			switch {
			case graph == "":
			case graph != "text" && graph != "dot":
				return fmt.Errorf("--graph=%s: use text or dot", graph)
			case check || update.what != "" || tidy:
				return errors.New("--graph prints what is selected and cannot be combined with --check, --update or --tidy")
			default:
				return runGraph(cmd, g, &o, graph)
			}
			return runLock(cmd, g, &o, check, update, tidy)
		},
	}
	o.register(cmd)
	merge := newLockMerge()
	cmd.AddCommand(merge, newLockVendor(g))
	logsNothing(merge)
	cmd.Flags().BoolVar(&o.registry.offline, "offline", false, "with --check: ask no registry, and read packages from the cache")
	cmd.Flags().BoolVar(&check, "check", false, "write nothing; exit with status 1 if a tag was moved or the lock is not up to date")
	cmd.Flags().StringVar(&update.what, "update", "", "resolve all packages again, or with =REPOSITORY that one")
	cmd.Flags().Lookup("update").NoOptDefVal = "all"
	completeFlag(cmd, "update", completePackages(&o.tree))
	o.tree.registerClusters(cmd, &update.clusters, "all; only with --update")
	cmd.Flags().BoolVar(&tidy, "tidy", false, "remove records that no cluster selects")
	cmd.Flags().StringVar(&graph, "graph", "", "print the dependencies, as text or with =dot for Graphviz; write nothing")
	cmd.Flags().Lookup("graph").NoOptDefVal = "text"
	refuseEmpty(cmd.Flags(), "update", "graph")
	annotate(cmd.Flags(), "cluster", needs, "update")
	annotate(cmd.Flags(), "offline", needs, "check")
	annotate(cmd.Flags(), "update", yields, "check", "graph")
	annotate(cmd.Flags(), "tidy", yields, "check", "graph")
	annotate(cmd.Flags(), "graph", yields, "check", "update", "tidy")
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

func runLock(cmd *cobra.Command, g *global, o *fleetOptions, check bool, update lockUpdate, tidy bool) error {
	tree, err := o.tree.open(cmd.Context())
	if err != nil {
		return err
	}
	defer tree.Close()
	seen := edit.NewSnapshot(tree.commit.Files)
	tree.commit.Files = seen
	before, mended, err := mendLock(tree, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	if update.what != "" && update.what != "all" {
		named, err := upgrade.Named(update.what, selectedRepositories(before))
		if err != nil {
			return fmt.Errorf("--update: %w", err)
		}
		update.what = cmp.Or(named, update.what)
	}
	o.registry.approve = true
	mode := resolve.Add
	if check {
		if mended {
			return fmt.Errorf("%s has merge conflicts; run `gitopsd lock`", sources.LockFile)
		}
		mode = resolve.Check
	}
	computer, err := o.registry.computer(g.log(false), mode, update.rule(), nil)
	if err != nil {
		return err
	}
	p := startProgress(cmd.ErrOrStderr())
	defer p.stop()
	p.step("resolving packages")
	commit := tree.commit
	if mended {
		commit.Files = edit.Overlay(commit.Files, map[string][]byte{sources.LockFile: before.Format()})
	}
	state, err := computer.Compute(cmd.Context(), commit, desired.Earlier{})
	p.stop()
	if err != nil {
		return err
	}
	if err := update.check(state); err != nil {
		return err
	}
	if shared := update.shared(state.Lock); len(shared) > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "Other clusters select these versions too, so that their digests stay: %s\n", prose.Some(shared, 5))
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
	if len(state.Unasked) > 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "No registry was asked, so that these tags may have been moved since they were locked:")
	}
	for _, ref := range state.Unasked {
		fmt.Fprintf(cmd.ErrOrStderr(), "    %s\n", ref)
	}
	for _, note := range []string{belowRoot(tree.root), tree.note} {
		if note != "" {
			fmt.Fprintln(cmd.ErrOrStderr(), "Note: "+note)
		}
	}
	faults := state.Err()
	if check {
		if string(text) != old && faults == nil {
			faults = errors.Join(faults, fmt.Errorf("%s is not what the declarations ask for; run `gitopsd lock` and commit the change", sources.LockFile))
		}
		return faults
	}
	if string(text) != old {
		// Partial success is kept.
		if err := committable(cmd.Context(), tree.root, sources.LockFile); err != nil {
			return err
		}
		if err := asSeen(seen, sources.LockFile); err != nil {
			return err
		}
		if err := local.WriteLock(tree.root, text); err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "wrote %s\n", filepath.Join(tree.root, sources.LockFile))
	}
	return faults
}

// lockUpdate is what --update moves.
type lockUpdate struct {
	// what is a repository or its last part, "all", or "" for nothing.
	what string
	// clusters are those to update; nil for all.
	clusters []string
}

// rule returns the rule for [resolve.Config], nil for no update.
func (u lockUpdate) rule() func(cluster, repository string) bool {
	if u.what == "" {
		return nil
	}
	return func(cluster, repository string) bool {
		return (u.what == "all" || upgrade.Matches(u.what, repository, "")) && (u.clusters == nil || slices.Contains(u.clusters, cluster))
	}
}

// shared returns the tags that the update leaves because clusters that are not updated
// select them too, sorted.
func (u lockUpdate) shared(lock *lockfile.File) []string {
	if u.what == "" || u.clusters == nil {
		return nil
	}
	others := make(map[sources.Ref]bool)
	all := lock.AllSelections()
	for cluster, lines := range all {
		for _, s := range lines {
			if !u.rule()(cluster, s.Repository) {
				others[sources.Ref{Repository: s.Repository, Tag: s.Version}] = true
			}
		}
	}
	var shared []string
	for _, cluster := range u.clusters {
		for _, s := range all[cluster] {
			ref := sources.Ref{Repository: s.Repository, Tag: s.Version}
			_, err := sources.ParseDigest(s.Version)
			if err != nil && u.rule()(cluster, s.Repository) && others[ref] {
				shared = append(shared, ref.String())
			}
		}
	}
	slices.Sort(shared)
	return slices.Compact(shared)
}

// check returns an error if a cluster or repository is unknown, or if a repository that the
// lock did not have before may be another.
func (u lockUpdate) check(state *desired.State) error {
	for _, name := range u.clusters {
		if state.Registry.Removed(name) {
			return fmt.Errorf("--cluster %s: no such cluster is registered in %s%s", name, sources.RegistryFile, state.Registry.Meant(name))
		}
	}
	if u.what == "" || u.what == "all" {
		return nil
	}
	named, err := upgrade.Named(u.what, selectedRepositories(state.Lock))
	if err != nil {
		return fmt.Errorf("--update: %w", err)
	}
	for _, name := range state.Lock.Clusters() {
		selects := func(s lockfile.Selection) bool { return s.Repository == named }
		if u.rule()(name, named) && slices.ContainsFunc(state.Lock.Selections(name), selects) {
			return nil
		}
	}
	where := "no registered cluster selects"
	if u.clusters != nil {
		where = "nothing in " + prose.Some(u.clusters, 4) + " selects"
	}
	there := ""
	if all := selectedRepositories(state.Lock); len(all) > 0 {
		there = "; there are " + strings.Join(all, ", ")
	}
	return fmt.Errorf("--update=%s: %s that repository%s", u.what, where, there)
}

// selectedRepositories returns the repositories that a lock selects for clusters, sorted.
func selectedRepositories(lock *lockfile.File) []string {
	var all []string
	for _, lines := range lock.AllSelections() {
		for _, s := range lines {
			all = append(all, s.Repository)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// lockDiff returns the lines that differ, as a diff without context.
func lockDiff(before, after *lockfile.File) []string {
	old, now := string(before.Format()), string(after.Format())
	return append(missingLines("- ", old, now), missingLines("+ ", now, old)...)
}

// missingLines returns the lines of a text that another lacks, each with a mark.
func missingLines(mark, text, other string) []string {
	has := make(map[string]bool)
	for l := range strings.Lines(other) {
		has[l] = true
	}
	var missing []string
	for l := range strings.Lines(text) {
		if !has[l] {
			missing = append(missing, mark+strings.TrimSuffix(l, "\n"))
		}
	}
	return missing
}
