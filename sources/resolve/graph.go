package resolve

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/sources"
)

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

// edge is one dependency.
type edge struct {
	from *node
	// parent is the key of from.
	parent string
	dep    sources.Dependency
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

// chain describes dependencies in one line.
func chain(wanted []edge) string {
	var parts []string
	for _, e := range wanted {
		parts = append(parts, fmt.Sprintf("%s (needed by %s)", e.dep.Constraint, e.from.load.ref))
	}
	return strings.Join(parts, " and ")
}

// distinct fails dependencies if a repository would be installed twice: by its own name and
// as a replacement, or as two replacements.
func distinct(nodes map[string]*node) {
	used := make(map[string][]string) // repositories as used -> keys of nodes
	for _, repo := range sortedKeys(nodes) {
		if n := nodes[repo]; n.err == nil {
			used[n.load.ref.Repository] = append(used[n.load.ref.Repository], repo)
		}
	}
	for with, repos := range used {
		if len(repos) == 1 {
			continue
		}
		var roles []string
		for _, repo := range repos {
			switch n := nodes[repo]; {
			case n.load.by != nil:
				roles = append(roles, fmt.Sprintf("in place of %s (%s)", repo, n.load.by.Place))
			case n.fixed():
				roles = append(roles, "as declared")
			default:
				roles = append(roles, "as a dependency by its own name")
			}
		}
		for _, repo := range repos {
			if n := nodes[repo]; !n.fixed() {
				n.err = decidedf("%s would be installed twice, %s; a cluster can have one of them: declare the package that is replaced, or remove the replacement", with, strings.Join(roles, " and "))
			}
		}
	}
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
		return decidedf("%s needs %s %s: %w", e.from.load.ref, e.dep.Repository, e.dep.Constraint, err)
	}
	if n.held != nil {
		return decidedf("%s needs %s %s, but the lock has %s, which stays while the declaration of %s cannot be read; correct that first",
			e.from.load.ref, e.dep.Repository, e.dep.Constraint, n.load.ref.Version(), n.held.Name)
	}
	if n.waits != (sources.Ref{}) {
		return decidedf("%s needs %s %s, but %s stays while %s waits for approval: %s",
			e.from.load.ref, e.dep.Repository, e.dep.Constraint, n.load.ref.Version(), n.waits, toApprove(n.waits, ""))
	}
	return decidedf("%s needs %s %s, but %s declares %s; change one of the two", e.from.load.ref, e.dep.Repository, e.dep.Constraint, n.declared.Name, n.load.ref.Version())
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
					nodes[member].err = decidedf("packages depend on each other: %s", strings.Join(cycle, " -> "))
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

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
