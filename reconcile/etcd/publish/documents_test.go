package publish

import (
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render"
	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/conversion/bundle"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
)

const manifests = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: widgets.example.org
  labels: {gitopsd.dev/package: widgets}
spec:
  group: example.org
  scope: Namespaced
  names: {kind: Widget, plural: widgets}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {a: {type: string}}}}}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, properties: {b: {type: string}}}}}
---
apiVersion: apiextensions.crossplane.io/v1
kind: CompositeResourceDefinition
metadata: {name: widgets.example.org}
spec:
  group: example.org
  names: {kind: Widget, plural: widgets}
  versions:
  - {name: v1, served: true, referenceable: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object}}}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: widgets}
---
apiVersion: workload.crossplane.io/v1alpha1
kind: KubernetesTarget
metadata: {name: prod, namespace: team}
spec: {clusterRef: {name: prod}}
---
apiVersion: v1
kind: Secret
metadata: {name: password, namespace: team}
stringData: {password: hunter2}
`

const rules = `
apiVersion: apis.kcp.dev/v1alpha1
kind: APIConversionRules
metadata: {name: widgets.example.org}
spec:
  conversions:
  - {from: v1, to: v2, rules: [{from: v1.a, to: b}]}
  - {from: v2, to: v1, rules: [{from: v2.b, to: a}]}
`

// unit returns a unit with objects of all kinds.
func unit(t *testing.T) *desired.Unit {
	t.Helper()
	objects := manifesttest.Objects(t, manifests)
	set, duplicates := manifest.NewSet(objects)
	if duplicates != nil {
		t.Fatal(duplicates)
	}
	crd := set.Get(manifest.CRD.ID("", "widgets.example.org"))
	documents := []conversion.Document{{Tree: manifesttest.Tree(t, rules)}}
	compiled, err := conversion.Compile(crd.Tree(), documents)
	if err != nil {
		t.Fatal(err)
	}
	return &desired.Unit{
		ID: desired.ID{Cluster: "prod"}, Cluster: clusters.Cluster{Name: "prod"}, Commit: "0123456789",
		Objects: set,
		Packages: []sources.Selected{{
			Declaration: sources.Declaration{Kind: sources.Provider, Name: "widgets"},
			Pin:         sources.Pin{Ref: sources.Ref{Repository: "registry.example.org/acme/widgets", Tag: "v1.0.0"}, Digest: sources.DigestOf([]byte("index"))},
			Package:     &sources.Package{Content: sources.DigestOf([]byte("package.yaml")), Documents: []sources.Document{{Tree: crd.Tree()}}},
			Runtime:     "registry.example.org/acme/widgets@sha256:00",
		}},
		Conversions: map[string]*render.Conversion{"widgets.example.org": {Set: compiled, Documents: documents, Definition: crd, Before: crd}},
	}
}

// A revision has no Secrets, and depends only on the rendered objects.
func TestDocuments(t *testing.T) {
	t.Parallel()
	u := unit(t)
	docs, err := Documents(u)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	bodies := make(map[string]string)
	for _, d := range docs {
		names = append(names, d.Name)
		bodies[d.Name] = string(d.Body)
		if strings.Contains(string(d.Body), "hunter2") {
			t.Errorf("%s shows a Secret", d.Name)
		}
	}
	want := []string{
		"conversions/widgets.example.org", "packages/widgets", "targets/team/prod",
		"types/example.org/Widget/v1", "types/example.org/Widget/v2", "webhooks/ValidatingWebhookConfiguration/widgets",
	}
	if !slices.Equal(names, want) {
		t.Errorf("documents %q, want %q", names, want)
	}
	digest := u.Conversions["widgets.example.org"].Set.Digest()
	for name, part := range map[string]string{
		"packages/widgets":            `"version":"v1.0.0","digest":"sha256:`,
		"types/example.org/Widget/v1": `"definition":"customresourcedefinition.apiextensions.k8s.io/widgets.example.org"`, // not the XRD
		"types/example.org/Widget/v2": `"conversion":"` + digest + `","definition":"customresourcedefinition.apiextensions.k8s.io/widgets.example.org","package":"widgets"`,
		"targets/team/prod":           `"clusterRef":{"name":"prod"}`,
	} {
		if !strings.Contains(bodies[name], part) {
			t.Errorf("%s is %s, without %s", name, bodies[name], part)
		}
	}
	definition, documents, err := bundle.Unpack([]byte(bodies["conversions/widgets.example.org"]))
	if err != nil {
		t.Fatal(err)
	}
	if set, err := conversion.Compile(definition, documents); err != nil || set.Digest() != digest {
		t.Errorf("the rules come back as %v, %v", set, err)
	}

	other := unit(t)
	other.Commit = "another"
	again, err := Documents(other)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := Digest(docs)
	if b, err := Digest(again); err != nil || a != b {
		t.Errorf("the same from another commit has the digest %s, not %s; %v", b, a, err)
	}
}

// An incomplete unit is not published: readers would take missing documents for removed ones.
func TestDocumentsIncomplete(t *testing.T) {
	t.Parallel()
	broken := unit(t)
	broken.Faults = []problem.Problem{{Package: "gadgets", Reason: "not found"}}
	if _, err := Documents(broken); err == nil || !strings.Contains(err.Error(), "nothing is published") {
		t.Error(err)
	}
	large := unit(t)
	tree := manifesttest.Tree(t, "{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: large, annotations: {a: "+strings.Repeat("x", maxDocument)+"}}}")
	o, err := manifest.New(tree, manifest.Origin{})
	if err != nil {
		t.Fatal(err)
	}
	large.Objects, _ = manifest.NewSet(append(large.Objects.All(), o))
	if _, err := Documents(large); err == nil || !strings.Contains(err.Error(), "webhooks/MutatingWebhookConfiguration/large has 14") {
		t.Error(err)
	}
}
