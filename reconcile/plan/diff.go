package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// Change is one field that differs. A subtree that is only on one side is one
// change, not one for each of its leaves.
type Change struct {
	// Path is written as by kubectl explain, but with list elements by their identifying
	// fields: spec.containers[name=web].image, metadata.labels["a.b/c"].
	Path string
	// Old and New are the values, in JSON's types, with "(hidden)" in place of values of a
	// Secret in them. Old is nil and Added true for a new field; New is nil and Removed true
	// for a removed field.
	Old, New       any
	Added, Removed bool
	// Hidden: the whole values are a Secret's; Old and New are nil.
	Hidden bool
	// Unknown: the value is not known before the plan is applied; Old and New are
	// nil.
	Unknown bool
}

// Reveal returns the changes of an object with unknown fields: these replace the changes
// that a dry run without them shows.
func Reveal(changes []Change, unknown []string) []Change {
	if len(unknown) == 0 {
		return changes
	}
	var known []Change
	for _, c := range changes {
		known = append(known, revealed(c, unknown)...)
	}
	for _, path := range unknown {
		known = append(known, Change{Path: path, Unknown: true})
	}
	slices.SortStableFunc(known, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	return slices.CompactFunc(known, func(a, b Change) bool { return a.Unknown && b.Unknown && a.Path == b.Path })
}

// revealed returns the rest of a change beside the unknown fields. If a whole mapping
// seems to be removed, an unknown field in it may be the reason.
func revealed(c Change, unknown []string) []Change {
	if slices.ContainsFunc(unknown, func(path string) bool { return c.Path == path || within(c.Path, path) }) {
		return nil
	}
	old, isMap := c.Old.(map[string]any)
	if !c.Removed || !isMap || !slices.ContainsFunc(unknown, func(path string) bool { return within(path, c.Path) }) {
		return []Change{c}
	}
	var left []Change
	for _, k := range slices.Sorted(maps.Keys(old)) {
		left = append(left, revealed(Change{Path: field.Join(c.Path, field.Key(k)), Old: old[k], Removed: true}, unknown)...)
	}
	return left
}

// within reports whether a field is inside another one.
func within(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (strings.HasPrefix(rest, ".") || strings.HasPrefix(rest, "["))
}

// Diff lists the fields that differ between an object as it is and as it would be,
// ordered by path, without those that the API server maintains (status,
// managedFields, versions and times).
func Diff(before, after map[string]any) []Change {
	var d differ
	d.object(nil, before, after, false, func(key string) bool {
		return key == "status" || key == "apiVersion" || key == "kind"
	})
	return d.changes
}

// maintained are the fields of metadata that the API server maintains, and the
// annotations in which gitopsd keeps its own records.
var maintained = map[string]bool{
	"metadata.managedFields": true, "metadata.resourceVersion": true, "metadata.generation": true,
	"metadata.uid": true, "metadata.creationTimestamp": true, "metadata.selfLink": true,
	`metadata.annotations["` + manifest.AppliedAnnotation + `"]`:  true,
	`metadata.annotations["` + manifest.AdoptedAnnotation + `"]`:  true,
	`metadata.annotations["` + manifest.RollbackAnnotation + `"]`: true,
	`metadata.annotations["` + manifest.TypesAnnotation + `"]`:    true,
	`metadata.annotations["` + manifest.HistoryAnnotation + `"]`:  true,
}

type differ struct{ changes []Change }

// object compares mappings. hidden reports whether their values must not be shown.
func (d *differ) object(path field.Path, before, after map[string]any, hidden bool, skip func(key string) bool) {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(before)), maps.Keys(after))
	slices.Sort(keys)
	for _, k := range slices.Compact(keys) {
		p := below(path, field.Key(k))
		if p[0].Key == "metadata" && maintained[p.String()] || skip != nil && skip(k) {
			continue
		}
		old, was := before[k]
		now, is := after[k]
		d.value(p, old, now, was, is, hidden || field.Hides(before, k) || field.Hides(after, k))
	}
}

func (d *differ) value(path field.Path, old, now any, was, is, hidden bool) {
	if was == is && reflect.DeepEqual(old, now) {
		return
	}
	if was && is {
		switch o := old.(type) {
		case map[string]any:
			if n, ok := now.(map[string]any); ok {
				d.object(path, o, n, hidden, nil)
				return
			}
		case []any:
			// The path of an element has some of its values.
			if n, ok := now.([]any); ok && !hidden {
				d.list(path, o, n)
				return
			}
		}
	}
	if !hidden {
		d.changes = append(d.changes, Change{Path: path.String(), Old: redacted(old), New: redacted(now), Added: !was, Removed: !is})
		return
	}
	// A Secret's data may appear or go as a whole map; its keys are still shown one
	// by one.
	for _, whole := range []struct {
		v     any
		added bool
	}{{old, false}, {now, true}} {
		if m, ok := whole.v.(map[string]any); ok {
			for _, k := range slices.Sorted(maps.Keys(m)) {
				d.changes = append(d.changes, Change{Path: below(path, field.Key(k)).String(), Added: whole.added && !was, Removed: !whole.added && !is, Hidden: true})
			}
			return
		}
	}
	d.changes = append(d.changes, Change{Path: path.String(), Added: !was, Removed: !is, Hidden: true})
}

