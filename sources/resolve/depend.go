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

// maxRounds bounds how often dependencies are chosen again because a chosen version has
// other dependencies.
const maxRounds = 50

// node is a package in one cluster's graph.
type node struct {
	load *load
	// declared is nil for a dependency.
	declared *sources.Declaration
	// held is the readable part of the declaration of a held package (held.go); nil
	// for others.
	held *sources.Declaration
	// waits is the declared reference if it waits for approval and another is used
	// (approve.go).
	waits sources.Ref
	// parents are the repositories that depend on it, as keys of nodes.
	parents []string
	err     error
}

// edge is one dependency.
type edge struct {
	from *node
	// parent is the key of from.
	parent string
	dep    sources.Dependency
}

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
			err := fmt.Errorf("%s and %s both install %s; a cluster can have one of them: remove the other", other.declared.Name, d.Name, repo)
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
			n.err = err
		case err != nil:
			n.err = err
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
				n.err = fmt.Errorf("%s is a %s, declared as %s %s; change the declaration's kind", n.load.pin, have, d.Kind, d.Name)
			}
		}
		if other := used[n.load.ref.Repository]; other != nil && n.err == nil {
			n.err = fmt.Errorf("%s and %s both install %s, which replaces %s; a cluster can have one of them", other.declared.Name, d.Name, n.load.ref.Repository, cmp.Or(replaced(n.load), replaced(other.load)))
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

// unsettle fails the packages that need one whose choices never settle, and removes the
// dependencies that no other package needs.
func unsettle(nodes map[string]*node, moving map[string]bool) {
	err := fmt.Errorf("its dependencies have no stable choice: each choice of a version of %s requires another; declare them with the versions you want", strings.Join(sortedKeys(moving), ", "))
	wanted := edges(nodes)
	for changed := true; changed; {
		changed = false
		for repo, needed := range wanted {
			for _, e := range needed {
				if moving[repo] && !moving[e.parent] {
					changed, moving[e.parent] = true, true
				}
			}
		}
	}
	for repo := range moving {
		switch n := nodes[repo]; {
		case n == nil:
		case !n.fixed():
			delete(nodes, repo)
		case n.err == nil:
			n.err = err
		}
	}
	for before := -1; len(nodes) != before; {
		before = len(nodes)
		wanted = edges(nodes)
		maps.DeleteFunc(nodes, func(repo string, n *node) bool { return wanted[repo] == nil && !n.fixed() })
	}
	blame(nodes, wanted)
}

// edges returns all dependencies by repository.
func edges(nodes map[string]*node) map[string][]edge {
	wanted := make(map[string][]edge)
	for _, repo := range sortedKeys(nodes) {
		n := nodes[repo]
		if n.err != nil || n.alone() {
			continue
		}
		for _, dep := range n.load.pkg.Meta.DependsOn {
			wanted[dep.Repository] = append(wanted[dep.Repository], edge{from: n, parent: repo, dep: dep})
		}
	}
	return wanted
}

// blame sets the parents of nodes, and fails dependents that a fixed version does not
// satisfy.
func blame(nodes map[string]*node, wanted map[string][]edge) {
	for _, repo := range sortedKeys(wanted) {
		n := nodes[repo]
		for _, e := range wanted[repo] {
			if n.fixed() && n.err == nil {
				if ok, err := satisfies(sources.Pin{Ref: n.load.asked, Digest: n.load.pin.Digest}, e.dep.Constraint); err != nil || !ok {
					e.from.err = errors.Join(e.from.err, conflict(e, n, err))
				}
			}
			n.parents = append(n.parents, e.parent)
		}
		slices.Sort(n.parents)
		n.parents = slices.Compact(n.parents)
	}
}

func conflict(e edge, n *node, err error) error {
	if err != nil {
		return fmt.Errorf("%s needs %s %s: %w", e.from.load.ref, e.dep.Repository, e.dep.Constraint, err)
	}
	if n.held != nil {
		return fmt.Errorf("%s needs %s %s, but the lock has %s, which stays while the declaration of %s cannot be read; correct that first",
			e.from.load.ref, e.dep.Repository, e.dep.Constraint, n.load.ref.Version(), n.held.Name)
	}
	if n.waits != (sources.Ref{}) {
		return fmt.Errorf("%s needs %s %s, but %s stays while %s waits for approval: %s",
			e.from.load.ref, e.dep.Repository, e.dep.Constraint, n.load.ref.Version(), n.waits, toApprove(n.waits, ""))
	}
	return fmt.Errorf("%s needs %s %s, but %s declares %s; change one of the two", e.from.load.ref, e.dep.Repository, e.dep.Constraint, n.declared.Name, n.load.ref.Version())
}

// spread fails the dependents of failed packages, with errors that show the chain to the
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
				if up != nil && up.err == nil && !up.alone() {
					up.err = fmt.Errorf("%s depends on %s: %w", up.load.ref, n.ref(repo).Repository, n.err)
					changed = true
				}
			}
		}
	}
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

// breakCycles fails every package in a cycle, with an error that shows it.
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

