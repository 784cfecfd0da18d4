package apply_test

import (
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/validate"
)

// An XRD is judged by the existing composites and claims, and going back to an earlier
// one that harms no object is a rollback.
func TestSurveyComposites(t *testing.T) {
	b := newBed(t)
	b.as("crossplane", xrds)
	b.serves("apiextensions.crossplane.io", "CompositeResourceDefinition")
	narrow := b.set(databases)
	wide := b.set(strings.ReplaceAll(databases, "size: {type: integer}", "size: {type: integer}, colour: {type: string}"))
	_, results := b.apply(narrow)
	b.wantNothing("results", results)
	_, results = b.apply(wide)
	b.wantNothing("results", results)
	step := func(opts apply.PlanOptions) plan.Step {
		t.Helper()
		for _, s := range b.plan(narrow, opts).Steps {
			if s.ID.Is(manifest.XRD) {
				return s
			}
		}
		t.Fatal("no step")
		return plan.Step{}
	}
	if s := step(apply.PlanOptions{}); s.Action != plan.Refused || !strings.Contains(s.Reason, "the CRD xdatabases."+b.name+".example.org is not there: Crossplane has not made it") {
		t.Errorf("before Crossplane: %s: %s", s.Action, s.Reason)
	}

	// This is what Crossplane does.
	tree := manifesttest.Tree(t, strings.ReplaceAll(string(wide.All()[0].AppendJSON(nil)), "$NAME", b.name))
	for _, claim := range []bool{false, true} {
		crd, err := manifest.New(validate.Derived(tree, claim), manifest.Origin{})
		if err != nil {
			t.Fatal(err)
		}
		b.as("crossplane", string(crd.AppendJSON(nil)))
	}
	b.serves("$NAME.example.org", "XDatabase")
	b.serves("$NAME.example.org", "Database")
	const (
		composite = "{apiVersion: $NAME.example.org/v1, kind: XDatabase, metadata: {name: x-$NAME}, spec: {size: 1, claimRef: {name: d}}}"
		claim     = "{apiVersion: $NAME.example.org/v1, kind: Database, metadata: {name: d, namespace: default}, spec: {size: 1, colour: red}}"
	)
	b.as("crossplane", composite)
	b.as("app", claim)
	for _, byData := range []bool{false, true} {
		b.restart() // a survey stands for a while
		s := step(apply.PlanOptions{BreakingByData: byData})
		if want := "harms 1 of 2 objects: Database default/d .spec.colour would be dropped, owned by app"; s.Action != plan.Refused || !strings.Contains(s.Reason, want) {
			t.Errorf("by data %v: %s: %s", byData, s.Action, s.Reason)
		}
	}
	b.delete(claim)
	b.restart()
	s := step(apply.PlanOptions{})
	if want := "it goes back to types that were there before: harms nobody today (1 object looked at)"; s.Action != plan.Configure || !s.Back || !strings.Contains(s.Reason, want) {
		t.Errorf("nobody uses it: %s: %s", s.Action, s.Reason)
	}
	b.applied(narrow)
}
