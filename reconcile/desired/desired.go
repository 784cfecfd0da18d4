// Package desired computes what a fleet repository declares: the registry, the
// packages and objects of each cluster, and the lock.
//
// It joins sources (clusters.yaml, the lock, packages) with render. The daemon and
// the commands share it, so that `gitopsd plan` prints what `gitopsd run` executes.
// A problem of a cluster or a package stops nothing else.
//
// desired.go has the [Computer], state.go the [State] of a commit, and unit.go the [Unit] of
// a cluster. packages.go resolves and verifies packages, replace.go reads them from
// directories, and bases.go fetches remote bases. conversions.go locks conversion rules,
// health.go reads health rules and gates, patches.go explains patches, and publish.go adds
// publications. find.go and behaviour.go find definitions and behaviours by their digests.
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
	"sync"

	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prove"
	"gitopsd.dev/render"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/remote"
	"gitopsd.dev/render/validate"
	"gitopsd.dev/render/why"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/errgroup"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/resolve"
)

// Config configures a [Computer].
type Config struct {
	// Resolve resolves packages. Its Fetch is called once for each package while a cluster
	// uses it.
	Resolve resolve.Config
	// FromTree, if set, returns the configuration to use in place of Resolve, for packages
	// within the files of a commit.
	FromTree func(files fs.FS) (resolve.Config, error)
	// Remote are the repositories that remote bases may come from. FetchTree fetches a commit
	// of one, and is required if there are any. It may be called repeatedly for a commit, and
	// must be safe for concurrent use.
	Remote    remote.Prefixes
	FetchTree func(context.Context, sources.Tree) (fs.FS, error)
	// Local are packages on this machine, for a plan. Each replaces the package of its
	// repository, and takes precedence over the registry of clusters.
	Local []Local
	// Only names the clusters to compute; empty for all. The others keep
	// their lines in the lock; their manifests are read, since what all clusters
	// declare decides what a tag is.
	Only []string
	// Parallel bounds the clusters that are rendered at a time; 0 means 4.
	Parallel int
}

// Computer computes states. It keeps the parsed packages and rendered objects of the last one
// for the next. It may be used by one goroutine at a time.
type Computer struct {
	cfg      Config
	renderer render.Renderer
	// resolving resolves the packages of the present commit.
	resolving resolve.Config
	// fetchAny fetches a package without keeping it.
	fetchAny func(context.Context, sources.Origin, sources.Digest) (*sources.Package, error)

	mu       sync.Mutex
	packages map[sources.Digest]*sources.Package
	used     map[sources.Digest]bool

	// types caches compiled types, and proofs the proofs of conversion rules, for all states.
	types  validate.Cache
	proofs prove.Cache
}

// New makes a Computer.
func New(cfg Config) *Computer {
	c := &Computer{cfg: cfg, packages: make(map[sources.Digest]*sources.Package)}
	c.resolveBy(cfg.Resolve)
	return c
}

// ErrNoRegistry is in the error for a repository without clusters.yaml.
var ErrNoRegistry = errors.New("no " + sources.RegistryFile)

// Compute computes the state of a commit. It fails if there is no registry
// ([ErrNoRegistry]), if the lock or the registry cannot be read, if FromTree fails, if a
// cluster of Only is not registered, or if ctx ends. All other problems are in the state.
func (c *Computer) Compute(ctx context.Context, commit sources.Commit, earlier Earlier) (*State, error) {
	return c.compute(ctx, commit, earlier, c.cfg.Only)
}

// ComputePast is Compute for a commit that another one is compared with: clusters of Only may
// not be registered yet, and are missing in the state.
func (c *Computer) ComputePast(ctx context.Context, commit sources.Commit) (*State, error) {
	return c.compute(ctx, commit, Earlier{}, nil)
}

