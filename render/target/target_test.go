package target

import (
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// The definitions are installed if an object is of their kinds, and never twice.
func TestAddDefinitions(t *testing.T) {
	object := func(apiVersion, kind, name string) *manifest.Object {
		o, err := manifest.New(map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name}}, manifest.Origin{})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	own := object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "kubernetestargets.workload.crossplane.io")
	for _, tt := range []struct {
		name    string
		objects []*manifest.Object
		always  bool
		want    int
	}{
		{name: "none", objects: []*manifest.Object{object("v1", "ConfigMap", "a")}, want: 1},
		{name: "a target", objects: []*manifest.Object{object("workload.crossplane.io/v1alpha1", "KubernetesTarget", "a")}, want: 3},
		{name: "an application", objects: []*manifest.Object{object("workload.crossplane.io/v1alpha2", "KubernetesApplication", "a")}, want: 3},
		{name: "asked for", always: true, want: 2},
		{name: "a definition of the repository's own", objects: []*manifest.Object{own}, always: true, want: 2},
	} {
		all, err := AddDefinitions(tt.objects, tt.always)
		if err != nil {
			t.Fatal(err)
		}
		if _, duplicates := manifest.NewSet(all); len(all) != tt.want || len(duplicates) > 0 {
			t.Errorf("%s: %d objects, want %d; twice: %v", tt.name, len(all), tt.want, duplicates)
		}
	}
}

// The definitions define the kinds, and have the names that Defines recognizes.
func TestDefinitions(t *testing.T) {
	all, err := Definitions()
	if err != nil {
		t.Fatal(err)
	}
	for i, kind := range []manifest.GroupKind{Target, Application} {
		if !Defines(all[i].ID()) || !types.Read(all[i].Tree()).Defines(kind) {
			t.Errorf("%s does not define %s", all[i].ID(), kind)
		}
	}
	if Defines(manifest.CRD.ID("", "widgets.acme.example")) {
		t.Error("another definition is taken for one of them")
	}
}

// A publication with another role needs a new binding, since the API server refuses to
// change the role of a binding.
func TestGrant(t *testing.T) {
	all, err := Grant(Publication{Home: "hub", Namespace: "team", Role: "view"})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		if o.ID().Is(manifest.ClusterRoleBinding) && o.Annotation(manifest.ReplaceAnnotation) != "true" {
			t.Errorf("%s is not replaced", o.ID())
		}
	}
	if len(all) != 2 {
		t.Errorf("%d objects, want an account and its binding", len(all))
	}
}
