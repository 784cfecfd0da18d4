package render

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/kustomize"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// frozenCRD has the field spec.size in v1, and no field in v1beta1.
func frozenCRD(plural, annotations string) string {
	return fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.example.org, annotations: {%[2]s}}
spec:
  group: example.org
  names: {plural: %[1]s, kind: K%[1]s}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}}
  - {name: v1beta1, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}
---
`, plural, annotations)
}

func immutableProvider(annotation string) string {
	return fmt.Sprintf("apiVersion: pkg.crossplane.io/v1\nkind: Provider\nmetadata: {name: p, annotations: {gitopsd.dev/immutable: '%s'}}\nspec: {package: 'example.org/p:v1'}\n---\n", annotation)
}

func hasRule(r *Rendered, crd string) bool {
	o := r.Objects.Get(manifest.CRD.ID("", crd))
	return o != nil && strings.Contains(string(o.AppendJSON(nil)), `"fieldPath":".spec.size"`)
}

func TestImmutableOfPackage(t *testing.T) {
	t.Parallel()
	packages := map[string]*sources.Package{"p": content(t, sources.Provider, frozenCRD("as", "")+frozenCRD("bs", ""))}
	for _, tt := range []struct{ name, annotation, err string }{
		{"one definition", "as.example.org:spec.size", ""},
		{"no such definition", "ass.example.org:spec.size", "Provider p (c/all.yaml:5): gitopsd.dev/immutable: ass.example.org: the package has no such definition; did you mean as.example.org?"},
		{"no such field", "as.example.org:spec.sise", "Provider p (c/all.yaml:5): gitopsd.dev/immutable: as.example.org: spec.sise: there is no such field; did you mean spec.size?"},
		{"no fields", "", "Provider p (c/all.yaml:5): metadata.annotations: gitopsd.dev/immutable: names no field"},
		{"not an annotation", "as.example.org", "Provider p (c/all.yaml:5): metadata.annotations: gitopsd.dev/immutable: \"as.example.org\": want <name of a CustomResourceDefinition>:<path>, such as buckets.acme.example:spec.region"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := input(t, plainObject+immutableProvider(tt.annotation))
			w, wantErr := new(Renderer).Want(t.Context(), in)
			r, err := new(Renderer).Expand(t.Context(), in, w, selectAll(t, w, packages))
			if tt.err != "" {
				if err == nil || err.Error() != tt.err {
					t.Errorf("have %v (%v)\nwant %s", err, wantErr, tt.err)
				}
				if r.Objects.Get(manifest.CRD.ID("", "as.example.org")) != nil || !r.Keeps(manifest.CRD.ID("", "as.example.org"), "p") {
					t.Error("the package is not left as it is")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !hasRule(r, "as.example.org") || hasRule(r, "bs.example.org") {
				t.Errorf("the rules are not where they should be:\n%s", yamlOf(t, r))
			}
			f, ok := r.Frozen[manifest.CRD.ID("", "as.example.org")]
			if !ok || len(r.Frozen) != 1 || f.By.String() != "c/all.yaml:5" || f.Before.Label(manifest.PackageLabel) != "p" || f.After != r.Objects.Get(manifest.CRD.ID("", "as.example.org")) {
				t.Errorf("frozen are %+v", r.Frozen)
			}
			if want := "Provider p: gitopsd.dev/immutable: as.example.org: spec.size: version v1beta1 has no such field, and writes in that version are not checked"; !slices.Contains(r.Notes, want) {
				t.Errorf("the notes are %q", r.Notes)
			}
		})
	}
	t.Run("two declarations of one package", func(t *testing.T) {
		var shared Renderer
		for _, with := range []bool{true, false, true} {
			declared := declare("Provider", "p", "")
			if with {
				declared = immutableProvider("as.example.org:spec.size")
			}
			r, err := expand(t, &shared, input(t, declared), packages)
			if err != nil || hasRule(r, "as.example.org") != with {
				t.Errorf("with the annotation: %t, rule: %t, %v", with, hasRule(r, "as.example.org"), err)
			}
		}
	})
	t.Run("left to Crossplane", func(t *testing.T) {
		in := input(t, immutableProvider("as.example.org:spec.size"))
		in.Delegate = true
		if _, err := expand(t, new(Renderer), in, packages); err == nil || !strings.Contains(err.Error(), "Crossplane installs its types") {
			t.Errorf("have %v", err)
		}
	})
}

func TestImmutableOfPlainDefinition(t *testing.T) {
	t.Parallel()
	in := input(t, plainObject+frozenCRD("as", "gitopsd.dev/immutable: spec.size")+frozenCRD("bs", "gitopsd.dev/immutable: spec.sise"))
	r, err := expand(t, new(Renderer), in, nil)
	bad := manifest.CRD.ID("", "bs.example.org")
	if want := "c/all.yaml:16: customresourcedefinition.apiextensions.k8s.io/bs.example.org: gitopsd.dev/immutable: spec.sise: there is no such field; did you mean spec.size?"; err == nil || err.Error() != want {
		t.Errorf("have %v\nwant %s", err, want)
	}
	if len(r.Refused) != 1 || r.Objects.Get(bad) != nil || !r.Keeps(bad, "") || !hasRule(r, "as.example.org") {
		t.Errorf("refused are %v; rendered is\n%s", r.Refused, yamlOf(t, r))
	}
	in = input(t, strings.Replace(plainObject, "{name: plain", "{annotations: {gitopsd.dev/immutable: data}, name: plain", 1))
	r, err = expand(t, new(Renderer), in, nil)
	if want := []string{"c/all.yaml:1: configmap/default/plain: gitopsd.dev/immutable means nothing here; it is for CustomResourceDefinitions and packages"}; err != nil || !slices.Equal(r.Notes, want) {
		t.Errorf("have notes %q, %v", r.Notes, err)
	}
}

// There is a note if a patch of the cluster leaves an immutable field without its rule, and
// none for other patches.
func TestImmutablePatched(t *testing.T) {
	t.Parallel()
	const thawed = "patches: customresourcedefinition.apiextensions.k8s.io/as.example.org: a field that gitopsd.dev/immutable (c/all.yaml:5) names can be changed, since a patch of the cluster removes its rule, or serves a version without one"
	crds := strings.Replace(frozenCRD("as", ""), "  - {name: v1beta1, served: true", "  - {name: v1alpha1, served: false, storage: false, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}}\n  - {name: v1beta1, served: true", 1)
	packages := map[string]*sources.Package{"p": content(t, sources.Provider, crds)}
	for _, tt := range []struct {
		name, patch string
		noted       bool
	}{
		{"another field", "- {op: add, path: /metadata/labels/a, value: b}", false},
		{"the rule", "- {op: remove, path: /spec/versions/0/schema/openAPIV3Schema/x-kubernetes-validations}", true},
		{"the field", "- {op: remove, path: /spec/versions/0/schema/openAPIV3Schema/properties}", true},
		{"a version with it", "- {op: replace, path: /spec/versions/1/served, value: true}", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := input(t, plainObject+immutableProvider("as.example.org:spec.size"))
			in.Patches = []kustomize.Patch{{Patch: tt.patch, Target: &kustomize.Selector{Kind: "CustomResourceDefinition"}}}
			r, err := expand(t, new(Renderer), in, packages)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Patched) != 1 || slices.Contains(r.Notes, thawed) != tt.noted {
				t.Errorf("%d objects are patched, and the notes are %q", len(r.Patched), r.Notes)
			}
		})
	}
}
