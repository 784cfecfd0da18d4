package validate

import (
	"maps"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// statusFields are the fields that Crossplane adds to the status of composites and claims.
var statusFields = []string{"conditions", "connectionDetails", "claimConditionTypes", "crossplane"}

// Derived returns the CustomResourceDefinition that Crossplane makes of a
// CompositeResourceDefinition for its composites, or for its claims
// (github.com/crossplane/crossplane, internal/xcrd); nil if it defines none. Of the schema
// it takes what Crossplane takes of spec and status, and leaves out what Crossplane leaves
// out. What Crossplane itself adds may hold anything.
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
	return map[string]any{
		"apiVersion": manifest.CRD.APIVersion("v1"), "kind": manifest.CRD.Kind,
		"metadata": map[string]any{"name": manifest.Text(fields, "plural") + "." + d.Group},
		"spec":     spec,
	}
}

// derivedSchema is compositeSchema with the status, and with what only newer versions of
// Crossplane take of spec.
func derivedSchema(d types.Definition, root map[string]any, claim bool) map[string]any {
	schema := compositeSchema(d, root, claim)
	properties := manifest.Mapping(schema, "properties")
	if v := manifest.Mapping(root, "properties", "spec")["oneOf"]; v != nil {
		manifest.Mapping(properties, "spec")["oneOf"] = v
	}
	from := manifest.Mapping(root, "properties", "status")
	fields := maps.Clone(manifest.Mapping(from, "properties"))
	if fields == nil {
		fields = make(map[string]any)
	}
	for _, f := range statusFields {
		fields[f] = map[string]any{"x-kubernetes-preserve-unknown-fields": true}
	}
	status := map[string]any{"type": "object", "properties": fields}
	for _, keyword := range []string{"required", "x-kubernetes-validations", "oneOf"} {
		if v := from[keyword]; v != nil {
			status[keyword] = v
		}
	}
	properties["status"] = status
	return schema
}
