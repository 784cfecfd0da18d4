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

// controller is a package's, with an annotation FAIL of its pods; stuck keeps it from getting ready.
const (
	controller = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: $NAME, namespace: gitopsd-system, labels: {gitopsd.dev/package: $NAME}},
spec: {selector: {matchLabels: {app: $NAME}}, template: {metadata: {labels: {app: $NAME}, annotations: {FAIL}}, spec: {containers: [{name: a, image: example.org/a}]}}}}`
	stuck = "devcluster.gitopsd.dev/fail: image"
)

// A definition goes over to another package, and what its former package had stays until
// all of that one is applied, and its controller is ready. A new process knows it too.
func TestSuccessors(t *testing.T) {
	const (
		cm      = "{apiVersion: v1, kind: ConfigMap, metadata: {name: $NAME, namespace: default, labels: {PACKAGE}}}"
		account = "{apiVersion: v1, kind: ServiceAccount, metadata: {name: $NAME, namespace: NAMESPACE, labels: {gitopsd.dev/package: $NAME}}}"
		other   = "{apiVersion: v1, kind: ConfigMap, metadata: {name: $NAME-other, namespace: default}}"
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
	ready, unready := strings.Replace(controller, "FAIL", "", 1), strings.Replace(controller, "FAIL", stuck, 1)
	for name, label := range map[string]string{"package": "gitopsd.dev/package: $NAME-old", "plain": "a: b"} {
		for _, tt := range []struct{ name, run, namespace, kept string }{
			{"incomplete", ready, "$NAME-none", "skipped configmap/default/$NAME: kept until the rest is applied: serviceaccount/$NAME-none/$NAME: "},
			{"unready", unready, "default", "pending configmap/default/$NAME: waits until deployment.apps/gitopsd-system/$NAME is ready: "},
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

// What was there before waits for the successor, too, if it goes in a later pass than the
// definition: it leaves the repository in the next commit, or a person has to allow it.
func TestSuccessorsLater(t *testing.T) {
	const mine = "gitopsd.dev/package: $NAME"
	crd := strings.Split(everything, "---")[6]
	of := func(object, label string) string {
		return strings.Replace(object, "metadata: {", "metadata: {labels: {"+label+"}, ", 1)
	}
	for former, label := range map[string]string{"package": "gitopsd.dev/package: $NAME-old", "plain": "a: b"} {
		configMap := func(name any) string {
			return of(fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: $NAME-%v, namespace: default}}", name), label)
		}
		var goes []string
		for i := range 25 { // more than go without a person
			goes = append(goes, configMap(i))
		}
		with := func(fail, crdLabel string, more ...string) string {
			all := append([]string{configMap("stays"), of(crd, crdLabel), strings.Replace(controller, "FAIL", fail, 1)}, more...)
			return strings.Join(all, "\n---\n")
		}
		for _, tt := range []struct {
			name  string
			first []string // what is still desired with the first commit
			held  int      // in its pass
		}{
			{"next commit", goes, 0},
			{"guard", nil, len(goes)},
		} {
			t.Run(former+"/"+tt.name, func(t *testing.T) {
				b := newBed(t)
				b.apply(b.set(with(stuck, label, goes...)))
				p := b.plan(b.set(with(stuck, mine, tt.first...)), apply.PlanOptions{})
				if held := p.Count(plan.Held); held != tt.held {
					t.Fatalf("%d steps are held, want %d", held, tt.held)
				}
				b.wantNothing("results", b.results(b.execute(p)))
				allowed := apply.PlanOptions{Options: plan.Options{AllowPrune: len(goes)}}
				for range 2 {
					b.restart() // only the inventory tells
					waits := b.results(b.execute(b.plan(b.set(with(stuck, mine)), allowed)))
					if len(waits) != len(goes) || !strings.Contains(waits[0], "waits until deployment.apps/gitopsd-system/$NAME is ready: ") {
						t.Fatalf("%d results:\n%s", len(waits), strings.Join(waits, "\n"))
					}
				}
				eventually(t, "they go", func(context.Context) bool {
					b.execute(b.plan(b.set(with("", mine)), allowed))
					return b.get(configMap(0)) == nil
				})
				b.settled(b.set(with("", mine)))
				if record := b.parent()[manifest.SuccessorsAnnotation]; record != "" {
					t.Errorf("%s is recorded", record)
				}
			})
		}
	}
}

// The record lasts until the successor is ready, even if nothing has to go.
func TestSuccessorsRecord(t *testing.T) {
	crd := strings.Split(everything, "---")[6]
	other := "{apiVersion: v1, kind: ConfigMap, metadata: {name: $NAME-other, namespace: default}}\n---\n"
	b := newBed(t)
	b.apply(b.set(other + crd))
	next := func(fail string) *manifest.Set {
		return b.set(other + strings.Replace(crd, "metadata: {", "metadata: {labels: {gitopsd.dev/package: $NAME}, ", 1) + "\n---\n" + strings.Replace(controller, "FAIL", fail, 1))
	}
	for range 3 { // from the second time on, nothing changes
		b.apply(next(stuck))
		if record := b.short(b.parent()[manifest.SuccessorsAnnotation]); record != "=$NAME" {
			t.Fatalf("%q is recorded", record)
		}
		b.restart()
	}
	broken := plan.Options{Broken: []string{b.name}, Keeps: func(_ manifest.ID, pkg string) bool { return pkg == b.name }}
	b.execute(b.plan(b.set(other), apply.PlanOptions{Options: broken})) // in one pass the package has errors
	if record := b.short(b.parent()[manifest.SuccessorsAnnotation]); record != "=$NAME" {
		t.Fatalf("with errors, %q is recorded", record)
	}
	eventually(t, "the record ends", func(context.Context) bool {
		b.apply(next(""))
		return b.parent()[manifest.SuccessorsAnnotation] == ""
	})
	b.settled(next(""))
}
