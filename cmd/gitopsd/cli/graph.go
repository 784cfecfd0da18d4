package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

// graph has the dependencies of packages in clusters where they are equal.
type graph struct {
	clusters []string
	// roots are the declared packages, nodes all packages; by repository, sorted.
	roots []string
	nodes map[string]*graphNode
}

type graphNode struct {
	// label is "repository version".
	label string
	edges []graphEdge
}

type graphEdge struct {
	repository, constraint string
}

// graphs returns the graphs of selected packages, in the order of the registry.
// Clusters with equal graphs share one.
func graphs(state *desired.State) []*graph {
	var all []*graph
	byText := make(map[string]*graph)
	for _, c := range state.Clusters {
		if len(c.Packages) == 0 {
			continue
		}
		g := newGraph(c)
		text := g.text()
		if same, ok := byText[text]; ok {
			same.clusters = append(same.clusters, c.Name)
			continue
		}
		byText[text] = g
		all = append(all, g)
	}
	return all
}

func newGraph(c *desired.Unit) *graph {
	g := &graph{clusters: []string{c.Name}, nodes: make(map[string]*graphNode)}
	selected := func(repository string) bool {
		return slices.ContainsFunc(c.Packages, func(s sources.Selected) bool { return s.Repository() == repository })
	}
	for _, s := range c.Packages {
		ref := s.Pin.Ref
		n := &graphNode{label: lockfile.Key{Repository: ref.Repository, Version: ref.Version()}.String()}
		if !s.Declaration.SkipDependencyResolution {
			for _, d := range s.Package.Meta.DependsOn {
				if selected(d.Repository) {
					n.edges = append(n.edges, graphEdge{d.Repository, d.Constraint})
				}
			}
		}
		slices.SortFunc(n.edges, func(a, b graphEdge) int { return strings.Compare(a.repository, b.repository) })
		if replaces := s.Replacement(); replaces != "" {
			n.label += ", " + replaces
		}
		g.nodes[s.Repository()] = n
		if s.Parent == "" {
			g.roots = append(g.roots, s.Repository())
		}
	}
	slices.Sort(g.roots)
	return g
}

// text returns the graph as a tree. The dependencies of a package are shown where it
// first occurs.
func (g *graph) text() string {
	var b strings.Builder
	shown := make(map[string]bool)
	var show func(repository, constraint, indent string, last bool)
	show = func(repository, constraint, indent string, last bool) {
		n := g.nodes[repository]
		var notes []string
		if constraint != "" {
			notes = append(notes, constraint)
		}
		branch, below := "├── ", "│   "
		if last {
			branch, below = "└── ", "    "
		}
		if len(n.edges) > 0 && shown[repository] {
			notes = append(notes, "as above")
		}
		note := ""
		if len(notes) > 0 {
			note = " (" + strings.Join(notes, "; ") + ")"
		}
		fmt.Fprintf(&b, "%s%s%s%s\n", indent, branch, n.label, note)
		if shown[repository] {
			return
		}
		shown[repository] = true
		for i, e := range n.edges {
			show(e.repository, e.constraint, indent+below, i == len(n.edges)-1)
		}
	}
	for i, r := range g.roots {
		show(r, "", "", i == len(g.roots)-1)
	}
	return b.String()
}

// writeGraphs writes graphs as text, or as DOT for Graphviz.
func writeGraphs(w io.Writer, format string, all []*graph) {
	if format == "text" {
		for i, g := range all {
			if i > 0 {
				fmt.Fprintln(w)
			}
			fmt.Fprintf(w, "%s\n%s", strings.Join(g.clusters, ", "), g.text())
		}
		return
	}
	fmt.Fprint(w, "digraph packages {\n  rankdir=LR;\n  node [shape=box];\n")
	for i, g := range all {
		id := func(what string) string { return strconv.Quote(strconv.Itoa(i) + " " + what) }
		fmt.Fprintf(w, "  subgraph cluster_%d {\n    label=%s;\n    %s [shape=point];\n", i, strconv.Quote(strings.Join(g.clusters, ", ")), id(""))
		for _, r := range slices.Sorted(maps.Keys(g.nodes)) {
			fmt.Fprintf(w, "    %s [label=%s];\n", id(r), strconv.Quote(g.nodes[r].label))
		}
		for _, r := range g.roots {
			fmt.Fprintf(w, "    %s -> %s;\n", id(""), id(r))
		}
		for _, r := range slices.Sorted(maps.Keys(g.nodes)) {
			for _, e := range g.nodes[r].edges {
				fmt.Fprintf(w, "    %s -> %s [label=%s];\n", id(r), id(e.repository), strconv.Quote(e.constraint))
			}
		}
		fmt.Fprint(w, "  }\n")
	}
	fmt.Fprint(w, "}\n")
}
