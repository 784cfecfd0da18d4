package desired

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/resolve"
)

// Earlier has lines that were resolved before and may not be in a commit's lock yet. The
// commit's lock takes precedence.
type Earlier struct {
	// Asked is the Lock of an earlier state, and Of its Committed lock; may be nil.
	Asked, Of *lockfile.File
	// Hint has lines of an interrupted run; may be nil. Others may have written them.
	Hint *lockfile.File
}

// before returns a commit's lock with the lines that were resolved before.
func (e Earlier) before(committed *lockfile.File) *lockfile.File {
	if e.Asked == nil || e.Asked == e.Of {
		return committed
	}
	return lockfile.Rebase(e.Of, e.Asked, committed)
}

// resolveBy sets the configuration for resolving packages.
func (c *Computer) resolveBy(cfg resolve.Config) {
	c.resolving = cfg
	fetch := cfg.Fetch
	c.fetchAny = fetch
	c.resolving.Fetch = func(ctx context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
		return c.fetch(ctx, from, d, fetch)
	}
}

// fetch returns a package, and keeps it in memory for later computations: the content of a
// digest does not change.
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

// resolve removes clusters that left the registry from the lock, and resolves the packages of
// all others together. all are the clusters of s, followed by those that are only heard.
func (c *Computer) resolve(ctx context.Context, s *State, earlier Earlier, all []*Unit, wanted []*render.Wanted) error {
	var requests []resolve.Request
	for i, cl := range all {
		req := resolve.Request{Cluster: cl.Name, Failed: cl.Err != nil, Heard: i >= len(s.Clusters)}
		if cl.Err == nil {
			cl.Declared, cl.Unreadable, cl.Images = wanted[i].Packages, wanted[i].Unreadable, wanted[i].Images
			req.Declarations, req.Unreadable, req.Images = cl.Declared, cl.Unreadable, cl.Images
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
		_, registered := s.Registry.Get(name)
		switch {
		case s.Registry.Removed(name):
			before.Leave(name)
		case !registered: // its document may be one with errors
			requests = append(requests, resolve.Request{Cluster: name, Failed: true})
		}
	}
	cfg := c.resolving
	cfg.Rules, cfg.Refuse = s.Registry.Rules, s.Registry.RulesErr
	c.replace(&cfg, s.Commit.Files)
	res, err := resolve.Resolve(ctx, cfg, before, earlier.Hint, requests)
	if err != nil {
		return err
	}
	for i, cl := range s.Clusters {
		if cl.Err == nil && !cl.Remove && wanted[i].Bare() {
			res.Lock.Select(cl.Name, before.Selections(cl.Name)) // the cluster keeps all that it has
		}
	}
	for d := range c.packages {
		if !c.used[d] {
			delete(c.packages, d)
		}
	}
	// One limit for all: a registry that hangs delays a pass once.
	verifying, cancel := context.WithTimeout(ctx, cmp.Or(c.resolving.Timeout, resolve.DefaultTimeout))
	defer cancel()
	for i, cl := range s.Clusters {
		if r := res.Clusters[cl.Name]; r != nil {
			cl.Packages, wanted[i].Held, wanted[i].Left = r.Selected, r.Held, r.Left
			for _, e := range append(r.Errors, c.verifyControllers(verifying, cl, wanted[i])...) {
				p := problem.Problem{Package: e.Name, Reason: e.Err.Error(), Origin: e.Place}
				if e.Lasting() {
					cl.fault(p)
				} else {
					cl.passingFault(p)
				}
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
	for _, e := range res.Unmoved {
		s.Unmoved = append(s.Unmoved, problem.Problem{Package: e.Name, Reason: e.Err.Error()})
	}
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

// some reports whether some cluster has such a package, or has problems, so that it may.
func (s *State) some(such func(sources.Selected) bool) bool {
	return slices.ContainsFunc(s.Clusters, func(c *Unit) bool {
		return !c.Remove && !c.Complete() || slices.ContainsFunc(c.Packages, such)
	})
}

// depends reports whether the version of a package may be chosen for a cluster, as a dependency.
func (s *State) depends(repository string) bool {
	return s.some(func(p sources.Selected) bool {
		return p.Parent != "" && sources.SameRepository(p.Repository(), repository)
	})
}

// has reports whether a cluster may have a package, under its own name or as the replacement of
// another, or one that it replaces.
func (s *State) has(repository string) bool {
	return s.some(func(p sources.Selected) bool {
		return sources.SameRepository(p.Pin.Ref.Repository, repository) || sources.SameRepository(p.Repository(), repository)
	})
}

// verifyControllers moves packages of a cluster to wanted.Left if a DeploymentRuntimeConfig
// sets a controller image without a required signature, and returns an error for each.
// sources/resolve verifies the packages' own images.
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
			wanted.Left = append(wanted.Left, s)
			failed = append(failed, &resolve.PackageError{Name: s.Declaration.Name, Ref: s.Pin.Ref, Place: s.Declaration.Place(), Err: fmt.Errorf("the image of its DeploymentRuntimeConfig: %w", err)})
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

// referenced returns the names that a cluster's policies may match: declared names of packages,
// names to fetch from, and names of controller images.
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
