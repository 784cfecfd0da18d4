package preview

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types/compat"
)

// controllerTable is the changes of what acts on one package's types, in the clusters in which
// they are the same: its controller, the controller's rights, and its Compositions. It is
// documented JSON, see [Fleet.WriteJSON].
type controllerTable struct {
	// Package is its name in the clusters, "" for controllers that plain manifests
	// name.
	Package string `json:"package,omitempty"`
	// From and To are as in typeTable.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Clusters are in the plan's order.
	Clusters []string `json:"clusters"`
	// TypesUnchanged reports whether the plan leaves the package's types as they are. It
	// is false if a type could not be compared.
	TypesUnchanged bool `json:"typesUnchanged"`
	// Function reports whether the package is a Function. Crossplane installs it, so its
	// types are unknown and TypesUnchanged is false.
	Function bool `json:"function,omitempty"`
	// Refused reports whether the change is refused.
	Refused bool `json:"refused,omitempty"`
	// Changes are sorted. They have the names of settings, without values.
	Changes []behaviour.Difference `json:"changes"`
}

// controllerTables returns the changes of controllers, a table for each package and its
// versions. Clusters with equal tables share one. For live clusters the changes are those in
// the API server's answer to a dry run.
func (f *Fleet) controllerTables() []*controllerTable {
	return shared(f, (*ClusterPlan).controllerTables, func(t *controllerTable) (string, *[]string) {
		return fmt.Sprintf("%q %q %q %t %t %v", t.Package, t.From, t.To, t.TypesUnchanged, t.Refused, t.Changes), &t.Clusters
	}, func(*controllerTable, *controllerTable) {})
}

// controllerTables returns one cluster's tables: packages by name, plain manifests
// last.
func (c *ClusterPlan) controllerTables() []*controllerTable {
	if c.Plan == nil {
		return nil
	}
	retyped, named := make(map[string]bool), make(map[string]bool)
	for i := range c.Plan.Steps {
		s := &c.Plan.Steps[i]
		if change, _ := changeOf(s); change != "" || notCompared(s) {
			retyped[s.Package] = true
		}
		if s.Object != nil && s.ID.Is(manifest.Definitions...) {
			named[s.Object.Annotation(manifest.ControllerAnnotation)] = true
		}
	}
	byName := make(map[string]*controllerTable)
	for i := range c.Plan.Steps {
		s := &c.Plan.Steps[i]
		if s.Object == nil || s.Drift || s.Action != plan.Configure && s.Action != plan.Refused {
			continue
		}
		if s.Package == "" && !(s.ID.Is(manifest.Workloads...) && named[s.ID.Namespace+"/"+s.ID.Name]) {
			continue
		}
		changes := controllerChanges(s)
		if len(changes) == 0 {
			continue
		}
		t := byName[s.Package]
		if t == nil {
			t = &controllerTable{Package: s.Package, From: c.Before[s.Package], To: c.Packages[s.Package], Clusters: []string{c.Name}, TypesUnchanged: !retyped[s.Package]}
			byName[s.Package] = t
		}
		if s.ID.Is(manifest.Function) {
			t.Function, t.TypesUnchanged = true, false
		}
		t.Refused = t.Refused || s.Action == plan.Refused
		t.Changes = append(t.Changes, changes...)
	}
	var all []*controllerTable
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		t := byName[name]
		slices.SortStableFunc(t.Changes, func(a, b behaviour.Difference) int {
			return slices.Index(sorts, a.What) - slices.Index(sorts, b.What)
		})
		t.Changes = slices.Compact(t.Changes)
		all = append(all, t)
	}
	if len(all) > 1 && all[0].Package == "" {
		all = append(all[1:], all[0])
	}
	return all
}

// notCompared reports whether it is unknown how a step changes types: the definition could not
// be read or compared, or is in conflict.
func notCompared(s *plan.Step) bool {
	if s.Object == nil || !s.ID.Is(manifest.Definitions...) || s.Drift {
		return false
	}
	return s.Action == plan.Conflict || s.Action == plan.Refused && s.Compatibility == compat.Identical && s.Before == nil
}

// sorts are the kinds of changes in the order in which they are shown.
var sorts = []string{"image", "argument", "variable", "setting", "rights", "composition", "function"}

var (
	containerPath = regexp.MustCompile(`^spec\.template\.spec\.(?:containers|initContainers)\[name=([^\]]+)\](?:\.([a-zA-Z]+)(?:\[name=([^\]]+)\])?.*)?$`)
	podPath       = regexp.MustCompile(`^spec\.template\.spec\.([a-zA-Z]+)`)
)

// controllerChanges returns how a step changes the behaviour of a controller. It has the names
// of settings, and never their values.
func controllerChanges(s *plan.Step) []behaviour.Difference {
	var all []behaviour.Difference
	switch {
	case s.ID.Group == manifest.GroupRBAC:
		if slices.ContainsFunc(s.Changes, func(c plan.Change) bool { return !strings.HasPrefix(c.Path, "metadata") }) {
			all = append(all, behaviour.Difference{What: "rights", Name: s.ID.Kind + " " + qualified(s)})
		}
	case s.ID.Is(manifest.Composition):
		if slices.ContainsFunc(s.Changes, func(c plan.Change) bool { return strings.HasPrefix(c.Path, "spec") }) {
			all = append(all, behaviour.Difference{What: "composition", Name: s.ID.Name})
		}
	case s.ID.Is(manifest.Function):
		for _, c := range s.Changes {
			if was, is := image(c.Old), image(c.New); c.Path == "spec.package" && was != is {
				all = append(all, behaviour.Difference{What: "function", Name: s.ID.Name, Before: was, After: is})
			}
		}
	case s.ID.Is(manifest.Workloads...):
		for _, c := range s.Changes {
			all = append(all, workloadChanges(c)...)
		}
	}
	return all
}

