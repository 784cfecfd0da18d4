package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"gitopsd.dev/cmd/gitopsd/preview"
	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/hub"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/reconcile/upgrade"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/local"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/resolve"
)

type planOptions struct {
	fleetOptions
	live     liveOptions
	clusters []string
	against  string
	output   outputFlag
	exitcode bool
	watch    bool
	all      bool
	takeOver []string
	replace  []string
	objects  bool
}

func newPlan(g *global) *cobra.Command {
	var o planOptions
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show what would change, without changing anything",
		Long: `Plan shows what ` + "`gitopsd run`" + ` would do with the working tree of the fleet
repository, without the files that Git ignores. It lists the types that each package adds, changes and removes, and
what that breaks; for each registered cluster the objects that would be created,
changed or pruned, field by field as the API server answers a dry run; and the
lines of clusters.lock that would change.

It uses the credentials that the registry names, from --kubeconfig-dir or the
hub's Secrets (--kubeconfig), or contexts of your own kubeconfig (--context).
With --against it compares with another revision of the repository instead, and
contacts no cluster; it checks objects by the definitions in the repository.

The first and the last line summarize the fleet. Clusters with equal plans are shown
once; --all names them, and shows every object and field. Objects that are refused, held
or in conflict come after those that change, with the cause, the file and line of the
object, and the annotation that would allow it, if there is one.

Conversion rules that are new, or that change with their definition, are tried on
generated objects: there and back, with edits in between. Rules that lose something are
refused, with the smallest object that shows it. With --live they are tried on the
objects of each cluster too; the plan names objects, but shows no values.

--replace REPOSITORY=DIRECTORY shows what an unpublished package would do in place of
the one in the clusters. It is built from the directory, as ` + "`gitopsd package build`" + `
does. Nothing is recorded for it, and it needs no signature. REPOSITORY may be the last
part of one in clusters.lock.

Values of Secrets are never shown. Errors go to stderr; JSON and Markdown have them too.
The exit status is 0, or 1 for an error and for steps that would fail in
` + "`gitopsd run`" + ` (refused, in conflict, rejected); with --detailed-exitcode it is 2 when
there are changes, or changes are held back or wait.`,
		Example: `  gitopsd plan --context prod=my-prod
  gitopsd plan --against main
  gitopsd plan --against origin/main -o markdown > comment.md
  gitopsd plan --replace registry.example.org/acme/widgets=../widgets/package
  gitopsd plan --cluster dev --kubeconfig-dir ~/.kube/fleet --watch`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: completeNothing,
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(cmd, g) },
	}
	f := cmd.Flags()
	o.register(cmd)
	o.live.register(cmd)
	f.BoolVar(&o.objects, "live", false, "try conversion rules on the objects of each cluster too, and list old versions that these may be stored in; it reads all objects of the types with rules")
	f.StringVar(&o.against, "against", "", "compare with this revision (a branch, tag or commit) instead of with the clusters")
	refuseEmpty(f, "against")
	completeFlag(cmd, "against", completeRevisions(&o.tree))
	completeFlag(cmd, "context", completePairs(completeRegistered(&o.tree), false))
	o.tree.registerClusters(cmd, &o.clusters, "all")
	registerTakeOver(cmd, &o.takeOver)
	o.output.register(cmd, "text", "json", "markdown")
	f.StringArrayVar(&o.replace, "replace", nil, "REPOSITORY=DIRECTORY: plan as if the package were built from this directory. May be given more than once")
	f.BoolVar(&o.exitcode, "detailed-exitcode", false, "exit with status 2 when there are changes, also held ones")
	f.BoolVar(&o.watch, "watch", false, "plan again whenever a file changes, until interrupted")
	annotate(f, "live", yields, "against")
	annotate(f, "against", yields, "live")
	f.BoolVar(&o.all, "all", false, "show every object and field instead of folding long lists (text)")
	return cmd
}

func (o *planOptions) run(cmd *cobra.Command, g *global) error {
	if err := o.output.check(); err != nil {
		return err
	}
	p, err := o.planner(cmd, g)
	if err == nil && o.watch {
		return p.watch(cmd.Context())
	}
	var fleet *preview.Fleet
	if err == nil {
		fleet, err = p.plan(cmd.Context())
	}
	if err != nil {
		if o.output.document() {
			err = errors.Join(err, o.print(cmd.OutOrStdout(), &preview.Fleet{Source: workingTreeName, Against: o.against, Errors: problemTexts(err)}, show.Options{}))
		}
		return err
	}
	if err := p.print(fleet); err != nil {
		return err
	}
	all := faults(fleet)
	switch {
	case len(all) > 0:
		return listed(all)
	case o.exitcode && fleet.HasChanges():
		return exitError(2)
	}
	return nil
}

