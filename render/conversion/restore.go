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

// maxTries is how often an object is converted to see what of a stash still holds, and
// maxTrying how long. The first time is for all of it, and always made: only of a stash
// that does not hold as a whole fields may be lost. Anybody may have written it, and an
// object that takes longer than an API server waits fails every LIST of its type.
const (
	maxTries  = 32
	maxTrying = 5 * time.Second
)

// restore returns the object with those fields of the stash that still hold, the
// fields that were restored, and those that were not and why.
//
// A field holds if it makes no difference to what the object is in the version that
// it comes from: converted back with it, the object is as without it, or nearer to
// the source. And it must not stand in the way of what the source has now, see
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
	// Parents before what is in them, so that one does not undo the other.
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

// hides returns the fields of a restored object that keep something of the source from
// coming back. What before, the restored object converted back, lacks of the source
// goes into the stash. There it must hold in turn, which it does only if the object
// has those fields that the source alone gives.
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
		v, ok := d.Path.In(restored)
		if d.Absent == ok || ok && !exact.Equal(v, d.Value) {
			all = append(all, d.Path)
		}
	}
	return all
}

// overlap reports whether one path is the other or leads to it.
func overlap(a, b field.Path) bool {
	n := min(len(a), len(b))
	return a[:n].String() == b[:n].String()
}

// holds reports whether after differs from before only where it is as the source.
func (p *pair) holds(after, before, source map[string]any) bool {
	for _, d := range stash.Differences(p.seen, after, before, nil, nil) {
		v, ok := d.Path.In(source)
		if d.Absent == ok || ok && !exact.Equal(v, d.Value) {
			return false
		}
	}
	return true
}

// unusable returns why a field of the stash cannot be one of the target's.
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
