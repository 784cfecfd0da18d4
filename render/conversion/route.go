package conversion

import (
	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/exact"
)

// route is how an object, or an element whose fields move, is converted without being
// decoded. It is only for objects that come back as they were, so that nothing of them
// goes into the stash; [pair.byRoute] finds out whether one does, and the others are
// left to [pair.convert].
//
//   - Fields that are copied, and fields that a rule moves and a rule of the pair back
//     moves back, are copied as text.
//   - Other rules are evaluated on the fields that they read. So are those of the pair
//     back, on the converted object: they must give what the source has.
type route struct {
	source  *sourceObject
	target  *targetObject
	objects []*sourceObject
	slots   int
	// computed are the rules that are evaluated, back those of the pair back.
	computed []computedField
	back     []restoredField
	// reads are the fields of the source, and backReads those of the target, that
	// computed and back need.
	reads, backReads *reads
	// head begins the converted object: its apiVersion and kind.
	head []byte
}

// sourceObject is an object of the source whose fields go different ways.
type sourceObject struct {
	id     int
	parent *sourceObject
	// copied is set if the target has the object too: then it is there, even if it has
	// no fields.
	copied bool
	// fields are sorted, and names are theirs.
	fields []sourceField
	names  []string
}

// sourceField is a field of the source.
type sourceField struct {
	name  string
	inner *sourceObject
	// carry and slot are how and where the field is kept until it is written; slot is
	// -1 for fields that are not kept.
	carry *carry
	slot  int
}

// targetObject is an object of the target.
type targetObject struct {
	source *sourceObject // that it is a copy of; nil if it only has what rules write
	fields []targetField // sorted
}

// targetField is written from one of a slot, an object, and a computed field.
type targetField struct {
	name     string
	label    []byte // of JSON: "name":
	inner    *targetObject
	carry    *carry
	slot     int
	computed int
}

// computedField is a field of the target, in its parent. With element it is a list, of
// which the rule writes the only element.
type computedField struct {
	rule    *rule
	parent  *targetObject
	element bool
}

// restoredField is the same of the source.
type restoredField struct {
	rule    *rule
	parent  *sourceObject
	path    rules.Path
	element bool
}

// reads are the fields of an object that expressions read, as a tree.
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

// addRule adds what a rule of an object reads, and rules for elements in it read of the
// object.
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
			var path rules.Path
			for _, f := range read.Fields {
				path = append(path, rules.Step{Key: f})
			}
			r.add(path)
		}
	}
	if rule.mapping != nil && rule.mapping.item != nil && !rule.mapping.item.rest {
		for _, inner := range rule.mapping.item.rules {
			r.addRule(inner, true)
		}
	}
}

// decode returns the object of a tape with only those of its fields that are read.
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
