package plan_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// A package's controller does not run as an account of others.
func TestRefuseAccounts(t *testing.T) {
	t.Parallel()
	account := "{apiVersion: v1, kind: ServiceAccount, metadata: {name: a, namespace: ns, labels: {gitopsd.dev/package: p}}}\n---\n"
	deployment := "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: ns, labels: {gitopsd.dev/package: p}}, spec: {template: {spec: {serviceAccountName: a}}}}\n---\n"
	plain := func(s string) string { return strings.ReplaceAll(s, "gitopsd.dev/package", "plain") }
	theirs := func(m *metav1.ObjectMeta) {
		delete(m.Labels, plan.PartOfLabel)
		m.ManagedFields[0].Manager = "helm"
	}
	const refused = "\nrefused deployment.apps/ns/d it would run as serviceaccount/ns/a, which is in conflict\n"
	for _, tt := range []struct {
		name          string
		desired, live string
		change        func(*metav1.ObjectMeta)
		want          string
	}{
		{"new", account + deployment, "", nil, "\ncreate deployment.apps/ns/d\n"},
		{"ours", account + deployment, account, nil, "\ncreate deployment.apps/ns/d\n"},
		{"somebody else's", account + deployment, account, theirs, refused},
		{"adopted", strings.Replace(account, "labels", "annotations: {gitopsd.dev/adopt: 'true'}, labels", 1) + deployment, account, theirs, "\ncreate deployment.apps/ns/d\n"},
		{"another package's", account + strings.Replace(deployment, "package: p", "package: q", 1), account, theirs, refused},
		{"another account", account + strings.Replace(deployment, "serviceAccountName: a", "serviceAccountName: b", 1), account, theirs, "\ncreate deployment.apps/ns/d\n"},
		{"an account of the repository", plain(account) + deployment, account, theirs, "\ncreate deployment.apps/ns/d\n"},
		{"a workload of the repository", account + plain(deployment), account, theirs, "\ncreate deployment.apps/ns/d\n"},
	} {
		desired, _ := manifest.NewSet(manifesttest.Objects(t, tt.desired))
		l := plan.Live{}
		if tt.live != "" {
			l = live(t, tt.live, tt.change)
		}
		p := plan.Compute("dev", desired, l, inventory, plan.Options{})
		plan.RefuseAccounts(p)
		if have := steps(p); !strings.HasSuffix(have, tt.want) {
			t.Errorf("%s:\n%s", tt.name, have)
		}
	}
}

// An account that packages share does not wait with the first of them, which may wait for the
// controller of another.
func TestSharedAccountWaitsForNothing(t *testing.T) {
	t.Parallel()
	object := func(apiVersion, kind, name, pkg, rest string) string {
		return "{apiVersion: " + apiVersion + ", kind: " + kind + ", metadata: {name: " + name + ", namespace: ns, labels: {gitopsd.dev/package: " + pkg + "}}" + rest + "}\n---\n"
	}
	const runs = ", spec: {template: {spec: {serviceAccountName: shared}}}"
	account := object("v1", "ServiceAccount", "shared", "first", "")
	first, second := object("apps/v1", "Deployment", "first", "first", runs), object("apps/v1", "Deployment", "second", "second", runs)
	for text, want := range map[string]string{account + first: "package/second", account + first + second: ""} {
		desired, _ := manifest.NewSet(manifesttest.Objects(t, text+object("v1", "ConfigMap", "a", "second", "")))
		p := plan.Compute("dev", desired, plan.Live{}, inventory, plan.Options{Order: map[string]plan.Order{"first": {DependsOn: "package/second"}}})
		for _, s := range p.Steps {
			wants := map[string]string{"shared": want, "first": "package/second"}[s.ID.Name]
			if have := strings.Join(s.After, " "); have != wants {
				t.Errorf("%s waits for %q, want %q", s.ID, have, wants)
			}
		}
	}
}
