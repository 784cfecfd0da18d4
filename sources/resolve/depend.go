package resolve

import (
	"cmp"
	"context"
	"errors"
	"path"
	"slices"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

// maxRounds bounds how often dependencies are chosen again because a chosen version has
// other dependencies.
const maxRounds = 50

// cluster resolves the declarations of a cluster and their dependencies. It returns the
// cluster's lines in the lock, too.
func (p *pass) cluster(ctx context.Context, req Request) (*Resolution, []lockfile.Selection) {
	if p.cfg.Refuse != nil {
		return p.refused(req)
	}
	nodes, failed := p.declared(ctx, req)
	p.hold(ctx, req, nodes)
	p.dependencies(ctx, req, nodes)
	distinct(nodes)
	breakCycles(nodes)
	spread(nodes)
	stays := p.staying(req, nodes)

	out := &Resolution{Errors: failed}
	var selections []lockfile.Selection
	for _, repo := range sortedKeys(nodes) {
		n := nodes[repo]
		if n.held != nil {
			if n.err == nil && n.held.Ref.Repository == repo {
				s := sources.Selected{Declaration: *n.held, Pin: n.load.pin, Package: n.load.pkg, Origin: n.load.origin, Runtime: n.load.runtime}
				s.Declaration.Kind = n.load.pkg.Meta.Kind // the declaration's may be misspelled
				out.Held = append(out.Held, s)
			}
			continue // its declaration has an error already, and keep keeps its lines
		}
		if stays[repo] {
			continue // keep keeps its lines
		}
		if n.err != nil {
			out.Errors = append(out.Errors, &PackageError{Name: n.name(), Ref: n.ref(repo), Err: n.err, Place: n.place(), repository: repo})
			continue
		}
		s := sources.Selected{
			Pin: n.load.pin, Package: n.load.pkg, Origin: n.load.origin, Verified: n.load.verified,
			Runtime: n.load.runtime, PullSecrets: n.load.pullSecrets,
		}
		if n.load.by != nil {
			s.Replaces = n.load.asked
		}
		repo := n.load.ref.Repository // as used
		if n.declared != nil {
			s.Declaration = *n.declared
			selections = append(selections, lockfile.Selection{Cluster: req.Cluster, Repository: repo, Version: n.load.ref.Version()})
		} else {
			s.Declaration = sources.Declaration{Kind: n.load.pkg.Meta.Kind, Name: path.Base(n.load.asked.Repository), Ref: n.load.ref}
			s.Parent = nodes[n.parents[0]].load.ref.Repository
			moves := func(parent string) bool { return !stays[parent] }
			for _, parent := range n.parents {
				if stays[parent] && slices.ContainsFunc(n.parents, moves) {
					continue
				}
				selections = append(selections, lockfile.Selection{Cluster: req.Cluster, Repository: repo, Version: n.load.ref.Version(), Parent: nodes[parent].load.ref.Repository})
			}
		}
		out.Selected = append(out.Selected, s)
	}
	slices.SortFunc(out.Errors, func(a, b *PackageError) int { return cmp.Compare(a.Name, b.Name) })
	out.Notes = p.notes(out)
	selections = p.keep(req, nodes, stays, out, selections)
	out.Left = p.left(ctx, req, nodes, out, selections)
	return out, selections
}

// keep adds the lock's lines for packages that failed, stay or are held, and for their
// dependencies, so that a failing registry or a typing error removes nothing from the
// lock. If a declaration failed that the lock does not know, it may be one of the lock's
// under a misspelt repository; then the lines of packages that are no longer declared
// are kept, too.
func (p *pass) keep(req Request, nodes map[string]*node, stays map[string]bool, out *Resolution, selections []lockfile.Selection) []lockfile.Selection {
	kept, failed, now := make(map[string]bool), make(map[string]bool), make(map[string]string)
	for _, e := range out.Errors {
		failed[e.Ref.Repository], failed[e.repository] = true, true
	}
	for repo := range stays {
		failed[repo], failed[nodes[repo].load.ref.Repository] = true, true
	}
	for repo, n := range nodes {
		if n.held != nil {
			kept[repo] = true
		}
		if n.held != nil && n.load != nil {
			kept[n.load.ref.Repository] = true
		}
		failed[repo] = failed[repo] || n.held != nil && n.err != nil
	}
	for _, s := range selections {
		now[s.Repository] = s.Version
	}
	before := p.lines[req.Cluster]
	strange := p.strange(req, nodes)
	for _, s := range before {
		if len(strange) > 0 && s.Parent == "" && nodes[s.Repository] == nil {
			failed[s.Repository] = true
		}
	}
	for changed := true; changed; {
		changed = false
		for _, s := range before {
			if s.Parent != "" && failed[s.Parent] && !failed[s.Repository] && now[s.Repository] == "" {
				failed[s.Repository], changed = true, true
			}
		}
	}
	for _, s := range before {
		version, elsewhere := now[s.Repository]
		switch {
		case elsewhere && version != s.Version:
		case kept[s.Repository], failed[s.Repository], s.Parent != "" && failed[s.Parent]:
			selections = append(selections, s)
		}
	}
	return selections
}

// declared loads the declared packages. Two declarations of one repository define the
// same objects, and are an error of both.
func (p *pass) declared(ctx context.Context, req Request) (map[string]*node, []*PackageError) {
	nodes, used := make(map[string]*node), make(map[string]*node)
	var failed []*PackageError
	for _, d := range req.Declarations {
		repo := d.Ref.Repository
		if other, twice := nodes[repo]; twice {
			err := decidedf("%s and %s both install %s; a cluster can have one of them: remove the other", other.declared.Name, d.Name, repo)
			other.err = err
			failed = append(failed, &PackageError{Name: d.Name, Ref: d.Ref, Err: err, Place: d.Place()})
			continue
		}
		n := &node{declared: &d, load: &load{asked: d.Ref, ref: d.Ref}}
		ref, err := p.approved(req, d)
		switch unapproved := (*Unapproved)(nil); {
		case p.excluded(d.Ref) != nil:
			n.err = p.excluded(d.Ref)
		case errors.As(err, &unapproved):
			unapproved.New = p.peek(ctx, req, d)
			n.err = decided{err}
		case err != nil:
			n.err = decided{err}
		default:
			if ref != d.Ref {
				p.waits(ctx, req, d, ref)
				n.waits, d.Ref = d.Ref, ref
			}
			n.load = p.load(ctx, ref, d.PullSecrets, req.Images)
			n.err = n.load.err
		}
		if n.err == nil {
			n.err = p.excluded(n.load.pinned())
		}
		if n.err == nil {
			if have := n.load.pkg.Meta.Kind; have != d.Kind {
				n.err = decidedf("%s is a %s, declared as %s %s; change the declaration's kind", n.load.pin, have, d.Kind, d.Name)
			}
		}
		if other := used[n.load.ref.Repository]; other != nil && n.err == nil {
			n.err = decidedf("%s and %s both install %s, which replaces %s; a cluster can have one of them", other.declared.Name, d.Name, n.load.ref.Repository, cmp.Or(replaced(n.load), replaced(other.load)))
		}
		nodes[repo], used[n.load.ref.Repository] = n, n
	}
	return nodes, failed
}

// dependencies adds the dependencies of the nodes, with one version for each repository
// that satisfies all dependents. The lock's version stays as long as it does.
func (p *pass) dependencies(ctx context.Context, req Request, nodes map[string]*node) {
	locked, hinted := p.selected(req)
	moving := make(map[string]bool)
	for round := range maxRounds {
		if round == maxRounds/2 {
			clear(moving) // what settled in time is none of them
		}
		wanted := edges(nodes)
		changed := false
		for _, repo := range sortedKeys(wanted) {
			n, there := nodes[repo]
			if there && n.fixed() {
				continue
			}
			ref, err := p.version(ctx, req, repo, locked, hinted, wanted[repo])
			if there && err == nil && n.load != nil && n.load.asked == ref {
				continue
			}
			next := &node{err: err}
			if err == nil {
				next.load = p.load(ctx, ref, nil, req.Images)
				next.err = next.load.err
			}
			if !there || n.err == nil || next.err == nil {
				changed, moving[repo] = true, true
			}
			nodes[repo] = next
		}
		for repo, n := range nodes {
			if _, needed := wanted[repo]; !needed && !n.fixed() {
				delete(nodes, repo)
				changed, moving[repo] = true, true
			}
		}
		if !changed {
			blame(nodes, wanted)
			return
		}
	}
	unsettle(nodes, moving)
}

// staying returns the dependencies that only failed packages need, in another version than the
// lock's. They stay as they are, like these packages: the versions that the cluster has of both
// go together.
func (p *pass) staying(req Request, nodes map[string]*node) map[string]bool {
	locked := func(ref sources.Ref) bool {
		return slices.ContainsFunc(p.lines[req.Cluster], func(s lockfile.Selection) bool {
			return s.Repository == ref.Repository && s.Version == ref.Version()
		})
	}
	stays := make(map[string]bool)
	needs := func(parent string) bool { return !stays[parent] && nodes[parent].err == nil }
	for before := -1; len(stays) != before; {
		before = len(stays)
		for repo, n := range nodes {
			if n.err == nil && !n.fixed() && !locked(n.load.ref) && !slices.ContainsFunc(n.parents, needs) {
				stays[repo] = true
			}
		}
	}
	return stays
}