// selected returns the versions of dependencies that the lock selects for a cluster, by
// repository, without those that are updated. There is one for each, unless a merge left
// several. Packages that were declared until now are included. hinted has the hint's
// versions with a record.
func (p *pass) selected(req Request) (locked map[string][]string, hinted map[string]string) {
	locked, hinted = make(map[string][]string), make(map[string]string)
	former := make(map[string][]string) // of packages that were declared
	for _, s := range p.lines[req.Cluster] {
		switch {
		case p.updates(req, s.Repository):
		case s.Parent == "":
			former[s.Repository] = append(former[s.Repository], s.Version)
		case !slices.Contains(locked[s.Repository], s.Version):
			locked[s.Repository] = append(locked[s.Repository], s.Version)
		}
	}
	for repo, versions := range former {
		if len(versions) == 1 && locked[repo] == nil {
			locked[repo] = versions
		}
	}
	for _, s := range p.hint.Selections(req.Cluster) {
		_, here := p.before.Digest(s.Repository, s.Version)
		_, there := p.hint.Digest(s.Repository, s.Version)
		if s.Parent != "" && (here || there) {
			hinted[s.Repository] = s.Version
		}
	}
	return locked, hinted
}

// choose returns a version of a dependency that satisfies all dependents: the locked
// one; else the hinted one, if it still exists; else, if one was locked, the highest
// recorded one; else the highest of other clusters (fleet.go); else the highest in
// the registry.
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
		ref := sources.Ref{Repository: repo, Digest: digest}
		if e := p.cfg.Rules.Excluded(ref); e != nil && !slices.Contains(locked, string(digest)) {
			return sources.Ref{}, fmt.Errorf("%s is %s, and is what %s asks for", ref, e, chain(wanted))
		}
		return ref, nil
	}
	suits, stays := 0, (*semver.Version)(nil)
	for _, tag := range locked {
		// A locked tag stays, even if versions.Parse does not accept it.
		if v, err := semver.NewVersion(tag); err == nil {
			if ok, err := all(v, ranges); err == nil && ok {
				if suits++; stays == nil || stays.LessThan(v) {
					stays = v
				}
			}
		}
	}
	if suits > 1 {
		if err := p.before.ContestedSelection(req.Cluster, repo); err != nil {
			return sources.Ref{}, err
		}
	}
	if stays != nil { // of several, one is locked as itself, and the others as replacements
		return sources.Ref{Repository: repo, Tag: stays.Original()}, nil
	}
	if d := unreadable(req, repo); d != nil {
		return sources.Ref{}, fmt.Errorf("%s decides on no version of it while the declaration of %s cannot be read; correct that first: %s", sources.LockFile, d.Name, chain(wanted))
	}
	open, _ := p.allowed(repo, []string{hinted})
	if best, err := highest(open, ranges); err == nil && best != "" {
		ref := sources.Ref{Repository: repo, Tag: best}
		l := p.load(ctx, ref, nil, req.Images)
		if !errors.Is(l.err, sources.ErrNotFound) && p.cfg.Rules.Excluded(l.pinned()) == nil {
			return ref, nil
		}
	}
	if len(locked) > 0 {
		// The locked version no longer satisfies the dependents, most likely after a
		// revert. Then the version before is recorded.
		open, _ := p.allowed(repo, p.before.Versions(repo))
		best, err := highest(open, ranges)
		if err != nil || best != "" {
			return sources.Ref{Repository: repo, Tag: best}, err
		}
	}
	if p.cfg.Mode == Readonly {
		return sources.Ref{}, fmt.Errorf("clusters.lock selects no version that satisfies %s, and is read-only here; run `gitopsd lock` and commit the change", chain(wanted))
	}
	if !p.updates(req, repo) {
		best, err := p.highestElsewhere(ctx, req, repo, ranges)
		if err != nil || best != "" {
			return sources.Ref{Repository: repo, Tag: best}, err
		}
	}
	tags, err := p.list(ctx, req.Images, repo)
	if err != nil {
		return sources.Ref{}, fmt.Errorf("looking for a version that satisfies %s: %w", chain(wanted), err)
	}
	best, err := p.highestOpen(ctx, req, repo, tags, wanted)
	return sources.Ref{Repository: repo, Tag: best}, err
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

// satisfies reports whether a pin satisfies a constraint. It fails if the constraint is a
// range and the pin has no version.
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

// chain describes dependencies in one line.
func chain(wanted []edge) string {
	var parts []string
	for _, e := range wanted {
		parts = append(parts, fmt.Sprintf("%s (needed by %s)", e.dep.Constraint, e.from.load.ref))
	}
	return strings.Join(parts, " and ")
}

// list returns a repository's tags. They are requested once a pass.
func (p *pass) list(ctx context.Context, images sources.ImageConfigs, repo string) ([]string, error) {
	from, err := images.Origin(sources.Ref{Repository: repo}, nil)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	tags, known := p.tags[from]
	if !known {
		tags = sync.OnceValues(func() ([]string, error) { return p.cfg.Tags(ctx, from) })
		p.tags[from] = tags
	}
	p.mu.Unlock()
	return tags()
}

// pinned returns the reference with the digest that it resolved to.
func (l *load) pinned() sources.Ref {
	ref := l.ref
	ref.Digest = l.pin.Digest
	return ref
}

// fixed reports whether the cluster's manifests decide on the version, and not the
// dependents.
func (n *node) fixed() bool { return n.declared != nil || n.held != nil }

// alone reports whether the package's dependencies are ignored.
func (n *node) alone() bool {
	return n.declared != nil && n.declared.SkipDependencyResolution || n.held != nil && n.held.SkipDependencyResolution
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

// place returns the place of the declaration, or "" for a dependency.
func (n *node) place() string {
	if n.declared == nil {
		return ""
	}
	return n.declared.Place()
}

func (n *node) ref(repo string) sources.Ref {
	if n.load != nil {
		return n.load.ref
	}
	return sources.Ref{Repository: repo}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
