package apply_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// Adopting an object takes the former owner's fields, and leaves those of controllers.
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
		"metadata.ownerReferences: - [1 element]",
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

// An adopted object that keeps edits keeps what people applied or added with kubectl: labels
// for pod security stay on gitopsd's own namespace.
func TestAdoptKeepsEdits(t *testing.T) {
	b := newBed(t)
	const text = "{apiVersion: v1, kind: Namespace, metadata: {name: $NAME, labels: {pod-security.kubernetes.io/enforce: restricted}}}"
	runKubectl(t, "apply", "-f", b.file(text))
	set := b.set(`{apiVersion: v1, kind: Namespace, metadata: {name: $NAME, annotations: {gitopsd.dev/adopt: "true", gitopsd.dev/keep-edits: "true"}}}`)
	for _, s := range b.plan(set, apply.PlanOptions{DryRun: true}).Steps {
		for _, c := range s.Changes {
			if strings.Contains(c.Path, "pod-security") {
				t.Errorf("the plan has %s", c)
			}
		}
	}
	labels := func() map[string]any { return b.get(text)["metadata"].(map[string]any)["labels"].(map[string]any) }
	steps, results := b.apply(set)
	b.want("steps", steps, "configure namespace/$NAME adopted: until now it was managed by kubectl-client-side-apply")
	b.wantNothing("results", results)
	b.settled(set)
	runKubectl(t, "label", "namespace", b.name, "pod-security.kubernetes.io/warn=restricted")
	b.settled(set)
	if have := labels(); have["pod-security.kubernetes.io/enforce"] != "restricted" || have["pod-security.kubernetes.io/warn"] != "restricted" {
		t.Errorf("the labels are %v", have)
	}

	// What kubectl applies again is no conflict.
	runKubectl(t, "apply", "-f", b.file(strings.Replace(text, "enforce", "audit", 1)))
	b.settled(set)
	if have := labels(); have["pod-security.kubernetes.io/enforce"] != nil || have["pod-security.kubernetes.io/audit"] != "restricted" {
		t.Errorf("the labels are %v", have)
	}
}

// A plan shows exactly the changes by adopting: fields that the API server fills in stay,
// and so do mappings with a field of ours.
func TestAdoptCreated(t *testing.T) {
	b := newBed(t)
	namespace := strings.Split(two, "---")[0]
	b.apply(b.set(namespace))
	const text = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: $NAME, annotations: {}}
