package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources/clusters"
)

// There is a note on a manifest that goes to clusters with the same type and different
// controllers.
func TestSameTypeOtherController(t *testing.T) {
	unit := func(name, field, image string, objects ...string) *desired.Unit {
		annotation := "{}"
		if image != "" {
			annotation = "{gitopsd.dev/controller: team/ctl}"
		}
		text := fmt.Sprintf("{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: things.acme.example, annotations: %s}, spec: {group: acme.example, scope: Namespaced, names: {kind: Thing, plural: things}, "+
			"versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {%s: {type: string}}}}}]}}\n", annotation, field)
		if image != "" {
			text += fmt.Sprintf("---\n{apiVersion: apps/v1, kind: Deployment, metadata: {name: ctl, namespace: team}, spec: {template: {spec: {containers: [{name: c, image: '%s'}]}}}}\n", image)
		}
		for _, o := range objects {
			text += fmt.Sprintf("---\n{apiVersion: acme.example/v1, kind: Thing, metadata: {name: %s, namespace: default}}\n", o)
		}
		u := desired.Registered(clusters.Cluster{Name: name}, "")
		u.Objects = manifesttest.Set(t, text)
		return u
	}
	if o := unit("x", "a", "", "o").Objects.Get(manifest.ID{Group: "acme.example", Kind: "Thing", Namespace: "default", Name: "o"}); o.Origin().File == "" {
		t.Fatal("objects without a file")
	}
	// The annotation names a workload that is not rendered, so the controller is unknown.
	unknown := unit("prod", "a", "i:1", "o")
	rest := slices.DeleteFunc(slices.Clone(unknown.Objects.All()), func(o *manifest.Object) bool { return o.ID().Is(manifest.Deployment) })
	unknown.Objects, _ = manifest.NewSet(rest)
	for _, tt := range []struct {
		name string
		in   []*desired.Unit
		want []string
	}{
		{"the same", []*desired.Unit{unit("dev", "a", "i:1", "o"), unit("prod", "a", "i:1", "o")}, nil},
		{"another type", []*desired.Unit{unit("dev", "a", "i:1", "o"), unit("prod", "b", "i:2", "o")}, nil},
		{"other objects", []*desired.Unit{unit("dev", "a", "i:1", "o"), unit("prod", "a", "i:2", "p")}, nil},
		{"none declared", []*desired.Unit{unit("dev", "a", "", "o"), unit("prod", "a", "", "o")}, nil},
		{"not known", []*desired.Unit{unit("dev", "a", "i:1", "o"), unknown}, nil},
		{
			"another controller",
			[]*desired.Unit{unit("dev", "a", "i:1", "o", "p"), unit("test", "a", "i:1", "o", "p"), unit("prod", "a", "i:2", "o", "p")},
			[]string{"Thing.acme.example: default/o, default/p go to clusters with the same type and different controllers: prod differs from dev, test in image c: i:1 -> i:2; to "},
		},
		{
			"one declared",
			[]*desired.Unit{unit("dev", "a", "i:1", "o"), unit("prod", "a", "", "o")},
			[]string{"Thing.acme.example: default/o goes to clusters with the same type and different controllers: prod declares none, dev has Deployment team/ctl; to "},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			have := sameTypeOtherController(&desired.State{Clusters: tt.in})
			if len(have) != len(tt.want) {
				t.Fatalf("have %q, want %q", have, tt.want)
			}
			for i, want := range tt.want {
				if !strings.HasPrefix(have[i], want) {
					t.Errorf("have %q, want %q", have[i], want)
				}
			}
		})
	}
}
