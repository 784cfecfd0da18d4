package conversion

import (
	"slices"
	"strings"

	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/conversion/stash"
	"gitopsd.dev/render/conversion/structural"
	"gitopsd.dev/render/exact"
)

// surveyor makes a route. ok becomes false if there is none.
type surveyor struct {
	*route
	// from and to are the paths of the objects of the source and the target in which
	// rules, or drop and derive, name fields.
	from, to map[string]bool
	// there and again are copies that only one direction makes, as rules.
	there, again []*rule
	ok           bool
}

// routeOf returns the route of a mapping, with the mapping of the pair back; nil if
// there is none. p is nil for elements.
func routeOf(m, back *mapping, p *pair) *route {
	for _, side := range []*mapping{m, back} {
		if side.kind != object || side.rest || structural.Kind(side.schema) != structural.Object {
			return nil
		}
	}
	s := &surveyor{from: map[string]bool{}, to: map[string]bool{}, ok: true,
		route: &route{target: &targetObject{}, reads: &reads{}, backReads: &reads{}}}
	s.source = s.object(nil)
	for _, r := range m.rules {
		s.divide(r, p != nil, s.from, s.to)
	}
	for _, r := range back.rules {
		s.divide(r, p != nil, s.to, s.from)
	}
	if p != nil {
		if !plainMetadata(m) || !plainMetadata(back) {
			return nil
		}
		s.head = head(p)
		for _, name := range []string{"apiVersion", "kind", "metadata"} {
			s.source.fields = append(s.source.fields, sourceField{name: name, slot: -1})
		}
		s.forgotten(p.ignored, nil, func(path rules.Path) { through(path, s.from) })
	}
	if !s.ok {
		return nil
	}
	s.copies(m, back, nil, s.source, s.target)
	there, again := *m, *back
	there.rules, again.rules = slices.Concat(m.rules, s.there), slices.Concat(back.rules, s.again)
	s.rules(&there, &again)
	if p != nil {
		s.restored(&there, &again, p.ignored)
		s.forgotten(p.ignored, nil, func(path rules.Path) {
			if !s.has(path) {
				s.sourceField(path)
			}
		})
	}
	if !s.ok || p == nil && (len(s.computed) > 0 || computes(&again, &there)) {
		return nil
	}
	s.source.sort()
	s.target.sort()
	return s.route
}

// head returns the beginning of an object that a pair has converted.
func head(p *pair) []byte {
	text, err := exact.Encode(map[string]any{"apiVersion": p.apiVersion(), "kind": p.kind})
	if err != nil {
		return nil
	}
	return text[:len(text)-1]
}

// plainMetadata reports whether a mapping copies labels and annotations, and does
// nothing else to metadata.
func plainMetadata(m *mapping) bool {
	i := slices.IndexFunc(m.fields, func(f shared) bool { return f.name == "metadata" })
	if i < 0 || m.fields[i].mapping.kind != object || len(m.fields[i].mapping.fields) != 2 {
		return false
	}
	for _, f := range m.fields[i].mapping.fields {
		if f.mapping.kind != values || len(f.mapping.skip) > 0 || f.mapping.item.kind != leaf {
			return false
		}
	}
	return !slices.ContainsFunc(m.rules, func(r *rule) bool { return r.to[0].Key == "metadata" })
}

// divide notes the objects that the paths of a rule go through.
func (s *surveyor) divide(r *rule, top bool, from, to map[string]bool) {
	path, element := r.list()
	if r.toKey || len(path) == 0 || slices.ContainsFunc(path, indexed) || !top && (r.origin != fromSelf || !r.moves() || element) {
		s.ok = false
		return
	}
	through(r.to, to)
	if r.moves() {
		s.ok = s.ok && len(r.path) > 0
		through(r.path, from)
	}
}

func indexed(s rules.Step) bool { return s.Element || s.Each }

// through adds the objects that a path goes through.
func through(path rules.Path, objects map[string]bool) {
	for i := 1; i < len(path) && !indexed(path[i]); i++ {
		objects[path[:i].String()] = true
	}
}

