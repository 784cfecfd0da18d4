package compat

import (
	"context"
	"slices"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// branches compares allOf, anyOf, oneOf and not.
func (w *walk) branches(ctx context.Context, p place, old, new node) {
	w.allOf(ctx, p, old, new)
	w.alternatives(ctx, p, old, new)
	w.not(ctx, p, old, new)
}

// allOf compares branches that all apply: an added branch counts like its checks, written
// beside it.
func (w *walk) allOf(ctx context.Context, p place, old, new node) {
	o, n := once(branchesOf(old, "allOf")), once(branchesOf(new, "allOf"))
	m := match(ctx, o, n)
	for _, pair := range m.pairs {
		w.node(ctx, p.branch("allOf", pair.new, p.polarity), o[pair.old], n[pair.new])
	}
	for _, i := range m.removed {
		w.node(ctx, p.branch("allOf", i, p.polarity), o[i], nil)
	}
	for _, i := range m.added {
		w.node(ctx, p.branch("allOf", i, p.polarity), nil, n[i])
	}
}

// alternatives compares anyOf and oneOf. If one becomes the other, both are compared as
// anyOf: oneOf accepts less than anyOf, or the same if its branches exclude each other.
func (w *walk) alternatives(ctx context.Context, p place, old, new node) {
	oldAny, newAny := once(branchesOf(old, "anyOf")), once(branchesOf(new, "anyOf"))
	oldOne, newOne := branchesOf(old, "oneOf"), branchesOf(new, "oneOf")
	none := func(lists ...[]node) bool {
		return !slices.ContainsFunc(lists, func(l []node) bool { return len(l) > 0 })
	}
	switch {
	case none(oldAny, newOne) && !none(oldOne) && !none(newAny):
		if w.exclusive(ctx, oldOne, old) {
			w.other(p, "one-of-removed", Compatible, 0, changed("oneOf", "anyOf"))
		} else {
			w.limit(p, "one-of-removed", wider, "oneOf", "anyOf")
		}
		w.union(ctx, p, "anyOf", "any-of", p.polarity, old, new, once(oldOne), newAny)
	case none(oldOne, newAny) && !none(oldAny) && !none(newOne) && w.exclusive(ctx, newOne, new):
		w.other(p, "one-of-added", Compatible, 0, changed("anyOf", "oneOf"))
		w.union(ctx, p, "anyOf", "any-of", p.polarity, old, new, oldAny, newOne)
	default:
		// A value that matches an added branch of oneOf may match too many, and one that
		// matched too many may match one without a removed branch. So any change may narrow,
		// unless the branches exclude each other.
		pol := either
		if w.exclusive(ctx, oldOne, old) && w.exclusive(ctx, newOne, new) {
			pol = p.polarity
		}
		w.union(ctx, p, "anyOf", "any-of", p.polarity, old, new, oldAny, newAny)
		w.union(ctx, p, "oneOf", "one-of", pol, old, new, oldOne, newOne)
	}
}

// union compares alternatives of two schemas: an added branch is another way to be valid. pol
// is the polarity of the branches.
func (w *walk) union(ctx context.Context, p place, keyword, name string, pol polarity, old, new node, o, n []node) {
	if !w.presence(p, name, len(o) > 0, len(n) > 0, o, n) {
		return
	}
	m := match(ctx, o, n)
	for _, pair := range m.pairs {
		w.node(ctx, p.branch(keyword, pair.new, pol), o[pair.old], n[pair.new])
	}
	for _, i := range m.removed {
		w.limit(p.branch(keyword, i, pol), name+"-branch-removed", narrower, o[i], absent{})
	}
	for _, i := range m.added {
		at := p.branch(keyword, i, pol)
		if w.needsNew(p, old, new, n[i]) {
			at.polarity = p.polarity // no object matches one branch more than before
		}
		w.limit(at, name+"-branch-added", wider, absent{}, n[i])
	}
}

// needsNew reports whether a branch requires a new field.
func (w *walk) needsNew(p place, old, new, branch node) bool {
	return !manifest.Truth(old, "nullable") && slices.ContainsFunc(manifest.Texts(branch, "required"), func(name string) bool { return w.isNew(p, old, new, name) })
}

// isNew reports whether a field is only in the new schema of a place, and no object of the old
// one has it: the old one drops unknown fields, and the field has no default.
func (w *walk) isNew(p place, old, new node, name string) bool {
	_, kept, _ := rest(old, w.oldKeeps)
	field := manifest.Mapping(new, "properties", name)
	return !p.nested && !kept && manifest.Text(old, "type") == "object" && manifest.Mapping(old, "properties")[name] == nil &&
		field != nil && field["default"] == nil && implied(p, old, name) == nil && implied(p, new, name) == nil
}

// once leaves out repeated branches, which do not matter to allOf and anyOf.
func once(branches []node) []node {
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(branches), func(b node) bool {
		f := schemaForm(b)
		again := seen[f]
		seen[f] = true
		return again
	})
}