// compute computes a state. The error says which of the required clusters is not registered.
func (c *Computer) compute(ctx context.Context, commit sources.Commit, earlier Earlier, required []string) (*State, error) {
	s := &State{Commit: commit}
	text, err := fs.ReadFile(commit.Files, sources.RegistryFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &problem.Error{Lasting: true, Err: fmt.Errorf("%w at the root of the repository: it registers the clusters", ErrNoRegistry)}
	} else if err != nil {
		return nil, err
	}
	if s.Registry, err = clusters.Parse(sources.RegistryFile, text); err != nil {
		s.RegistryErr = &problem.Error{Lasting: true, Err: err}
	}
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
	for _, name := range required {
		if s.Registry.Removed(name) {
			return nil, fmt.Errorf("cluster %q is not registered in %s%s", name, sources.RegistryFile, s.Registry.Meant(name))
		}
	}
	var beside []*Unit // what the others declare decides what a tag is, too
	for _, cl := range s.Registry.Clusters {
		if len(c.cfg.Only) == 0 || slices.Contains(c.cfg.Only, cl.Name) {
			u := Registered(cl, commit.Hash)
			u.publications, u.home = publications(s.Registry, cl.Name), s.Registry.PublishedTo(cl.Name)
			u.Beside = s.Registry.Clusters
			s.Clusters = append(s.Clusters, u)
		} else {
			beside = append(beside, Registered(cl, commit.Hash))
		}
	}
	all := slices.Concat(s.Clusters, beside)
	wanted := make([]*render.Wanted, len(all))
	c.each(all, func(i int, cl *Unit) {
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
	if err := c.resolve(ctx, s, earlier, all, wanted); err != nil {
		return nil, err
	}
	c.each(s.Clusters, func(i int, cl *Unit) {
		if cl.Err == nil && !cl.Remove {
			c.expand(ctx, s, cl, wanted[i])
		}
	})
	s.lockConversions()
	c.renderer.Sweep()
	f := &finder{state: s, fetch: c.fetchAny}
	for _, cl := range s.Clusters {
		cl.FindType, cl.FindBehaviour, cl.Types, cl.Proofs = f.find, f.findBehaviour, &c.types, &c.proofs
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
	lock, err := lockfile.Parse(sources.LockFile, text)
	if err != nil {
		return nil, &problem.Error{Lasting: true, Err: err}
	}
	return lock, nil
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

func (c *Computer) expand(ctx context.Context, s *State, cl *Unit, wanted *render.Wanted) {
	files := s.Commit.Files
	rendered, err := c.renderer.Expand(ctx, cl.Input(files), wanted, cl.Packages)
	if rendered == nil {
		cl.Err = err
		return
	}
	cl.Conversions = rendered.Conversions
	cl.Objects, cl.Bare, cl.Keeps, cl.Patched, cl.Frozen = rendered.Objects, rendered.Bare, rendered.Keeps, rendered.Patched, rendered.Frozen
	cl.index = sync.OnceValue(func() *behaviour.Index { return behaviour.NewIndex(cl.Objects, cl.Packages) })
	cl.LineOf = func(o *manifest.Object, path string) int { return why.Line(files, o, path) }
	in := cl.Input(files)
	cl.with = func(ctx context.Context, packages []sources.Selected) *manifest.Set {
		other, _ := c.renderer.Expand(ctx, in, wanted, packages) // rendered has the same errors
		if other == nil {
			return nil
		}
		return other.Objects
	}
	cl.Notes, cl.Inactive, cl.Delegated = slices.Concat(cl.idle, wanted.Notes, rendered.Notes), rendered.Inactive, rendered.Delegated
	for _, idle := range rendered.Idle {
		cl.Notes = append(cl.Notes, fmt.Sprintf("spec.patches[%d] (%s:%d) changes nothing: no object matches its target (%s)%s",
			idle.Index, sources.RegistryFile, cl.Spec.Patches[idle.Index].Line, idle.Target, idle.Meant))
	}
	for _, e := range rendered.Broken {
		if slices.Contains(cl.Incomplete, e.Name) {
			continue // it could not be resolved, and has an error
		}
		cl.fault(problem.Problem{Package: e.Name, Reason: e.Err.Error(), Origin: e.Place})
		cl.Incomplete = append(cl.Incomplete, e.Name)
	}
	for _, e := range rendered.Refused {
		cl.fault(problem.Problem{Object: e.ID.String(), Origin: e.Origin.Place(), Reason: e.Err.Error() + e.Origin.InPackage()})
	}
	for _, e := range rendered.Conflicts {
		cl.fault(problem.Problem{Object: e.ID.String(), Reason: e.Reason(), Advice: "keep one definition"})
	}
	slices.Sort(cl.Incomplete)
	cl.readHealth()
	cl.readGates()
	if s.Registry.Faulty {
		cl.keepPublished()
	}
}
