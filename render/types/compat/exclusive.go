package compat

import (
	"slices"

	"gitopsd.dev/render/manifest"
)

// exclusive reports whether no value matches two of a schema's branches. It is false if
// that is not certain.
func exclusive(branches []node, in node) bool {
	if len(branches)*len(branches) > maxPairs {
		return false
	}
	for i, a := range branches {
		for _, b := range branches[i+1:] {
			if !exclude(a, b, in) {
				return false
			}
		}
	}
	return true
}

// exclude reports whether no value matches both branches.
func exclude(a, b, in node) bool {
	if disjointTypes(a, b) || manifest.Text(in, "type") == "string" && disjointEnums(a, b) {
		return true
	}
	// Checks of fields apply to objects only.
	if manifest.Text(in, "type") != "object" || manifest.Truth(in, "nullable") {
		return false
	}
	return excludeFields(a, b, in) || forbids(a, b) || forbids(b, a)
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
	o, n := manifest.Texts(a, "enum"), manifest.Texts(b, "enum")
	return len(o) > 0 && len(n) > 0 && !slices.ContainsFunc(o, func(v string) bool { return slices.Contains(n, v) }) &&
		len(o) == len(manifest.List(a, "enum")) && len(n) == len(manifest.List(b, "enum"))
}

// excludeFields reports whether a field is required and none of its values
// matches both branches.
func excludeFields(a, b, in node) bool {
	needed := manifest.Texts(b, "required")
	always := manifest.Texts(in, "required")
	for name, property := range manifest.Mapping(a, "properties") {
		required := slices.Contains(always, name) || slices.Contains(manifest.Texts(a, "required"), name) || slices.Contains(needed, name)
		other := manifest.Mapping(manifest.Mapping(b, "properties"), name)
		p, ok := property.(map[string]any)
		if !required || other == nil || !ok {
			continue
		}
		field := manifest.Mapping(manifest.Mapping(in, "properties"), name)
		if exclude(p, other, field) {
			return true
		}
	}
	return false
}

// forbids reports whether one branch refuses what the other requires.
func forbids(a, b node) bool {
	not := manifest.Mapping(a, "not")
	refused := manifest.Texts(not, "required")
	return len(not) == 1 && len(refused) > 0 && len(missing(refused, manifest.Texts(b, "required"))) == 0
}
