package apply_test

import (
	"context"
	"strings"
	"testing"

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
