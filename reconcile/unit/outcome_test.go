package unit

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
)

// Unhealthy objects that nothing waits for are reported, and hold nothing up. Applications
// hold up no cluster that depends on theirs.
func TestPassing(t *testing.T) {
	id := func(name string) manifest.ID { return manifest.ID{Group: "acme.example", Kind: "Widget", Name: name} }
	app := func(name string) manifest.ID { return manifest.Application.ID("team", name) }
	for _, tt := range []struct {
		name      string
		results   []apply.Result
		health    []apply.Health
		phase     status.Phase
		problems  int
		note      string // a part
		elsewhere bool
	}{
		{name: "waited for", health: []apply.Health{{ID: id("a"), State: apply.InProgress}}, phase: status.Progressing, problems: 1},
		{name: "failed", health: []apply.Health{{ID: id("a"), State: apply.FailedState}}, phase: status.Failed, problems: 1},
		{name: "not waited for", health: []apply.Health{{ID: id("a"), State: apply.FailedState, Package: "p", Passes: true}}, phase: status.Ready, problems: 1},
		{name: "unknown", health: []apply.Health{{ID: id("a"), State: apply.UnknownState}}, phase: status.Progressing, problems: 1},
		{name: "unknown, and counts as ready", health: []apply.Health{
			{ID: id("a"), State: apply.UnknownState, Passes: true}, {ID: id("b"), State: apply.UnknownState, Passes: true},
		}, phase: status.Ready, note: "no rule can judge whether 2 objects are ready, and they count as ready: widget.acme.example/a, widget.acme.example/b; give the kind a rule"},
		{name: "an application", health: []apply.Health{{ID: app("a"), State: apply.InProgress}}, phase: status.Progressing, problems: 1, elsewhere: true},
		{name: "a failed application", health: []apply.Health{{ID: app("a"), State: apply.FailedState}, {ID: app("b"), State: apply.InProgress}}, phase: status.Failed, problems: 2, elsewhere: true},
		{name: "an application and another object", health: []apply.Health{{ID: id("a"), State: apply.InProgress}, {ID: app("a"), State: apply.InProgress}}, phase: status.Progressing, problems: 2},
		{name: "an application and a failed object", health: []apply.Health{{ID: id("a"), State: apply.FailedState}, {ID: app("a"), State: apply.FailedState}}, phase: status.Failed, problems: 2},
		{name: "an application, and an object failed to apply", results: []apply.Result{{Step: &plan.Step{Action: plan.Create, ID: id("a")}, Outcome: apply.Failed, Err: errors.New("no")}},
			health: []apply.Health{{ID: app("a"), State: apply.InProgress}}, phase: status.Failed, problems: 2},
		{name: "an application that is not applied yet", results: []apply.Result{{Step: &plan.Step{Action: plan.Create, ID: app("a")}, Outcome: apply.Pending, Reason: "waits"}},
			health: []apply.Health{{ID: app("a"), State: apply.Missing}}, phase: status.Progressing, problems: 1},
	} {
		o := newOutcome(desired.ID{Cluster: "dev"}, &plan.Plan{})
		want := desired.Registered(clusters.Cluster{Name: "dev"}, "")
		(&Connection{log: slog.New(slog.DiscardHandler)}).take(want, &apply.Report{Results: tt.results}, &o)
		for _, h := range tt.health {
			o.unhealthy(want, h)
		}
		o.conclude(want, &plan.Plan{})
		notes := strings.Join(o.Notes, "; ")
		if o.Phase != tt.phase || len(o.Problems) != tt.problems || len(o.Packages) > 0 || !strings.HasPrefix(notes, tt.note) || tt.note == "" && notes != "" || o.Elsewhere != tt.elsewhere {
			t.Errorf("%s: %s, elsewhere %t, problems %v, packages %v, notes %q", tt.name, o.Phase, o.Elsewhere, o.Problems, o.Packages, notes)
		}
	}
}