// planner returns what makes the plans. The error is about the flags or the fleet repository.
func (o *planOptions) planner(cmd *cobra.Command, g *global) (*planner, error) {
	if o.objects && o.against != "" {
		return nil, errors.New("--live reads the clusters, and --against asks none of them; leave one out")
	}
	connector, err := o.live.connector(&o.registry)
	if err != nil {
		return nil, err
	}
	root, err := o.tree.root()
	if err != nil {
		return nil, err
	}
	log := g.log(false)
	published, err := o.registry.computer(log, resolve.Add, nil, o.clusters)
	if err != nil {
		return nil, err
	}
	computer := published
	if o.registry.local, err = localPackages(o.replace, lockedRepositories(cmd.Context(), root)); err != nil {
		return nil, err
	}
	if len(o.registry.local) > 0 {
		if computer, err = o.registry.computer(log, resolve.Add, nil, o.clusters); err != nil {
			return nil, err
		}
	}
	return &planner{
		options: o, root: root, computer: computer, published: published, log: log, cmd: cmd, colour: g.colour(cmd.OutOrStdout()),
		connector: connector,
	}, nil
}

// faults returns the errors of a plan, and the number of steps at which `gitopsd run` would
// fail.
func faults(f *preview.Fleet) []string {
	var reasons notes
	for i := range f.Clusters {
		c := &f.Clusters[i]
		if c.Err != "" {
			reasons.add(c.Name, c.Err)
		}
		if n := c.Plan.Failing(); n > 0 && !c.Suspended {
			reasons.add(c.Name, "gitopsd run would fail at "+prose.Agree(n, "step, which the plan shows with its reason", "steps, which the plan shows with their reasons"))
		}
		for _, name := range c.Untrue() {
			reasons.add(c.Name, "the conversion rules of "+name+" are wrong for objects that the plan names")
		}
	}
	return append(slices.Clone(f.Errors), reasons.lines()...)
}

// lockedRepositories returns the repositories in the lock of a working tree, none if it cannot
// be read, which the plan reports.
func lockedRepositories(ctx context.Context, root string) []string {
	tree, err := openTree(ctx, root)
	if err != nil {
		return nil
	}
	defer tree.Close()
	lock, err := desired.ReadLock(tree.commit.Files)
	if err != nil {
		return nil
	}
	return selectedRepositories(lock)
}

// localPackages reads the values of --replace. A package may be named by the last part of one
// of the repositories.
func localPackages(values, repositories []string) ([]desired.Local, error) {
	var all []desired.Local
	for _, v := range values {
		name, dir, ok := strings.Cut(v, "=")
		named, err := upgrade.Named(name, repositories)
		if err != nil {
			return nil, fmt.Errorf("--replace: %w", err)
		}
		name = cmp.Or(named, name)
		ref, err := sources.ParseRef(name + "@" + string(sources.DigestOf(nil)))
		if !ok || dir == "" || err != nil || ref.Tag != "" {
			return nil, fmt.Errorf("--replace %q: want REPOSITORY=DIRECTORY, without a version", v)
		}
		if slices.ContainsFunc(all, func(l desired.Local) bool { return l.Repository == ref.Repository }) {
			return nil, fmt.Errorf("--replace: %s has two directories", ref.Repository)
		}
		all = append(all, desired.Local{Repository: ref.Repository, Name: dir, Files: os.DirFS(dir)})
	}
	return all, nil
}

// workingTreeName is how plans name the tree that they are for.
const workingTreeName = "working tree"

// planner plans one working tree.
type planner struct {
	options  *planOptions
	root     string
	computer *desired.Computer
	// published computes without unpublished packages on this machine.
	published *desired.Computer
	connector *hub.Connector
	log       *slog.Logger
	cmd       *cobra.Command
	colour    bool
}

