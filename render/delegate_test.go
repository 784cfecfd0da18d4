package render

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/kustomize"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// delegate renders for a cluster with Crossplane. Its only dependency is
// example.org/org/family.
func delegate(t *testing.T, in Input, dependency bool) (*Rendered, error) {
	t.Helper()
	w, err := new(Renderer).Want(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	packages := make(map[string]*sources.Package)
	for _, d := range w.Packages {
		packages[d.Name] = content(t, d.Kind, "")
	}
	selected := selectAll(t, w, packages)
	if dependency {
		ref := sources.Ref{Repository: "example.org/org/family", Tag: "v2.1.0"}
		selected = append(selected, sources.Selected{
			Declaration: sources.Declaration{Kind: sources.Provider, Name: "family", Ref: ref},
			Pin:         sources.Pin{Ref: ref, Digest: sources.DigestOf([]byte("family"))}, Package: content(t, sources.Provider, ""), Parent: "example.org/p",
		})
	}
	return new(Renderer).Expand(t.Context(), in, w, selected)
}

// Crossplane gets the declarations pinned, including dependencies, and no content of the
// packages.
func TestDelegate(t *testing.T) {
	t.Parallel()
	in := input(t, plainObject+`
apiVersion: pkg.crossplane.io/v1
kind: Provider
metadata: {name: p, labels: {team: a}, annotations: {gitopsd.dev/adopt: "true"}}
spec:
  package: example.org/p:v1
  packagePullPolicy: Always
  revisionActivationPolicy: Manual
  revisionHistoryLimit: 3
  commonLabels: {l: m}
  runtimeConfigRef: {name: large}
status: {x: y}
---
apiVersion: pkg.crossplane.io/v1beta1
kind: DeploymentRuntimeConfig
metadata: {name: large}
---
`+activates("policy", "*")+declare("Configuration", "c", "packagePullPolicy: Never")+declare("Function", "f", ""))
	in.Delegate = true
	rendered, err := delegate(t, in, true)
	if err != nil || len(rendered.Notes) != 0 {
		t.Fatal(err, rendered.Notes)
	}
	want := []string{
		"configmap/default/plain", "managedresourceactivationpolicy.apiextensions.crossplane.io/policy",
		"configuration.pkg.crossplane.io/c", "deploymentruntimeconfig.pkg.crossplane.io/large", "function.pkg.crossplane.io/f",
		"provider.pkg.crossplane.io/family", "provider.pkg.crossplane.io/p",
	}
	if have := ids(rendered.Objects.All()); !reflect.DeepEqual(have, want) {
		t.Errorf("have %q\nwant %q", have, want)
	}
	get := func(kind, name string) *manifest.Object {
		return rendered.Objects.Get(manifest.ID{Group: manifest.GroupPackages, Kind: kind, Name: name})
	}
	p := get("Provider", "p")
	if have, want := p.Tree(), map[string]any{
		"apiVersion": "pkg.crossplane.io/v1", "kind": "Provider",
		"metadata": map[string]any{
			"name": "p", "labels": map[string]any{"team": "a", manifest.PackageLabel: "p"}, "annotations": map[string]any{"gitopsd.dev/adopt": "true"},
		},
		"spec": map[string]any{
			"package":           "example.org/p:v1@" + string(sources.DigestOf([]byte("p"))),
			"packagePullPolicy": "IfNotPresent", "skipDependencyResolution": true,
			"revisionActivationPolicy": "Manual", "revisionHistoryLimit": int64(3),
			"commonLabels": map[string]any{"l": "m"}, "runtimeConfigRef": map[string]any{"name": "large"},
		},
	}; !reflect.DeepEqual(have, want) {
		t.Errorf("have %v\nwant %v", have, want)
	}
	if p.Origin().String() != "c/all.yaml:6" {
		t.Errorf("it comes from %s", p.Origin())
	}
	if spec := get("Configuration", "c").Tree()["spec"].(map[string]any); spec["packagePullPolicy"] != "Never" {
		t.Errorf("have %v", spec)
	}
	if have, want := get("Provider", "family").Tree()["spec"], any(map[string]any{
		"package": "example.org/org/family:v2.1.0@" + string(sources.DigestOf([]byte("family"))), "packagePullPolicy": "IfNotPresent", "skipDependencyResolution": true,
	}); !reflect.DeepEqual(have, want) {
		t.Errorf("have %v\nwant %v", have, want)
	}
}

// A note says that pins to types that are not rendered cannot be enforced.
func TestDelegateWithPins(t *testing.T) {
	t.Parallel()
	in := input(t, declare("Provider", "p", ""))
	in.Delegate, in.EnforcePins = true, true
	rendered, err := expand(t, new(Renderer), in, map[string]*sources.Package{"p": content(t, sources.Provider, strings.Replace(crdYAML("as", ""), "plural", "kind: A, plural", 1))})
	if err != nil || len(rendered.Notes) != 1 || !strings.Contains(rendered.Notes[0], "packages that Crossplane installs: p; only plan and run") {
		t.Error(err, rendered.Notes)
	}
}

// A note says that gitopsd.dev/install has no effect if Crossplane installs the package.
func TestDelegateByType(t *testing.T) {
	t.Parallel()
	in := input(t, byType("p")+activates("policy", "x"))
	in.Delegate = true
	rendered, err := delegate(t, in, false)
	if err != nil || len(rendered.Notes) != 1 || !strings.Contains(rendered.Notes[0], "gitopsd.dev/install means nothing here") {
		t.Error(err, rendered.Notes)
	}
}

// A note says that gitopsd.dev/adopt has no effect on a declaration unless Crossplane installs
// the package.
func TestAdoptOnDeclaration(t *testing.T) {
	t.Parallel()
	for _, kind := range []sources.PackageKind{sources.Provider, sources.Configuration, sources.Function} {
		for _, left := range []bool{false, true} {
			text := strings.Replace(declare(string(kind), "p", ""), "{name: p}", `{name: p, annotations: {gitopsd.dev/adopt: "true"}}`, 1)
			in := input(t, text)
			in.Delegate = left
			rendered, err := expand(t, new(Renderer), in, map[string]*sources.Package{"p": content(t, kind, "")})
			if err != nil {
				t.Fatal(err)
			}
			noted := slices.ContainsFunc(rendered.Notes, func(n string) bool {
				return strings.HasPrefix(n, "c/all.yaml:1: "+string(kind)+" p: gitopsd.dev/adopt means nothing here")
			})
			if noted == (left || kind == sources.Function) {
				t.Errorf("%s, delegated %t: %q", kind, left, rendered.Notes)
			}
		}
	}
}

// Crossplane installs Functions in every cluster.
func TestFunctionIsDelegated(t *testing.T) {
	t.Parallel()
	rendered, err := delegate(t, input(t, strings.Replace(declare("Function", "f", ""), "f:v1", "f@"+string(sources.DigestOf(nil)), 1)), false)
	if err != nil {
		t.Fatal(err)
	}
	if have := fmt.Sprint(ids(rendered.Objects.All())); have != "[function.pkg.crossplane.io/f]" {
		t.Fatalf("have %s", have)
	}
	spec := rendered.Objects.All()[0].Tree()["spec"].(map[string]any)
	if spec["package"] != "example.org/f@"+string(sources.DigestOf([]byte("f"))) {
		t.Errorf("have %v", spec)
	}
}

// A patch cannot bypass the lock.
func TestPatchesLeavePins(t *testing.T) {
	t.Parallel()
	target := &kustomize.Selector{Kind: "Provider"}
	for patch, want := range map[string]string{
		"- {op: add, path: /metadata/annotations, value: {a: b}}":                  "",
		"- {op: replace, path: /spec/package, value: 'example.org/evil:v1'}":       "patches: provider.pkg.crossplane.io/p: spec.package is example.org/evil:v1 and spec.skipDependencyResolution true, where clusters.lock wants",
		"- {op: replace, path: /spec/skipDependencyResolution, value: false}":      "and spec.skipDependencyResolution false, where",
		"- {op: replace, path: /metadata/name, value: other}":                      "patches:",
		"- {op: add, path: /spec/revisionHistoryLimit, value: 5}":                  "",
		"- {op: remove, path: /spec/package}":                                      "spec.package is <nil>",
		"- {op: add, path: /spec/packagePullSecrets, value: [{name: more}]}":       "",
		"- {op: test, path: /spec/packagePullPolicy, value: IfNotPresent}":         "",
		"- {op: add, path: /spec/commonLabels, value: {team: x}}":                  "",
		"- {op: replace, path: /spec/package, value: 'example.org/p:v1@sha256:0'}": "spec.package is example.org/p:v1@sha256:0",
	} {
		in := input(t, declare("Provider", "p", ""), kustomize.Patch{Target: target, Patch: patch})
		in.Delegate = true
		_, err := delegate(t, in, false)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: have %v, want %q", patch, err, want)
		}
	}
}
