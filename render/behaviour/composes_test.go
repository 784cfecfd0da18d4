package behaviour

import (
	"fmt"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
)

// composites are three composite types that compose each other in a circle, and a
// plain type below them with a controller.
func composites(t *testing.T) []*manifest.Object {
	var text strings.Builder
	for i, kind := range []string{"One", "Two", "Three"} {
		next := []string{"Two", "Three", "One"}[i]
		fmt.Fprintf(&text, `
{apiVersion: apiextensions.crossplane.io/v2, kind: CompositeResourceDefinition, metadata: {name: %[2]ss.acme.example}, spec: {group: acme.example, names: {kind: %[1]s, plural: %[2]ss},
  versions: [{name: v1, served: true, referenceable: true, schema: {openAPIV3Schema: {type: object}}}]}}
---
{apiVersion: apiextensions.crossplane.io/v1, kind: Composition, metadata: {name: %[2]s}, spec: {compositeTypeRef: {apiVersion: acme.example/v1, kind: %[1]s}, mode: Resources,
  resources: [{base: {apiVersion: acme.example/v1, kind: %[3]s}}, {base: {apiVersion: unknown.example/v1, kind: Foreign}}, {base: {apiVersion: v1, kind: ConfigMap}}]}}
---`, kind, strings.ToLower(kind), next)
	}
	text.WriteString(`
{apiVersion: apiextensions.crossplane.io/v1, kind: Composition, metadata: {name: three-more}, spec: {compositeTypeRef: {apiVersion: acme.example/v1, kind: Three}, mode: Resources,
  resources: [{base: {apiVersion: acme.example/v1, kind: Bucket}}]}}
---
{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: buckets.acme.example, annotations: {gitopsd.dev/controller: ns/buckets}}, spec: {
  group: acme.example, scope: Namespaced, names: {kind: Bucket, plural: buckets}, versions: [
  {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}}]}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: buckets, namespace: ns}, spec: {selector: {matchLabels: {a: b}}, template: {spec: {containers: [{name: c, image: 'i:v1'}]}}}}
`)
	return manifesttest.Objects(t, text.String())
}

// Composed types are part of a composite type's identity, at any depth.
func TestComposes(t *testing.T) {
	of := func(change func(string) string) *Identity {
		var all []*manifest.Object
		for _, o := range composites(t) {
			text := change(string(manifest.AppendJSON(nil, o.Tree())))
			all = append(all, manifesttest.Object(t, text))
		}
		set, _ := manifest.NewSet(all)
		i, err := NewIndex(set, nil).Of(set.Get(manifest.XRD.ID("", "ones.acme.example")))
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	same := of(func(s string) string { return s })
	var names []string
	for _, p := range same.Composes {
		names = append(names, p.Name)
	}
	if text := strings.Join(names, " "); text != "Bucket.acme.example/v1 One.acme.example/v1 Three.acme.example/v1 Two.acme.example/v1" {
		t.Errorf("composes %s", text)
	}
	for _, tt := range []struct{ name, old, new, want string }{
		{"the type at the bottom", "integer", "string", "Bucket.acme.example/v1"},
		{"its controller", "i:v1", "i:v2", "Bucket.acme.example/v1"},
		{"a Composition in between", `"name":"two"`, `"name":"other"`, "Two.acme.example/v1"},
		{"no version", `"served":true,"storage"`, `"served":true,"deprecated":true,"storage"`, "Bucket.acme.example/v1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			i := of(func(s string) string { return strings.ReplaceAll(s, tt.old, tt.new) })
			if have := strings.Join(Differing(same.Composes, i.Composes), " "); have != tt.want {
				t.Errorf("differs in %q, want %q", have, tt.want)
			}
			if i.Digest() == same.Digest() {
				t.Error("the digest does not say so")
			}
		})
	}
}

// The settings that a DeploymentRuntimeConfig gives a Function are part of the identity.
func TestFunctionSettings(t *testing.T) {
	of := func(config string) *Identity {
		var all []*manifest.Object
		for _, doc := range []string{
			`{apiVersion: apiextensions.crossplane.io/v2, kind: CompositeResourceDefinition, metadata: {name: ones.acme.example}, spec: {group: acme.example, names: {kind: One, plural: ones}, versions: []}}`,
			`{apiVersion: apiextensions.crossplane.io/v1, kind: Composition, metadata: {name: one}, spec: {compositeTypeRef: {apiVersion: acme.example/v1, kind: One}, mode: Pipeline, pipeline: [{step: a, functionRef: {name: patch}}, {step: b, functionRef: {name: other}}]}}`,
			`{apiVersion: pkg.crossplane.io/v1beta1, kind: DeploymentRuntimeConfig, metadata: {name: tuned}, spec: {` + config + `}}`,
		} {
			all = append(all, manifesttest.Object(t, doc))
		}
		set, _ := manifest.NewSet(all)
		i, err := NewIndex(set, []sources.Selected{
			{Declaration: sources.Declaration{Kind: sources.Function, Name: "patch", RuntimeConfig: "tuned"}},
			{Declaration: sources.Declaration{Kind: sources.Function, Name: "other"}},
		}).Of(set.Get(manifest.XRD.ID("", "ones.acme.example")))
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	container := func(fields string) string {
		return "deploymentTemplate: {spec: {selector: {}, template: {spec: {containers: [{name: package-runtime, " + fields + "}]}}}}"
	}
	plain := of("")
	if len(plain.Settings) != 0 {
		t.Errorf("settings %v of an empty configuration", plain.Settings)
	}
	for config, want := range map[string]string{
		container("env: [{name: MODE, value: pretend}]"): "function patch package-runtime variable MODE",
		container("args: [--debug]"):                     "function patch package-runtime argument --debug",
		container("image: 'mine:v1'"):                    "function patch package-runtime image",
	} {
		i := of(config)
		if have := strings.Join(Differing(plain.Settings, i.Settings), " "); have != want || i.Digest() == plain.Digest() {
			t.Errorf("%s: differs in %q, want %q", config, have, want)
		}
	}
}
