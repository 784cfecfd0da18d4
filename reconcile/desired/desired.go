// Package desired computes what a fleet repository declares: the registry, the
// packages and objects of each cluster, and the lock.
//
// It joins sources (clusters.yaml, the lock, packages) with render. The daemon and
// the commands share it, so that `gitopsd plan` prints what `gitopsd run` executes.
// Problems of a cluster or package are kept with it and stop nothing else.
//
// reconcile/apply works on live clusters; reconcile polls the repository and commits
// the lock.
package desired

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/health"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/remote"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/render/validate"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/errgroup"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/resolve"
)

// Config is what a Computer works with.
type Config struct {
	// Resolve is how packages are resolved. Its Fetch is called once for each
	// package while a cluster uses it.
	Resolve resolve.Config
	// FromTree returns how the packages of a commit are resolved, if that is from
	// content in the commit's own files; Resolve is not used then. It may be nil.
	FromTree func(files fs.FS) (resolve.Config, error)
	// Remote are the repositories that remote bases may come from. FetchTree
	// fetches a commit of one, and is required if there are any; it may be
	// called as often as a commit is used, and by any number of goroutines.
	Remote    remote.Prefixes
	FetchTree func(context.Context, sources.Tree) (fs.FS, error)
	// Local are packages of this machine, for a plan: each is used in place of the
	// package of its repository, whatever the registry of clusters says.
	Local []Local
	// Only names the clusters to compute; empty for all. The others keep
	// their lines in the lock.
	Only []string
	// Parallel bounds the clusters that are rendered at a time; 0 means 4.
	Parallel int
}

// Computer computes states, and keeps the parsed packages and rendered objects
// of the last one so that the next shares them. It is safe for use by one
// goroutine at a time.
type Computer struct {
	cfg      Config
	renderer render.Renderer
	// resolving is how the packages of the present commit are resolved.
	resolving resolve.Config
	// fetchAny fetches a package that nobody may keep.
	fetchAny func(context.Context, sources.Origin, sources.Digest) (*sources.Package, error)

	mu       sync.Mutex
	packages map[sources.Digest]*sources.Package
	used     map[sources.Digest]bool

	// types are compiled ones, which the states share.
	types validate.Cache
}

// New makes a Computer.
func New(cfg Config) *Computer {
	c := &Computer{cfg: cfg, packages: make(map[sources.Digest]*sources.Package)}
	c.resolveBy(cfg.Resolve)
	return c
}

// resolveBy sets how packages are resolved.
func (c *Computer) resolveBy(cfg resolve.Config) {
	c.resolving = cfg
	fetch := cfg.Fetch
	c.fetchAny = fetch
	c.resolving.Fetch = func(ctx context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
		return c.fetch(ctx, from, d, fetch)
	}
}

// fetch keeps packages in memory between computations: what was verified and
// parsed under a digest does not change.
func (c *Computer) fetch(ctx context.Context, from sources.Origin, d sources.Digest, fetch func(context.Context, sources.Origin, sources.Digest) (*sources.Package, error)) (*sources.Package, error) {
	c.mu.Lock()
	c.used[d] = true
	pkg := c.packages[d]
	c.mu.Unlock()
	if pkg != nil && pkg.Repository == from.Repository {
		return pkg, nil
	}
	pkg, err := fetch(ctx, from, d)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.packages[d] = pkg
	c.mu.Unlock()
	return pkg, nil
}

// State is what a commit declares. It is immutable once made, and shared by all
// workers.
type State struct {
	// Commit that was computed; its Hash is empty for a working tree.
	Commit sources.Commit
	// Registry is clusters.yaml, as far as it is valid.
	Registry *clusters.Registry
	// RegistryErr joins the errors in clusters.yaml.
	RegistryErr error
	// Clusters are the registered clusters that were computed, in the registry's
	// order.
	Clusters []*Unit
	// Committed is the lock in the commit, Lock the one that the declarations need.
	Committed, Lock *lockfile.File
	// Unsettled are the lines of Earlier.Hint that could not be settled; pass them to
	// the next computation again.
	Unsettled *lockfile.File
	// Waiting are revisions that wait for a person's approval.
	Waiting []resolve.Waiting
	// Notes are about the fleet's rules for versions that concern no package.
	Notes []string
	// Unasked are tags that a check could not look up.
	Unasked []sources.Ref
	// Always: some package needs its tag resolved in every pass.
	Always bool
}

