package apply_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/plan"
)

// Taking an object over takes what its former owner put there, and leaves what
// controllers have.
func TestAdopt(t *testing.T) {
	b := newBed(t)
	namespace := strings.Split(two, "---")[0]
	b.apply(b.set(namespace))
	uid := b.get(namespace)["metadata"].(map[string]any)["uid"]
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"$NAME",
"labels":{"helm.toolkit.fluxcd.io/name":"r","keep":"x"},
"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}"},
"ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":"$NAME","uid":"%s","controller":true}]},
"data":{"color":"theirs","old":"x"}}`, uid)
	theirs := b.set(text).All()[0]
	b.raw(http.MethodPatch, theirs, "fieldManager=helm-controller&force=true", "application/apply-patch+yaml", theirs.AppendJSON(nil))
	b.edit("injector", cm("a"), `{"data":{"injected":"y"},"metadata":{"labels":{"keep":"x"}}}`)

	set := b.set(namespace + strings.Replace(`---
apiVersion: v1
kind: ConfigMap
metadata: {name: a, namespace: $NAME, annotations: {gitopsd.dev/adopt: "true"}}
data: {color: green}
`, "$$", "$", 1))
	p := b.plan(set, apply.PlanOptions{DryRun: true})
	var changes []string
	for _, s := range p.Steps {
		for _, c := range s.Changes {
			if !strings.Contains(c.Path, "applyset") {
				changes = append(changes, b.short(strings.ReplaceAll(c.String(), uid.(string), "$UID")))
			}
		}
	}
	b.want("changes", changes,
		`data.color: "theirs" -> "green"`,
		`data.old: - "x"`,
		`metadata.annotations["gitopsd.dev/adopt"]: + "true"`,
		`metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]: (removed)`,
		`metadata.labels["helm.toolkit.fluxcd.io/name"]: - "r"`,
		`metadata.labels.keep: - "x"`,
		"metadata.ownerReferences[name=$NAME]: - {apiVersion, controller, kind, name, uid}",
	)
	steps, results := b.apply(set)
	b.want("steps", steps, "configure configmap/$NAME/a adopted: until now it was controlled by Namespace $NAME")
	b.wantNothing("results", results)
	after := b.get(cm("a"))
	meta := after["metadata"].(map[string]any)
	if data := fmt.Sprint(after["data"]); data != "map[color:green injected:y]" {
		t.Errorf("data is %s", data)
	}
	if labels := meta["labels"].(map[string]any); len(labels) != 1 || meta["ownerReferences"] != nil {
		t.Errorf("metadata is %v", meta)
	}
	b.settled(set)
}

// A field that cannot be changed has the object replaced where the repository
// says so, and nowhere else.
func TestReplace(t *testing.T) {
	b := newBed(t)
	text := strings.Split(two, "---")[0] + "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: $NAME, annotations: {}}, immutable: true, data: {x: '1'}}\n"
	b.apply(b.set(text))
	changed := strings.Replace(text, "'1'", "'2'", 1)
	const why = `data: Forbidden: field is immutable when ` + "`immutable`" + ` is set; to have it deleted and created anew, annotate it with gitopsd.dev/replace: "true"`
	p := b.plan(b.set(changed), apply.PlanOptions{DryRun: true})
	for _, s := range p.Steps {
		if s.Action == plan.Configure && s.Rejected != why {
			t.Errorf("the plan says %q", s.Rejected)
		}
	}
	_, results := b.apply(b.set(changed))
	b.want("results", results, "failed configmap/$NAME/a: cluster $NAME: configmap/$NAME/a: apply: "+why)

	allowed := b.set(strings.Replace(changed, "annotations: {}", `annotations: {gitopsd.dev/replace: "true"}`, 1))
	p = b.plan(allowed, apply.PlanOptions{DryRun: true})
	for _, s := range p.Steps {
		if s.Action == plan.Configure && (s.Rejected != "" || !strings.Contains(s.Reason, "deleted and created anew, since a field cannot be changed: data: Forbidden")) {
			t.Errorf("the plan says %q, %q", s.Rejected, s.Reason)
		}
	}
	_, results = b.apply(allowed)
	b.wantNothing("results", results)
	if data := b.get(cm("a"))["data"].(map[string]any); data["x"] != "2" {
		t.Errorf("data is %v", data)
	}
	b.settled(allowed)
}

// A cluster that leaves the registry is emptied, but for what is not ours.
func TestRemoveAll(t *testing.T) {
	b := newBed(t)
	b.apply(b.set(everything))
	b.as("somebody", cm("theirs"))
	all := apply.PlanOptions{Options: plan.Options{RemoveAll: true}}
	report, err := b.applier.Apply(t.Context(), b.plan(b.set(""), all))
	if err != nil {
		t.Fatal(err)
	}
	b.wantNothing("results", b.results(report))
	b.want("what is left", b.steps(b.plan(b.set(""), all)),
		`held namespace/$NAME kept: it holds configmap/$NAME/theirs, which would be deleted with it; to allow that, annotate it with gitopsd.dev/allow-prune: "true"`)
	b.delete(cm("theirs"))
	eventually(t, "nothing is left", func(ctx context.Context) bool {
		if _, err := b.applier.Apply(ctx, b.plan(b.set(""), all)); err != nil {
			t.Fatal(err)
		}
		return b.get(parentOf(b)) == nil
	})
	b.restart()
	b.wantNothing("steps", b.steps(b.plan(b.set(""), all)))
}
