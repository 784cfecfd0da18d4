package conversion

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/conversion/stash"
	"gitopsd.dev/render/conversion/structural"
	"gitopsd.dev/render/manifest"
)

// Convert converts an object to a version. The object must have the definition's kind and
// one of its versions, and values as [Decode] and [sources.DecodeYAML] return them. It is
// not changed, and the converted object may share parts of it. Convert fails only if the
// set does not convert the object's kind or one of the versions; values of fields cause
// no error.
func (s *Set) Convert(object map[string]any, to string) (converted map[string]any, report Report, err error) {
	var budget cel.Budget
	defer budget.Done()
	return s.within(&budget, object, to)
}

// within is Convert with a budget, whose time may have begun.
func (s *Set) within(budget *cel.Budget, object map[string]any, to string) (converted map[string]any, report Report, err error) {
	group, from := manifest.GroupVersion(manifest.Text(object, "apiVersion"))
	kind := manifest.Text(object, "kind")
	if group != s.group || kind != s.kind {
		return nil, report, fmt.Errorf("the object is a %s of %s; want a %s of %s", kind, manifest.Text(object, "apiVersion"), s.kind, s.group)
	}
	for _, version := range []string{from, to} {
		if !slices.Contains(s.versions, version) {
			return nil, report, fmt.Errorf("%s has no version %s; it has %s", s.name, version, strings.Join(s.versions, ", "))
		}
	}
	way := []string{from, to}
	switch {
	case from == to:
		return object, report, nil
	case s.pairs[[2]string{from, to}] == nil:
		way = []string{from, s.hub, to}
	}
	for i := range way[1:] {
		object = s.pairs[[2]string{way[i], way[i+1]}].convert(object, budget, &report)
		if budget.Late() {
			// What was left out for want of time may come out the next time.
			return nil, Report{}, fmt.Errorf("converting it to %s: %w", to, cel.ErrTime)
		}
	}
	return object, report, nil
}

// convert converts an object by one pair. It restores fields of the target from the stash,
// and stashes the fields that the target cannot hold.
func (p *pair) convert(object map[string]any, budget *cel.Budget, report *Report) map[string]any {
	kept, garbage := stash.Read(object)
	if garbage != "" {
		report.Ignored = append(report.Ignored, Note{From: p.from, To: p.to, Path: stash.Path.String(), Err: garbage})
	}
	object = p.withoutNull(object)
	note := func(e stash.Entry, why string) Note {
		return Note{From: p.from, To: p.to, Path: e.Path.String(), Bytes: e.Size(), Err: why}
	}
	out, failed := p.forward(object, budget)
	report.Failed = append(report.Failed, failed...)
	if entries := kept[p.to]; len(entries) > 0 {
		restored, fresh, stale, untried := p.restore(out, object, entries, budget)
		for _, e := range fresh {
			report.Restored = append(report.Restored, note(e, ""))
		}
		for i, e := range entries {
			if why, ok := stale[i]; ok {
				report.Stale = append(report.Stale, note(e, why))
			}
		}
		for _, e := range untried {
			report.Dropped = append(report.Dropped, note(e, "too many fields of the annotation do not hold"))
		}
		out = restored
	}
	for _, e := range kept[p.from] {
		report.Stale = append(report.Stale, note(e, "the object is in this version already"))
	}
	delete(kept, p.from)
	delete(kept, p.to)
	back, _ := p.back.forward(out, budget)
	next := stash.Stash{p.from: stash.Differences(p.seen, object, back, p.ignored, nil)}
	for version, entries := range kept {
		next[version] = entries
	}
	dropped := next.Write(out, p.declared)
	for _, e := range next[p.from] {
		report.Stashed = append(report.Stashed, note(e, ""))
	}
	for _, version := range slices.Sorted(maps.Keys(dropped)) {
		for _, e := range dropped[version] {
			n := note(e, "")
			n.From = version
			report.Dropped = append(report.Dropped, n)
		}
	}
	return out
}

// withoutNull returns the object without the nulls that its schema does not allow. They
// count as absent; expressions that read them would fail.
func (p *pair) withoutNull(object map[string]any) map[string]any {
	if !hasNull(object) {
		return object
	}
	return p.known(object)
}

// known returns the object without fields that its schema lacks.
func (p *pair) known(object map[string]any) map[string]any {
	out, _ := structural.Known(p.seen, object).(map[string]any)
	for _, name := range []string{"apiVersion", "kind", "metadata"} {
		if v, ok := object[name]; ok {
			out[name] = v
		}
	}
	return out
}

func hasNull(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		for _, child := range v {
			if hasNull(child) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, hasNull)
	}
	return false
}