// workloadChanges returns how the change of a workload's field changes the behaviour. If a
// whole list of containers comes or goes, each container changes.
func workloadChanges(c plan.Change) []behaviour.Difference {
	if m := podPath.FindStringSubmatch(c.Path); m == nil || m[0] != c.Path || m[1] != "initContainers" && m[1] != "containers" {
		if d, ok := workloadChange(c); ok {
			return []behaviour.Difference{d}
		}
		return nil
	}
	var all []behaviour.Difference
	for _, list := range []struct {
		value          any
		added, removed bool
	}{{c.Old, false, true}, {c.New, true, false}} {
		containers, _ := list.value.([]any)
		for _, v := range containers {
			container, _ := v.(map[string]any)
			d := behaviour.Difference{What: "image", Name: manifest.Text(container, "name"), Added: list.added, Removed: list.removed}
			if list.added {
				d.After = imageOf(v)
			} else {
				d.Before = imageOf(v)
			}
			all = append(all, d)
		}
	}
	return all
}

// workloadChange returns the change of one field of a workload. ok reports whether it may
// change the controller's behaviour.
func workloadChange(c plan.Change) (d behaviour.Difference, ok bool) {
	m := containerPath.FindStringSubmatch(c.Path)
	if m == nil {
		m = podPath.FindStringSubmatch(c.Path)
		switch {
		case m == nil:
			return d, false
		case m[1] == "serviceAccountName":
			return behaviour.Difference{What: "rights", Name: "service account"}, true
		case m[1] == "volumes":
			return behaviour.Difference{What: "setting", Name: "volumes"}, true
		}
		return d, false
	}
	container, field, element := m[1], m[2], m[3]
	switch field {
	case "": // the container as a whole
		return behaviour.Difference{What: "image", Name: container, Before: imageOf(c.Old), After: imageOf(c.New), Added: c.Added, Removed: c.Removed}, true
	case "image":
		d = behaviour.Difference{What: "image", Name: container, Before: image(c.Old), After: image(c.New)}
		return d, d.Before != d.After // the same image can have another name
	case "args":
		return behaviour.Difference{What: "argument", Name: "of " + container}, true
	case "env":
		d = behaviour.Difference{What: "variable", Name: container + " " + element}
		if element == "" {
			d.Name = "of " + container
		}
		return d, true
	case "command", "envFrom", "volumeMounts", "volumeDevices", "workingDir":
		return behaviour.Difference{What: "setting", Name: container + " " + field}, true
	}
	return d, false
}

// image returns the digest in an image's name, or the name if it has none.
func image(v any) string {
	name, _ := v.(string)
	if d, ok := behaviour.ImageDigest(name); ok {
		return string(d)
	}
	return name
}

func imageOf(container any) string {
	m, _ := container.(map[string]any)
	return image(m["image"])
}

// title returns the heading of the table.
func (t *controllerTable) title() string {
	if t.Package == "" {
		return "Controllers of manifests"
	}
	return "Controller of " + bump(t.Package, t.From, t.To)
}

// verdict summarizes the table in one line.
func (t *controllerTable) verdict() string {
	verdict := "controller changed"
	if t.TypesUnchanged {
		verdict = "types unchanged, controller changed"
	}
	if t.Refused {
		verdict += ", refused"
	}
	return verdict
}

// alone returns the tables of packages whose types do not change, and of Functions. Other
// packages have a table of types.
func alone(all []*controllerTable) []*controllerTable {
	return slices.DeleteFunc(slices.Clone(all), func(t *controllerTable) bool { return !t.TypesUnchanged && !t.Function })
}

// controllers writes the tables of controllers.
func (t textWriter) controllers(tables []*controllerTable) {
	for _, table := range tables {
		t.Heading("", fmt.Sprintf("%s in %s", table.title(), where(table.Clusters)), table.verdict())
		shown, folded := t.Fold(len(table.Changes), shownBreaking)
		for _, d := range table.Changes[:shown] {
			t.Say(show.Yellow, "  ~ "+d.String())
		}
		if folded > 0 {
			t.Line("  … %s", prose.Count(folded, "more change"))
		}
	}
}

// writeControllers writes the table of controllers for a comment.
func writeControllers(b *strings.Builder, tables []*controllerTable) {
	if len(tables) == 0 {
		return
	}
	b.WriteString("\n| controller of | clusters | types | what changes |\n|---|---|---|---|\n")
	writeRows(b, len(tables), maxTypeLines, maxTable, func(i int) string {
		t := tables[i]
		types := "changed"
		switch {
		case t.TypesUnchanged:
			types = "unchanged"
		case t.Function:
			types = "left to Crossplane"
		}
		what := behaviour.Summary(t.Changes, shownNames)
		if t.Refused {
			what = "refused: " + what
		}
		return fmt.Sprintf("| %s | %s | %s | %s |\n", escaped(bump(t.Package, t.From, t.To)), escaped(where(t.Clusters)), types, escaped(what))
	}, func(from int) string { return fmt.Sprintf("| … %d more | | | |\n", len(tables)-from) })
}
