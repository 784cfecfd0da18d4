package conversion

import (
	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/conversion/structural"
)

// items compiles rules for elements; it returns nil after an error.
func (c *compiler) items(s scope, r rules.Rule, schema map[string]any, typ cel.Type, src *marks, out *rule) *mapping {
	m := &mapping{schema: out.schema}
	from, to := structural.Kind(schema), structural.Kind(out.schema)
	switch [2]string{from, to} {
	case [2]string{structural.List, structural.List}:
		m.kind = list
	case [2]string{structural.Map, structural.Map}:
		m.kind = values
	case [2]string{structural.Map, structural.List}:
		m.kind = mapToList
	case [2]string{structural.List, structural.Map}:
		m.kind = listToMap
	default:
		c.fail(r.Where, "itemRules: %s is %s in %s, and %s is %s in %s; both must be lists or maps", r.From, structural.Article(from), c.from, r.To, structural.Article(to), c.to)
		return nil
	}
	elem, _ := typ.Element()
	inner := scope{self: elem, schema: structural.Element(schema), key: from == structural.Map, target: out.schema, item: true, path: out.label + "[]",
		src: src.each(), dst: s.dst.at(out.to).each()}
	var keyed []rules.Rule
	for _, item := range r.Items {
		if len(item.To) == 1 && item.To[0].Key == "key" {
			keyed = append(keyed, item)
		}
	}
	if m.kind == listToMap && len(keyed) == 0 {
		c.fail(r.Where, "itemRules: %s is a map, and no rule says what the key is: add {from: self.<field>, to: key}", r.To)
		return nil
	}
	before := len(c.errs)
	compiled := c.rules(inner, r.Items)
	if len(c.errs) > before {
		return nil
	}
	if len(compiled) == 1 && len(compiled[0].to) == 0 && !compiled[0].toKey {
		m.item = &mapping{kind: object, schema: structural.Element(out.schema), rules: compiled}
		c.later = append(c.later, func() { c.cover(structural.Element(schema), inner.src, r.Where, out.path.String()+"[]") })
		return m
	}
	m.item = &mapping{kind: object, schema: structural.Element(out.schema)}
	c.later = append(c.later, func() {
		planned, err := c.plan(structural.Element(schema), structural.Element(out.schema), inner.src, inner.dst, r.Where, out.path.String()+"[]", true)
		if err == nil && planned.kind == object {
			*m.item = *planned
		} else {
			c.cover(structural.Element(schema), inner.src, r.Where, out.path.String()+"[]")
		}
		m.item.rules = compiled
	})
	return m
}

// use returns the mapping of a list by a rule set. Each set is compiled once, and may use
// itself.
func (c *compiler) use(r rules.Rule, schema map[string]any, out *rule) *mapping {
	for _, side := range []struct {
		schema        map[string]any
		name, version string
	}{{schema, r.From, c.from}, {out.schema, r.To.String(), c.to}} {
		free := structural.Kind(side.schema) == structural.Any
		if structural.Kind(side.schema) == structural.List {
			free = structural.Element(side.schema) == nil || structural.Kind(structural.Element(side.schema)) == structural.Any
		}
		if !free {
			c.fail(r.Where, "use: %s is %s in %s, and ruleSets are for fields whose schema is open (x-kubernetes-preserve-unknown-fields); write itemRules", side.name, structural.Article(structural.Kind(side.schema)), side.version)
			return nil
		}
	}
	m := &mapping{kind: list, schema: out.schema, item: c.compiledSets[r.Use]}
	if m.item != nil {
		return m
	}
	m.item = &mapping{kind: object, schema: structural.Anything, rest: true}
	if c.compiledSets == nil {
		c.compiledSets = map[string]*mapping{}
	}
	c.compiledSets[r.Use] = m.item
	inner := scope{schema: structural.Anything, target: map[string]any{"type": "array", "items": structural.Anything}, item: true,
		path: out.label + "[]", src: &marks{}, dst: &marks{}}
	m.item.rules = c.rules(inner, c.sets[r.Use])
	item := m.item
	c.later = append(c.later, func() {
		if planned, err := c.plan(structural.Anything, structural.Anything, inner.src, inner.dst, r.Where, inner.path, true); err == nil {
			planned.rules = item.rules
			*item = *planned
		}
	})
	return m
}
