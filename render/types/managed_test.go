package types

import (
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/testscripts/upstream"
)

const managed = `
apiVersion: apiextensions.crossplane.io/v1alpha1
kind: ManagedResourceDefinition
metadata: {name: buckets.example.org, labels: {a: b}}
spec:
  state: Inactive
  connectionDetails: [{name: password, description: The password.}]
  group: example.org
  names: {kind: Bucket, plural: buckets}
  preserveUnknownFields: false
  versions:
  - name: v2
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object}}
    unknown: dropped
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object}}
    subresources: {status: {}}
`

// TestFromManaged checks that the definition is the one that Crossplane makes, and has the
// same types.
func TestFromManaged(t *testing.T) {
	t.Parallel()
	mrd := manifesttest.Documents(t, managed)[0].Tree
	before := maps.Clone(mrd)
	have, err := FromManaged(mrd)
	if err != nil {
		t.Fatal(err)
	}
	want := manifesttest.Documents(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: buckets.example.org}
spec:
  group: example.org
  names: {kind: Bucket, plural: buckets}
  scope: Namespaced
  preserveUnknownFields: false
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object}}
    subresources: {status: {}}
  - name: v2
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object}}
`)[0].Tree
	if !reflect.DeepEqual(have, want) {
		t.Errorf("have %v\nwant %v", have, want)
	}
	if !reflect.DeepEqual(mrd, before) {
		t.Error("the definition was changed")
	}
	// Active or not, the package publishes the same types.
	all, err := Of(mrd)
	if err != nil {
		t.Fatal(err)
	}
	same, err := Of(want)
	if err != nil || len(all) != 2 || !reflect.DeepEqual(all, same) {
		t.Errorf("types %v, of the CustomResourceDefinition %v, %v", all, same, err)
	}
	active := manifesttest.Documents(t, strings.Replace(managed, "Inactive", "Active", 1))[0].Tree
	if now, err := Of(active); err != nil || !reflect.DeepEqual(now, all) {
		t.Errorf("types %v when active, %v", now, err)
	}
}

// TestManagedFields checks with Crossplane's Go type that a CustomResourceDefinition gets
// every field of its ManagedResourceDefinition except for Crossplane's own.
func TestManagedFields(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := upstream.Write(t.Context(), upstream.Crossplane, upstream.CrossplaneVersion, dir, io.Discard); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "crds", "apiextensions.crossplane.io_managedresourcedefinitions.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	properties := func(v any, path ...string) map[string]any {
		for _, key := range append(path, "properties") {
			if list, ok := v.([]any); ok {
				v = list[0]
			}
			v = v.(map[string]any)[key]
		}
		return v.(map[string]any)
	}
	spec := properties(manifesttest.Documents(t, string(text))[0].Tree, "spec", "versions", "schema", "openAPIV3Schema", "properties", "spec")
	want := append(slices.Clone(crdFields), "connectionDetails", "state", "versions")
	slices.Sort(want)
	if have := slices.Sorted(maps.Keys(spec)); !slices.Equal(have, want) {
		t.Errorf("spec has %q, of which are known %q", have, want)
	}
	want = slices.Sorted(slices.Values(versionFields))
	if have := slices.Sorted(maps.Keys(properties(spec, "versions", "items"))); !slices.Equal(have, want) {
		t.Errorf("a version has %q, of which are known %q", have, want)
	}
}

func TestFromManagedFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ old, new, want string }{
		{"v1alpha1", "v3", "ManagedResourceDefinition buckets.example.org: apiVersion is apiextensions.crossplane.io/v3, want apiextensions.crossplane.io/v1alpha1"},
		{"spec:", "sepc:", "ManagedResourceDefinition buckets.example.org: spec: want a mapping, have null"},
		{"versions:", "version:", "ManagedResourceDefinition buckets.example.org: spec.versions: want a list, have null"},
		{"versions:", "versions: [1]\n  others:", "ManagedResourceDefinition buckets.example.org: spec.versions[0]: want a mapping, have a number"},
		{"schema:", "schemata:", "ManagedResourceDefinition buckets.example.org: spec.versions[0].schema: want a mapping, have null"},
	} {
		_, err := Of(manifesttest.Documents(t, strings.Replace(managed, tt.old, tt.new, 1))[0].Tree)
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: have %v, want %s", tt.new, err, tt.want)
		}
	}
	if IsManaged(map[string]any{"apiVersion": "example.org/v1", "kind": "ManagedResourceDefinition"}) {
		t.Error("somebody else's kind of the same name is one")
	}
}
