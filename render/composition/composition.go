// Package composition reads what Crossplane's Compositions compose, and finds what
// cannot work in them: kinds and versions that nobody defines, and fields that a type
// lacks.
//
// [Templates] finds the objects in a Composition (template.go): the bases of mode
// Resources and of function-patch-and-transform with their patches, and in the inputs
// of other functions whatever has an apiVersion and a kind, in text too. [Check]
// holds them against the definitions of a cluster (check.go, fields.go).
//
// The package is pure. What acts on the composed types is render/behaviour's business;
// who is told is reconcile/unit's.
package composition

import (
	"gitopsd.dev/render/manifest"
)

// Template is an object in a Composition that it composes.
type Template struct {
	// Path is its place in the Composition: "spec.resources[0].base".
	Path string
	// APIVersion and Kind are as written.
	APIVersion, Kind string
	// Base is the object. It is nil for one that was found in a text, or in the input
	// of a function that may fill it in: its fields are not known.
	Base map[string]any
	// Fields are the fields that its patches, connection details and readiness checks
	// name.
	Fields []Field
}

// GroupKind returns the kind of the template.
func (t *Template) GroupKind() manifest.GroupKind {
	group, _ := manifest.GroupVersion(t.APIVersion)
	return manifest.GroupKind{Group: group, Kind: t.Kind}
}

// Field is a field that a patch names.
type Field struct {
	// Path is the patch's place: "spec.resources[0].patches[1].toFieldPath".
	Path string
	// Name is the field in Crossplane's form, "spec.tags[a.b/c]".
	Name string
	// Composite: it is a field of the composite, not of the template.
	Composite bool
}

// Composite returns the apiVersion and kind of the composites that a Composition is
// for.
func Composite(composition map[string]any) (apiVersion, kind string) {
	ref := manifest.Mapping(composition, "spec", "compositeTypeRef")
	return manifest.Text(ref, "apiVersion"), manifest.Text(ref, "kind")
}
