package conversion

import (
	"cmp"
	"slices"
	"time"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/conversion/stash"
	"gitopsd.dev/render/conversion/structural"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// maxTries limits how often an object is converted to find the fields of a stash that
// still hold, and maxTrying limits the time for it. The first try, with the whole stash,
// is always made: if it holds, no field is lost. Anybody may have written the stash, and
// an object that takes longer than an API server waits fails every LIST of its type.
const (
	maxTries  = 32
	maxTrying = 5 * time.Second
)

// restore returns the object with the fields of the stash that still hold, those
// fields, and for the index of each other entry the reason why it was not restored.
//
// A field holds if the object, converted back with it, is the same as without it or
// nearer to the source. Nor may it hide a field that the source has now; see
// [pair.hides].
func (p *pair) restore(object, source map[string]any, entries []stash.Entry, budget *cel.Budget) (restored map[string]any, kept []stash.Entry, stale map[int]string) {
	stale = map[int]string{}
	before, _ := p.back.forward(object, budget)
	tries, begun := 0, time.Now()
	type candidate struct {
		index int
		entry stash.Entry
	}
	var usable []candidate
	for i, e := range entries {
		if why := p.unusable(e); why != "" {
			stale[i] = why
		} else {
			usable = append(usable, candidate{i, e})
		}
	}
	// Parents come before their fields, so that they do not overwrite them.
	slices.SortStableFunc(usable, func(a, b candidate) int { return cmp.Compare(len(a.entry.Path), len(b.entry.Path)) })
	var try func(group []candidate)
	try = func(group []candidate) {
		if len(group) == 0 {
			return
		}
		if tries++; tries > maxTries || tries > 1 && time.Since(begun) > maxTrying || budget.Late() {
			for _, c := range group {
				stale[c.index] = "too many fields of the stash do not hold"
				if budget.Late() {
					stale[c.index] = cel.ErrCost.Error()
				}
			}
			return
		}
		tree, ok := exact.Clone(object), true
		for _, c := range group {
			ok = ok && c.entry.Apply(tree)
		}
		if ok {
			after, _ := p.back.forward(tree, budget)
			if !budget.Late() && p.holds(after, before, source) {
				object, before = tree, after
				for _, c := range group {
					kept = append(kept, c.entry)
				}
				return
			}
		}
		if len(group) == 1 {
			stale[group[0].index] = "the object was changed in version " + p.from
			return
		}
		try(group[:len(group)/2])
		try(group[len(group)/2:])
	}
	forwarded, unrestored := object, before
	for {
		try(usable)
		if len(kept) == 0 {
			return object, nil, stale
		}
		hidden := p.hides(object, before, source, budget)
		left := slices.DeleteFunc(slices.Clone(usable), func(c candidate) bool {
			over := slices.ContainsFunc(hidden, func(path field.Path) bool { return overlap(c.entry.Path, path) })
			if _, is := stale[c.index]; over && !is {
				stale[c.index] = "the object was changed in version " + p.from
			}
			_, is := stale[c.index]
			return is
		})
		if len(hidden) == 0 || len(left) == len(kept) {
			return object, kept, stale
		}
		usable, object, before, kept = left, forwarded, unrestored, nil
	}
}

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
	if e.Path[0].Key == "metadata" && e.Path[len(e.Path)-1].Key == manifest.ConversionStashAnnotation {
		return "it is the stash itself"
	}
	if e.Absent {
		return ""
	}
	if err := structural.Fits(schema, e.Value, ""); err != nil {
		return err.Error()
	}
	return ""
}
