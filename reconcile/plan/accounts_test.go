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