// redacted returns a value without the values of Secrets in it.
func redacted(v any) any { return field.Redact(v, func(any) any { return "(hidden)" }) }

// below returns the path with one more step.
func below(path field.Path, s field.Step) field.Path { return append(slices.Clip(path), s) }

// identifying are the fields that identify list elements, in the order in which they are
// tried: the merge keys of Kubernetes' own types.
var identifying = [][]string{
	{"name"}, {"key"}, {"type"}, {"uid"}, {"containerPort", "protocol"}, {"port", "protocol"},
	{"mountPath"}, {"devicePath"}, {"ip"}, {"topologyKey", "whenUnsatisfiable"}, {"id"},
}

func (d *differ) list(path field.Path, before, after []any) {
	keys := identify(before, after)
	if keys == nil {
		for i := range max(len(before), len(after)) {
			var old, now any
			if i < len(before) {
				old = before[i]
			}
			if i < len(after) {
				now = after[i]
			}
			d.value(below(path, field.Index(i)), old, now, i < len(before), i < len(after), false)
		}
		return
	}
	later := make(map[string]any, len(after))
	for _, e := range after {
		later[element(e, keys).String()] = e
	}
	known := make(map[string]bool, len(before))
	var was, is []string // the order of the elements on both sides
	for _, e := range before {
		s := element(e, keys)
		known[s.String()] = true
		now, stays := later[s.String()]
		if stays {
			was = append(was, s.String())
		}
		d.value(below(path, s), e, now, true, stays, false)
	}
	for _, e := range after {
		s := element(e, keys)
		if known[s.String()] {
			is = append(is, s.String())
		} else {
			d.value(below(path, s), nil, e, false, true, false)
		}
	}
	if !slices.Equal(was, is) {
		d.changes = append(d.changes, Change{Path: path.String() + " (order)", Old: strings.Join(was, " "), New: strings.Join(is, " ")})
	}
}

// identify returns fields that every element of all lists has, with values that are
// unique within each list; nil if there are none.
func identify(lists ...[]any) []string {
candidates:
	for _, keys := range identifying {
		for _, list := range lists {
			seen := make(map[string]bool, len(list))
			for _, e := range list {
				s := element(e, keys)
				if s.Match == nil || seen[s.String()] {
					continue candidates
				}
				seen[s.String()] = true
			}
		}
		return keys
	}
	return nil
}

// element returns the step to an element, without a match if the element lacks the
// first key; the others may be left to defaults.
func element(e any, keys []string) field.Step {
	m, _ := e.(map[string]any)
	var pairs []field.Pair
	for i, k := range keys {
		v := m[k]
		if field.Hides(m, k) {
			v = nil
		}
		switch v := v.(type) {
		case string, int64, float64, bool:
			pairs = append(pairs, field.Pair{Field: k, Value: fmt.Sprint(v)})
		default:
			if i == 0 {
				return field.Step{}
			}
		}
	}
	return field.Element(pairs...)
}

// mostShown is how much of a value is shown to a person.
const mostShown = 80

// show returns a value in one line.
func show(v any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "(cannot be shown)"
	}
	text := strings.TrimSpace(b.String())
	if len(text) <= mostShown {
		return text
	}
	switch v := v.(type) {
	case map[string]any:
		return fmt.Sprintf("{%s}", prose.Some(slices.Sorted(maps.Keys(v)), 5))
	case []any:
		return "[" + prose.Count(len(v), "element") + "]"
	}
	cut := []rune(text)
	return fmt.Sprintf("%s…\" (%d characters)", string(cut[:min(len(cut), mostShown)]), len(cut)-2)
}

// String returns the change in one line.
func (c Change) String() string {
	switch {
	case c.Unknown:
		return c.Path + ": (known after apply)"
	case c.Hidden && c.Added:
		return c.Path + ": (added)"
	case c.Hidden && c.Removed:
		return c.Path + ": (removed)"
	case c.Hidden:
		return c.Path + ": (changed)"
	case c.Added:
		return fmt.Sprintf("%s: + %s", c.Path, show(c.New))
	case c.Removed:
		return fmt.Sprintf("%s: - %s", c.Path, show(c.Old))
	}
	return fmt.Sprintf("%s: %s -> %s", c.Path, show(c.Old), show(c.New))
}