// A kind that cannot be read, and is in no step, is told, keeps the unit from Ready, and holds up
// those that depend on it, whatever else is wrong.
func TestUnread(t *testing.T) {
	p := &plan.Plan{
		Unreadable: map[schema.GroupKind]string{{Kind: "Secret"}: "forbidden", {Kind: "ConfigMap"}: "forbidden"},
		Steps:      []plan.Step{{ID: manifest.ConfigMap.ID("a", "desired"), Action: plan.Refused}},
	}
	o := newOutcome(desired.ID{Cluster: "dev"}, p)
	want := desired.Registered(clusters.Cluster{Name: "dev"}, "")
	o.unhealthy(want, apply.Health{ID: manifest.Application.ID("a", "shop"), State: apply.InProgress})
	o.conclude(want, p)
	told := slices.IndexFunc(o.Problems, func(p problem.Problem) bool { return p.Object == "Secret" })
	if o.Phase != status.Failed || o.Elsewhere || o.Stuck || len(o.Problems) != 2 || told < 0 {
		t.Errorf("%s (elsewhere %t, stuck %t), problems %v", o.Phase, o.Elsewhere, o.Stuck, o.Problems)
	}
}

// The last document of a cluster that is empty stays.
func TestEmptied(t *testing.T) {
	last := clusters.Cluster{Name: "dev", Remove: true}
	for _, tt := range []struct {
		beside []clusters.Cluster
		want   string
	}{
		{[]clusters.Cluster{last}, "nothing of gitopsd's is left in it; leave its document, the only one of a cluster, in clusters.yaml, and stop the daemon"},
		{[]clusters.Cluster{last, {Name: "prod"}}, "nothing of gitopsd's is left in it; take its document out of clusters.yaml"},
	} {
		o := newOutcome(desired.ID{Cluster: "dev"}, &plan.Plan{})
		want := desired.Registered(last, "")
		want.Beside = tt.beside
		o.conclude(want, &plan.Plan{})
		if o.Phase != status.Ready || o.Message != tt.want {
			t.Errorf("%d clusters: %s: %s", len(tt.beside), o.Phase, o.Message)
		}
	}
}

// A cluster is unreachable if it does not answer, and not if an attempt takes too long, or this
// daemon may not write.
func TestFailed(t *testing.T) {
	for class, want := range map[kube.Class]status.Phase{
		kube.Unreachable: status.Unreachable, kube.Unauthorized: status.Unreachable,
		kube.Canceled: status.Failed, kube.Forbidden: status.Failed, kube.Fenced: status.Waiting,
	} {
		o := failed(fmt.Errorf("planning: %w", &kube.Error{Class: class, Message: "why"}))
		if o.Phase != want || o.Denied != (class == kube.Unauthorized) || o.Stuck {
			t.Errorf("%s: %+v", class, o)
		}
	}
}

