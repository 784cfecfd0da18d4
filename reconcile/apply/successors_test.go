package apply_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// A definition goes over to another package, and what its former package had stays until
// all of that one is applied, and its controller is ready. A new process knows it too.
func TestSuccessors(t *testing.T) {
	const (
		cm      = "{apiVersion: v1, kind: ConfigMap, metadata: {name: $NAME, namespace: default, labels: {PACKAGE}}}"
		account = "{apiVersion: v1, kind: ServiceAccount, metadata: {name: $NAME, namespace: NAMESPACE, labels: {gitopsd.dev/package: $NAME}}}"
		run     = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: $NAME, namespace: gitopsd-system, labels: {gitopsd.dev/package: $NAME}},
spec: {selector: {matchLabels: {app: $NAME}}, template: {metadata: {labels: {app: $NAME}, annotations: {FAIL}}, spec: {containers: [{name: a, image: example.org/a}]}}}}`
		other = "{apiVersion: v1, kind: ConfigMap, metadata: {name: $NAME-other, namespace: default}}"
	)
	crd := strings.Split(everything, "---")[6]
	of := func(object, label string) string {
		return strings.Replace(object, "metadata: {", "metadata: {labels: {"+label+"}, ", 1)
	}
	const mine = "gitopsd.dev/package: $NAME"
	// In both, the controller exists before it takes over, so that no pass waits for it.
	before := func(run string) string { return strings.Join([]string{other, run}, "\n---\n") }
	after := func(run, namespace string) string {
		return strings.Join([]string{other, run, of(crd, mine), strings.Replace(account, "NAMESPACE", namespace, 1)}, "\n---\n")
	}
	ready := strings.Replace(run, "FAIL", "", 1)
	stuck := strings.Replace(run, "FAIL", "devcluster.gitopsd.dev/fail: image", 1)
	for name, label := range map[string]string{"package": "gitopsd.dev/package: $NAME-old", "plain": "a: b"} {
		for _, tt := range []struct{ name, run, namespace, kept string }{
			{"incomplete", ready, "$NAME-none", "skipped configmap/default/$NAME: kept until the rest is applied: serviceaccount/$NAME-none/$NAME: "},
			{"unready", stuck, "default", "pending configmap/default/$NAME: waits until deployment.apps/gitopsd-system/$NAME is ready: "},
		} {
			t.Run(name+"/"+tt.name, func(t *testing.T) {
				b := newBed(t)
				old := of(crd, label) + "\n---\n" + strings.Replace(cm, "PACKAGE", label, 1)
				b.apply(b.set(before(tt.run) + "\n---\n" + old))
				for range 2 { // the second time, only the inventory tells
					_, results := b.apply(b.set(after(tt.run, tt.namespace)))
					if all := strings.Join(results, "\n"); !strings.Contains(all, tt.kept) {
						t.Fatalf("%s\nlacks %s", all, tt.kept)
					}
					b.restart()
				}
				eventually(t, "it goes", func(context.Context) bool {
					b.apply(b.set(after(ready, "default")))
					return b.get(strings.Replace(cm, "PACKAGE", "", 1)) == nil
				})
				b.settled(b.set(after(ready, "default")))
				if record := b.parent()[manifest.SuccessorsAnnotation]; record != "" {
					t.Errorf("%s is recorded", record)
				}
			})
		}
	}
}

// What a definition's former controller consists of may leave later than the definition: in
// another commit, or once a person allows that much to go.
func TestSuccessorsLater(t *testing.T) {
	const mine = "gitopsd.dev/package: $NAME"
	const stuck = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: $NAME, namespace: gitopsd-system, labels: {gitopsd.dev/package: $NAME}},
spec: {selector: {matchLabels: {app: $NAME}}, template: {metadata: {labels: {app: $NAME}, annotations: {devcluster.gitopsd.dev/fail: image}}, spec: {containers: [{name: a, image: example.org/a}]}}}}`
	crd := strings.Split(everything, "---")[6]
	of := func(label string) string {
		return strings.Replace(crd, "metadata: {", "metadata: {labels: {"+label+"}, ", 1)
	}
	former := func(n int) string {
		return fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: $NAME-%d, namespace: default}}", n)
	}
	some := func(n int) (list []string) {
		for i := range n {
			list = append(list, former(i))
		}
		return list
	}
	join := func(objects ...string) string { return strings.Join(objects, "\n---\n") }
	const waits = "pending configmap/default/$NAME-0: waits until deployment.apps/gitopsd-system/$NAME is ready: "
	for _, tt := range []struct {
		name         string
		first, later string // commits: the definition moves in the first one
		allowed      int    // in the later one
		former       []string
	}{
		{"commit", join(of(mine), stuck, former(0), former(1)), join(of(mine), stuck, former(1)), 0, some(2)},
		{"allowance", join(of(mine), stuck), join(of(mine), stuck), 100, some(25)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			b.apply(b.set(join(append(tt.former, of("a: b"))...)))
			b.apply(b.set(tt.first))
			b.restart()
			for range 2 {
				results := b.results(b.execute(b.plan(b.set(tt.later), apply.PlanOptions{Options: plan.Options{AllowPrune: tt.allowed}})))
				if all := strings.Join(results, "\n"); !strings.Contains(all, waits) {
					t.Fatalf("%s\nlacks %s", all, waits)
				}
			}
		})
	}
}