// ID identifies a unit of work in the fleet. It is comparable.
type ID struct {
	// Cluster is the registered name of the cluster that the unit is in: a DNS
	// label.
	Cluster string
	// Name tells it from other units in the cluster: a DNS subdomain. It is empty
	// for the cluster's own manifests.
	Name string
}

// String returns the cluster's name, followed by a dot and the unit's name if it has
// one. It also names the unit's inventory and checkpoint.
func (id ID) String() string {
	if id.Name == "" {
		return id.Cluster
	}
	return id.Cluster + "." + id.Name
}

// ParseID is the reverse of [ID.String].
func ParseID(name string) ID {
	cluster, unit, _ := strings.Cut(name, ".")
	return ID{Cluster: cluster, Name: unit}
}

// Unit is a unit of work: an inventory in a cluster, and the objects that it should
// have. The manifests of a registered cluster are one.
type Unit struct {
	ID ID
	// Cluster is the registration of the unit's cluster.
	clusters.Cluster
	// After are the units that must be ready before this one is changed.
	After []ID
	// Suspend leaves the unit alone.
	Suspend bool
	// ReportDrift: drift is reported and not corrected.
	ReportDrift bool
	// Commit that declares it; empty for a working tree.
	Commit string
	// Declared are the packages that its manifests declare, as far as they can
	// be read.
	Declared []sources.Declaration
	// Images are the ImageConfigs among its manifests.
	Images sources.ImageConfigs
	// Packages are the selected packages, sorted by repository.
	Packages []sources.Selected
	// Objects is everything rendered; nil when rendering failed as a whole.
	Objects *manifest.Set
	// Err is why rendering failed as a whole. It does not name the cluster.
	Err error
	// Faults are the problems of single packages and objects.
	Faults []problem.Problem
	// Notes are worth a person's attention, but no faults.
	Notes []string
	// Waiting are revisions of packages that wait for a person's approval.
	Waiting []string
	// Inactive are types that no activation policy activates, Delegated those
	// of the packages that Crossplane installs.
	Inactive, Delegated []render.PackageType
	// Incomplete names the packages that could not be resolved or rendered.
	Incomplete []string
	// Allowances are the breaking changes of types that declarations allow, by
	// the package's name.
	Allowances map[string]Allowances
	// Health has the rules for the health of kinds; nil if rendering failed as a whole.
	Health *health.Custom
	// Patched are the objects of Objects that Spec.Patches changed, by ID, as
	// they were before.
	Patched map[manifest.ID]*manifest.Object
	// Frozen are the definitions that got rules for immutable fields, by ID.
	Frozen map[manifest.ID]render.Frozen
	// Keeps reports whether an existing object that is not in Objects must stay,
	// because it may still be desired; pkg is its package. Nil if rendering failed
	// as a whole: then all must stay.
	Keeps func(id manifest.ID, pkg string) bool
	// FindType returns a definition in which a type has the given digest, and where
	// it was found: in the rendered objects of any cluster of the state, in its
	// packages as published, or in other versions of these in the lock. It may fetch
	// packages. The definition is nil if there is none.
	FindType func(ctx context.Context, gvk schema.GroupVersionKind, digest string) (definition map[string]any, where string)
	// Types compiles the types that objects are checked by, for all clusters.
	Types *validate.Cache

	// FindBehaviour returns the behaviour with a digest that acts on a kind's objects,
	// and where it was found: in any cluster of the state, or with another version in
	// the lock of the package that defines the kind. It may fetch packages. The
	// behaviour is nil if there is none.
	FindBehaviour func(ctx context.Context, kind schema.GroupKind, digest string) (i *behaviour.Identity, where string)

	// index finds what acts on the types of Objects.
	index func() *behaviour.Index
	// with renders the unit with other packages; nil if that fails.
	with func(ctx context.Context, packages []sources.Selected) *manifest.Set
	// gates are the objects of packages that are waited for.
	gates map[string]plan.Gates
	// idle are notes on verification policies that match nothing, on packages that stay
	// as they are, and on versions that it has in spite of a rule.
	idle []string
	// bases are the remote bases that it is rendered from.
	bases remote.Bases
}

