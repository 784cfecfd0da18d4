package conversion

import (
	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/exact"
)

// route converts an object, or an element whose fields move, without decoding it. It is
// only for objects that come back unchanged, so that nothing goes into the stash.
// [pair.byRoute] finds out whether an object does; [pair.convert] converts the others.
//
//   - Fields that are copied, and fields that a rule moves and a rule of the pair back
//     moves back, are copied as text.
//   - Other rules are evaluated on the fields that they read. So are the rules of the
//     pair back, on the converted object: they must give the values of the source.
type route struct {
	source  *sourceObject
	target  *targetObject
	objects []*sourceObject
	slots   int
	// computed are the rules that are evaluated, and back those of the pair back.
	computed []computedField
	back     []restoredField
	// reads are the fields of the source that computed and back need, and backReads the
	// fields of the target that back reads.
	reads, backReads *reads
	// head begins the JSON of the converted object: its apiVersion and kind.
	head []byte
}

// sourceObject is an object of the source whose fields go to different places.
type sourceObject struct {
	id     int
	parent *sourceObject
	// copied is set if the target has the object too, even without fields.
	copied bool
	// fields are sorted by name, and names are their names.
	fields []sourceField
	names  []string
}

// sourceField is a field of the source.
type sourceField struct {
	name  string
	inner *sourceObject
	// carry copies the field, and slot holds it until then; slot is -1 for fields that
	// are not copied.
	carry *carry
	slot  int
}

// targetObject is an object of the target.
type targetObject struct {
	source *sourceObject // copied into this one; nil if only rules write fields here
	fields []targetField // sorted
}

// targetField is written from a slot, an object or a computed field.
type targetField struct {
	name     string
	label    []byte // the name as JSON, with a colon
	inner    *targetObject
	carry    *carry
	slot     int
	computed int
}

// computedField is a field of the target that a rule computes. If element is set, the
// field is a list, and the rule writes its only element.
type computedField struct {
	rule    *rule
	parent  *targetObject
	element bool
}

// restoredField is a field of the source that a rule of the pair back computes.
type restoredField struct {
	rule    *rule
	parent  *sourceObject
	path    rules.Path
	element bool
}

// reads is a tree of the fields of an object that rules read.
type reads struct {
	whole  bool
	fields map[string]*reads
}

func (r *reads) add(path rules.Path) {
	for _, s := range path {
		if s.Element || s.Each {
			break
		}
		if r.fields == nil {
			r.fields = map[string]*reads{}
		}
		if r.fields[s.Key] == nil {
			r.fields[s.Key] = &reads{}
		}
		r = r.fields[s.Key]
	}
	r.whole = true
}

// addRule adds the fields of the object that a rule reads, with its rules for elements.
// element is set for those.
func (r *reads) addRule(rule *rule, element bool) {
	if rule.origin == fromRoot || rule.origin == fromSelf && !element {
		r.add(rule.path)
	}
	if rule.fn != nil {
		for _, read := range rule.fn.Reads() {
			self := read.Variable == "self"
			if read.Variable == "key" || self && (element || rule.transform) {
				continue
			}
			r.add(rules.Keys(read.Fields))
		}
	}
	if rule.mapping != nil && rule.mapping.item != nil && !rule.mapping.item.rest {
		for _, inner := range rule.mapping.item.rules {
			r.addRule(inner, true)
		}
	}
}

// decode returns a value of a tape, without the fields that are not read.
func (r *reads) decode(t *exact.Tape, n int32) any {
	if r.whole || t.Nodes[n].Kind != exact.Object {
		return t.Value(n)
	}
	object := make(map[string]any, len(r.fields))
	for i := n + 1; i < t.Nodes[n].Next; i = t.Nodes[i].Next {
		if f := r.fields[string(t.Name(i))]; f != nil {
			object[string(t.Name(i))] = f.decode(t, i)
		}
	}
	return object
}
