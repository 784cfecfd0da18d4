package conversion

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/validation"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/conversion/stash"
	"gitopsd.dev/render/conversion/structural"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// Anybody may have written a stash, and an object that takes longer than an API server
// waits fails every LIST of its type. So the search for the fields of a stash that still
// hold has limits, which do not depend on the time: the same object has the same result
// each time. The first try, with the whole stash, is always made: if it holds, no field is
// lost.
const (
	// minTries may be made with an object of any size, and as many more as maxWork allows:
	// the values of the object and the fields that are tried, for each try.
	minTries = 32
	maxWork  = 200_000
	// maxCost limits the cost of their expressions.
	maxCost = 4 * cel.ObjectCost
	// maxRounds is how often all is tried again without fields that hide others.
	maxRounds = 4
)

// restore returns the object with the fields of the stash that still hold, those
// fields, and for the index of each other entry the reason why it was not restored;
// untried are those that could not be tried any more.
//
// A field holds if the object, converted back with it, is the same as without it or
// nearer to the source. Nor may it hide a field that the source has now; see
// [pair.hides].
func (p *pair) restore(object, source map[string]any, entries []stash.Entry, budget *cel.Budget) (restored map[string]any, kept []stash.Entry, stale map[int]string, untried []stash.Entry) {
	before, _ := p.back.forward(object, budget)
	r := &restoration{pair: p, source: source, budget: budget, spent: budget.Total(), size: countOf(object), stale: map[int]string{}, untried: map[int]bool{}}
	candidates := r.usable(object, entries)
	for round := 1; ; round++ {
		r.object, r.before, r.kept = object, before, nil
		r.first = round <= maxRounds
		r.try(candidates)
		if len(r.kept) == 0 {
			return r.object, nil, r.stale, r.given(entries)
		}
		left := r.unhidden(candidates)
		if len(left) == len(r.kept) {
			return r.object, r.kept, r.stale, r.given(entries)
		}
		candidates = left // again, without those that hide fields
	}
}

// restoration is the search for the fields of a stash that still hold.
type restoration struct {
	*pair
	source map[string]any
	budget *cel.Budget
	// spent is the cost before the search, and size the number of values in the object.
	spent       uint64
	size        int
	tries, work int
	first       bool // the next try is made in any case
	// object has the fields in kept, and before is the object converted back.
	object, before map[string]any
	kept           []stash.Entry
	// stale has the reasons why entries are not restored, and untried those that were given
	// up, by their index.
	stale   map[int]string
	untried map[int]bool
}

// given returns the entries that were given up.
func (r *restoration) given(entries []stash.Entry) []stash.Entry {
	var all []stash.Entry
	for _, i := range slices.Sorted(maps.Keys(r.untried)) {
		all = append(all, entries[i])
	}
	return all
}

// countOf returns the number of values in a tree.
func countOf(v any) int {
	n := 1
	switch v := v.(type) {
	case map[string]any:
		for _, child := range v {
			n += countOf(child)
		}
	case []any:
		for _, child := range v {
			n += countOf(child)
		}
	}
	return n
}

// candidate is an entry of the stash with its index.
type candidate struct {
	index int
	entry stash.Entry
}

// usable returns the entries that can be fields of the target. Parents come before their
// fields, so that they do not overwrite them.
func (r *restoration) usable(object map[string]any, entries []stash.Entry) []candidate {
	var all []candidate
	for i, e := range entries {
		if why := r.unusable(e); why != "" {
			r.stale[i] = why
		} else {
			all = append(all, candidate{i, e})
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(len(a.entry.Path), len(b.entry.Path)) })
	tree := exact.Clone(object)
	return slices.DeleteFunc(all, func(c candidate) bool {
		applies := c.entry.Apply(tree)
		if !applies { // what it is part of is gone
			r.stale[c.index] = r.changed()
		}
		return !applies
	})
}

// try restores a group of fields if all of them hold, or else those of each half that do.
func (r *restoration) try(group []candidate) {
	if len(group) == 0 {
		return
	}
	if r.exhausted(len(group)) {
		for _, c := range group {
			r.untried[c.index] = true
		}
		return
	}
	if r.apply(group) {
		return
	}
	if len(group) == 1 {
		r.stale[group[0].index] = r.changed()
		return
	}
	r.try(group[:len(group)/2])
	r.try(group[len(group)/2:])
}

