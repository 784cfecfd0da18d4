package compat

import (
	"context"
	"slices"

	"gitopsd.dev/render/manifest"
)

// exclusive reports whether no value matches two of a schema's branches. It is false if
// that is not certain, and beyond maxTried.
func (w *walk) exclusive(ctx context.Context, branches []node, in node) bool {
	if len(branches)*len(branches) > maxPairs {
		return false
	}
	for i, a := range branches {
		for _, b := range branches[i+1:] {
			if ctx.Err() != nil || !w.exclude(a, b, in) {
				return false
			}
		}
	}
	return true
}

// exclude reports whether no value matches both branches. It is false beyond maxTried.
func (w *walk) exclude(a, b, in node) bool {
	w.tried += 1 + len(manifest.List(a, "enum")) + len(manifest.List(b, "enum"))
	if w.tried > maxTried {
		return false
	}
	if disjointTypes(a, b) || manifest.Text(in, "type") == "string" && disjointEnums(a, b) {
		return true
	}
	// Checks of fields apply to objects only.
	if manifest.Text(in, "type") != "object" || manifest.Truth(in, "nullable") {
		return false
	}
	return w.forbids(a, b) || w.forbids(b, a) || w.excludeFields(a, b, in)
}

func disjointTypes(a, b node) bool {
	if manifest.Truth(a, "nullable") && manifest.Truth(b, "nullable") {
		return false
	}
	o, n := typesOf(a), typesOf(b)
	return o[0] != anyType && n[0] != anyType && !slices.ContainsFunc(o, func(t string) bool { return slices.Contains(n, t) })
}

// disjointEnums reports whether two enums of strings share no value. It is false for
// enums of other types: the API server converts a value to the type of an enum's element
// before it compares them.
func disjointEnums(a, b node) bool {
	o, n := manifest.Texts(a, "enum"), setOf(b, "enum")
	return len(o) > 0 && len(n) > 0 && !slices.ContainsFunc(o, func(v string) bool { return n[v] }) &&
		len(o) == len(manifest.List(a, "enum")) && len(manifest.Texts(b, "enum")) == len(manifest.List(b, "enum"))
}

// excludeFields reports whether a field is required and none of its values
// matches both branches.
func (w *walk) excludeFields(a, b, in node) bool {
	properties, others := manifest.Mapping(a, "properties"), manifest.Mapping(b, "properties")
	required := make(map[string]bool)
	w.tried += len(properties)
	for _, s := range []node{a, b, in} {
		needed := manifest.Texts(s, "required")
		w.tried += len(needed)
		for _, name := range needed {
			required[name] = true
		}
	}
	fields := manifest.Mapping(in, "properties")
	for _, name := range names(properties, nil) { // in order, so that maxTried always ends at the same field
		p, ok := properties[name].(map[string]any)
		other := manifest.Mapping(others, name)
		if required[name] && other != nil && ok && w.exclude(p, other, manifest.Mapping(fields, name)) {
			return true
		}
	}
	return false
}

// forbids reports whether one branch refuses what the other requires.
func (w *walk) forbids(a, b node) bool {
	not := manifest.Mapping(a, "not")
	if len(not) != 1 || len(manifest.List(not, "required")) == 0 {
		return false
	}
	refused, required := manifest.Texts(not, "required"), manifest.Texts(b, "required")
	w.tried += len(refused) + len(required)
	return len(refused) > 0 && len(missing(refused, required)) == 0
}
