package preview

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/render/types/harm"
)

// typeTable is the changes of one package's types, in the clusters in which they are
// the same.
type typeTable struct {
	// Package is its name in the clusters, "" for plain manifests.
	Package string
	// From and To are "repository version" before and after. Either is empty if there is
	// none, or if it is unknown.
	From, To string
	// Clusters are in the plan's order.
	Clusters []string
	// Rows are the definitions with types that are added, changed or removed:
	// breaking ones first, then by name.
	Rows []typeRow
	// Documentation is the number of definitions that change only in descriptions.
	Documentation int
}

// typeChange is the change of a definition.
type typeChange string

// The changes.
const (
	typesAdded   typeChange = "added"
	typesChanged typeChange = "changed"
	typesRemoved typeChange = "removed"
)

// typeRow is the change of one CRD or XRD.
type typeRow struct {
	// Name is the definition's, "widgets.acme.example".
	Name   string
	Change typeChange
	// Compatibility is Breaking or Compatible for changed types and for types that a package
	// drops, and Identical for others.
	Compatibility compat.Severity
	// Refused reports whether the change is refused.
	Refused bool
	// Versions are the types, with the digests before and after.
	Versions []versionChange
	Findings []compat.Finding
	// Allowed are the reasons why findings are allowed, by their names.
	Allowed map[string]string
	// LetThrough are the findings that nothing allows, and that harm no object.
	LetThrough []string
	// Surveys say how the change affects objects, for each cluster that was read.
	Surveys []clusterSurvey
}

// clusterSurvey says how a change affects the objects of one cluster.
type clusterSurvey struct {
	Cluster string `json:"cluster"`
	*harm.Survey
}

// versionChange is a type before and after; a digest is empty if there is no such
// type. It is comparable.
type versionChange struct {
	Version string `json:"version"`
	Kind    string `json:"kind"`
	Before  string `json:"before,omitempty"`
	After   string `json:"after,omitempty"`
}

// typeTables returns the changes of types, a table for each package and its versions.
// Clusters with equal tables share one.
func (f *Fleet) typeTables() []*typeTable {
	if f.formed == nil {
		f.formed = make(formed)
	}
	return shared(f, func(c *ClusterPlan) []*typeTable { return c.typeTables(f.formed) }, func(t *typeTable) (string, *[]string) { return t.key(), &t.Clusters }, (*typeTable).join)
}

// join adds the surveys of a table that is otherwise equal.
func (t *typeTable) join(same *typeTable) {
	for i := range t.Rows {
		t.Rows[i].Surveys = append(t.Rows[i].Surveys, same.Rows[i].Surveys...)
	}
}

// shared returns the tables of all clusters. Of tables with equal keys it returns only the
// first, with the names of all clusters, joined with the others.
func shared[T any](f *Fleet, of func(*ClusterPlan) []*T, table func(*T) (key string, clusters *[]string), join func(kept, same *T)) []*T {
	var all []*T
	seen := make(map[string]*T)
	for i := range f.Clusters {
		c := &f.Clusters[i]
		for _, t := range of(c) {
			key, _ := table(t)
			if same := seen[key]; same != nil {
				_, clusters := table(same)
				*clusters = append(*clusters, c.Name)
				join(same, t)
				continue
			}
			seen[key] = t
			all = append(all, t)
		}
	}
	return all
}

// formed caches the types of definitions, since digests take time and clusters share
// definitions.
type formed map[*manifest.Object][]types.Type

// of returns the types that an object defines; ok reports whether it can be read.
func (f formed) of(o *manifest.Object) (all []types.Type, ok bool) {
	all, known := f[o]
	if !known {
		var err error
		if all, err = types.Of(o.Tree()); err != nil {
			return nil, false
		}
		f[o] = all
	}
	return all, true
}

// typeTables returns one cluster's tables: packages by name, plain manifests last.
func (c *ClusterPlan) typeTables(known formed) []*typeTable {
	if c.Plan == nil {
		return nil
	}
	byName := make(map[string]*typeTable)
	for i := range c.Plan.Steps {
		s := &c.Plan.Steps[i]
		if c.Plan.Unreadable[schema.GroupKind{Group: s.ID.Group, Kind: s.ID.Kind}] != "" {
			continue // it is unknown whether the object exists
		}
		row, documentation := newTypeRow(s, known)
		if row != nil && s.Survey != nil {
			row.Surveys = []clusterSurvey{{c.Name, s.Survey}}
		}
		if row == nil && !documentation {
			continue
		}
		t := byName[s.Package]
		if t == nil {
			t = &typeTable{Package: s.Package, From: c.Before[s.Package], To: c.Packages[s.Package], Clusters: []string{c.Name}}
			byName[s.Package] = t
		}
		if documentation {
			t.Documentation++
		} else {
			t.Rows = append(t.Rows, *row)
		}
	}
	var all []*typeTable
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		t := byName[name]
		if len(t.Rows) == 0 {
			continue // changed descriptions affect no objects
		}
		slices.SortStableFunc(t.Rows, func(a, b typeRow) int {
			return cmp.Or(cmp.Compare(a.class(), b.class()), cmp.Compare(a.Name, b.Name))
		})
		all = append(all, t)
	}
	if len(all) > 1 && all[0].Package == "" {
		all = append(all[1:], all[0])
	}
	return all
}

