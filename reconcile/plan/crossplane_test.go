package plan_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// Types of packages that gitopsd does not install: those that are not activated, and
// those that Crossplane installs.
func TestPackageTypes(t *testing.T) {
	t.Parallel()
	const (
		crd  = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: ws.e.org, labels: {gitopsd.dev/package: p}}, spec: {group: e.org, names: {kind: W}}}\n---\n"
		xrd  = "{apiVersion: apiextensions.crossplane.io/v2, kind: CompositeResourceDefinition, metadata: {name: xs.e.org, labels: {gitopsd.dev/package: p}}, spec: {group: e.org, names: {kind: X}, versions: [{name: v1, served: true}]}}\n---\n"
		w    = "{apiVersion: e.org/v1, kind: W, metadata: {name: mine}}\n---\n"
		x    = "{apiVersion: e.org/v1, kind: X, metadata: {name: mine}}\n---\n"
		own  = "{apiVersion: pkg.crossplane.io/v1, kind: Provider, metadata: {name: p, labels: {gitopsd.dev/package: p}}}\n---\n"
		fun  = "{apiVersion: pkg.crossplane.io/v1, kind: Function, metadata: {name: f}}\n---\n"
		comp = "{apiVersion: apiextensions.crossplane.io/v1, kind: Composition, metadata: {name: c, labels: {gitopsd.dev/package: p}}}\n---\n"
		run  = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: p, namespace: ns, labels: {gitopsd.dev/package: p}}}\n---\n"
	)
	types := []plan.PackageType{{
		Definition: manifest.ID{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: "ws.e.org"},
		Kind:       schema.GroupKind{Group: "e.org", Kind: "W"}, Package: "p",
	}}
	inactive, delegated := plan.Options{Inactive: types}, plan.Options{Delegated: types}
	for _, tt := range []struct {
		name, desired, live string
		opts                plan.Options
		// unserved kinds, by the object that has them.
		unserved, contents string
		want               string
		awaits             string
	}{
		{name: "no longer activated", desired: cm, live: cm + crd, opts: inactive,
			want: "unchanged configmap/ns/a\nprune customresourcedefinition.apiextensions.k8s.io/ws.e.org no activation policy names it any more\n"},
		{name: "and held", desired: cm, live: cm + crd, opts: inactive, contents: w,
			want: "unchanged configmap/ns/a\nheld customresourcedefinition.apiextensions.k8s.io/ws.e.org kept: no activation policy names it any more, but it holds w.e.org/mine, which would be deleted with it; name it in a policy again, delete these, or annotate it with gitopsd.dev/allow-prune: \"true\"\n"},
		{name: "and wanted", desired: w, live: crd, opts: inactive,
			want: "create w.e.org/mine\nheld customresourcedefinition.apiextensions.k8s.io/ws.e.org kept: no activation policy names it any more, but the repository has w.e.org/mine; name it in one, or remove these\n"},
		{name: "an object of an inactive type", desired: w, opts: inactive, unserved: w,
			want: "refused w.e.org/mine its type is not activated: package p is installed by type; name ws.e.org in spec.activate of a ManagedResourceActivationPolicy\n"},
		{name: "an object of a type that Crossplane installs", desired: w, opts: delegated, unserved: w,
			want: "create w.e.org/mine (its type is not there yet: Crossplane installs it with package p)\n", awaits: "Crossplane installs it with package p"},
		{name: "a composite", desired: xrd + x, unserved: x,
			want:   "create compositeresourcedefinition.apiextensions.crossplane.io/xs.e.org\ncreate x.e.org/mine (its type is installed by compositeresourcedefinition.apiextensions.crossplane.io/xs.e.org)\n",
			awaits: "Crossplane makes it from compositeresourcedefinition.apiextensions.crossplane.io/xs.e.org"},
		{name: "expanded before, delegated now", desired: own, live: run + crd + xrd + comp, opts: delegated,
			want: `create provider.pkg.crossplane.io/p
held composition.apiextensions.crossplane.io/c kept: Crossplane installs package p from now on and takes this over
held compositeresourcedefinition.apiextensions.crossplane.io/xs.e.org kept: Crossplane installs package p from now on and takes this over
prune deployment.apps/ns/p
held customresourcedefinition.apiextensions.k8s.io/ws.e.org kept: Crossplane installs package p from now on and takes this over
`},
		{name: "no Crossplane for a package", desired: own, unserved: own,
			want: "refused provider.pkg.crossplane.io/p the cluster serves no Provider in pkg.crossplane.io/v1, though its packages are delegated to Crossplane; install Crossplane in the cluster (https://docs.crossplane.io/latest/get-started/install), or set spec.packages: expand on the Cluster\n"},
		{name: "no Crossplane for a Function", desired: fun, unserved: fun,
			want: "refused function.pkg.crossplane.io/f the cluster serves no Function in pkg.crossplane.io/v1, and only Crossplane can run one; install Crossplane in the cluster (https://docs.crossplane.io/latest/get-started/install), or remove the Function and what depends on it\n"},
		{name: "no Crossplane for a definition", desired: xrd, unserved: xrd,
			want: "refused compositeresourcedefinition.apiextensions.crossplane.io/xs.e.org the cluster serves no CompositeResourceDefinition in apiextensions.crossplane.io/v2, which means nothing without Crossplane; install Crossplane in the cluster (https://docs.crossplane.io/latest/get-started/install)\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := live(t, tt.live, nil)
			l.Unserved = make(map[schema.GroupVersionKind]string)
			for _, o := range manifesttest.Objects(t, tt.unserved) {
				l.Unserved[schema.FromAPIVersionAndKind(o.APIVersion(), o.ID().Kind)] = "the cluster does not serve it"
			}
			for _, o := range manifesttest.Objects(t, tt.contents) {
				l.Contents = map[manifest.ID][]plan.Content{types[0].Definition: {{ID: o.ID(), UID: "1"}}}
			}
			p := plan.Compute("prod", manifesttest.Set(t, tt.desired), l, inventory, tt.opts)
			if have := steps(p); have != tt.want {
				t.Errorf("have\n%s\nwant\n%s", have, tt.want)
			}
			for _, s := range p.Steps {
				if s.ID.Name == "mine" && s.Awaits != tt.awaits {
					t.Errorf("%s awaits %q, want %q", s.ID, s.Awaits, tt.awaits)
				}
			}
		})
	}
	// One that a person allows to go with all that it holds goes.
	l := live(t, cm+crd, func(m *metav1.ObjectMeta) {
		if strings.HasSuffix(m.Name, "e.org") {
			m.Annotations[manifest.AllowPruneAnnotation] = "true"
		}
	})
	l.Contents = map[manifest.ID][]plan.Content{types[0].Definition: {{ID: manifest.ID{Group: "e.org", Kind: "W", Name: "mine"}, UID: "1"}}}
	if p := plan.Compute("prod", manifesttest.Set(t, cm), l, inventory, inactive); p.Count(plan.Prune) != 1 {
		t.Error(steps(p))
	}
}
