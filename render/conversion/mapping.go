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
	// seen are the schemas of what conversions may change, and ignored the fields of
	// from that are never stashed.
	seen, seenTo map[string]any
	ignored      *stash.Ignored
	back         *pair
	// route is how most objects are converted; nil if there is none.
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
	// item converts elements and values; not lists and maps of anything.
	item *mapping
	// skip are the keys of a map that rules read or write.
	skip map[string]bool
	// rest is set for objects with fields that neither schema has: they are copied.
	rest bool
}

type shape int

const (
	leaf      shape = iota // as it is
	object                 // by fields and rules
	list                   // to a list, each element
	values                 // to a map, each value
	mapToList              // in the order of the keys
	listToMap              // the first of those with one key
)

type shared struct {
	name    string
	mapping *mapping
}

// rule is a compiled rule. It reads a path, and then transforms it or maps it; or it
// is an expression.
type rule struct {
	where string
	// label is the field that it writes, from the object on.
	label  string
	origin origin
	path   rules.Path
	fn     *cel.Func
	// transform has self as the value at path.
	transform bool
	// repeats is set if a rule for elements reads a field of the whole object.
	repeats bool
	mapping *mapping
	to      rules.Path
	toKey   bool
	schema  map[string]any
	reads   []fieldRead
}

// origin is what a path starts from.
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
