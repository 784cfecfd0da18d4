package resolve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/Masterminds/semver/v3"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/versions"
)

// maxRounds bounds how often dependencies are chosen anew because a chosen
// version has others.
const maxRounds = 50

// node is a package in one cluster's graph.
type node struct {
	load *load
	// declared is nil for a dependency.
	declared *sources.Declaration
	// parents are the repositories that depend on it.
	parents []string
	err     error
}

// edge is one dependency.
type edge struct {
	from *node
	dep  sources.Dependency
}

// cluster resolves one cluster: its declarations and their dependencies. The
// selections are the cluster's lines in the lock.
func (p *pass) cluster(ctx context.Context, req Request) (*Resolution, []lockfile.Selection) {
	nodes, failed := p.declared(ctx, req)
	p.dependencies(ctx, req, nodes)
	breakCycles(nodes)
	spread(nodes)

	out := &Resolution{Errors: failed}
	var selections []lockfile.Selection
	for _, repo := range sortedKeys(nodes) {
		n := nodes[repo]
		if n.err != nil {
			out.Errors = append(out.Errors, &PackageError{Name: n.name(), Ref: n.ref(repo), Err: n.err})
			continue
		}
		s := sources.Selected{
			Pin: n.load.pin, Package: n.load.pkg, Origin: n.load.origin, Verified: n.load.verified,
			Runtime: n.load.runtime, PullSecrets: n.load.pullSecrets,
		}
		if n.declared != nil {
			s.Declaration = *n.declared
			selections = append(selections, lockfile.Selection{Cluster: req.Cluster, Repository: repo, Version: n.load.ref.Version()})
		} else {
			s.Declaration = sources.Declaration{Kind: n.load.pkg.Meta.Kind, Name: path.Base(repo), Ref: n.load.ref}
			s.Parent = n.parents[0]
			for _, parent := range n.parents {
				selections = append(selections, lockfile.Selection{Cluster: req.Cluster, Repository: repo, Version: n.load.ref.Version(), Parent: parent})
			}
		}
		out.Selected = append(out.Selected, s)
	}
	slices.SortFunc(out.Errors, func(a, b *PackageError) int { return cmp.Compare(a.Name, b.Name) })
	return out, p.keep(req, out, selections)
}

// keep adds the lines that the lock had for packages that failed now, or that a
// declaration may mean which could not be read, so that a failing registry or a
// typing error removes nothing from the lock.
func (p *pass) keep(req Request, out *Resolution, selections []lockfile.Selection) []lockfile.Selection {
	failed, selected := make(map[string]bool), make(map[string]bool)
	for _, e := range out.Errors {
		failed[e.Ref.Repository] = true
	}
	for _, s := range selections {
		selected[s.Repository] = true
	}
	for _, s := range p.before.Selections(req.Cluster) {
		if failed[s.Repository] || s.Parent != "" && failed[s.Parent] || req.Partial && !selected[s.Repository] {
			selections = append(selections, s)
		}
	}
	return selections
}

// declared loads the declared packages. Two declarations of one repository are
// an error of both: they define the same objects.
func (p *pass) declared(ctx context.Context, req Request) (map[string]*node, []*PackageError) {
	nodes := make(map[string]*node)
	var failed []*PackageError
	for _, d := range req.Declarations {
		repo := d.Ref.Repository
		if other, twice := nodes[repo]; twice {
			err := fmt.Errorf("%s and %s both install %s; a cluster can have one of them: remove the other", other.declared.Name, d.Name, repo)
			other.err = err
			failed = append(failed, &PackageError{Name: d.Name, Ref: d.Ref, Err: err})
			continue
		}
		n := &node{declared: &d, load: p.load(ctx, d.Ref, d.PullSecrets, req.Images)}
		if n.err = n.load.err; n.err == nil {
			if have := n.load.pkg.Meta.Kind; have != d.Kind {
				n.err = fmt.Errorf("%s is a %s, declared as %s %s; change the declaration's kind", n.load.pin, have, d.Kind, d.Name)
			}
		}
		nodes[repo] = n
	}
	return nodes, failed
}

// dependencies adds the dependencies of the nodes: for each repository one
// version that satisfies all dependents. The version that the lock has for the
// cluster stays as long as it satisfies them.
func (p *pass) dependencies(ctx context.Context, req Request, nodes map[string]*node) {
	locked, hinted := p.selected(req.Cluster)
	for range maxRounds {
		wanted := edges(nodes)
		changed := false
		for _, repo := range sortedKeys(wanted) {
			n, there := nodes[repo]
			if there && n.declared != nil {
				continue
			}
			ref, err := p.choose(ctx, req, repo, locked[repo], hinted[repo], wanted[repo])
			if there && err == nil && n.load != nil && n.load.ref == ref {
				continue
			}
			next := &node{err: err}
			if err == nil {
				next.load = p.load(ctx, ref, nil, req.Images)
				next.err = next.load.err
			}
			changed = changed || !there || n.err == nil || next.err == nil
			nodes[repo] = next
		}
		for repo, n := range nodes {
			if _, needed := wanted[repo]; !needed && n.declared == nil {
				delete(nodes, repo)
				changed = true
			}
		}
		if !changed {
			blame(nodes, wanted)
			return
		}
	}
	for _, n := range nodes {
		if n.err == nil && n.declared != nil && n.load.pkg.Meta.DependsOn != nil {
			n.err = fmt.Errorf("its dependencies have no stable choice: each choice of versions requires another; declare the dependencies with the versions you want")
		}
	}
}

