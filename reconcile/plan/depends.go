package plan

import (
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Order is the declared order of a package.
type Order struct {
	// DependsOn is the declaration's manifest.DependsOnAnnotation.
	DependsOn string
	// File is where the package is declared; empty for a dependency.
	File string
}

const (
	packagePrefix = "package/"
	pathPrefix    = "path/"
)

// order reads the dependencies of the steps, and refuses steps with dependencies that can
// never be ready. It returns the steps that each named dependency stands for.
func (c *computation) order(steps []Step) map[string][]int {
	g := graph{steps: steps, packages: c.opts.Order, lent: lent(steps), groups: make(map[string][]int)}
	for i := range steps {
		s := &steps[i]
		s.After = g.after(s)
		for _, name := range s.After {
			if _, known := g.groups[name]; !known {
				g.groups[name] = g.members(name)
			}
		}
	}
	done := make([]bool, len(steps))
	for i := range steps {
		s := &steps[i]
		for _, name := range s.After {
			if len(g.groups[name]) == 0 && s.Action.Writes() && !c.awaited[name] {
				s.Action, s.Reason = Refused, fmt.Sprintf("%s names %s, which the cluster does not get; want package/NAME, path/DIRECTORY, or an object in the form kind[.group]/[namespace/]name", manifest.DependsOnAnnotation, name)
			}
		}
		if chain := g.cycle(i, done, nil); chain != nil {
			for _, j := range chain {
				if s := &steps[j]; s.Action.Writes() {
					s.Action, s.Reason = Refused, fmt.Sprintf("%s has a cycle: %s", manifest.DependsOnAnnotation, g.show(chain))
				}
			}
		}
	}
	return g.groups
}

// otherNames returns names in a cluster of what is rendered: Secrets of Services with serving
// certificates, and objects without their namespace, since their kind may be cluster-wide.
func otherNames(rendered *manifest.Set) map[string]bool {
	names := make(map[string]bool)
	for _, o := range rendered.All() {
		id := o.ID()
		if name := o.Annotation(manifest.ServingCertAnnotation); name != "" && id.Is(manifest.Service) {
			names[manifest.Secret.ID(id.Namespace, name).String()] = true
		}
		if id.Namespace != "" {
			id.Namespace = ""
			names[id.String()] = true
		}
	}
	return names
}

// graph has the dependencies between steps.
type graph struct {
	steps    []Step
	packages map[string]Order
	// lent are accounts that workloads outside of their package run as. They do
	// not wait with their package, which may wait for these workloads.
	lent map[manifest.ID]bool
	// groups are the steps that each named dependency stands for.
	groups map[string][]int
}

// after lists the dependencies of a step, its own and its package's.
func (g *graph) after(s *Step) []string {
	if s.Object == nil {
		return nil
	}
	pkg := g.packages[s.Package]
	if g.lent[s.ID] {
		pkg.DependsOn = ""
	}
	return dependencies(s.Object.Annotation(manifest.DependsOnAnnotation), pkg)
}

// dependencies are the names in an object's annotation and in its package's.
func dependencies(annotation string, pkg Order) []string {
	var names []string
	for name := range strings.SplitSeq(annotation+","+pkg.DependsOn, ",") {
		if name = strings.TrimSuffix(strings.TrimSpace(name), "/"); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// members returns the desired objects that a name stands for.
func (g *graph) members(name string) []int {
	var found []int
	for i := range g.steps {
		if s := &g.steps[i]; s.Object != nil && g.behind(name, s) {
			found = append(found, i)
		}
	}
	return found
}

// behind reports whether a name stands for a step, among others.
func (g *graph) behind(name string, s *Step) bool {
	if pkg, ok := strings.CutPrefix(name, packagePrefix); ok {
		return s.Package == pkg
	}
	if dir, ok := strings.CutPrefix(name, pathPrefix); ok {
		file := g.packages[s.Package].File
		if o := s.Object.Origin(); s.Package == "" && o.Package == (sources.Pin{}) {
			file = o.File
		}
		return dir == "." || strings.HasPrefix(file, dir+"/")
	}
	return s.ID.String() == name
}

// cycle returns the steps of a cycle that a step is in; nil if there is none. done marks
// the steps that were visited.
func (g *graph) cycle(i int, done []bool, way []int) []int {
	if at := slices.Index(way, i); at >= 0 {
		return slices.Clone(way[at:])
	}
	if done[i] {
		return nil
	}
	way = append(way, i)
	for _, name := range g.steps[i].After {
		for _, j := range g.groups[name] {
			if len(g.steps[j].After) == 0 {
				continue
			}
			if chain := g.cycle(j, done, way); chain != nil {
				return chain
			}
		}
	}
	done[i] = true
	return nil
}

func (g *graph) show(chain []int) string {
	var names []string
	for _, i := range append(chain, chain[0]) {
		names = append(names, g.steps[i].ID.String())
	}
	const most = 6
	if len(names) > most {
		names = append(append(names[:most-1:most-1], "…"), names[len(names)-1])
	}
	return strings.Join(names, " after ")
}
