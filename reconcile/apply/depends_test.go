package apply_test

import (
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/plan"
)

const (
	ordered = `{apiVersion: v1, kind: Namespace, metadata: {name: $NAME}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: late, namespace: $NAME, annotations: {gitopsd.dev/depends-on: "deployment.apps/$NAME/first, configmap/$NAME/early"}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: latest, namespace: $NAME, annotations: {gitopsd.dev/depends-on: configmap/$NAME/late}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: early, namespace: $NAME}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: first, namespace: $NAME}
spec:
  selector: {matchLabels: {app: $NAME}}
  template:
    metadata: {labels: {app: $NAME}, annotations: {PODANNOTATION}}
    spec: {containers: [{name: c, image: example.org/first:1}]}
`
	failing = `devcluster.gitopsd.dev/fail: ImagePullBackOff`
)

// An object is applied once its dependencies are healthy, in the same pass if that does
// not take long, whatever its stage.
func TestDependsOn(t *testing.T) {
	b := newBed(t)
	set := b.set(strings.ReplaceAll(ordered, "PODANNOTATION", ""))
	_, results := b.apply(set)
	b.wantNothing("results", results)
	var order []string
	for _, line := range b.requests.take() {
		if strings.HasPrefix(line, "PATCH ") {
			order = append(order, line[strings.LastIndexByte(line, '/')+1:])
		}
	}
	at := func(name string) int { return slices.Index(order, name) }
	if at("late") < at("first") || at("late") < at("early") || at("latest") < at("late") || at("latest") < 0 {
		t.Errorf("written in the order %q", order)
	}
	b.settled(set)
	// It goes the other way round, as the live objects tell.
	namespace := b.set("{apiVersion: v1, kind: Namespace, metadata: {name: $NAME}}")
	steps, results := b.apply(namespace)
	b.wantNothing("results", results)
	b.want("steps", steps, "prune configmap/$NAME/latest", "prune configmap/$NAME/late", "prune deployment.apps/$NAME/first", "prune configmap/$NAME/early")
	order = nil
	for _, line := range b.requests.take() {
		if strings.HasPrefix(line, "DELETE ") {
			order = append(order, line[strings.LastIndexByte(line, '/')+1:])
		}
	}
	if want := []string{"latest", "late", "first", "early"}; !slices.Equal(order, want) {
		t.Errorf("deleted in the order %q, want %q", order, want)
	}
}

// An object with a dependency that does not get healthy waits, and says for which one.
func TestDependsOnUnhealthy(t *testing.T) {
	b := newBed(t)
	bad := b.set(strings.ReplaceAll(ordered, "PODANNOTATION", failing))
	_, results := b.apply(bad)
	if len(results) != 2 || !strings.HasPrefix(results[0], "pending configmap/$NAME/late: waits for deployment.apps/$NAME/first: deployment.apps/$NAME/first is InProgress") {
		t.Errorf("the results are %q", results)
	}
	b.want("the second result", results[1:], "pending configmap/$NAME/latest: waits for configmap/$NAME/late: configmap/$NAME/late: waits for deployment.apps/$NAME/first: "+
		results[0][strings.Index(results[0], "deployment.apps/$NAME/first is"):])
	if b.get(cm("late")) != nil || b.get(cm("latest")) != nil || b.get(cm("early")) == nil {
		t.Error("it did not hold what depends on the Deployment, and that alone")
	}
	good := b.set(strings.ReplaceAll(ordered, "PODANNOTATION", ""))
	b.applied(good)
}

// Where drift is only reported, an object that somebody deleted or broke holds back what
// depends on it.
func TestDependsOnHeld(t *testing.T) {
	b := newBed(t)
	set := b.set(strings.ReplaceAll(ordered, "PODANNOTATION", ""))
	b.applied(set)
	for _, tt := range []struct {
		name  string
		drift func()
		want  string
	}{
		{"healthy", func() { b.edit("kubectl-edit", cm("early"), `{"data":{"more":"x"}}`) }, ""},
		{"deleted", func() { b.delete(cm("early")) }, "pending configmap/$NAME/late: waits for configmap/$NAME/early: configmap/$NAME/early: drift: somebody deleted it"},
		{"broken", func() {
			b.applied(set)
			b.edit("kubectl-edit", "{apiVersion: apps/v1, kind: Deployment, metadata: {name: first, namespace: $NAME}}",
				`{"spec":{"template":{"metadata":{"annotations":{"`+strings.Replace(failing, ": ", `":"`, 1)+`"}}}}}`)
		}, "pending configmap/$NAME/late: waits for deployment.apps/$NAME/first: deployment.apps/$NAME/first is InProgress"},
	} {
		tt.drift()
		b.delete(cm("late"))
		p := b.plan(set, apply.PlanOptions{Options: plan.Options{ReportDrift: true}})
		for i := range p.Steps {
			if s := &p.Steps[i]; (s.Drift || s.Recreated) && s.ID.Name != "late" {
				s.Action = plan.Held
			}
		}
		results := b.results(b.execute(p))
		if have := strings.Join(results, "\n"); !strings.HasPrefix(have, tt.want) || (have == "") != (tt.want == "") {
			t.Errorf("%s: the results are %q", tt.name, results)
		}
	}
}
