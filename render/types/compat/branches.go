package compat

import (
	"slices"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// branches compares allOf, anyOf, oneOf and not.
func (w *walk) branches(p place, old, new node) {
	w.allOf(p, old, new)
	w.alternatives(p, old, new)
	w.not(p, old, new)
}

// allOf: every branch narrows on its own, so an additional branch counts as if its
// checks stood beside it.
func (w *walk) allOf(p place, old, new node) {
	o, n := once(branchesOf(old, "allOf")), once(branchesOf(new, "allOf"))
	m := match(o, n)
	for _, pair := range m.pairs {
		w.node(p.branch("allOf", pair.new, p.polarity), o[pair.old], n[pair.new])
	}
	for _, i := range m.removed {
		w.node(p.branch("allOf", i, p.polarity), o[i], nil)
	}
	for _, i := range m.added {
		w.node(p.branch("allOf", i, p.polarity), nil, n[i])
	}
}

// alternatives compares anyOf and oneOf. One that becomes the other is compared
// as anyOf, since oneOf accepts less than anyOf and, where branches exclude each
// other, the same.
func (w *walk) alternatives(p place, old, new node) {
	oldAny, newAny := once(branchesOf(old, "anyOf")), once(branchesOf(new, "anyOf"))
	oldOne, newOne := branchesOf(old, "oneOf"), branchesOf(new, "oneOf")
	none := func(lists ...[]node) bool {
		return !slices.ContainsFunc(lists, func(l []node) bool { return len(l) > 0 })
	}
	switch {
	case none(oldAny, newOne) && !none(oldOne) && !none(newAny):
		if exclusive(oldOne, old) {
			w.other(p, "one-of-removed", Compatible, 0, changed("oneOf", "anyOf"))
		} else {
			w.limit(p, "one-of-removed", wider, "oneOf", "anyOf")
		}
		w.anyOf(p, once(oldOne), newAny)
	case none(oldOne, newAny) && !none(oldAny) && !none(newOne) && exclusive(newOne, new):
		w.other(p, "one-of-added", Compatible, 0, changed("anyOf", "oneOf"))
		w.anyOf(p, oldAny, newOne)
	case !none(oldOne) && !none(newOne) && exclusive(oldOne, old) && exclusive(newOne, new):
		w.anyOf(p, oldAny, newAny)
		w.exclusiveOneOf(p, oldOne, newOne)
	default:
		w.anyOf(p, oldAny, newAny)
		w.oneOf(p, oldOne, newOne)
	}
}

// anyOf: a branch more is another way to be valid.
func (w *walk) anyOf(p place, o, n []node) {
	if w.whole(p, "any-of", o, n) {
		return
	}
	m := match(o, n)
	for _, pair := range m.pairs {
		w.node(p.branch("anyOf", pair.new, p.polarity), o[pair.old], n[pair.new])
	}
	for _, i := range m.removed {
		w.limit(p.branch("anyOf", i, p.polarity), "any-of-branch-removed", narrower, o[i], absent{})
	}
	for _, i := range m.added {
		w.limit(p.branch("anyOf", i, p.polarity), "any-of-branch-added", wider, absent{}, n[i])
	}
}

// oneOf: a value that matches one branch more may match too many, and one that
// matched too many may now match one. So any change can narrow.
func (w *walk) oneOf(p place, o, n []node) {
	if w.whole(p, "one-of", o, n) {
		return
	}
	m := match(o, n)
	for _, pair := range m.pairs {
		w.node(p.branch("oneOf", pair.new, either), o[pair.old], n[pair.new])
	}
	for _, i := range m.removed {
		w.limit(p.branch("oneOf", i, either), "one-of-branch-removed", neither, o[i], absent{})
	}
	for _, i := range m.added {
		w.limit(p.branch("oneOf", i, either), "one-of-branch-added", neither, absent{}, n[i])
	}
}

// exclusiveOneOf: of branches that exclude each other a value never matches too
// many, before or after, so that they are as in anyOf.
func (w *walk) exclusiveOneOf(p place, o, n []node) {
	m := match(o, n)
	for _, pair := range m.pairs {
		w.node(p.branch("oneOf", pair.new, p.polarity), o[pair.old], n[pair.new])
	}
	for _, i := range m.removed {
		w.limit(p.branch("oneOf", i, p.polarity), "one-of-branch-removed", narrower, o[i], absent{})
	}
	for _, i := range m.added {
		w.limit(p.branch("oneOf", i, p.polarity), "one-of-branch-added", wider, absent{}, n[i])
	}
}

// once leaves out repeated branches: to allOf and anyOf they mean nothing.
func once(branches []node) []node {
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(branches), func(b node) bool {
		f := schemaForm(b)
		again := seen[f]
		seen[f] = true
		return again
	})
}

// whole handles alternatives that appear or go away altogether.
func (w *walk) whole(p place, name string, old, new []node) bool {
	switch {
	case len(old) == 0 && len(new) == 0:
	case len(old) == 0:
		w.limit(p, name+"-added", narrower, absent{}, new)
	case len(new) == 0:
		w.limit(p, name+"-removed", wider, old, absent{})
	default:
		return false
	}
	return true
}

// not: what is narrower inside is wider outside.
func (w *walk) not(p place, old, new node) {
	o, n := manifest.Mapping(old, "not"), manifest.Mapping(new, "not")
	switch {
	case o == nil && n == nil:
	case o == nil:
		w.limit(p, "not-added", narrower, absent{}, n)
	case n == nil:
		w.limit(p, "not-removed", wider, o, absent{})
	default:
		w.node(p.branch("not", -1, p.polarity.flipped()), o, n)
	}
}

// branchesOf are the branches of a keyword, without those that only spell out
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

// maxPairs bounds how many pairs of branches are weighed against each other.
const maxPairs = 10_000

// match pairs branches: equal ones first, then those that have the most in
// common. Branches have no names, so a pair is a guess. Whatever the pairs, the
// findings are true; good pairs make them few.
func match(old, new []node) matching {
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

// alike counts what two branches have in common: keywords, and the fields that
// they check or require.
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
		return err.Error() // types.Of has read it before: it has a form
	}
	return f
}
