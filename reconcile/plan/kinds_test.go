package plan_test

import (
	"strings"
	"testing"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// Without a cluster, an unknown kind is noted only if it resembles a known one.
func TestBetweenDoubtsKinds(t *testing.T) {
	t.Parallel()
	const widgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.acme.example}
spec:
  group: acme.example
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`
	crd := widgets + "---" + strings.NewReplacer("widgets.acme", "clusters.rds.acme", "group: acme", "group: rds.acme", "widgets", "clusters", "Widget", "Cluster").Replace(widgets)
	object := func(apiVersion, kind string) string {
		return "\n---\napiVersion: " + apiVersion + "\nkind: " + kind + "\nmetadata: {name: x, namespace: default}\n"
	}
	for _, tt := range []struct {
		apiVersion, kind string
		meant            string // empty: nothing is said
		before           string
	}{
		{apiVersion: "apps/v1", kind: "Deployment"},
		{apiVersion: "apps/v1", kind: "Deploymnt", meant: "Deployment"},
		{apiVersion: "apps/v1", kind: "deployment", meant: "Deployment"},
		{apiVersion: "v1", kind: "ConfigMpa", meant: "ConfigMap"},
		{apiVersion: "v1", kind: "Deployment", meant: "Deployment in the group apps"},
		{apiVersion: "v1", kind: "Node"},
		{apiVersion: "app/v1", kind: "Deployment", meant: "Deployment in the group apps"},
		{apiVersion: "app/v1", kind: "Deploymnt", meant: "Deployment in the group apps"},
		{apiVersion: "apps/v1", kind: "ConfigMap", meant: "ConfigMap in v1"},
		{apiVersion: "extensions/v1beta1", kind: "Ingress", meant: "Ingress in the group networking.k8s.io"},
		{apiVersion: "networking.k8s.oi/v1", kind: "ingress", meant: "Ingress in the group networking.k8s.io"},
		{apiVersion: "resource.k8s.io/v1", kind: "DeviceClass"},
		{apiVersion: "acme.example/v1", kind: "Widget"},
		{apiVersion: "acme.example/v1", kind: "Wigdet", meant: "Widget"},
		{apiVersion: "acme.exmaple/v1", kind: "Widget", meant: "Widget in the group acme.example"},
		{apiVersion: "acme.exmaple/v1", kind: "Wigdet", meant: "Widget in the group acme.example"},
		{apiVersion: "acme.example/v1", kind: "Gadget"},
		{apiVersion: "other.example/v1", kind: "Widget"},
		{apiVersion: "serving.knative.dev/v1", kind: "Service"},
		{apiVersion: "eks.acme.example/v1", kind: "Cluster"},
		{apiVersion: "rd.acme.example/v1", kind: "Cluster"},
		{apiVersion: "rdss.acme.example/v1", kind: "Cluster", meant: "Cluster in the group rds.acme.example"},
		{apiVersion: "rds.acme.exmaple/v1", kind: "Cluster", meant: "Cluster in the group rds.acme.example"},
		{apiVersion: "eks.acme.example/v1", kind: "Clustre"},
		{apiVersion: "networkng.k8s.io/v1", kind: "Ingress", meant: "Ingress in the group networking.k8s.io"},
		{apiVersion: "acme.example/v1", kind: "Wigdet", before: strings.Replace(object("acme.example/v1", "Wigdet"), "name: x", "name: z", 1)},
	} {
		p := between(t, new(plan.Comparer), "dev", manifesttest.Set(t, crd+tt.before), manifesttest.Set(t, crd+object(tt.apiVersion, tt.kind)), nil, nil)
		for _, s := range p.Steps {
			if s.ID.Name != "x" {
				continue
			}
			want := ""
			if tt.meant != "" {
				want = "neither Kubernetes nor a definition in this revision is known to have the kind " + tt.kind + " in " + tt.apiVersion + "; did you mean " + tt.meant + "?"
			}
			if s.Action != plan.Create || s.NotValidated != want || s.Premature {
				t.Errorf("%s %s: %s, not validated: %q, want %q", tt.apiVersion, tt.kind, s.Action, s.NotValidated, want)
			}
		}
		if n := len(p.Steps); n < 2 || p.Steps[0].ID.Is(manifest.Definitions...) && p.Steps[0].NotValidated != "" {
			t.Errorf("%s %s: %d steps", tt.apiVersion, tt.kind, n)
		}
	}
}
