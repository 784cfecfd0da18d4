package apply_test

import (
	"fmt"
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

// The versions in which composites are stored are known by the CRD that Crossplane made. One that it lists cannot be
// removed, and others can.
func TestStoredComposites(t *testing.T) {
	b := newBed(t)
	b.as("crossplane", xrds)
	b.serves("apiextensions.crossplane.io", "CompositeResourceDefinition")
	xrd := func(versions ...string) string {
		text := "{apiVersion: apiextensions.crossplane.io/v2, kind: CompositeResourceDefinition, metadata: {name: leases.$NAME.example.org}, " +
			"spec: {group: $NAME.example.org, scope: Namespaced, names: {kind: Lease, plural: leases}, versions: ["
		for i, v := range versions {
			last := fmt.Sprint(i == len(versions)-1)
			text += "{name: " + v + ", served: " + last + ", referenceable: " + last + ", schema: {openAPIV3Schema: {type: object}}},"
		}
		return text + "]}}"
	}
	both, latest := b.set(xrd("v1beta1", "v1")), b.set(xrd("v1"))
	_, results := b.apply(both)
	b.want("results", results) // nothing waits for Crossplane
	b.as("crossplane", versioned("Lease", "v1beta1"))
	b.serves("$NAME.example.org", "Lease")
	b.as("crossplane", versioned("Lease", "v1beta1", "v1"))
	b.want("steps", b.steps(b.plan(latest, apply.PlanOptions{})), "refused compositeresourcedefinition.apiextensions.crossplane.io/leases.$NAME.example.org "+
		"breaking: stored-version-removed; the API server removes no version that status.storedVersions lists: run `gitopsd migrate --yes leases.$NAME.example.org` before")
	b.rawAt("PATCH", b.set(versioned("Lease", "v1beta1", "v1")).All()[0], "/status", "fieldManager=migrator", "application/merge-patch+json", []byte(`{"status": {"storedVersions": ["v1"]}}`))
	b.want("steps", b.steps(b.plan(latest, apply.PlanOptions{})), "configure compositeresourcedefinition.apiextensions.crossplane.io/leases.$NAME.example.org changed in the repository")
}
