package conversion

import (
	"fmt"
	"maps"
	"slices"

	"gitopsd.dev/render/conversion/structural"
	"gitopsd.dev/render/manifest"
)

// plan returns the mapping that copies values of one schema to another, without the
// fields that rules read or write. top is set for the object, and for elements that have
// rules.
func (c *compiler) plan(from, to map[string]any, src, dst *marks, where, path string, top bool) (*mapping, error) {
	a, b := structural.Kind(from), structural.Kind(to)
	m := &mapping{schema: to}
	switch {
	case a == structural.Object && b == structural.Object, a == structural.Any && b == structural.Any && (top || src.any() || dst.any()):
		m.kind = object
		if m.rest = a == structural.Any; m.rest {
			m.skip = skipped(src, dst)
		}
		c.object(m, from, to, src, dst, where, path)
		return m, nil
	case a == structural.List && b == structural.List:
		m.kind = list
	case a == structural.Map && b == structural.Map:
		m.kind = values
		m.skip = skipped(src, dst)
		for name, child := range src.children {
			child.copied = name != eachMark && !m.skip[name]
		}
	case moves(a, b):
		m.kind = leaf
		return m, nil
	default:
		return nil, fmt.Errorf("it is %s in %s and %s in %s; write a rule that converts it", structural.Article(a), c.from, structural.Article(b), c.to)
	}
	if structural.Element(from) == nil || structural.Element(to) == nil {
		m.kind = leaf
		return m, nil
	}
	item, err := c.plan(structural.Element(from), structural.Element(to), src.under(eachMark), dst.child(eachMark), where, path+"[]", false)
	if err != nil {
		return nil, fmt.Errorf("in each element, %w", err)
	}
	m.item = item
	return m, nil
}

// skipped returns the keys that are not copied with the rest of a map.
func skipped(src, dst *marks) map[string]bool {
	skip := map[string]bool{}
	for _, m := range []*marks{src, dst} {
		for name, child := range m.children {
			if name != eachMark && (child.claimed || child.written != "" || child.drop) {
				skip[name] = true
			}
		}
	}
	return skip
}

// object plans the fields of an object, and reports fields that nothing converts.
func (c *compiler) object(m *mapping, from, to map[string]any, src, dst *marks, where, path string) {
	have, want := manifest.Mapping(from, "properties"), manifest.Mapping(to, "properties")
	names := maps.Clone(have)
	if m.rest { // with the fields that rules name
		if names == nil {
			names = map[string]any{}
		}
		for _, marked := range []*marks{src, dst} {
			for name := range marked.children {
				if name != eachMark {
					names[name] = nil
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		s, d := src.under(name), dst.child(name)
		at := name
		if path != "" {
			at = path + "." + name
		}
		schema, target := manifest.Mapping(have, name), manifest.Mapping(want, name)
		free := schema == nil
		if m.rest {
			schema, target = structural.Child(from, name), structural.Child(to, name)
		}
		if target != nil && !s.claimed && !s.part && !s.drop && d.written == "" {
			before := len(c.errs)
			inner, err := c.plan(schema, target, s, d, where, at, false)
			if err == nil {
				m.fields = append(m.fields, shared{name, inner})
				if s != noMarks {
					s.copied = true
				}
				continue
			}
			if len(c.errs) > before {
				continue
			}
			if !covered(schema, s) {
				c.fail(where, "%s: %v", at, err)
			}
			continue
		}
		if !free {
			c.cover(schema, s, where, at)
		}
	}
}

// moves reports whether every value of one kind is one of another.
func moves(from, to string) bool {
	return from == to || to == structural.Any || to == structural.Number && from == structural.Integer ||
		to == structural.IntOrString && (from == structural.String || from == structural.Integer)
}
