package compat

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
)

// Change is the difference in one definition between two sets, such as those of two
// packages.
type Change struct {
	// Kind and Name are the definition's.
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Change is one of the constants below.
	Change        string    `json:"change"`
	Compatibility Severity  `json:"compatibility"`
	Findings      []Finding `json:"findings,omitempty"`
}

// The values of Change.Change. Definitions are the same if the digests of their types are.
const (
	Added   = "added"
	Removed = "removed"
	Changed = "changed"
	Same    = "same"
)

// Set has definitions by kind and name: a CustomResourceDefinition and a
// CompositeResourceDefinition may have the same name.
type Set map[SetKey]map[string]any

// SetKey names a definition. Comparable.
type SetKey struct{ Kind, Name string }

// Add puts a definition into the set.
func (s Set) Add(definition map[string]any) {
	s[SetKey{manifest.Text(definition, "kind"), manifest.Text(definition, "metadata", "name")}] = definition
}

// CompareAll compares sets of definitions, and returns changes ordered by name.
// The error is [Compare]'s, with the definition's name.
func CompareAll(ctx context.Context, old, new Set) ([]Change, error) {
	keys := make(map[SetKey]bool)
	for _, set := range []Set{old, new} {
		for key := range set {
			keys[key] = true
		}
	}
	var all []Change
	for _, key := range slices.SortedFunc(maps.Keys(keys), func(a, b SetKey) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	}) {
		name, a, b := key.Name, old[key], new[key]
		report, err := Compare(ctx, a, b, Options{})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		c := Change{Kind: key.Kind, Name: name, Change: Changed, Compatibility: report.Severity, Findings: report.Findings}
		switch {
		case a == nil:
			c.Change = Added
		case b == nil:
			c.Change = Removed
		case !report.Retyped:
			c.Change = Same
		}
		all = append(all, c)
	}
	return all, nil
}

// Count counts changes. Comparable.
type Count struct {
	Added   int `json:"added"`
	Changed int `json:"changed"`
	Removed int `json:"removed"`
	Same    int `json:"same"`
	// Breaking counts the changes that break somebody.
	Breaking int `json:"breaking"`
}

// Summarize counts changes.
func Summarize(all []Change) Count {
	var n Count
	for _, c := range all {
		switch c.Change {
		case Added:
			n.Added++
		case Removed:
			n.Removed++
		case Changed:
			n.Changed++
		default:
			n.Same++
		}
		if c.Compatibility == Breaking {
			n.Breaking++
		}
	}
	return n
}

// String returns the count in a few words: "2 types added, 1 changed, 1 breaking".
func (n Count) String() string {
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{n.Added, Added}, {n.Changed, Changed}, {n.Removed, Removed}} {
		switch {
		case p.n == 0:
		case len(parts) == 0 && p.n == 1:
			parts = append(parts, "1 type "+p.what)
		case len(parts) == 0:
			parts = append(parts, fmt.Sprintf("%d types %s", p.n, p.what))
		default:
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	if len(parts) == 0 {
		return "same types"
	}
	if n.Breaking > 0 {
		parts = append(parts, fmt.Sprintf("%d breaking", n.Breaking))
	}
	return strings.Join(parts, ", ")
}
