package types

import (
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
)

// mrdVersions are the versions of ManagedResourceDefinition in packages.
var mrdVersions = []string{"v1alpha1", "v1beta1", "v1"}

// crdFields are the fields of a ManagedResourceDefinition's spec that its
// CustomResourceDefinition gets, and versionFields those of each version. Crossplane
// uses the other fields itself: whether the type is active, and its connection details
// (github.com/crossplane/crossplane, apis/apiextensions/v1alpha1).
var (
	crdFields     = []string{"group", "names", "scope", "conversion", "preserveUnknownFields"}
	versionFields = []string{"name", "served", "storage", "deprecated", "deprecationWarning", "schema", "subresources", "additionalPrinterColumns", "selectableFields"}
)

// IsManaged reports whether an object is a ManagedResourceDefinition.
func IsManaged(object map[string]any) bool {
	return manifest.KindOf(object) == manifest.MRD
}

// FromManaged returns the CustomResourceDefinition that Crossplane makes of an active
// ManagedResourceDefinition: the same name, the fields of the spec that both have, and
// versions sorted by name. The trees share their common parts.
//
// It fails, naming the object and the field, if Crossplane could not make one.
func FromManaged(object map[string]any) (map[string]any, error) {
	crd, err := fromManaged(object)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", subject(object), err)
	}
	return crd, nil
}

func fromManaged(object map[string]any) (map[string]any, error) {
	apiVersion, _ := object["apiVersion"].(string)
	if _, version, _ := strings.Cut(apiVersion, "/"); !slices.Contains(mrdVersions, version) {
		return nil, fmt.Errorf("apiVersion is %s, want %s/%s", apiVersion, manifest.MRD.Group, mrdVersions[0])
	}
	spec, ok := object["spec"].(map[string]any)
	if !ok {
		return nil, at("spec", want("a mapping", object["spec"]))
	}
	list, ok := spec["versions"].([]any)
	if !ok {
		return nil, at("spec", at("versions", want("a list", spec["versions"])))
	}
	versions := make([]any, len(list))
	for i, item := range list {
		version, ok := item.(map[string]any)
		if !ok {
			return nil, at("spec", at("versions", atIndex(i, want("a mapping", item))))
		}
		if version["schema"] == nil {
			return nil, at("spec", at("versions", atIndex(i, at("schema", want("a mapping", nil)))))
		}
		versions[i] = pick(version, versionFields)
	}
	slices.SortStableFunc(versions, func(a, b any) int {
		return strings.Compare(manifest.Text(a.(map[string]any), "name"), manifest.Text(b.(map[string]any), "name"))
	})
	defined := pick(spec, crdFields)
	if defined["scope"] == nil {
		defined["scope"] = "Namespaced" // the API server's default
	}
	defined["versions"] = versions
	return map[string]any{
		"apiVersion": manifest.CRD.APIVersion("v1"), "kind": manifest.CRD.Kind,
		"metadata": map[string]any{"name": manifest.Mapping(object, "metadata")["name"]},
		"spec":     defined,
	}, nil
}

// pick returns the named fields of m.
func pick(m map[string]any, fields []string) map[string]any {
	kept := make(map[string]any, len(fields))
	for _, f := range fields {
		if v, ok := m[f]; ok && v != nil {
			kept[f] = v
		}
	}
	return kept
}
