package conversion

import (
	"reflect"
	"slices"

	"gitopsd.dev/render/exact"
)

// carry copies the values of a field to the other version, such that they come back
// unchanged. Fields of elements may have other names there.
type carry struct {
	kind carryKind
	// there and back check leaf values against the schemas of both versions; back is nil
	// if the schemas are equal.
	there, back *check
	// names and fields are the fields of an object, sorted. An object with other fields
	// is not carried.
	names  []string
	fields []*carry
	item   *carry
	route  *route
	// same is set if values have the same text in both versions.
	same bool
}

type carryKind int

const (
	carryLeaf carryKind = iota
	carryFields
	carryItems
	carryValues
	carryRoute // an object whose fields move
)

// carried returns the carry for values that m converts there and back converts back; nil
// if they may come back changed.
func carried(m, back *mapping) *carry {
	if m.kind != back.kind || m.rest || back.rest || len(m.skip)+len(back.skip) > 0 {
		return nil
	}
	if len(m.rules)+len(back.rules) > 0 {
		r := routeOf(m, back, nil)
		if r == nil {
			return nil
		}
		return &carry{kind: carryRoute, route: r}
	}
	switch m.kind {
	case leaf:
		c := &carry{kind: carryLeaf, there: checkOf(m.schema), same: true}
		if !reflect.DeepEqual(m.schema, back.schema) {
			c.back = checkOf(back.schema)
		}
		return c
	case object:
		c := &carry{kind: carryFields, same: true}
		for _, f := range m.fields {
			i := slices.IndexFunc(back.fields, func(b shared) bool { return b.name == f.name })
			if i < 0 {
				continue
			}
			field := carried(f.mapping, back.fields[i].mapping)
			if field == nil {
				return nil
			}
			c.same = c.same && field.same
			at, _ := slices.BinarySearch(c.names, f.name)
			c.names = slices.Insert(c.names, at, f.name)
			c.fields = slices.Insert(c.fields, at, field)
		}
		return c
	case list, values:
		item := carried(m.item, back.item)
		if item == nil {
			return nil
		}
		kind := carryItems
		if m.kind == values {
			kind = carryValues
		}
		return &carry{kind: kind, item: item, same: item.same}
	}
	return nil
}

// find returns the index of a name in a sorted list, or -1. Callers ask for most names in
// the order of the list: next is the index after the last name found.
func find(names []string, next *int, name []byte) int {
	i := *next
	for i < len(names) && names[i] < string(name) {
		i++
	}
	if i == len(names) || names[i] != string(name) {
		i = slices.Index(names, string(name))
	}
	if i >= 0 {
		*next = i + 1
	}
	return i
}

// holds reports whether a value can be carried. For objects whose fields move, write
// reports it.
func (c *carry) holds(t *exact.Tape, n int32) bool {
	node := &t.Nodes[n]
	switch c.kind {
	case carryLeaf:
		return c.there.holds(t, n) && (c.back == nil || c.back.holds(t, n))
	case carryFields:
		next := 0
		for i := n + 1; i < node.Next; i = t.Nodes[i].Next {
			at := find(c.names, &next, t.Name(i))
			if at < 0 || !c.fields[at].holds(t, i) {
				return false
			}
		}
	case carryItems, carryValues:
		for i := n + 1; i < node.Next; i = t.Nodes[i].Next {
			if !c.item.holds(t, i) {
				return false
			}
		}
	}
	if c.kind == carryItems {
		return node.Kind == exact.Array
	}
	return node.Kind == exact.Object
}

// write appends a value as it is in the target. It reports false if the value cannot be
// carried.
func (c *carry) write(j *journey, text []byte, n int32) (all []byte, ok bool) {
	t := &j.tape
	if c.same {
		return append(text, t.Span(n)...), true
	}
	if c.kind == carryRoute {
		return c.route.element(j, text, n)
	}
	opening, closing := byte('{'), byte('}')
	if c.kind == carryItems {
		opening, closing = '[', ']'
	}
	text = append(text, opening)
	next := 0
	for i := n + 1; i < t.Nodes[n].Next; i = t.Nodes[i].Next {
		if i > n+1 {
			text = append(text, ',')
		}
		inner := c.item
		if c.kind == carryFields {
			inner = c.fields[find(c.names, &next, t.Name(i))]
		}
		if c.kind != carryItems {
			text = append(append(append(text, '"'), t.Name(i)...), `":`...)
		}
		if text, ok = inner.write(j, text, i); !ok {
			return text, false
		}
	}
	return append(text, closing), true
}