// not compares negated schemas: a narrower one accepts more objects.
func (w *walk) not(ctx context.Context, p place, old, new node) {
	o, n := manifest.Mapping(old, "not"), manifest.Mapping(new, "not")
	if w.presence(p, "not", o != nil, n != nil, o, n) {
		w.node(ctx, p.branch("not", -1, p.polarity.flipped()), o, n)
	}
}

// branchesOf returns the branches of a keyword, without those that only repeat
// x-kubernetes-int-or-string.
func branchesOf(s node, keyword string) []node {
	list, _ := s[keyword].([]any)
	branches := make([]node, 0, len(list))
	for _, item := range list {
		b, _ := item.(map[string]any)
		branches = append(branches, b)
	}
	if !manifest.Truth(s, "x-kubernetes-int-or-string") {
		return branches
	}
	switch keyword {
	case "anyOf":
		if isIntOrString(branches) {
			return nil
		}
	case "allOf":
		return slices.DeleteFunc(branches, func(b node) bool {
			return len(b) == 1 && isIntOrString(branchesOf(b, "anyOf"))
		})
	}
	return branches
}

func isIntOrString(branches []node) bool {
	if len(branches) != 2 {
		return false
	}
	a, b := manifest.Text(branches[0], "type"), manifest.Text(branches[1], "type")
	return len(branches[0]) == 1 && len(branches[1]) == 1 && (a == "integer" && b == "string" || a == "string" && b == "integer")
}

// matching pairs the branches of the new schema with those of the old, by index.
// Equal branches are in none of the lists.
type matching struct {
	pairs          []pair
	removed, added []int
}

type pair struct{ old, new, common int }

// maxPairs limits the pairs of branches that are compared.
const maxPairs = 10_000

// match pairs branches: equal ones first, then those that have the most in common.
// Branches have no names, so a pair is a guess. The findings are true for any pairs, but
// good pairs give fewer findings.
func match(ctx context.Context, old, new []node) matching {
	var m matching
	forms := map[string][]int{}
	for i, s := range new {
		f := schemaForm(s)
		forms[f] = append(forms[f], i)
	}
	takenOld, takenNew := make([]bool, len(old)), make([]bool, len(new))
	for i, s := range old {
		f := schemaForm(s)
		if equal := forms[f]; len(equal) > 0 {
			takenOld[i], takenNew[equal[0]], forms[f] = true, true, equal[1:]
		}
	}
	leftOld, leftNew := untaken(takenOld), untaken(takenNew)
	if len(leftOld)*len(leftNew) <= maxPairs {
		var candidates []pair
		for _, i := range leftOld {
			for _, j := range leftNew {
				if ctx.Err() != nil {
					return m // the comparison fails
				}
				if common := alike(old[i], new[j]); common > 0 {
					candidates = append(candidates, pair{i, j, common})
				}
			}
		}
		slices.SortStableFunc(candidates, func(a, b pair) int { return b.common - a.common })
		for _, c := range candidates {
			if !takenOld[c.old] && !takenNew[c.new] {
				takenOld[c.old], takenNew[c.new] = true, true
				m.pairs = append(m.pairs, c)
			}
		}
	}
	m.removed, m.added = untaken(takenOld), untaken(takenNew)
	return m
}

func untaken(taken []bool) []int {
	var left []int
	for i, t := range taken {
		if !t {
			left = append(left, i)
		}
	}
	return left
}

// alike counts the keywords that two branches share, and the fields that both check or
// require.
func alike(a, b node) int {
	n := 0
	for k := range a {
		if _, both := b[k]; both {
			n++
		}
	}
	for k := range manifest.Mapping(a, "properties") {
		if manifest.Mapping(b, "properties")[k] != nil {
			n++
		}
	}
	required := manifest.Texts(a, "required")
	return n + 2*(len(required)-len(missing(required, manifest.Texts(b, "required"))))
}

func schemaForm(s node) string {
	f, err := types.SchemaForm(map[string]any(s))
	if err != nil {
		return err.Error() // cannot happen: types.Of has read the schema
	}
	return f
}
