package conversion

import (
	"slices"
	"sync"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/manifest"
)

// journey is the conversion of one object along its [route], with buffers that are reused.
type journey struct {
	tape, converted exact.Tape
	// slots are the nodes of the source's values that are copied as text; -1 if absent.
	// objects are the objects of the source. Both have the object's entries first, and
	// those of the current element behind them.
	slots   []int32
	objects []onTheWay
	values  []any // of computed fields
	present []bool
}

// onTheWay is the state of an object of the source.
type onTheWay struct {
	there bool
	// anchored is set if the object comes back because a field in it does.
	anchored bool
}

var journeys = sync.Pool{New: func() any { return new(journey) }}

// done returns the buffers to the pool, unless they grew large.
func (j *journey) done() {
	const large = 1 << 14
	clear(j.values)
	j.tape.Text, j.converted.Text = nil, nil
	if max(cap(j.tape.Nodes), cap(j.converted.Nodes), cap(j.slots), cap(j.objects)) <= large {
		journeys.Put(j)
	}
}

// byRoute converts an object as [Set.Convert] does, if it can take the route of its
// pair; ok is false if it cannot, or if the object is not of the set's kind.
func (s *Set) byRoute(budget *cel.Budget, data []byte, to string) (converted []byte, ok bool) {
	j := journeys.Get().(*journey)
	defer j.done()
	if j.tape.Scan(data) != nil {
		return nil, false
	}
	from, ok := s.version(&j.tape)
	if !ok {
		return nil, false
	}
	if p := s.pairs[[2]string{from, to}]; p != nil {
		return p.byRoute(j, budget)
	}
	first, second := s.pairs[[2]string{from, s.hub}], s.pairs[[2]string{s.hub, to}]
	if first == nil || second == nil {
		return nil, false
	}
	if converted, ok = first.byRoute(j, budget); !ok || j.tape.Scan(converted) != nil {
		return nil, false
	}
	return second.byRoute(j, budget)
}

// version returns the version of an object; ok is false if the object is not of the
// set's group and kind.
func (s *Set) version(t *exact.Tape) (version string, ok bool) {
	kind, ok := t.Field(0, "kind")
	if !ok || t.Nodes[kind].Kind != exact.String || t.Value(kind) != s.kind {
		return "", false
	}
	apiVersion, ok := t.Field(0, "apiVersion")
	if !ok {
		return "", false
	}
	text, _ := t.Value(apiVersion).(string)
	group, version := manifest.GroupVersion(text)
	return version, group == s.group
}

// byRoute converts the object of j.tape, if it can take the route.
func (p *pair) byRoute(j *journey, budget *cel.Budget) (converted []byte, ok bool) {
	r, t := p.route, &j.tape
	if r == nil {
		return nil, false
	}
	j.slots, j.objects = j.slots[:0], j.objects[:0]
	defer r.enter(j)(j)
	if !r.walk(j, r.source, 0, 0, 0) {
		return nil, false
	}
	metadata, has := t.Field(0, "metadata")
	if has && !carriesMetadata(t, metadata) {
		return nil, false
	}
	var source any
	if len(r.computed)+len(r.back) > 0 {
		source = r.reads.decode(t, 0)
		if fields, is := source.(map[string]any); t.Null && is {
			source = p.known(fields)
		}
	}
	if !r.compute(j, p, source, budget) {
		return nil, false
	}
	converted = append(make([]byte, 0, len(t.Text)+len(t.Text)/4+64), r.head...)
	if has {
		converted = append(append(converted, `,"metadata":`...), t.Span(metadata)...)
	}
	if converted, ok = r.write(j, converted, r.target, 0, 0); !ok {
		return nil, false
	}
	converted = append(converted, '}')
	return converted, r.restores(j, p, source, converted, budget) && r.returns(j, 0)
}

// enter makes room for an object, and returns the function that releases it.
func (r *route) enter(j *journey) func(*journey) {
	slots, objects := len(j.slots), len(j.objects)
	for range r.slots {
		j.slots = append(j.slots, -1)
	}
	for range r.objects {
		j.objects = append(j.objects, onTheWay{})
	}
	return func(j *journey) { j.slots, j.objects = j.slots[:slots], j.objects[:objects] }
}

// carriesMetadata reports whether metadata is copied as it is.
func carriesMetadata(t *exact.Tape, n int32) bool {
	if t.Nodes[n].Kind != exact.Object {
		return false
	}
	for i := n + 1; i < t.Nodes[n].Next; i = t.Nodes[i].Next {
		name := string(t.Name(i))
		if name != "labels" && name != "annotations" {
			continue
		}
		if t.Nodes[i].Kind != exact.Object {
			return false
		}
		for k := i + 1; k < t.Nodes[i].Next; k = t.Nodes[k].Next {
			if t.Nodes[k].Kind != exact.String || string(t.Name(k)) == manifest.ConversionStashAnnotation {
				return false
			}
		}
	}
	return true
}

