package resolve

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"gitopsd.dev/sources"
)

// A package is held at the version in the lock if its declaration cannot be read.
// Packages that depend on it continue with that version. If not even the repository can be
// read, all packages of the cluster are held that the lock has as declared and that no
// other declaration is for, and dependencies only get versions that the lock selects for
// the cluster.

// hold adds a node for each held package. It is not installed again, since the settings in
// its declaration are unknown.
func (p *pass) hold(ctx context.Context, req Request, nodes map[string]*node) {
	for _, h := range p.held(req) {
		n := &node{held: h.declaration, err: h.err}
		if h.err == nil {
			n.load = p.load(ctx, h.ref, h.declaration.PullSecrets, req.Images)
			n.err = n.load.err
		}
		nodes[h.repository] = n
	}
}

// heldPackage is the lock's version for a declaration that cannot be read.
type heldPackage struct {
	declaration *sources.Declaration
	// repository is the declared one; ref may be its replacement.
	repository string
	ref        sources.Ref
	err        error
}

// held returns the held packages of a cluster, sorted by repository.
func (p *pass) held(req Request) []heldPackage {
	if len(req.Unreadable) == 0 {
		return nil // the usual case
	}
	var all []heldPackage
	for _, s := range p.lines[req.Cluster] {
		d, repository := unreadable(req, s.Repository), s.Repository
		for _, by := range p.cfg.Rules.Replaces {
			if d == nil && by.With.Repository == s.Repository {
				if d = unreadable(req, by.Repository); d != nil {
					repository = cmp.Or(d.Ref.Repository, by.Repository)
				}
			}
		}
		if d == nil || s.Parent != "" {
			continue
		}
		h := heldPackage{declaration: d, repository: repository, ref: versionRef(s.Repository, s.Version)}
		if last := len(all) - 1; last >= 0 && all[last].ref.Repository == s.Repository {
			all[last].err = fmt.Errorf("%s selects both %s and %s of %s for cluster %s, and the declaration of %s cannot be read; correct that",
				sources.LockFile, all[last].ref.Version(), s.Version, s.Repository, req.Cluster, d.Name)
			continue
		}
		all = append(all, h)
	}
	return all
}

// unreadable returns the declaration with errors that may be for a repository, or nil if
// there is none or another declaration is for the repository.
func unreadable(req Request, repository string) *sources.Declaration {
	if len(req.Unreadable) == 0 {
		return nil
	}
	if slices.ContainsFunc(req.Declarations, func(d sources.Declaration) bool { return sources.SameRepository(d.Ref.Repository, repository) }) {
		return nil
	}
	is := func(name string) *sources.Declaration {
		if i := slices.IndexFunc(req.Unreadable, func(d sources.Declaration) bool { return sources.SameRepository(d.Ref.Repository, name) }); i >= 0 {
			return &req.Unreadable[i]
		}
		return nil
	}
	if d := is(repository); d != nil {
		return d
	}
	return is("")
}

// versionRef is the reverse of [sources.Ref.Version].
func versionRef(repository, version string) sources.Ref {
	if d, err := sources.ParseDigest(version); err == nil {
		return sources.Ref{Repository: repository, Digest: d}
	}
	return sources.Ref{Repository: repository, Tag: version}
}
