package conversion

import (
	"maps"
	"slices"

	"gitopsd.dev/render/conversion/structural"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/manifest"
)

// check is a schema prepared for checking JSON fast, with the same result as
// [structural.Fits] for the decoded value.
type check struct {
	text, truth, integer, number, null, list, object bool
	// items checks the elements of a list; nil accepts any.
	items *check
	// fields checks the fields of an object, and others its other fields; nil refuses
	// them.
	fields map[string]*check
	others *check
}

// anyCheck accepts any value.
var anyCheck = func() *check {
	c := &check{text: true, truth: true, integer: true, number: true, null: true, list: true, object: true}
	c.others = c
	return c
}()

func checkOf(schema map[string]any) *check {
	c := &check{null: structural.Nullable(schema)}
	switch kind := structural.Kind(schema); kind {
	case structural.String:
		c.text = true
	case structural.Integer:
		c.integer = true
	case structural.Number:
		c.integer, c.number = true, true
	case structural.IntOrString:
		c.text, c.integer = true, true
	case structural.Boolean:
		c.truth = true
	case structural.List:
		c.list = true
	case structural.Map:
		c.object = true
		c.others = checkOf(structural.Element(schema))
	case structural.Object, structural.Any:
		typed := schema["type"] != nil
		c.object = kind == structural.Object || !typed || schema["type"] == "object"
		if kind == structural.Any && !typed {
			c.text, c.truth, c.integer, c.number, c.list = true, true, true, true, true
		}
		properties := manifest.Mapping(schema, "properties")
		if kind == structural.Any && (structural.Open(schema) || !typed || len(properties) == 0) {
			c.others = anyCheck
		}
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			if property := manifest.Mapping(properties, name); property != nil {
				if c.fields == nil {
					c.fields = map[string]*check{}
				}
				c.fields[name] = checkOf(property)
			}
		}
	}
	if c.list {
		if items := structural.Element(schema); items != nil {
			c.items = checkOf(items)
		}
	}
	return c
}

// holds reports whether a value of a tape fits the schema.
func (c *check) holds(t *exact.Tape, n int32) bool {
	node := &t.Nodes[n]
	switch node.Kind {
	case exact.Null:
		return c.null
	case exact.String:
		return c.text
	case exact.True, exact.False:
		return c.truth
	case exact.Numeral:
		return c.number || c.integer && t.Integer(n)
	case exact.Array:
		if !c.list {
			return false
		}
		for i := n + 1; c.items != nil && i < node.Next; i = t.Nodes[i].Next {
			if !c.items.holds(t, i) {
				return false
			}
		}
		return true
	}
	if !c.object {
		return false
	}
	if c == anyCheck {
		return true
	}
	for i := n + 1; i < node.Next; i = t.Nodes[i].Next {
		field := c.fields[string(t.Name(i))]
		if field == nil {
			field = c.others
		}
		if field == nil || !field.holds(t, i) {
			return false
		}
	}
	return true
}
