package why

import (
	"strings"
	"testing"

	"gitopsd.dev/render"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/kustomize"
	"gitopsd.dev/render/manifest"
)

const convertedSchema = `apiVersion: apis.kcp.dev/v1alpha1
kind: APIResourceSchema
metadata: {name: rev2.as.example.org}
spec:
  group: example.org
  names: {plural: as, singular: a, kind: A, listKind: AList}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {type: object, properties: {old: {type: string}}}}
  - {name: v2, served: true, storage: false, schema: {type: object, properties: {new: {type: string}}}}
`

const convertedRules = `apiVersion: apis.kcp.dev/v1alpha1
kind: APIConversionRules
metadata: {name: as.example.org}
spec:
  conversions:
  - {from: v1, to: v2, rules: [{from: v1.old, to: new}]}
  - {from: v2, to: v1, rules: [{from: v2.new, to: old}]}
`

// A definition that a schema describes is explained by the schema and by its rules. The
// rules fit only the patched definition.
func TestConverted(t *testing.T) {
	t.Parallel()
	in := Input{Input: render.Input{
		Cluster: "prod", Path: "c", Converter: render.Converter{URL: "https://gitopsd.example.org"},
		Files: files(map[string]string{
			"c/kustomization.yaml": "resources: [a.yaml, rules.yaml]\nlabels: [{pairs: {team: x}}]\n",
			"c/a.yaml":             convertedSchema, "c/rules.yaml": strings.ReplaceAll(convertedRules, "old", "older"),
		}),
		Patches: []kustomize.Patch{{Target: &kustomize.Selector{Kind: "CustomResourceDefinition"}, Patch: `[{"op": "move", "from": "/spec/versions/0/schema/openAPIV3Schema/properties/old", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/older"}]`}},
	}}
	for ask, want := range map[string]string{
		"spec.conversion.strategy": "changes c/rules.yaml:1 conversion rules",
		"metadata.labels.team":     "changes c/kustomization.yaml:2 labels[0]",
		"spec.versions":            "changes clusters.yaml:0 cluster prod, spec.patches[0]",
	} {
		path, err := field.Parse(ask)
		if err != nil {
			t.Fatal(err)
		}
		a, err := Explain(t.Context(), in, manifest.CRD.ID("", "as.example.org"), path)
		if err != nil {
			t.Errorf("%s: %v", ask, err)
			continue
		}
		var steps []string
		for _, s := range a.Steps {
			s.Without, s.Paths = Value{}, nil
			steps = append(steps, line(s))
		}
		if have := strings.Join(steps, "|"); have != want || a.Written.File != "c/a.yaml" {
			t.Errorf("%s: written at %s, %s\nwant %s", ask, a.Written, have, want)
		}
	}
}