// list returns the path of the list if the rule writes an element of a list. Otherwise
// it returns the rule's path, and ok is false.
func (r *rule) list() (path rules.Path, ok bool) {
	if last := len(r.to) - 1; last > 0 && r.to[last].Element {
		return r.to[:last], true
	}
	return r.to, false
}

// moves reports whether the rule moves a field, without computing anything.
func (r *rule) moves() bool {
	return (r.origin == fromSelf || r.origin == fromRoot) && !r.transform && r.mapping != nil
}

// carriedBack returns the carry of a field that the rule moves and a rule of the pair
// back moves back; nil if there is none.
func (r *rule) carriedBack(back *mapping) *carry {
	if slices.ContainsFunc(r.path, indexed) || slices.ContainsFunc(r.to, indexed) {
		return nil
	}
	i := slices.IndexFunc(back.rules, func(b *rule) bool {
		return r.moves() && b.moves() && comparePaths(r.path, b.to) == 0 && comparePaths(r.to, b.path) == 0
	})
	if i < 0 {
		return nil
	}
	return carried(r.mapping, back.rules[i].mapping)
}

// computes reports whether a rule of m does more than move a field that back moves back.
func computes(m, back *mapping) bool {
	return slices.ContainsFunc(m.rules, func(r *rule) bool { return r.carriedBack(back) == nil })
}

// forgotten calls visit with the fields that are never stashed, except fields of
// elements.
func (s *surveyor) forgotten(i *stash.Ignored, path rules.Path, visit func(rules.Path)) {
	switch {
	case i == nil:
	case i.All && len(path) == 0:
		s.ok = false
	case i.All:
		visit(path)
	default:
		for name, below := range i.Fields {
			s.forgotten(below, append(slices.Clone(path), rules.Step{Key: name}), visit)
		}
	}
}

// copies routes the fields that both mappings copy.
func (s *surveyor) copies(m, back *mapping, path rules.Path, from *sourceObject, to *targetObject) {
	from.copied, to.source = true, from
	both := map[string]bool{}
	for _, f := range m.fields {
		at := append(slices.Clone(path), rules.Step{Key: f.name})
		if len(path) == 0 && s.head != nil && f.name == "metadata" {
			both[f.name] = true
			continue
		}
		i := slices.IndexFunc(back.fields, func(b shared) bool { return b.name == f.name })
		if i < 0 {
			s.there = append(s.there, &rule{origin: fromSelf, path: at, mapping: f.mapping, to: at})
			continue
		}
		both[f.name] = true
		there, again := f.mapping, back.fields[i].mapping
		if !s.from[at.String()] && !s.to[at.String()] {
			s.carry(carried(there, again), at, at)
			continue
		}
		for _, side := range []*mapping{there, again} {
			s.ok = s.ok && side.kind == object && !side.rest && structural.Kind(side.schema) == structural.Object
		}
		if s.ok {
			inner, copied := s.object(from), &targetObject{}
			from.fields = append(from.fields, sourceField{name: f.name, inner: inner, slot: -1})
			to.fields = append(to.fields, newTargetField(f.name, copied))
			s.copies(there, again, at, inner, copied)
		}
	}
	for _, f := range back.fields {
		if !both[f.name] {
			at := append(slices.Clone(path), rules.Step{Key: f.name})
			s.again = append(s.again, &rule{origin: fromSelf, path: at, mapping: f.mapping, to: at})
		}
	}
}

// rules routes the fields that rules write.
func (s *surveyor) rules(m, back *mapping) {
	for _, r := range m.rules {
		if c := r.carriedBack(back); c != nil {
			s.carry(c, r.path, r.to)
			continue
		}
		path, element := r.list()
		if parent, f := s.targetField(path); f != nil {
			f.computed = len(s.computed)
			s.computed = append(s.computed, computedField{r, parent, element})
			s.reads.addRule(r, false)
		}
	}
}