// exhausted counts a try of some fields, and reports whether it may not be made.
func (r *restoration) exhausted(fields int) bool {
	r.tries++
	if r.work += r.size + fields; r.first {
		r.first = false
		return false
	}
	return r.budget.Late() || r.budget.Total()-r.spent > maxCost || r.tries > minTries && r.work > maxWork
}

// apply restores a group of fields, and reports whether all of them hold. Otherwise it
// changes nothing.
func (r *restoration) apply(group []candidate) bool {
	tree := exact.Clone(r.object)
	for _, c := range group {
		if !c.entry.Apply(tree) {
			return false
		}
	}
	if sizeOfTexts(manifest.Mapping(tree, "metadata", "annotations")) > validation.TotalAnnotationSizeLimitB {
		return false
	}
	after, _ := r.back.forward(tree, r.budget)
	if r.budget.Late() || !r.holds(after, r.before, r.source) {
		return false
	}
	r.object, r.before = tree, after
	for _, c := range group {
		r.kept = append(r.kept, c.entry)
	}
	return true
}

// unhidden returns the restored candidates without those that hide fields of the source,
// which are stale.
func (r *restoration) unhidden(candidates []candidate) []candidate {
	hidden := r.hides(r.object, r.before, r.source, r.budget)
	return slices.DeleteFunc(slices.Clone(candidates), func(c candidate) bool {
		_, is := r.stale[c.index]
		is = is || r.untried[c.index]
		if !is && slices.ContainsFunc(hidden, func(path field.Path) bool { return overlap(c.entry.Path, path) }) {
			r.stale[c.index], is = r.changed(), true
		}
		return is
	})
}

// changed is the reason for a field that does not hold.
func (r *restoration) changed() string { return "the object was changed in version " + r.from }

// hides returns the fields of a restored object that keep fields of the source from
// coming back. before is the restored object converted back. The fields of the source
// that it lacks go into the stash, and hold there only if the restored object has the
// fields that the source alone gives.
func (p *pair) hides(restored, before, source map[string]any, budget *cel.Budget) []field.Path {
	missing := stash.Differences(p.seen, source, before, p.ignored, nil)
	if len(missing) == 0 {
		return nil
	}
	whole := exact.Clone(before)
	for _, e := range missing {
		e.Apply(whole)
	}
	with, _ := p.forward(whole, budget)
	without, _ := p.forward(before, budget)
	var all []field.Path
	for _, d := range stash.Differences(p.seenTo, with, without, nil, nil) {
		if !agrees(d, restored) {
			all = append(all, d.Path)
		}
	}
	return all
}

// agrees reports whether an object has the field of an entry with its value, or lacks it
// like the entry.
func agrees(e stash.Entry, object map[string]any) bool {
	v, ok := e.Path.In(object)
	return ok != e.Absent && (!ok || exact.Equal(v, e.Value))
}

// overlap reports whether two paths are the same, or one leads to the other.
func overlap(a, b field.Path) bool {
	n := min(len(a), len(b))
	return a[:n].String() == b[:n].String()
}

// holds reports whether after differs from before only in fields where it agrees with the
// source.
func (p *pair) holds(after, before, source map[string]any) bool {
	return !slices.ContainsFunc(stash.Differences(p.seen, after, before, nil, nil), func(d stash.Entry) bool { return !agrees(d, source) })
}

// unusable returns the reason why a field of the stash cannot be a field of the target;
// empty if it can.
func (p *pair) unusable(e stash.Entry) string {
	schema := p.seenTo
	for i, s := range e.Path {
		var next map[string]any
		if s.List {
			if s.Match == nil || structural.Kind(schema) != structural.List {
				return "it is no field"
			}
			next = structural.Element(schema)
		} else {
			next = structural.Child(schema, s.Key)
		}
		if next == nil || i == 0 && len(e.Path) < 3 && s.Key == "metadata" {
			return "it is no field"
		}
		schema = next
	}
	if p.back.ignored.Covers(p.seenTo, e.Path) {
		return "the rules drop or derive it"
	}
	if e.Path[0].Key == "metadata" && e.Path[len(e.Path)-1].Key == manifest.ConversionStashAnnotation {
		return "it is the stash itself"
	}
	if e.Absent {
		return ""
	}
	if err := structural.Fits(schema, e.Value, ""); err != nil {
		return err.Error()
	}
	if why := unfit(e); why != "" {
		return why
	}
	return unsound(p.seenTo, e)
}
