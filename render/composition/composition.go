// Package composition reads Crossplane's Compositions and finds errors in them: kinds and
// versions without a definition, and fields that a type lacks. It is pure.
//
// [Templates] finds the objects in a Composition (template.go): the bases of mode
// Resources and of function-patch-and-transform with their patches, and everything with an
// apiVersion and a kind in the inputs of other functions, including text. [Check] compares
// them with the definitions of a cluster (check.go, fields.go).
//
// render/behaviour finds the controllers of composed types, and reconcile/unit reports
// findings.
package composition

import (
	"gitopsd.dev/render/manifest"
)

// Template is an object that a Composition composes.
type Template struct {
	// Path is its place in the Composition: "spec.resources[0].base".
	Path string
	// APIVersion and Kind are as written.
	APIVersion, Kind string
	// Base is the object. It is nil if its fields are not known: for an object in a text,
	// or in the input of another function.
	Base map[string]any
	// Fields are the fields in its patches, connection details and readiness checks.
	Fields []Field
}

// GroupKind returns the kind of the template.
func (t *Template) GroupKind() manifest.GroupKind {
	group, _ := manifest.GroupVersion(t.APIVersion)
	return manifest.GroupKind{Group: group, Kind: t.Kind}
}

// Field is a field that a patch names.
type Field struct {
	// Path is the place in the patch: "spec.resources[0].patches[1].toFieldPath".
	Path string
	// Name is the field in Crossplane's syntax, "spec.tags[a.b/c]".
	Name string
	// Composite reports whether it is a field of the composite, not of the template.
	Composite bool
}

// compositeOf returns the apiVersion and kind of the composites of a Composition.
func compositeOf(composition map[string]any) (apiVersion, kind string) {
	ref := manifest.Mapping(composition, "spec", "compositeTypeRef")
	return manifest.Text(ref, "apiVersion"), manifest.Text(ref, "kind")
}
