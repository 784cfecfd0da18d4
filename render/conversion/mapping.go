package conversion

import (
	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/conversion/stash"
)

// pair converts one way between two versions.
type pair struct {
	from, to    string
	group, kind string
	// declared are all versions of the definition.
	declared []string
	root     *mapping
	// seen and seenTo are the schemas of both versions, reduced to the fields that
	// conversions may change. ignored are the fields of from that are never stashed.
	seen, seenTo map[string]any
	ignored      *stash.Ignored
	back         *pair
	// route converts most objects; nil if there is none.
	route *route
}

// mapping converts a value of one schema to one of another.
type mapping struct {
	kind shape
	// schema is the target's.
	schema map[string]any
	// fields are copied from an object's fields of the same name, each by its mapping.
	fields []shared
	// rules write fields of an object, or all of an element.
	rules []*rule
	// item converts the elements of a list or the values of a map.
	item *mapping
	// skip are the keys of a map that rules read or write.
	skip map[string]bool
	// rest is set for objects of open schemas: fields that the schemas do not name are
	// copied.
	rest bool
}

type shape int

const (
	leaf      shape = iota // copied unchanged
	object                 // converted by fields and rules
	list                   // list to list
	values                 // map to map
	mapToList              // in the order of the keys
	listToMap              // the first element with a key counts
)

type shared struct {
	name    string
	mapping *mapping
}

// rule is a compiled rule. It reads the value at a path and transforms or maps it, or it
// computes an expression.
type rule struct {
	where string
	// label is the full path of the field that the rule writes.
	label  string
	origin origin
	path   rules.Path
	fn     *cel.Func
	// transform is set if fn transforms the value at path, which is its self.
	transform bool
	// repeats is set if a rule for elements reads a field of the whole object.
	repeats bool
	mapping *mapping
	to      rules.Path
	// whole is set if to begins at the object, and not at an element.
	whole  bool
	toKey  bool
	schema map[string]any
	reads  []fieldRead
}

// origin is the start of a path.
type origin int

const (
	fromSelf origin = iota
	fromRoot
	fromKey
	computed
)

type fieldRead struct {
	origin origin
	path   rules.Path
}