// edges returns all dependencies by repository.
func edges(nodes map[string]*node) map[string][]edge {
	wanted := make(map[string][]edge)
	for _, repo := range sortedKeys(nodes) {
		n := nodes[repo]
		if n.err != nil || n.declared != nil && n.declared.SkipDependencyResolution {
			continue
		}
		for _, dep := range n.load.pkg.Meta.DependsOn {
			wanted[dep.Repository] = append(wanted[dep.Repository], edge{from: n, dep: dep})
		}
	}
	return wanted
}

// blame passes the errors of dependencies on to their dependents, and records
// parents.
func blame(nodes map[string]*node, wanted map[string][]edge) {
	for _, repo := range sortedKeys(wanted) {
		n := nodes[repo]
		for _, e := range wanted[repo] {
			if n.declared != nil && n.err == nil {
				if ok, err := satisfies(n.load.pin, e.dep.Constraint); err != nil || !ok {
					e.from.err = errors.Join(e.from.err, conflict(e, n, err))
				}
			}
			n.parents = append(n.parents, e.from.load.ref.Repository)
		}
		slices.Sort(n.parents)
		n.parents = slices.Compact(n.parents)
	}
}

func conflict(e edge, n *node, err error) error {
	if err != nil {
		return fmt.Errorf("%s needs %s %s: %w", e.from.load.ref, e.dep.Repository, e.dep.Constraint, err)
	}
	return fmt.Errorf("%s needs %s %s, but %s declares %s; change one of the two", e.from.load.ref, e.dep.Repository, e.dep.Constraint, n.declared.Name, n.load.ref.Version())
}

// spread fails the dependents of a failed package, with the chain down to the
// cause.
func spread(nodes map[string]*node) {
	for changed := true; changed; {
		changed = false
		for _, repo := range sortedKeys(nodes) {
			n := nodes[repo]
			if n.err == nil {
				continue
			}
			for _, parent := range n.parents {
				up := nodes[parent]
				if up != nil && up.err == nil && !(up.declared != nil && up.declared.SkipDependencyResolution) {
					up.err = fmt.Errorf("%s depends on %s: %w", up.load.ref, n.ref(repo).Repository, n.err)
					changed = true
				}
			}
		}
	}
}

// breakCycles fails every package in a cycle, with an error that shows the
// cycle.
func breakCycles(nodes map[string]*node) {
	children := make(map[string][]string)
	for _, repo := range sortedKeys(nodes) {
		for _, parent := range nodes[repo].parents {
			children[parent] = append(children[parent], repo)
		}
	}
	done := make(map[string]bool)
	var visit func(repo string, chain []string)
	visit = func(repo string, chain []string) {
		if i := slices.Index(chain, repo); i >= 0 {
			cycle := append(slices.Clone(chain[i:]), repo)
			for _, member := range cycle {
				if nodes[member].err == nil {
					nodes[member].err = fmt.Errorf("packages depend on each other: %s", strings.Join(cycle, " -> "))
				}
			}
			return
		}
		if done[repo] {
			return
		}
		for _, next := range children[repo] {
			visit(next, append(chain, repo))
		}
		done[repo] = true
	}
	for _, repo := range sortedKeys(nodes) {
		visit(repo, nil)
	}
}

// selected returns the dependencies that the lock selects for a cluster, by
// repository, without those that are resolved anew: one version each, unless a
// merge left several. The hint may have one more, with its record.
func (p *pass) selected(cluster string) (locked map[string][]string, hinted map[string]string) {
	locked, hinted = make(map[string][]string), make(map[string]string)
	for _, s := range p.before.Selections(cluster) {
		if s.Parent != "" && (p.cfg.Update == nil || !p.cfg.Update(s.Repository)) && !slices.Contains(locked[s.Repository], s.Version) {
			locked[s.Repository] = append(locked[s.Repository], s.Version)
		}
	}
	for _, s := range p.hint.Selections(cluster) {
		_, here := p.before.Digest(s.Repository, s.Version)
		_, there := p.hint.Digest(s.Repository, s.Version)
		if s.Parent != "" && (here || there) {
			hinted[s.Repository] = s.Version
		}
	}
	return locked, hinted
}

