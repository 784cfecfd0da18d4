package types

import (
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
)

// Definition is a view of a CustomResourceDefinition or a
// CompositeResourceDefinition, with the defaults of the API server and Crossplane.
// It shares all maps with the object and must not be changed. A field of the wrong type
// reads as absent; [Of] returns an error for it.
type Definition struct {
	// XRD is true for a CompositeResourceDefinition.
	XRD bool
	// Group is the API group of the defined kinds.
	Group string
	Names Names
	// Claims are the names of an XRD's claims; zero if it offers none.
	Claims Names
	// Scope is "Namespaced", "Cluster" or "LegacyCluster"; empty if a CRD does not
	// set it.
	Scope string
	// PreservesUnknownFields is spec.preserveUnknownFields.
	PreservesUnknownFields bool
	// Converts reports whether a webhook converts objects between versions, and
	// ReviewVersions are the versions of ConversionReview that it knows.
	Converts       bool
	ReviewVersions []string
	// Spec is the whole spec.
	Spec map[string]any

	object map[string]any
}

// Names are the names of a kind.
type Names struct {
	Kind, Plural, Singular, ListKind string

	fields map[string]any
}

// Version is one version of a definition.
type Version struct {
	Name string
	// Storage is true for the version that objects are stored in; in an XRD, for the
	// version that compositions refer to.
	Served, Storage, Deprecated bool
	// Warning is the deprecationWarning.
	Warning string
	// Schema is the openAPIV3Schema; nil if there is none.
	Schema       map[string]any
	Subresources map[string]any
	// Columns and SelectableFields are the values of additionalPrinterColumns and
	// selectableFields, unchanged.
	Columns, SelectableFields any
}

// Read returns the object as a definition.
func Read(object map[string]any) Definition {
	spec := manifest.Mapping(object, "spec")
	d := Definition{
		XRD:   manifest.KindOf(object) == manifest.XRD,
		Group: manifest.Text(spec, "group"), Scope: manifest.Text(spec, "scope"),
		Names: namesOf(manifest.Mapping(spec, "names")),
		Spec:  spec, object: object,
		PreservesUnknownFields: manifest.Truth(spec, "preserveUnknownFields"),
		Converts:               manifest.Text(spec, "conversion", "strategy") == "Webhook",
		ReviewVersions:         manifest.Texts(spec, "conversion", "webhook", "conversionReviewVersions"),
	}
	if d.XRD {
		d.Claims = namesOf(manifest.Mapping(spec, "claimNames"))
		d.Scope = xrdScope(object, d.Scope)
	}
	return d
}

// xrdScope returns an XRD's scope, or Crossplane's default.
func xrdScope(object map[string]any, scope string) string {
	switch {
	case scope != "":
		return scope
	case strings.HasSuffix(manifest.Text(object, "apiVersion"), "/v1"):
		return "LegacyCluster"
	}
	return "Namespaced"
}

func namesOf(fields map[string]any) Names {
	n := Names{
		Kind: manifest.Text(fields, "kind"), Plural: manifest.Text(fields, "plural"),
		Singular: manifest.Text(fields, "singular"), ListKind: manifest.Text(fields, "listKind"), fields: fields,
	}
	if n.Singular == "" {
		n.Singular = strings.ToLower(n.Kind)
	}
	if n.ListKind == "" && n.Kind != "" {
		n.ListKind = n.Kind + "List"
	}
	return n
}

// ShortNames returns the names that kubectl accepts in place of the kind.
func (n Names) ShortNames() []string { return manifest.Texts(n.fields, "shortNames") }

// Categories returns the groups of resources that the kind belongs to, such as "all".
func (n Names) Categories() []string { return manifest.Texts(n.fields, "categories") }

// Kinds returns the defined kinds: the kind of Names, and the kind of the claims.
func (d Definition) Kinds() []string {
	return slices.DeleteFunc([]string{d.Names.Kind, d.Claims.Kind}, func(kind string) bool { return kind == "" })
}

// Defines reports whether the definition defines a kind.
func (d Definition) Defines(kind manifest.GroupKind) bool {
	return kind.Group == d.Group && kind.Group != "" && kind.Kind != "" && (kind.Kind == d.Names.Kind || kind.Kind == d.Claims.Kind)
}

// Versions returns the versions, in the order of the definition.
func (d Definition) Versions() []Version {
	storage := "storage"
	if d.XRD {
		storage = "referenceable"
	}
	list := manifest.List(d.Spec, "versions")
	versions := make([]Version, len(list))
	for i, item := range list {
		v, _ := item.(map[string]any)
		versions[i] = Version{
			Name: manifest.Text(v, "name"), Served: manifest.Truth(v, "served"), Storage: manifest.Truth(v, storage),
			Deprecated: manifest.Truth(v, "deprecated"), Warning: manifest.Text(v, "deprecationWarning"),
			Schema: manifest.Mapping(v, "schema", "openAPIV3Schema"), Subresources: manifest.Mapping(v, "subresources"),
			Columns: v["additionalPrinterColumns"], SelectableFields: v["selectableFields"],
		}
	}
	return versions
}

// StoredVersions returns a live CRD's status.storedVersions: the versions that objects
// may be stored in.
func (d Definition) StoredVersions() []string {
	return manifest.Texts(d.object, "status", "storedVersions")
}