// restored adds the rules of the pair back that must be evaluated, and the fields of the
// source to compare with their results.
func (s *surveyor) restored(m, back *mapping, ignored *stash.Ignored) {
	for _, r := range back.rules {
		if r.carriedBack(m) != nil || forgets(ignored, r.to) {
			continue
		}
		path, element := r.list()
		if parent, f := s.sourceField(path); f != nil {
			s.back = append(s.back, restoredField{r, parent, path, element})
			s.backReads.addRule(r, false)
			s.reads.add(path)
		}
	}
}

// forgets reports whether a field is never stashed.
func forgets(i *stash.Ignored, path rules.Path) bool {
	for _, step := range path {
		if i == nil || i.All {
			break
		}
		i = i.Fields[step.Key]
	}
	return i != nil && i.All
}

// carry routes a field that is copied as text.
func (s *surveyor) carry(c *carry, from, to rules.Path) {
	if c == nil {
		s.ok = false
		return
	}
	_, f := s.sourceField(from)
	_, t := s.targetField(to)
	if f == nil || t == nil {
		return
	}
	f.carry, f.slot = c, s.slots
	t.carry, t.slot = c, s.slots
	s.slots++
}

func (s *surveyor) object(parent *sourceObject) *sourceObject {
	o := &sourceObject{id: len(s.objects), parent: parent}
	s.objects = append(s.objects, o)
	return o
}

// has reports whether the route has a field of the source, a field in it, or a whole
// object that it is in.
func (s *surveyor) has(path rules.Path) bool {
	o := s.source
	for _, step := range path {
		if o == nil {
			return true
		}
		i := slices.IndexFunc(o.fields, func(f sourceField) bool { return f.name == step.Key })
		if i < 0 {
			return false
		}
		o = o.fields[i].inner
	}
	return true
}

// sourceField adds a field of the source, and the objects that it is in. If the route has
// the field already, a field in it, or a whole object that it is in, there is no route,
// and both results are nil.
func (s *surveyor) sourceField(path rules.Path) (parent *sourceObject, f *sourceField) {
	o := s.source
	for n, step := range path {
		i := slices.IndexFunc(o.fields, func(f sourceField) bool { return f.name == step.Key })
		last := n == len(path)-1
		switch {
		case indexed(step) || i >= 0 && (last || o.fields[i].inner == nil):
			s.ok = false
			return nil, nil
		case i < 0:
			i = len(o.fields)
			o.fields = append(o.fields, sourceField{name: step.Key, slot: -1})
			if last {
				return o, &o.fields[i]
			}
			o.fields[i].inner = s.object(o)
		}
		o = o.fields[i].inner
	}
	return nil, nil
}

// targetField does the same as sourceField for the target.
func (s *surveyor) targetField(path rules.Path) (parent *targetObject, f *targetField) {
	o := s.target
	for n, step := range path {
		i := slices.IndexFunc(o.fields, func(f targetField) bool { return f.name == step.Key })
		last := n == len(path)-1
		switch {
		case indexed(step) || i >= 0 && (last || o.fields[i].inner == nil):
			s.ok = false
			return nil, nil
		case i < 0:
			i = len(o.fields)
			if last {
				o.fields = append(o.fields, newTargetField(step.Key, nil))
				return o, &o.fields[i]
			}
			o.fields = append(o.fields, newTargetField(step.Key, &targetObject{}))
		}
		o = o.fields[i].inner
	}
	return nil, nil
}

func newTargetField(name string, inner *targetObject) targetField {
	label, _ := exact.Encode(name) // no string fails
	return targetField{name: name, label: append(label, ':'), inner: inner, slot: -1, computed: -1}
}

func (o *sourceObject) sort() {
	slices.SortFunc(o.fields, func(a, b sourceField) int { return strings.Compare(a.name, b.name) })
	for _, f := range o.fields {
		o.names = append(o.names, f.name)
		if f.inner != nil {
			f.inner.sort()
		}
	}
}

func (o *targetObject) sort() {
	slices.SortFunc(o.fields, func(a, b targetField) int { return strings.Compare(a.name, b.name) })
	for _, f := range o.fields {
		if f.inner != nil {
			f.inner.sort()
		}
	}
}