// walk finds the fields of an object of the source. It reports false if the route cannot
// convert one of them.
func (r *route) walk(j *journey, o *sourceObject, n int32, slots, objects int) bool {
	t := &j.tape
	if t.Nodes[n].Kind != exact.Object {
		return false
	}
	j.objects[objects+o.id].there = true
	next := 0
	for i := n + 1; i < t.Nodes[n].Next; i = t.Nodes[i].Next {
		at := find(o.names, &next, t.Name(i))
		if at < 0 {
			return false
		}
		f := &o.fields[at]
		switch {
		case f.inner != nil:
			if !r.walk(j, f.inner, i, slots, objects) {
				return false
			}
			if j.objects[objects+f.inner.id].anchored {
				j.objects[objects+o.id].anchored = true
			}
		case f.slot >= 0:
			if !f.carry.holds(t, i) {
				return false
			}
			j.slots[slots+f.slot] = i
			j.objects[objects+o.id].anchored = true
		}
	}
	return true
}

// element appends an element.
func (r *route) element(j *journey, text []byte, n int32) (all []byte, ok bool) {
	slots, objects := len(j.slots), len(j.objects)
	defer r.enter(j)(j)
	if !r.walk(j, r.source, n, slots, objects) || !r.returns(j, objects) {
		return text, false
	}
	text, ok = r.write(j, append(text, '{'), r.target, slots, objects)
	return append(text, '}'), ok
}

// write appends the fields of an object of the target.
func (r *route) write(j *journey, text []byte, o *targetObject, slots, objects int) (all []byte, ok bool) {
	for i := range o.fields {
		f := &o.fields[i]
		before := len(text)
		switch {
		case f.slot >= 0:
			n := j.slots[slots+f.slot]
			if n < 0 {
				continue
			}
			if text, ok = f.carry.write(j, label(text, f), n); !ok {
				return text, false
			}
		case f.computed >= 0:
			if !j.present[f.computed] {
				continue
			}
			var err error
			if text, err = exact.Append(label(text, f), j.values[f.computed]); err != nil {
				return text, false
			}
		case f.inner != nil:
			text = append(label(text, f), '{')
			empty := len(text)
			if text, ok = r.write(j, text, f.inner, slots, objects); !ok {
				return text, false
			}
			there := f.inner.source != nil && j.objects[objects+f.inner.source.id].there
			switch {
			case len(text) == empty && !there:
				text = text[:before]
				continue
			case f.inner.source != nil && !there:
				return text, false // it would come back as an empty object
			}
			text = append(text, '}')
		}
	}
	return text, true
}

// label appends the name of a field.
func label(text []byte, f *targetField) []byte {
	if text[len(text)-1] != '{' {
		text = append(text, ',')
	}
	return append(text, f.label...)
}

// compute evaluates the rules, and reports false if one fails.
func (r *route) compute(j *journey, p *pair, source any, budget *cel.Budget) bool {
	j.values, j.present = j.values[:0], j.present[:0]
	if len(r.computed) == 0 {
		return true
	}
	root, ok := source.(map[string]any)
	if !ok {
		return false
	}
	budget.Again()
	evaluation := &run{pair: p, root: root, budget: budget}
	var later []int
	for i, c := range r.computed {
		v, found, present := evaluation.eval(c.rule, root, nil)
		if c.element { // a constant alone makes no list
			v, found = []any{v}, found && present
		}
		j.values, j.present = append(j.values, v), append(j.present, found && present)
		if found && !present {
			later = append(later, i)
		}
	}
	for _, i := range later {
		j.present[i] = r.exists(j, r.computed[i].parent)
	}
	return len(evaluation.failed) == 0
}

// exists reports whether the target will have an object.
func (r *route) exists(j *journey, o *targetObject) bool {
	if o.source != nil && j.objects[o.source.id].there {
		return true
	}
	return slices.ContainsFunc(o.fields, func(f targetField) bool {
		return f.slot >= 0 && j.slots[f.slot] >= 0 || f.computed >= 0 && j.present[f.computed] || f.inner != nil && r.exists(j, f.inner)
	})
}

// restores reports whether the rules of the pair back give the values of the source.
func (r *route) restores(j *journey, p *pair, source any, converted []byte, budget *cel.Budget) bool {
	if len(r.back) == 0 {
		return true
	}
	if j.converted.Scan(converted) != nil {
		return false
	}
	root, ok := r.backReads.decode(&j.converted, 0).(map[string]any)
	if !ok {
		return false
	}
	budget.Again()
	evaluation := &run{pair: p.back, root: root, budget: budget}
	same := func(path rules.Path, v any, found bool) bool {
		want, has := get(source, path)
		return has == found && (!has || exact.Equal(want, v))
	}
	type constant struct {
		field restoredField
		value any
	}
	var later []constant
	for _, f := range r.back {
		v, found, present := evaluation.eval(f.rule, root, nil)
		if f.element {
			v, found = []any{v}, found && present
		}
		switch {
		case found && !present:
			later = append(later, constant{f, v})
			continue
		case !same(f.path, v, found):
			return false
		}
		for o := f.parent; found && o != nil; o = o.parent {
			j.objects[o.id].anchored = true
		}
	}
	for _, c := range later {
		parent := j.objects[c.field.parent.id]
		exists := parent.anchored || parent.there && c.field.parent.copied
		if !same(c.field.path, c.value, exists) {
			return false
		}
	}
	return true
}

// returns reports whether all objects of the source come back.
func (r *route) returns(j *journey, objects int) bool {
	for _, o := range r.objects {
		if at := j.objects[objects+o.id]; at.there && !at.anchored && !o.copied {
			return false
		}
	}
	return true
}