spec: {selector: {a: b}, ports: [{name: http, port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: $NAME, annotations: {}}
spec:
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec: {containers: [{name: a, image: b}]}
`
	theirs := strings.NewReplacer("ports: [{", "externalName: '', publishNotReadyAddresses: true, ports: [{port: 81, name: old}, {",
		"labels: {a: b}", "labels: {a: b, c: d}", "image: b", "image: b, workingDir: /tmp").Replace(text)
	for _, o := range b.set(theirs).All() {
		b.raw(http.MethodPost, o, "fieldManager=kubectl-create", "application/json", o.AppendJSON(nil))
	}
	set := b.set(namespace + "---" + strings.ReplaceAll(text, "annotations: {}", `annotations: {gitopsd.dev/adopt: "true"}`))
	p := b.plan(set, apply.PlanOptions{DryRun: true})
	before := make(map[manifest.ID]map[string]any)
	for _, o := range set.All() {
		before[o.ID()] = b.get(string(o.AppendJSON(nil)))
	}
	steps, results := b.apply(set)
	b.wantNothing("results", results)
	b.want("steps", steps, "configure service/$NAME/web adopted: until now it was managed by kubectl-create",
		"configure deployment.apps/$NAME/web adopted: until now it was managed by kubectl-create")
	changed := make(map[string][]string)
	for _, s := range p.Steps {
		ours := func(c plan.Change) bool { return strings.Contains(c.Path, "metadata.annotations") }
		var planned, done []string
		for _, c := range s.Changes {
			if !ours(c) {
				planned = append(planned, b.short(c.String()))
			}
		}
		for _, c := range plan.Diff(before[s.ID], b.get(string(s.Object.AppendJSON(nil)))) {
			if !ours(c) {
				done = append(done, b.short(c.String()))
			}
		}
		b.want("changes of "+s.ID.String(), planned, done...)
		changed[s.ID.Kind] = slices.DeleteFunc(planned, func(c string) bool { return strings.Contains(c, "metadata.labels: + {applyset") })
	}
	b.want("changes of the Service", changed["Service"], `spec.ports[name=old]: - {"name":"old","port":81,"protocol":"TCP","targetPort":81}`, "spec.publishNotReadyAddresses: - true")
	b.want("changes of the Deployment", changed["Deployment"], `spec.template.metadata.labels.c: - "d"`, `spec.template.spec.containers[name=a].workingDir: - "/tmp"`)
	b.settled(set)
}

// An object that was there before gitopsd adopted it stays when it leaves the repository, until
// a person releases it or allows its deletion. One that gitopsd made goes.
func TestAdoptedStays(t *testing.T) {
	b := newBed(t)
	namespace := strings.Split(two, "---")[0]
	b.apply(b.set(namespace))
	for name, manager := range map[string]string{"theirs": "kubectl-create", "nobodys": "kube-controller-manager"} {
		o := b.set(cm(name)).All()[0]
		b.raw(http.MethodPost, o, "fieldManager="+manager, "application/json", o.AppendJSON(nil))
	}
	set := b.set(namespace + strings.Join([]string{"", cm("made"), cm("nobodys"), strings.Replace(cm("theirs"), "name:", `annotations: {gitopsd.dev/adopt: "true"}, name:`, 1)}, "\n---\n"))
	recorded := func(name string) any {
		return manifest.Mapping(b.get(cm(name)), "metadata", "annotations")[manifest.AdoptedAnnotation]
	}
	b.plan(set, apply.PlanOptions{DryRun: true})
	if recorded("theirs") != nil {
		t.Error("a plan wrote to the cluster")
	}
	b.applied(set)
	b.edit("kubectl-annotate", cm("theirs"), `{"metadata":{"annotations":{"gitopsd.dev/adopted":"yes"}}}`)
	b.edit("kubectl-label", cm("made"), `{"metadata":{"labels":{"applyset.kubernetes.io/part-of":null}}}`)
	b.applied(set)
	for name, want := range map[string]any{"theirs": "yes", "nobodys": "true", "made": nil} {
		if have := recorded(name); have != want {
			t.Errorf("%s has the record %v, want %v", name, have, want)
		}
	}

	const kept = ` kept: it was there before gitopsd adopted it; to keep it for good, release it: kubectl label KIND NAME applyset.kubernetes.io/part-of-; to have it deleted, annotate it with gitopsd.dev/allow-prune: "true"`
	left := b.set(namespace)
	for _, first := range []bool{true, false} {
		steps, results := b.apply(left)
		want := []string{"prune configmap/$NAME/made", "held configmap/$NAME/nobodys" + kept, "held configmap/$NAME/theirs" + kept}
		if !first {
			want = want[1:]
		}
		b.want("steps", steps, want...)
		b.wantNothing("results", results)
	}
	runKubectl(t, "--namespace", b.name, "label", "configmap", "nobodys", "applyset.kubernetes.io/part-of-")
	runKubectl(t, "--namespace", b.name, "annotate", "configmap", "theirs", "gitopsd.dev/allow-prune=true")
	b.restart()
	steps, results := b.apply(left)
	b.want("steps", steps, "prune configmap/$NAME/theirs it was there before gitopsd adopted it")
	b.wantNothing("results", results)
	b.settled(left)
	if b.get(cm("nobodys")) == nil || b.get(cm("theirs")) != nil {
		t.Error("the released object is gone, or the other one is not")
	}
}

// No object becomes a member before the record that it was there before, whatever write is lost.
func TestAdoptedCrash(t *testing.T) {
	b := newBed(t)
	namespace := strings.Split(two, "---")[0]
	b.apply(b.set(namespace))
	survived := 0
	for n := 1; survived < 2 && n < 40; n++ {
		name := fmt.Sprintf("a%d", n)
		o := b.set(cm(name)).All()[0]
		b.raw(http.MethodPost, o, "fieldManager=kubectl-create", "application/json", o.AppendJSON(nil))
		set := b.set(namespace + "---\n" + strings.Replace(cm(name), "name:", `annotations: {gitopsd.dev/adopt: "true"}, name:`, 1))
		d := &dying{persisted: n%2 == 0}
		d.left.Store(int64((n + 1) / 2))
		doomed, err := apply.New(apply.Config{Cluster: b.connect(b.name, func(next http.RoundTripper) http.RoundTripper { d.next = next; return d }), Fleet: testFleet, Log: discard})
		if err != nil {
			t.Fatal(err)
		}
		p, err := doomed.Plan(t.Context(), set, apply.PlanOptions{})
		if err == nil {
			_, err = doomed.Apply(t.Context(), p)
		}
		switch {
		case err == nil:
			survived++
		case !errors.Is(err, errDead):
			t.Fatal(err)
		}
		recorded := func() (member, record bool) {
			meta := manifest.Mapping(b.get(cm(name)), "metadata")
			return manifest.Text(meta, "labels", plan.PartOfLabel) != "", manifest.Text(meta, "annotations", manifest.AdoptedAnnotation) != ""
		}
		if member, record := recorded(); member && !record {
			t.Errorf("write %d: it is a member without the record", d.left.Load())
		}
		b.restart()
		_, results := b.apply(set)
		b.wantNothing("results", results)
		if member, record := recorded(); !member || !record {
			t.Errorf("after the crash: member %t, record %t", member, record)
		}
		b.edit("kubectl-annotate", cm(name), `{"metadata":{"annotations":{"gitopsd.dev/allow-prune":"true"}}}`)
	}
	if survived == 0 {
		t.Error("the pass never ended")
	}
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

// A cluster that leaves the registry is emptied, except for objects of others.
func TestRemoveAll(t *testing.T) {
	b := newBed(t)
	b.apply(b.set(everything))
	b.as("somebody", cm("theirs"))
	all := apply.PlanOptions{Options: plan.Options{RemoveAll: true}}
	report := b.execute(b.plan(b.set(""), all))
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