// changeOf returns the change that a step makes to types, "" for none. documentation reports
// whether the step changes only descriptions.
func changeOf(s *plan.Step) (change typeChange, documentation bool) {
	switch {
	case !s.ID.Is(manifest.Definitions...) || s.Drift:
	case s.Object == nil:
		if s.Action == plan.Prune || s.Action == plan.Refused {
			return typesRemoved, false
		}
	case s.Action == plan.Create, s.Action == plan.Refused && s.Before == nil && s.UID == "" && s.Compatibility == compat.Identical:
		return typesAdded, false
	case s.Action == plan.Configure || s.Action == plan.Refused:
		if s.Compatibility > compat.Documentation {
			return typesChanged, false
		}
		return "", s.Compatibility == compat.Documentation
	}
	return "", false
}

// typeRow returns the row of a step, nil if it changes no type.
func newTypeRow(s *plan.Step, known formed) (row *typeRow, documentation bool) {
	change, documentation := changeOf(s)
	if change == "" {
		return nil, documentation
	}
	r := &typeRow{Name: s.ID.Name, Change: change, Compatibility: s.Compatibility, Refused: s.Action == plan.Refused, Findings: s.Findings, Allowed: s.Allowed, LetThrough: s.LetThrough}
	var after []types.Type
	if s.Object != nil {
		var ok bool
		if after, ok = known.of(s.Object); !ok {
			return nil, false // the API server reports the error
		}
	}
	r.Versions = versionChanges(s.Before, after)
	return r, false
}

func versionChanges(before, after []types.Type) []versionChange {
	var all []versionChange
	for _, t := range before {
		all = append(all, versionChange{Version: t.Version, Kind: t.Kind, Before: t.Digest})
	}
	for _, t := range after {
		i := slices.IndexFunc(all, func(v versionChange) bool { return v.Version == t.Version && v.Kind == t.Kind })
		if i < 0 {
			all = append(all, versionChange{Version: t.Version, Kind: t.Kind})
			i = len(all) - 1
		}
		all[i].After = t.Digest
	}
	return all
}

// class orders rows by their effect on users, the worst first.
type class int

const (
	breakingRefused class = iota
	breakingAllowed
	removed
	compatible
	added
)

func (r *typeRow) class() class {
	switch {
	case r.Compatibility == compat.Breaking && r.Refused:
		return breakingRefused
	case r.Compatibility == compat.Breaking:
		return breakingAllowed
	case r.Change == typesRemoved:
		return removed
	case r.Change == typesChanged:
		return compatible
	}
	return added
}

// key is equal for tables with equal content. It has the findings, since some depend on the
// versions that a cluster stores, not only on digests.
func (t *typeTable) key() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n%s\n%d\n", t.Package, t.From, t.To, t.Documentation)
	for i := range t.Rows {
		r := &t.Rows[i]
		fmt.Fprintf(&b, "%s %s %d %t %d %q %q\n", r.Name, r.Change, r.Compatibility, r.Refused, len(r.Findings), r.Allowed, r.LetThrough)
		for _, f := range r.Findings {
			if f.Severity == compat.Breaking {
				fmt.Fprintf(&b, "%q\n", f.String())
			}
		}
		for _, v := range r.Versions {
			fmt.Fprintln(&b, v)
		}
	}
	return b.String()
}

// counts summarizes the table in one line: the number of rows of each class, worst first.
func (t *typeTable) counts() string {
	counts := t.count()
	var parts []string
	for i, what := range []string{"breaking, refused", "breaking", "removed", "compatible", "added"} {
		if n := counts[i]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	if t.Documentation > 0 {
		parts = append(parts, fmt.Sprintf("%d changed in descriptions only", t.Documentation))
	}
	return strings.Join(parts, "; ")
}

// count returns the number of rows of each class.
func (t *typeTable) count() (n [added + 1]int) {
	for i := range t.Rows {
		n[t.Rows[i].class()]++
	}
	return n
}

// title returns the package and its versions.
func (t *typeTable) title() string { return bump(t.Package, t.From, t.To) }

// bump returns the name of a package with its versions before and after.
func bump(name, from, to string) string {
	if name == "" {
		return "manifests"
	}
	repository, old, _ := strings.Cut(from, " ")
	newRepository, version, _ := strings.Cut(to, " ")
	switch {
	case to == "" && from == "":
		return "package " + name
	case to == "":
		return fmt.Sprintf("package %s (%s, removed)", name, from)
	case from == "" || from == to:
		return fmt.Sprintf("package %s (%s)", name, to)
	case repository == newRepository:
		return fmt.Sprintf("package %s (%s %s -> %s)", name, repository, old, version)
	}
	return fmt.Sprintf("package %s (%s -> %s)", name, from, to)
}

// versions returns the row's versions: "v1", "v1beta1".
func (r *typeRow) versions() string {
	var names []string
	for _, v := range r.Versions {
		if !slices.Contains(names, v.Version) {
			names = append(names, v.Version)
		}
	}
	return strings.Join(names, ", ")
}