// Registered returns the unit of a cluster's own manifests, with nothing but the
// registration. A cluster that is to be emptied waits for no other, and should have
// no objects whatever its manifests declare.
func Registered(c clusters.Cluster, commit string) *Unit {
	u := &Unit{
		ID: ID{Cluster: c.Name}, Cluster: c, Commit: commit,
		Suspend: c.Spec.Suspend, ReportDrift: c.Spec.Drift == clusters.Report,
	}
	if c.Remove {
		u.Objects, _ = manifest.NewSet(nil) // nothing is defined twice
		return u
	}
	for _, on := range c.Spec.DependsOn {
		u.After = append(u.After, ID{Cluster: on})
	}
	return u
}

// Removed reports whether a unit is no longer part of the fleet. It returns false if
// errors in the registry leave that open.
func (s *State) Removed(id ID) bool { return s.Registry.Removed(id.Cluster) }

// Allowances are what a package's declaration allows in its version.
type Allowances struct {
	Version string
	All     []compat.Allowance
}

// Order returns the declared order of the packages, by name.
func (c *Unit) Order() map[string]plan.Order {
	order := make(map[string]plan.Order, len(c.Packages))
	for _, p := range c.Packages {
		order[p.Declaration.Name] = plan.Order{DependsOn: annotation(p.Declaration, manifest.DependsOnAnnotation), File: p.Declaration.File}
	}
	return order
}