// plan returns the plans of all clusters.
func (p *planner) plan(ctx context.Context) (*preview.Fleet, error) {
	tree, err := openTree(ctx, p.root)
	if err != nil {
		return nil, err
	}
	defer tree.Close()
	state, err := compute(ctx, p.cmd, p.computer, tree.commit)
	if err != nil {
		return nil, err
	}
	if err := p.connector.Check(state.Registry); err != nil {
		return nil, err
	}
	fleet := &preview.Fleet{Source: workingTreeName, Against: p.options.against, Lock: lockDiff(state.Committed, state.Lock)}
	if len(p.options.registry.local) == 0 {
		fleet.Revision = revisionOf(p.root, tree)
	}
	for _, w := range state.Waiting {
		fleet.Notes = append(fleet.Notes, w.String())
	}
	fleet.Notes = append(fleet.Notes, special(state)...)
	fleet.Notes = append(fleet.Notes, sameTypeOtherController(state)...)
	fleet.Notes = append(fleet.Notes, state.Notes...)
	for _, l := range p.options.registry.local {
		if !state.Uses(l) {
			there := ""
			if all := selectedRepositories(state.Lock); len(all) > 0 {
				there = "; there are " + strings.Join(all, ", ")
			}
			return nil, fmt.Errorf("--replace %s=%s: no planned cluster has a package of that repository%s", l.Repository, l.Name, there)
		}
	}
	if len(p.options.registry.local) > 0 {
		fleet.Lock = nil // it cannot have unpublished packages
	}
	problems := append(problem.Of(state.RegistryErr), state.Unmoved...)
	var told notes
	for _, c := range state.Clusters {
		told.add(c.Name, c.Notes...)
		problems = append(problems, c.Faults...)
	}
	fleet.Notes = append(fleet.Notes, told.lines()...)
	if note := belowRoot(p.root); note != "" {
		fleet.Notes = append(fleet.Notes, note)
	}
	if tree.note != "" {
		fleet.Notes = append(fleet.Notes, tree.note)
	}
	if slices.ContainsFunc(state.Clusters, func(c *desired.Unit) bool { return c.Err != nil }) {
		if note := withoutFiles(ctx, p.root); note != "" {
			fleet.Notes = append(fleet.Notes, note)
		}
	}
	for _, p := range problem.Merge(problems) {
		fleet.Errors = append(fleet.Errors, p.String())
	}
	if p.options.against != "" {
		err = p.against(ctx, fleet, state)
	} else {
		err = p.live(ctx, fleet, state)
	}
	return fleet, err
}

// live plans against the live clusters, all at once.
func (p *planner) live(ctx context.Context, fleet *preview.Fleet, state *desired.State) error {
	progress := startProgress(p.cmd.ErrOrStderr())
	defer progress.stop()
	progress.step("looking at %s", prose.Count(len(state.Clusters), "cluster"))
	fleet.Clusters = make([]preview.ClusterPlan, len(state.Clusters))
	before, registered := p.committed(state)
	for _, name := range before.Clusters() {
		if state.Registry.Removed(name) {
			c, there := registered.Get(name)
			if !there {
				c.Name = name
			}
			fleet.Notes = append(fleet.Notes, leaves(c, "objects applied by gitopsd stay"))
		}
	}
	owner := fleetOf(ctx, p.root, p.options.takeOver)
	var wg sync.WaitGroup
	for i, c := range state.Clusters {
		wg.Go(func() {
			cp := shown(c, p.options.registry.local)
			var installed map[string]unit.Installed
			var err error
			if cp.Plan, installed, err = p.one(ctx, c, owner); err != nil {
				cp.Err = problem.Message(err)
			}
			cp.Before, cp.BeforeLocked = installedNames(c, installed, lockedNames(c, before), before, state.Lock)
			fleet.Clusters[i] = cp
		})
	}
	wg.Wait()
	fleet.Notes = append(fleet.Notes, planNotes(fleet)...)
	return ctx.Err()
}

// planNotes returns the notes of all plans, each once with its clusters.
func planNotes(fleet *preview.Fleet) []string {
	var all notes
	for i := range fleet.Clusters {
		if c := &fleet.Clusters[i]; c.Plan != nil {
			all.add(c.Name, c.Plan.Notes...)
		}
	}
	return all.lines()
}

// notes collects what there is to say of clusters, each text once.
type notes struct{ clusters show.Groups[string, string] }

func (n *notes) add(cluster string, texts ...string) {
	for _, text := range texts {
		n.clusters.Add(text, cluster)
	}
}

// lines returns the texts with their clusters.
func (n *notes) lines() []string {
	var all []string
	for text, clusters := range n.clusters.All() {
		all = append(all, preview.Subject(clusters)+": "+text)
	}
	return all
}

