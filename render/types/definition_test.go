package types

import (
	"fmt"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

func TestRead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, doc string
		want      string // group, names, claims, scope, versions
	}{
		{"a CRD", `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
spec: {group: g.io, scope: Cluster, names: {kind: Thing, plural: things}, claimNames: {kind: Other}, versions: [{name: v1, served: true, storage: true}, {name: v2}]}`,
			"g.io Thing things thing ThingList claims:  Cluster v1:true:true v2:false:false"},
		{"an XRD of v1", `
apiVersion: apiextensions.crossplane.io/v1
kind: CompositeResourceDefinition
spec: {group: g.io, names: {kind: XThing, plural: xthings, singular: one, listKind: Many}, claimNames: {kind: Thing, plural: things}, versions: [{name: v1, served: true, referenceable: true}]}`,
			"g.io XThing xthings one Many claims: Thing LegacyCluster v1:true:true"},
		{"an XRD of v2", `
apiVersion: apiextensions.crossplane.io/v2
kind: CompositeResourceDefinition
spec: {group: g.io, names: {kind: Thing, plural: things}, versions: [{name: v1, storage: true}]}`,
			"g.io Thing things thing ThingList claims:  Namespaced v1:false:false"},
		{"values of other types", "kind: CustomResourceDefinition\nspec: {group: 1, names: [], versions: [1, {name: 2, served: x}]}", "     claims:   :false:false :false:false"},
		{"nothing", "kind: CustomResourceDefinition", "     claims:  "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := Read(manifesttest.Tree(t, tt.doc))
			have := fmt.Sprint(d.Group, " ", d.Names.Kind, " ", d.Names.Plural, " ", d.Names.Singular, " ", d.Names.ListKind, " claims: ", d.Claims.Kind, " ", d.Scope)
			for _, v := range d.Versions() {
				have += fmt.Sprint(" ", v.Name, ":", v.Served, ":", v.Storage)
			}
			if have != tt.want {
				t.Errorf("have %q\nwant %q", have, tt.want)
			}
			for _, kind := range d.Kinds() {
				if defines := d.Defines(manifest.GroupKind{Group: d.Group, Kind: kind}); defines != (d.Group != "") {
					t.Errorf("defines %s: %t", kind, defines)
				}
			}
			if d.Defines(manifest.GroupKind{Group: d.Group}) {
				t.Error("defines a kind without a name")
			}
		})
	}
}