func annotation(d sources.Declaration, key string) string {
	metadata, _ := d.Document.Tree["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	text, _ := annotations[key].(string)
	return text
}

// Allows reports whether a package's declaration allows a breaking finding, and the
// reason.
func (c *Unit) Allows(pkg string, f compat.Finding) (reason string, ok bool) {
	a := c.Allowances[pkg]
	found, ok := compat.Allowed(a.All, a.Version, f)
	return found.Reason, ok
}

// Complete reports whether Objects is everything that the cluster should have.
func (c *Unit) Complete() bool { return c.Err == nil && len(c.Faults) == 0 }

// Get returns the unit of that name, as [ID.String] has it; nil if there is none. The
// unit of a cluster's own manifests has the cluster's name.
func (s *State) Get(name string) *Unit {
	for _, c := range s.Clusters {
		if c.ID.String() == name {
			return c
		}
	}
	return nil
}

// Origin returns where to ask for the versions of a package's repository: the origin
// of the first cluster that has or declares the package, else its own name.
func (s *State) Origin(repository string) sources.Origin {
	for _, c := range s.Clusters {
		if o, ok := c.Origin(repository); ok {
			return o
		}
	}
	return sources.Origin{Repository: repository}
}

// Origin returns where the cluster gets a package from, also if the package could
// not be resolved.
func (cl *Unit) Origin(repository string) (sources.Origin, bool) {
	for _, p := range cl.Packages {
		if p.Pin.Ref.Repository == repository {
			return p.Origin, true
		}
	}
	for _, d := range cl.Declared {
		if d.Ref.Repository == repository {
			o, err := cl.Images.Origin(d.Ref, d.PullSecrets)
			return o, err == nil
		}
	}
	return sources.Origin{}, false
}

// Problems returns all problems of the cluster: Err and Faults.
func (cl *Unit) Problems() []problem.Problem {
	if cl.Err == nil {
		return cl.Faults
	}
	return append(problem.Of(problem.In(cl.Name, cl.Err)), cl.Faults...)
}

// Problems returns all problems of the registry, clusters, packages and objects. A
// problem that several clusters share is listed once, without a cluster.
func (s *State) Problems() []problem.Problem {
	all := problem.Of(s.RegistryErr)
	for _, c := range s.Clusters {
		all = append(all, c.Problems()...)
	}
	return problem.Merge(all)
}

// Err returns [State.Problems] as an error, nil if there are none.
func (s *State) Err() error { return problem.Join(s.Problems()) }

// fault notes a problem of a package or an object.
func (cl *Unit) fault(p problem.Problem) {
	p.Cluster = cl.Name
	cl.Faults = append(cl.Faults, p)
}

// LockChanged reports whether the lock which the declarations ask for differs from
// the committed one.
func (s *State) LockChanged() bool {
	return string(s.Lock.Format()) != string(s.Committed.Format())
}

// ErrNoRegistry is in the error for a repository without clusters.yaml.
var ErrNoRegistry = errors.New("no " + sources.RegistryFile)

// Earlier is what was resolved before and may not be in a commit's lock yet. The
// commit's lock comes first.
type Earlier struct {
	// Asked is the Lock of an earlier state, Of its Committed lock. Nil for none.
	Asked, Of *lockfile.File
	// Hint are lines of a run that was interrupted, which others may have
	// written; nil for none.
	Hint *lockfile.File
}

// before is a commit's lock with what was resolved before.
func (e Earlier) before(committed *lockfile.File) *lockfile.File {
	if e.Asked == nil || e.Asked == e.Of {
		return committed
	}
	return lockfile.Rebase(e.Of, e.Asked, committed)
}

// Compute computes the state of a commit. It fails if there is no registry
// ([ErrNoRegistry]), if the lock cannot be read, or if ctx ends; all other problems
// are in the state.
func (c *Computer) Compute(ctx context.Context, commit sources.Commit, earlier Earlier) (*State, error) {
	s := &State{Commit: commit}
	text, err := fs.ReadFile(commit.Files, sources.RegistryFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w at the root of the repository: it registers the clusters", ErrNoRegistry)
	} else if err != nil {
		return nil, err
	}
	s.Registry, s.RegistryErr = clusters.Parse(sources.RegistryFile, text)
	if s.Committed, err = ReadLock(commit.Files); err != nil {
		return nil, err
	}
	if c.cfg.FromTree != nil {
		cfg, err := c.cfg.FromTree(commit.Files)
		if err != nil {
			return nil, err
		}
		c.resolveBy(cfg)
	}
	for _, name := range c.cfg.Only {
		if s.Registry.Removed(name) {
			return nil, fmt.Errorf("cluster %q is not registered in %s", name, sources.RegistryFile)
		}
	}
	for _, cl := range s.Registry.Clusters {
		if len(c.cfg.Only) == 0 || slices.Contains(c.cfg.Only, cl.Name) {
			s.Clusters = append(s.Clusters, Registered(cl, commit.Hash))
		}
	}
	wanted := make([]*render.Wanted, len(s.Clusters))
	c.each(s.Clusters, func(i int, cl *Unit) {
		if cl.Remove {
			wanted[i] = new(render.Wanted)
			return
		}
		var err error
		// Problems of declarations are in wanted, and are reported when it is
		// expanded.
		if wanted[i], err = c.want(ctx, commit.Files, cl); wanted[i] == nil {
			cl.Err = err
		}
	})
	if err := c.resolve(ctx, s, earlier, wanted); err != nil {
		return nil, err
	}
	c.each(s.Clusters, func(i int, cl *Unit) {
		if cl.Err == nil && !cl.Remove {
			c.expand(ctx, commit.Files, cl, wanted[i])
		}
	})
	c.renderer.Sweep()
	f := &finder{state: s, fetch: c.fetchAny, found: make(map[typeKey]found), behaviours: make(map[behaviourKey]foundBehaviour)}
	for _, cl := range s.Clusters {
		cl.FindType, cl.FindBehaviour, cl.Types = f.find, f.findBehaviour, &c.types
	}
	return s, ctx.Err()
}

// ReadLock reads the lock of a repository. A missing lock is an empty one.
func ReadLock(files fs.FS) (*lockfile.File, error) {
	text, err := fs.ReadFile(files, sources.LockFile)
	if errors.Is(err, fs.ErrNotExist) {
		return new(lockfile.File), nil
	} else if err != nil {
		return nil, err
	}
	return lockfile.Parse(sources.LockFile, text)
}

func (c *Computer) each(all []*Unit, do func(int, *Unit)) {
	var g errgroup.Group
	g.SetLimit(cmp.Or(c.cfg.Parallel, 4))
	for i, cl := range all {
		g.Go(func() error {
			defer func() {
				if v := recover(); v != nil {
					cl.Err = errgroup.Recovered(v)
				}
			}()
			do(i, cl)
			return nil
		})
	}
	_ = g.Wait() // each cluster keeps its own error
}

// Input is what the cluster is rendered from, given the repository's files.
func (cl *Unit) Input(files fs.FS) render.Input {
	in := render.Input{Cluster: cl.Name, Files: files, Path: cl.Spec.Path, Remote: cl.bases, Delegate: cl.Spec.Packages == clusters.Delegate, EnforcePins: cl.Spec.Pins == clusters.Enforce}
	in.Patches = patches(cl)
	return in
}

// resolve takes the lines of clusters that left the registry out of the lock, and
// resolves the packages of all others at once.
func (c *Computer) resolve(ctx context.Context, s *State, earlier Earlier, wanted []*render.Wanted) error {
	var requests []resolve.Request
	for i, cl := range s.Clusters {
		req := resolve.Request{Cluster: cl.Name, Failed: cl.Err != nil}
		if cl.Err == nil {
			cl.Declared, cl.Images = wanted[i].Packages, wanted[i].Images
			req.Declarations, req.Images, req.Unreadable = cl.Declared, cl.Images, wanted[i].Unreadable
			for _, err := range wanted[i].Faults() {
				cl.fault(problem.Problem{Reason: err.Error()})
			}
			for _, d := range req.Declarations {
				s.Always = s.Always || d.PullPolicy == sources.PullAlways
			}
		}
		requests = append(requests, req)
	}
	c.used = make(map[sources.Digest]bool)
	before := earlier.before(s.Committed).Clone()
	for _, name := range before.Clusters() {
		if s.Registry.Removed(name) {
			before.Select(name, nil)
		}
	}
	cfg := c.resolving
	cfg.Rules, cfg.Refuse = s.Registry.Rules, s.Registry.RulesErr
	c.replace(&cfg, s.Commit.Files)
	res, err := resolve.Resolve(ctx, cfg, before, earlier.Hint, requests)
	if err != nil {
		return err
	}
	for d := range c.packages {
		if !c.used[d] {
			delete(c.packages, d)
		}
	}
	// One limit for all of them: a registry that hangs holds up a pass once.
	verifying, cancel := context.WithTimeout(ctx, cmp.Or(c.resolving.Timeout, resolve.DefaultTimeout))
	defer cancel()
	for i, cl := range s.Clusters {
		if r := res.Clusters[cl.Name]; r != nil {
			cl.Packages, wanted[i].Held = r.Selected, r.Held
			for _, e := range append(r.Errors, c.verifyControllers(verifying, cl, wanted[i])...) {
				cl.fault(problem.Problem{Package: e.Name, Reason: e.Err.Error()})
				cl.Incomplete = append(cl.Incomplete, e.Name)
			}
			for _, h := range r.Held {
				cl.idle = append(cl.idle, fmt.Sprintf("package %s stays at %s, which %s has, while its declaration cannot be read", h.Declaration.Name, h.Pin.Ref.Version(), sources.LockFile))
			}
			cl.idle = append(cl.idle, r.Notes...)
			cl.readAllowances()
		}
	}
	s.Lock, s.Waiting, s.Unasked, s.Unsettled = res.Lock, res.Waiting, res.Unasked, res.Unsettled
	for _, w := range s.Waiting {
		for _, cl := range s.Clusters {
			if slices.Contains(w.Clusters, cl.Name) {
				cl.Waiting = append(cl.Waiting, w.String())
			}
		}
	}
	if len(c.cfg.Only) == 0 && s.RegistryErr == nil {
		s.Notes = s.Registry.Rules.Idle(s.has, s.depends, s.replaces)
	}
	return nil
}

// depends reports whether the version of a package is chosen for some cluster. It is
// also true if that is not known.
func (s *State) depends(repository string) bool {
	return slices.ContainsFunc(s.Clusters, func(c *Unit) bool {
		return !c.Remove && (c.Err != nil || len(c.Faults) > 0) || slices.ContainsFunc(c.Packages, func(p sources.Selected) bool {
			return p.Parent != "" && p.Repository() == repository
		})
	})
}

// has reports whether some cluster has a package, by its own name or in place of
// another, or one that is replaced. It is also true if that is not known.
func (s *State) has(repository string) bool {
	return slices.ContainsFunc(s.Clusters, func(c *Unit) bool {
		return !c.Remove && (c.Err != nil || len(c.Faults) > 0) || slices.ContainsFunc(c.Packages, func(p sources.Selected) bool {
			return p.Pin.Ref.Repository == repository || p.Repository() == repository
		})
	})
}

// verifyControllers removes packages from a cluster if a DeploymentRuntimeConfig sets
// a controller image that is not signed as a policy requires, and returns an error
// for each. sources/resolve verifies the packages' own images.
func (c *Computer) verifyControllers(ctx context.Context, cl *Unit, wanted *render.Wanted) []*resolve.PackageError {
	var failed []*resolve.PackageError
	images := referenced(cl)
	cl.Packages = slices.DeleteFunc(cl.Packages, func(s sources.Selected) bool {
		image := wanted.ControllerImage(s)
		if image == "" {
			return false
		}
		ref, err := resolve.ParseImage(image)
		if err == nil {
			images = append(images, ref)
			err = c.verifyController(ctx, cl.Images, ref)
		}
		if err != nil {
			failed = append(failed, &resolve.PackageError{Name: s.Declaration.Name, Ref: s.Pin.Ref, Err: fmt.Errorf("the image of its DeploymentRuntimeConfig: %w", err)})
		}
		return err != nil
	})
	cl.idle = cl.Images.Idle(images)
	return failed
}

func (c *Computer) verifyController(ctx context.Context, images sources.ImageConfigs, ref sources.Ref) error {
	from, err := images.Origin(ref, nil)
	if err != nil {
		return err
	}
	_, err = resolve.Verify(ctx, c.resolving.Verify, images, sources.Pin{Ref: ref, Digest: ref.Digest}, from)
	return err
}

// referenced returns the names by which a cluster's policies may match its packages:
// declared names, names to fetch from, and names of controller images.
func referenced(cl *Unit) []sources.Ref {
	var refs []sources.Ref
	for _, d := range cl.Declared {
		refs = append(refs, d.Ref)
		if o, err := cl.Images.Origin(d.Ref, d.PullSecrets); err == nil {
			refs = append(refs, sources.Ref{Repository: o.Repository, Tag: d.Ref.Tag, Digest: d.Ref.Digest})
		}
	}
	for _, s := range cl.Packages {
		refs = append(refs, s.Pin.Ref, sources.Ref{Repository: s.Origin.Repository, Tag: s.Pin.Ref.Tag, Digest: s.Pin.Ref.Digest})
		for _, image := range []string{s.Runtime, s.Package.Meta.Image} {
			if ref, err := resolve.ParseImage(image); err == nil {
				refs = append(refs, ref)
			}
		}
	}
	return refs
}

// readAllowances reads the allowances of the declarations. A malformed one allows
// nothing.
func (c *Unit) readAllowances() {
	c.Allowances = make(map[string]Allowances)
	for _, p := range c.Packages {
		text := annotation(p.Declaration, manifest.AllowBreakingAnnotation)
		if text == "" {
			continue
		}
		all, err := compat.ParseAllowances(text)
		if err != nil {
			c.fault(problem.Problem{Package: p.Declaration.Name, Reason: fmt.Sprintf("%s: %v", p.Declaration.File, err)})
			continue
		}
		c.Allowances[p.Declaration.Name] = Allowances{Version: p.Pin.Ref.Version(), All: all}
	}
}

func (c *Computer) expand(ctx context.Context, files fs.FS, cl *Unit, wanted *render.Wanted) {
	rendered, err := c.renderer.Expand(ctx, cl.Input(files), wanted, cl.Packages)
	if rendered == nil {
		cl.Err = err
		return
	}
	cl.Objects, cl.Keeps, cl.Patched, cl.Frozen = rendered.Objects, rendered.Keeps, rendered.Patched, rendered.Frozen
	cl.index = sync.OnceValue(func() *behaviour.Index { return behaviour.NewIndex(cl.Objects, cl.Packages) })
	in := cl.Input(files)
	cl.with = func(ctx context.Context, packages []sources.Selected) *manifest.Set {
		other, _ := c.renderer.Expand(ctx, in, wanted, packages) // what has errors has them in rendered too
		if other == nil {
			return nil
		}
		return other.Objects
	}
	cl.Notes, cl.Inactive, cl.Delegated = append(cl.idle, rendered.Notes...), rendered.Inactive, rendered.Delegated
	for _, e := range rendered.Broken {
		if slices.Contains(cl.Incomplete, e.Name) {
			continue // it was not resolved, and has its error
		}
		cl.fault(problem.Problem{Package: e.Name, Reason: e.Err.Error()})
		cl.Incomplete = append(cl.Incomplete, e.Name)
	}
	for _, e := range rendered.Refused {
		cl.fault(problem.Problem{Object: e.ID.String(), Reason: fmt.Sprintf("%s: %v", e.Origin, e.Err)})
	}
	for _, e := range rendered.Conflicts {
		cl.fault(problem.Problem{Object: e.ID.String(), Reason: e.Reason(), Advice: "keep one definition"})
	}
	slices.Sort(cl.Incomplete)
	cl.readHealth()
	cl.readGates()
}