// committed returns the lock at HEAD: it has the versions in the clusters, even if the
// working tree's lock was updated already. Without a HEAD it returns the working tree's lock.
// registered is the registry at HEAD, empty if it cannot be read.
func (p *planner) committed(state *desired.State) (lock *lockfile.File, registered *clusters.Registry) {
	registered = new(clusters.Registry)
	commit, repo, err := commitOf(p.root, "HEAD")
	if err != nil {
		return state.Committed, registered
	}
	defer repo.Close()
	if text, err := fs.ReadFile(commit.Files, sources.RegistryFile); err == nil {
		if r, err := clusters.Parse(sources.RegistryFile, text); err == nil {
			registered = r
		}
	}
	if lock, err = desired.ReadLock(commit.Files); err != nil {
		return state.Committed, registered
	}
	return lock, registered
}

// one returns the plan for a cluster, and the installed packages by name.
func (p *planner) one(ctx context.Context, c *desired.Unit, owner apply.Fleet) (made *plan.Plan, installed map[string]unit.Installed, err error) {
	how := (*unit.Connection).Plan
	if p.options.objects {
		how = (*unit.Connection).PlanLive
	}
	made, err = planOf(ctx, p.connector, c, owner, p.log, func(connection *unit.Connection, ctx context.Context, c *desired.Unit) (*plan.Plan, error) {
		made, err := how(connection, ctx, c)
		if err == nil {
			installed = connection.Installed(ctx, c, made)
		}
		return made, err
	})
	return made, installed, err
}

// planOf makes a plan for a cluster by one of Connection's methods.
func planOf(ctx context.Context, connector *hub.Connector, c *desired.Unit, fleet apply.Fleet, log *slog.Logger,
	how func(*unit.Connection, context.Context, *desired.Unit) (*plan.Plan, error),
) (*plan.Plan, error) {
	if c.Err != nil {
		return nil, c.Err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	client, err := connector.Connect(ctx, c.Cluster)
	if err != nil {
		return nil, err
	}
	var certificates certificateOptions // a plan makes none
	completers, err := certificates.completers(0, nil)
	if err != nil {
		return nil, err
	}
	connection, err := unit.New(unit.Config{Unit: c.ID, Client: client, Fleet: fleet, Completers: completers, Alone: connector.Alone, Log: log})
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	return how(connection, ctx, c)
}

func (p *planner) print(f *preview.Fleet) error {
	w := p.cmd.OutOrStdout()
	return p.options.print(w, f, show.Options{Colour: p.colour, All: p.options.all, Width: columns(w)})
}

func (o *planOptions) print(w io.Writer, f *preview.Fleet, text show.Options) error {
	switch o.output.format {
	case "json":
		return f.WriteJSON(w)
	case "markdown":
		return f.WriteMarkdown(w)
	}
	return f.WriteText(w, text)
}

// changes reports changes of the fleet repository and of unpublished packages on this machine.
func (p *planner) changes(ctx context.Context) (<-chan error, error) {
	dirs := []string{p.root}
	for _, l := range p.options.registry.local {
		dirs = append(dirs, l.Name)
	}
	all := make(chan error)
	for _, dir := range dirs {
		changes, err := local.Watch(ctx, dir)
		if err != nil {
			return nil, err
		}
		go func() {
			for err := range changes {
				select {
				case all <- err:
				case <-ctx.Done():
				}
			}
		}()
	}
	return all, nil
}

// watch plans again after each change. It shows an error and continues.
func (p *planner) watch(ctx context.Context) error {
	changes, err := p.changes(ctx)
	if err != nil {
		return err
	}
	stderr := p.cmd.ErrOrStderr()
	for {
		fleet, err := p.plan(ctx)
		if err == nil {
			if err = p.print(fleet); err != nil {
				return err
			}
			err = listed(faults(fleet))
		}
		if ctx.Err() != nil {
			return nil
		}
		report(stderr, err)
		select {
		case <-ctx.Done():
			return nil
		case err := <-changes:
			report(stderr, err) // that something can no longer be watched
		}
		fmt.Fprintf(stderr, "\n%s changed\n", time.Now().Format(time.TimeOnly))
	}
}

func listed(faults []string) error {
	if len(faults) == 0 {
		return nil
	}
	return errors.New(strings.Join(faults, "\n"))
}
