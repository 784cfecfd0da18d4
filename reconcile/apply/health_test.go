package apply_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/plan"
)

// After a canceled look at health, or a look at some objects of a kind, the others are
// not taken for ready.
func TestHealthOfOthers(t *testing.T) {
	text := resting + `---
apiVersion: $NAME.example.org/v1
kind: Gadget
metadata: {name: $NAME-2}
`
	for _, tt := range []struct {
		name string
		look func(b *bed, p *plan.Plan)
	}{
		{name: "cancelled", look: func(b *bed, p *plan.Plan) {
			ctx, cancel := context.WithCancel(b.t.Context())
			cancel()
			if _, err := b.applier.Health(ctx, p); err == nil {
				b.t.Fatal("it was not cancelled")
			}
		}},
		{name: "nothing", look: func(*bed, *plan.Plan) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			b.followed(b.set(text))
			b.condition("False")
			// Something waits for the gadget that is ready.
			changed := b.set(strings.Replace(text, "size: 1", "size: 2", 1) + `---
apiVersion: v1
kind: ConfigMap
metadata: {name: c, namespace: $NAME, annotations: {gitopsd.dev/depends-on: gadget.$NAME.example.org/$NAME-2}}
`)
			p := b.plan(changed, apply.PlanOptions{})
			b.execute(p)
			tt.look(b, p)
			unready, err := b.applier.Health(t.Context(), p)
			if err != nil || len(unready) != 1 || unready[0].ID.Name != b.name {
				t.Errorf("not ready are %+v, %v", unready, err)
			}
		})
	}
}

// The columns in the definition of a foreign type are read once, and count. A Service is
// looked at if it waits for an address.
func TestHealthOfForeignTypes(t *testing.T) {
	b := newBed(t)
	b.as("somebody", strings.Replace(gizmos, "    schema:", `    additionalPrinterColumns: [{name: Up, type: string, jsonPath: '.status.conditions[?(@.type=="AllUpAndReady")].status'}]
    schema:`, 1))
	b.serves("$NAME.example.org", "Gizmo")
	set := b.set(gizmo("one") + `
---
apiVersion: v1
kind: Namespace
metadata: {name: $NAME}
---
apiVersion: v1
kind: Service
metadata: {name: inside, namespace: $NAME}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: outside, namespace: $NAME}
spec: {type: LoadBalancer, ports: [{port: 80}]}
`)
	b.apply(set)
	p := b.plan(set, apply.PlanOptions{})
	b.requests.take()
	for range 2 {
		unready, err := b.applier.Health(t.Context(), p)
		if err != nil || len(unready) != 2 || unready[0].ID.Name != "outside" || !strings.Contains(unready[0].Reason, "has no address") ||
			!strings.Contains(unready[1].Reason, "no condition AllUpAndReady yet, which column Up shows") || unready[1].Until.IsZero() {
			t.Fatalf("not ready are %+v, %v", unready, err)
		}
	}
	asked := 0
	for _, r := range b.withoutWatches() {
		if strings.Contains(r, "/customresourcedefinitions/") {
			asked++
		}
	}
	if asked != 1 {
		t.Errorf("the definition was read %d times", asked)
	}
	b.rawAt(http.MethodPatch, b.set(gizmo("one")).All()[0], "/status", "fieldManager=somebody", "application/merge-patch+json",
		[]byte(`{"status":{"conditions":[{"type":"AllUpAndReady","status":"True"}]}}`))
	unready, err := b.applier.Health(t.Context(), p)
	if err != nil || len(unready) != 1 {
		t.Errorf("not ready are %+v, %v", unready, err)
	}
}

// An object without a status does not count as ready because its definition failed to be
// read. If the account may not read it, the object alone decides, unless it could read it
// before.
func TestHealthWithoutDefinition(t *testing.T) {
	b := newBed(t)
	b.as("somebody", strings.Replace(gizmos, "    schema:", `    additionalPrinterColumns: [{name: Up, type: string, jsonPath: '.status.conditions[?(@.type=="AllUpAndReady")].status'}]
    schema:`, 1))
	b.serves("$NAME.example.org", "Gizmo")
	set := b.set(gizmo("one"))
	b.apply(set)
	f := newFaulty(b, 0)
	p := b.plan(set, apply.PlanOptions{})
	definition := func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/customresourcedefinitions/") }
	for _, tt := range []struct {
		name   string
		code   int
		state  apply.State
		passes bool
		reason string
	}{
		{"an error", http.StatusInternalServerError, apply.UnknownState, false, "get customresourcedefinition"},
		{"no error", 0, apply.InProgress, false, "no condition AllUpAndReady yet"},
		{"forbidden for now", http.StatusForbidden, apply.InProgress, false, "no condition AllUpAndReady yet"},
		{"forbidden", http.StatusForbidden, apply.UnknownState, true, "nothing is known of its type"},
	} {
		if tt.name == "forbidden" {
			f = newFaulty(b, 0)
		}
		f.heals()
		b.applier.ForgetDefinitions()
		if tt.code != 0 {
			f.breaks(definition, answers(tt.code, http.Header{"Content-Type": {"application/json"}}, `{"kind":"Status","apiVersion":"v1","status":"Failure"}`))
		}
		unready, err := b.applier.Health(t.Context(), p)
		if err != nil || len(unready) != 1 || unready[0].State != tt.state || unready[0].Passes != tt.passes || !strings.Contains(unready[0].Reason, tt.reason) {
			t.Errorf("%s: not ready are %+v, %v", tt.name, unready, err)
		}
	}
}

