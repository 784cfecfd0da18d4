package validate

import (
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// statusFields are the fields that Crossplane adds to the status of composites and claims.
var statusFields = []string{"conditions", "connectionDetails", "claimConditionTypes", "crossplane"}

// Derived returns the CustomResourceDefinition that Crossplane makes of a
// CompositeResourceDefinition for its composites, or for its claims
// (github.com/crossplane/crossplane, internal/xcrd); nil if it defines none. The schema has
// the keywords of spec and status that Crossplane copies. Fields that Crossplane adds
// accept any value.
func Derived(xrd map[string]any, claim bool) map[string]any {
	d := types.Read(xrd)
	names := "names"
	if claim {
		names = "claimNames"
	}
	fields := manifest.Mapping(d.Spec, names)
	if manifest.Text(fields, "kind") == "" {
		return nil
	}
	scope := "Cluster"
	if claim || d.Scope == "Namespaced" {
		scope = "Namespaced"
	}
	var versions []any
	for _, v := range d.Versions() {
		versions = append(versions, map[string]any{
			"name": v.Name, "served": v.Served, "storage": v.Storage,
			"subresources": map[string]any{"status": map[string]any{}},
			"schema":       map[string]any{"openAPIV3Schema": derivedSchema(d, v.Schema, claim)},
		})
	}
	spec := map[string]any{"group": d.Group, "scope": scope, "names": fields, "versions": versions}
	if conversion := d.Spec["conversion"]; conversion != nil {
		spec["conversion"] = conversion
	}
	return manifest.NewTree(manifest.CRD.ID("", manifest.Text(fields, "plural")+"."+d.Group), map[string]any{"spec": spec})
}

// derivedSchema is [compositeSchema] with the schema of status, and with keywords of spec
// that only newer versions of Crossplane copy.
func derivedSchema(d types.Definition, root map[string]any, claim bool) map[string]any {
	schema := compositeSchema(d, root, claim)
	properties := manifest.Mapping(schema, "properties")
	if v := manifest.Mapping(root, "properties", "spec")["oneOf"]; v != nil {
		manifest.Mapping(properties, "spec")["oneOf"] = v
	}
	properties["status"] = extended(manifest.Mapping(root, "properties", "status"), statusFields, "required", "x-kubernetes-validations", "oneOf")
	return schema
}