// A unit is stuck if only people can bring it on: nothing else is left to do, or may still come
// right.
func TestStuck(t *testing.T) {
	id := func(name string) manifest.ID { return manifest.ConfigMap.ID("a", name) }
	guarded := apply.Result{Step: &plan.Step{Action: plan.Held, ID: id("guarded"), Lasting: true}}
	refused := apply.Result{Step: &plan.Step{Action: plan.Refused, ID: id("refused"), Allow: new(plan.Allow)}}
	follows := apply.Result{Step: &plan.Step{Action: plan.Refused, ID: id("follows"), Follows: true}}
	skipped := apply.Result{Step: &plan.Step{Action: plan.Create, ID: id("skipped")}, Outcome: apply.Skipped}
	for _, tt := range []struct {
		name    string
		results []apply.Result
		health  []apply.Health
		faults  []problem.Problem
		stuck   bool
	}{
		{name: "ready"},
		{name: "held", results: []apply.Result{guarded}, stuck: true},
		{name: "refused", results: []apply.Result{refused, follows, skipped}, stuck: true},
		{name: "held for now", results: []apply.Result{{Step: &plan.Step{Action: plan.Held, ID: id("later")}}}},
		{name: "held, and something is held for now", results: []apply.Result{guarded, {Step: &plan.Step{Action: plan.Held, ID: id("later")}}}},
		{name: "held, and something is being deleted", results: []apply.Result{guarded, {Step: &plan.Step{Action: plan.Wait, ID: id("going")}}}},
		{name: "held, and something failed", results: []apply.Result{guarded, {Step: &plan.Step{Action: plan.Create, ID: id("failed")}, Outcome: apply.Failed, Err: errors.New("no")}}},
		{name: "held, and something is not ready", results: []apply.Result{guarded}, health: []apply.Health{{ID: id("a"), State: apply.InProgress}}},
		{name: "held, and a package is late", results: []apply.Result{guarded}, faults: []problem.Problem{{Reason: "late"}}},
		{name: "a manifest has errors", faults: []problem.Problem{{Reason: "wrong", Lasting: true}}, stuck: true},
		{name: "a manifest has errors, and a package is late", faults: []problem.Problem{{Reason: "wrong", Lasting: true}, {Reason: "late"}}},
		{name: "a manifest has errors, and something is not ready", health: []apply.Health{{ID: id("a"), State: apply.InProgress}}, faults: []problem.Problem{{Reason: "wrong", Lasting: true}}},
		{name: "refused for now", results: []apply.Result{{Step: &plan.Step{Action: plan.Refused, ID: id("unserved")}}}},
	} {
		o := newOutcome(desired.ID{Cluster: "dev"}, &plan.Plan{})
		want := desired.Registered(clusters.Cluster{Name: "dev"}, "")
		want.Faults = tt.faults
		(&Connection{log: slog.New(slog.DiscardHandler)}).take(want, &apply.Report{Results: tt.results}, &o)
		for _, h := range tt.health {
			o.unhealthy(want, h)
		}
		o.conclude(want, &plan.Plan{})
		if o.Stuck != tt.stuck {
			t.Errorf("%s: stuck %t", tt.name, o.Stuck)
		}
	}
}

