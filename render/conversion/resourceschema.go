package conversion

import (
	"cmp"
	"fmt"

	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// IsResourceSchema reports whether a document is an APIResourceSchema of kcp.
func IsResourceSchema(tree map[string]any) bool {
	return manifest.KindOf(tree) == manifest.ResourceSchema
}

// Defined returns the name of the CustomResourceDefinition that an APIResourceSchema
// describes, <plural>.<group>; empty if one of the two is missing.
func Defined(tree map[string]any) string {
	plural, group := manifest.Text(tree, "spec", "names", "plural"), manifest.Text(tree, "spec", "group")
	if plural == "" || group == "" {
		return ""
	}
	return plural + "." + group
}

// Definition returns the CustomResourceDefinition that an APIResourceSchema,
// apis.kcp.dev/v1alpha1, describes. It is named <plural>.<group> and has the schema's
// labels and annotations. If no version is marked as the storage version, the hub is;
// hub is empty if no document of rules names one.
func Definition(tree map[string]any, hub string) (map[string]any, error) {
	name := manifest.Text(tree, "metadata", "name")
	if version := manifest.Text(tree, "apiVersion"); version != "apis.kcp.dev/v1alpha1" {
		return nil, fmt.Errorf("APIResourceSchema %s: apiVersion: %q is not known; want apis.kcp.dev/v1alpha1", name, version)
	}
	spec := exact.Clone(manifest.Mapping(tree, "spec"))
	if spec["conversion"] != nil {
		return nil, fmt.Errorf("APIResourceSchema %s: spec.conversion is not read; write its rules as a document of kind APIConversionRules named %s", name, name)
	}
	defined := Defined(tree)
	if defined == "" {
		return nil, fmt.Errorf("APIResourceSchema %s: spec.names.plural or spec.group is missing", name)
	}
	versions := manifest.List(spec, "versions")
	stored, hubAt := 0, -1
	for i, v := range versions {
		version, ok := v.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("APIResourceSchema %s: spec.versions[%d] is not a mapping", name, i)
		}
		if manifest.Truth(version, "storage") {
			stored++
		}
		if hub != "" && version["name"] == hub {
			hubAt = i
		}
		// An APIResourceSchema has no openAPIV3Schema between schema and its fields.
		if schema := manifest.Mapping(version, "schema"); schema != nil && schema["openAPIV3Schema"] == nil {
			version["schema"] = map[string]any{"openAPIV3Schema": schema}
		}
	}
	switch {
	case stored > 1:
		return nil, fmt.Errorf("APIResourceSchema %s: %d versions have storage: true; only one may", name, stored)
	case stored == 1:
	case hubAt >= 0:
		versions[hubAt].(map[string]any)["storage"] = true
	case len(versions) == 1:
		versions[0].(map[string]any)["storage"] = true
	default:
		return nil, fmt.Errorf("APIResourceSchema %s: no version has storage: true, and no rules name a hub among its versions; mark the version that objects are stored in", name)
	}
	metadata := map[string]any{"name": defined}
	for _, key := range []string{"labels", "annotations"} {
		if texts := manifest.Mapping(tree, "metadata", key); len(texts) > 0 {
			metadata[key] = exact.Clone(texts)
		}
	}
	definition := map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": manifest.CRD.Kind, "metadata": metadata, "spec": spec}
	if types.Read(definition).Names.Kind == "" {
		return nil, fmt.Errorf("APIResourceSchema %s: spec.names.kind is missing", name)
	}
	return definition, nil
}

// Hub returns the version that the documents name as the hub; empty if they name none,
// or several.
func Hub(documents []Document) string {
	hub := ""
	for _, d := range documents {
		h := manifest.Text(d.Tree, "spec", "hub")
		if h != "" && hub != "" && h != hub {
			return ""
		}
		hub = cmp.Or(hub, h)
	}
	return hub
}