// A rule that the definition of a foreign type carries counts as one in the plan does.
func TestHealthRuleOfForeignType(t *testing.T) {
	b := newBed(t)
	b.as("somebody", strings.Replace(gizmos, "metadata: {", "metadata: {annotations: {gitopsd.dev/health: \"current: status.step == 'last'\"}, ", 1))
	b.serves("$NAME.example.org", "Gizmo")
	set := b.set(gizmo("one"))
	b.apply(set)
	for _, tt := range []struct {
		status string
		want   []apply.State
	}{
		{`{"status":{"phase":"Ready"}}`, []apply.State{apply.InProgress}},
		{`{"status":{"phase":"Broken","step":"last"}}`, nil},
	} {
		b.rawAt(http.MethodPatch, set.All()[0], "/status", "fieldManager=somebody", "application/merge-patch+json", []byte(tt.status))
		unready, err := b.applier.Health(t.Context(), b.plan(set, apply.PlanOptions{}))
		var states []apply.State
		for _, h := range unready {
			states = append(states, h.State)
		}
		if err != nil || !slices.Equal(states, tt.want) {
			t.Errorf("with %s: %+v, %v", tt.status, unready, err)
		}
	}
	if c := b.applier.Checkpoint(b.plan(set, apply.PlanOptions{})); c != nil {
		b.restart()
		if b.atRest(c) {
			t.Error("another process judges without the rule")
		}
	}
}

// A rule that a definition of others gets later is followed.
func TestHealthRuleComesLater(t *testing.T) {
	b := newBed(t)
	b.as("somebody", gizmos)
	b.serves("$NAME.example.org", "Gizmo")
	set := b.set(gizmo("one"))
	b.apply(set)
	b.rawAt(http.MethodPatch, set.All()[0], "/status", "fieldManager=somebody", "application/merge-patch+json", []byte(`{"status":{"phase":"Odd"}}`))
	unready := func() int {
		t.Helper()
		all, err := b.applier.Health(t.Context(), b.plan(set, apply.PlanOptions{}))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := unready()
	b.edit("somebody", gizmos, `{"metadata":{"annotations":{"gitopsd.dev/health":"current: status.phase == 'Odd'"}}}`)
	b.applier.ForgetDefinitions()
	if after := unready(); before != 1 || after != 0 {
		t.Errorf("%d objects are not ready without the rule, %d with it", before, after)
	}
}

// Objects that no rule can judge are known after a restart too.
func TestUnjudged(t *testing.T) {
	b := newBed(t)
	set := b.set(gizmos + "\n---\n" + gizmo("odd") + "\n---\n" + gizmo("good"))
	b.apply(set)
	status := func(name, phase string) {
		o := b.set(gizmo(name)).All()[0]
		b.rawAt(http.MethodPatch, o, "/status", "fieldManager=somebody", "application/merge-patch+json", []byte(`{"status":{"phase":"`+phase+`"}}`))
	}
	status("odd", "Odd")
	status("good", "Ready")
	p := b.plan(set, apply.PlanOptions{})
	if unready, err := b.applier.Health(t.Context(), p); err != nil || len(unready) != 1 || !unready[0].Passes {
		t.Fatalf("not ready are %+v, %v", unready, err)
	}
	c := b.applier.Checkpoint(p)
	if c == nil {
		b.plan(set, apply.PlanOptions{})
		if c = b.applier.Checkpoint(p); c == nil {
			t.Fatal("no checkpoint")
		}
	}
	b.restart()
	if !b.atRest(c) {
		t.Fatal("it is not at rest")
	}
	if ids := b.applier.Unjudged(); len(ids) != 1 || ids[0].Name != "odd" {
		t.Errorf("nobody can judge %v", ids)
	}
}