// choose returns the version of a dependency that satisfies all dependents: the
// locked one; else that of an interrupted run, if it still exists; else, where
// one was locked, the highest recorded one; else the highest in the registry.
func (p *pass) choose(ctx context.Context, req Request, repo string, locked []string, hinted string, wanted []edge) (sources.Ref, error) {
	var digest sources.Digest
	var ranges []edge
	for _, e := range wanted {
		d, err := sources.ParseDigest(e.dep.Constraint)
		switch {
		case err != nil:
			ranges = append(ranges, e)
		case digest != "" && digest != d:
			return sources.Ref{}, fmt.Errorf("no version satisfies %s", chain(wanted))
		default:
			digest = d
		}
	}
	if digest != "" {
		if len(ranges) > 0 {
			return sources.Ref{}, fmt.Errorf("a digest and a range cannot both be satisfied: %s; declare the package with the version you want", chain(wanted))
		}
		return sources.Ref{Repository: repo, Digest: digest}, nil
	}
	var suits []string
	for _, tag := range locked {
		// A tag that was locked stays locked, even if it is no version by
		// today's rules.
		if v, err := semver.NewVersion(tag); err == nil {
			if ok, err := all(v, ranges); err == nil && ok {
				suits = append(suits, tag)
			}
		}
	}
	switch {
	case len(suits) == 1:
		return sources.Ref{Repository: repo, Tag: suits[0]}, nil
	case len(suits) > 1:
		return sources.Ref{}, p.before.ContestedSelection(req.Cluster, repo)
	}
	if best, err := highest([]string{hinted}, ranges); err == nil && best != "" {
		ref := sources.Ref{Repository: repo, Tag: best}
		if !errors.Is(p.load(ctx, ref, nil, req.Images).err, sources.ErrNotFound) {
			return ref, nil
		}
	}
	if len(locked) > 0 {
		// The cluster has a version that does not satisfy any more: most likely
		// after a revert. The version before is recorded.
		best, err := highest(p.before.Versions(repo), ranges)
		if err != nil || best != "" {
			return sources.Ref{Repository: repo, Tag: best}, err
		}
	}
	if p.cfg.Mode == Readonly {
		return sources.Ref{}, fmt.Errorf("clusters.lock selects no version that satisfies %s, and is read-only here; run `gitopsd lock` and commit the change", chain(wanted))
	}
	tags, err := p.list(ctx, req.Images, repo)
	if err != nil {
		return sources.Ref{}, fmt.Errorf("looking for a version that satisfies %s: %w", chain(wanted), err)
	}
	best, err := highest(tags, ranges)
	if err != nil {
		return sources.Ref{}, err
	}
	if best == "" {
		return sources.Ref{}, fmt.Errorf("no version of %s satisfies %s; the registry has %s", repo, chain(wanted), versions.List(tags))
	}
	return sources.Ref{Repository: repo, Tag: best}, nil
}

// highest returns the highest version among tags that satisfies all dependents,
// or "".
func highest(tags []string, wanted []edge) (string, error) {
	return versions.Highest(tags, func(v *semver.Version) (bool, error) { return all(v, wanted) })
}

func all(v *semver.Version, wanted []edge) (bool, error) {
	for _, e := range wanted {
		c, err := semver.NewConstraint(e.dep.Constraint)
		if err != nil {
			return false, fmt.Errorf("%s asks for %s %q, which is neither a version range nor a digest: %w", e.from.load.ref, e.dep.Repository, e.dep.Constraint, err)
		}
		if !c.Check(v) {
			return false, nil
		}
	}
	return true, nil
}

// satisfies reports whether a declared package satisfies a dependency. A
// package that is declared by digest alone has no version to compare.
func satisfies(pin sources.Pin, constraint string) (bool, error) {
	if d, err := sources.ParseDigest(constraint); err == nil {
		return pin.Digest == d, nil
	}
	c, err := semver.NewConstraint(constraint)
	if err != nil {
		return false, err
	}
	v, err := versions.Parse(pin.Ref.Tag)
	if err != nil {
		return false, fmt.Errorf("%s names no semantic version; declare one, by tag or tag@digest, so that the range can be checked", pin.Ref)
	}
	return c.Check(v), nil
}

// chain shows dependencies in one line.
func chain(wanted []edge) string {
	var parts []string
	for _, e := range wanted {
		parts = append(parts, fmt.Sprintf("%s (needed by %s)", e.dep.Constraint, e.from.load.ref))
	}
	return strings.Join(parts, " and ")
}

type tagList struct {
	once sync.Once
	tags []string
	err  error
}

// list returns a repository's tags, which are requested once a pass.
func (p *pass) list(ctx context.Context, images sources.ImageConfigs, repo string) ([]string, error) {
	from, err := images.Origin(sources.Ref{Repository: repo}, nil)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	l, known := p.tags[from]
	if !known {
		l = new(tagList)
		p.tags[from] = l
	}
	p.mu.Unlock()
	l.once.Do(func() { l.tags, l.err = p.cfg.Tags(ctx, from) })
	return l.tags, l.err
}

func (n *node) name() string {
	switch {
	case n.declared != nil:
		return n.declared.Name
	case n.load != nil:
		return n.load.ref.Repository
	default:
		return "dependency of " + strings.Join(n.parents, ", ")
	}
}

func (n *node) ref(repo string) sources.Ref {
	if n.load != nil {
		return n.load.ref
	}
	return sources.Ref{Repository: repo}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