// A problem of an object of the repository says where it is written, and at which field the
// API server takes offence; one of a package's has no place.
func TestOrigin(t *testing.T) {
	object := func(name string, origin manifest.Origin) *manifest.Object {
		o, err := manifest.New(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": "a"}}, origin)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	plain, other := object("plain", manifest.Origin{File: "plain.yaml", Line: 3}), object("other", manifest.Origin{File: "other.yaml", Line: 1})
	packaged := object("packaged", manifest.Origin{File: "package.yaml", Line: 9, Package: sources.Pin{Ref: sources.Ref{Repository: "reg.io/p", Tag: "v1"}}})
	made := object("made", manifest.Origin{})
	step := func(o *manifest.Object, a plan.Action) *plan.Step {
		return &plan.Step{Action: a, ID: o.ID(), Object: o, Reason: "so"}
	}
	refused := func(o *manifest.Object, c kube.Class, fields ...kube.Field) error {
		return &kube.Error{Verb: "apply", Class: c, ID: o.ID(), Message: "no", Fields: fields}
	}
	for _, tt := range []struct {
		name    string
		results []apply.Result
		want    []string // problems as text
	}{
		{"invalid", []apply.Result{{Step: step(plain, plan.Configure), Outcome: apply.Failed, Err: refused(plain, kube.Invalid, kube.Field{Path: "data.x"})}}, []string{"configmap/a/plain: apply: no (plain.yaml:7)"}},
		{"invalid, in an unknown field", []apply.Result{{Step: step(plain, plan.Configure), Outcome: apply.Failed, Err: refused(plain, kube.Invalid, kube.Field{Path: "data.y"})}}, []string{"configmap/a/plain: apply: no (plain.yaml:3)"}},
		{"forbidden", []apply.Result{{Step: step(plain, plan.Create), Outcome: apply.Failed, Err: refused(plain, kube.Forbidden)}}, []string{"configmap/a/plain: apply: no (plain.yaml:3)"}},
		{"by another object", []apply.Result{{Step: step(plain, plan.Create), Outcome: apply.Failed, Err: refused(other, kube.Invalid, kube.Field{Path: "data.x"})}}, []string{"configmap/a/plain: configmap/a/other: apply: no (plain.yaml:3)"}},
		{"two errors", []apply.Result{{Step: step(plain, plan.Create), Outcome: apply.Failed, Err: errors.Join(errors.New("one"), errors.New("two"))}}, []string{"configmap/a/plain: one (plain.yaml:3)", "configmap/a/plain: two (plain.yaml:3)"}},
		{"of a package", []apply.Result{{Step: step(packaged, plan.Configure), Outcome: apply.Failed, Err: refused(packaged, kube.Invalid, kube.Field{Path: "data.x"})}}, []string{"configmap/a/packaged: apply: no"}},
		{"made by gitopsd", []apply.Result{{Step: step(made, plan.Configure), Outcome: apply.Failed, Err: refused(made, kube.Forbidden)}}, []string{"configmap/a/made: apply: no"}},
		{"skipped, pending", []apply.Result{{Step: step(plain, plan.Create), Outcome: apply.Skipped, Reason: "late"}, {Step: step(other, plan.Create), Outcome: apply.Pending, Reason: "soon"}}, []string{"configmap/a/plain: late (plain.yaml:3)", "configmap/a/other: soon (other.yaml:1)"}},
		{"decided", []apply.Result{{Step: step(plain, plan.Conflict)}, {Step: step(other, plan.Wait)}}, []string{"configmap/a/plain: conflict: so (plain.yaml:3)", "configmap/a/other: wait: so (other.yaml:1)"}},
		{"held alike", []apply.Result{{Step: step(plain, plan.Held)}, {Step: step(packaged, plan.Held)}, {Step: step(other, plan.Held)}}, []string{"configmap/a/plain, configmap/a/packaged, configmap/a/other: held: so (plain.yaml:3, other.yaml:1)"}},
		{"held alike, more than are named", []apply.Result{{Step: step(packaged, plan.Held)}, {Step: step(made, plan.Held)}, {Step: step(packaged, plan.Held)}, {Step: step(plain, plan.Held)}}, []string{"configmap/a/packaged, configmap/a/made, configmap/a/packaged and 1 more: held: so"}},
		{"held alike, in one place", []apply.Result{{Step: step(plain, plan.Held)}, {Step: step(plain, plan.Held)}}, []string{"configmap/a/plain, configmap/a/plain: held: so (plain.yaml:3)"}},
		{"to be pruned", []apply.Result{{Step: &plan.Step{Action: plan.Held, ID: plain.ID(), Reason: "so"}}}, []string{"configmap/a/plain: held: so"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := desired.Registered(clusters.Cluster{Name: "dev"}, "")
			want.LineOf = func(_ *manifest.Object, path string) int {
				if path == "data.x" {
					return 7
				}
				return 0
			}
			o := newOutcome(desired.ID{}, &plan.Plan{})
			(&Connection{log: slog.New(slog.DiscardHandler)}).take(want, &apply.Report{Results: tt.results}, &o)
			var have []string
			for _, p := range o.Problems {
				have = append(have, p.String())
			}
			if !slices.Equal(have, tt.want) {
				t.Errorf("%q, want %q", have, tt.want)
			}
		})
	}
	want := desired.Registered(clusters.Cluster{Name: "dev"}, "")
	want.Objects, _ = manifest.NewSet([]*manifest.Object{plain, packaged})
	o := newOutcome(desired.ID{}, &plan.Plan{})
	for _, object := range []*manifest.Object{plain, packaged, other} {
		o.unhealthy(want, apply.Health{ID: object.ID(), State: apply.FailedState, Reason: "crashes"})
	}
	if len(o.Problems) != 3 || o.Problems[0].Origin != "plain.yaml:3" || o.Problems[1].Origin+o.Problems[2].Origin != "" {
		t.Errorf("not healthy: %+v", o.Problems)
	}
}
