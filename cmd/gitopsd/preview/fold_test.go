package preview

import (
	"fmt"
	"strings"
	"testing"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// The reason why many objects are held back is shown once.
func TestHeldAlikeIsFolded(t *testing.T) {
	t.Parallel()
	var steps []plan.Step
	for i := range 40 {
		steps = append(steps, plan.Step{Action: plan.Held, ID: manifest.ID{Kind: "ConfigMap", Namespace: "ns", Name: fmt.Sprintf("c%02d", i)}, Reason: "kept: too many"})
	}
	steps = append(steps, plan.Step{Action: plan.Held, ID: manifest.ID{Kind: "ConfigMap", Namespace: "ns", Name: "other"}, Reason: "kept: it is Crossplane's"})
	f := &Fleet{Clusters: []ClusterPlan{{Name: "dev", Plan: &plan.Plan{Steps: steps}}}}
	b := textOf(t, f, show.Options{})
	for text, want := range map[string]int{"held: too many": 1, "40 × configmap: ns/c00, ": 1, "configmap/ns/other held: it is Crossplane's": 1} {
		if have := strings.Count(b, text); have != want {
			t.Errorf("%q is there %d times, want %d:\n%s", text, have, want, b)
		}
	}
}

// Objects that were there before are not folded among those that gitopsd made.
func TestPrunedIsFoldedWithItsReason(t *testing.T) {
	t.Parallel()
	var steps []plan.Step
	for i := range 40 {
		s := plan.Step{Action: plan.Prune, ID: manifest.ConfigMap.ID("ns", fmt.Sprintf("c%02d", i))}
		if i >= 20 {
			s.Reason = "it was there before gitopsd adopted it"
		}
		steps = append(steps, s)
	}
	f := &Fleet{Clusters: []ClusterPlan{{Name: "dev", Plan: &plan.Plan{Steps: steps}}}}
	b := textOf(t, f, show.Options{})
	for _, want := range []string{"20 × configmap: ns/c00, ns/c01, ns/c02, … 17 more\n", "20 × configmap: ns/c20, ns/c21, ns/c22, … 17 more: it was there before gitopsd adopted it\n"} {
		if !strings.Contains(b, want) {
			t.Errorf("it lacks %q:\n%s", want, b)
		}
	}
}

// A package that is held as a whole is one line.
func TestHeldPackageIsALine(t *testing.T) {
	t.Parallel()
	var steps []plan.Step
	for i := range 3 {
		steps = append(steps, plan.Step{Action: plan.Held, Package: "p", ID: manifest.ID{Kind: "ConfigMap", Namespace: "ns", Name: fmt.Sprintf("c%02d", i)}, Reason: "kept: Crossplane installs package p from now on and takes this over"})
	}
	f := &Fleet{Clusters: []ClusterPlan{{Name: "dev", Packages: map[string]string{"p": "reg.io/p v1"}, Plan: &plan.Plan{Steps: steps}}}}
	b := textOf(t, f, show.Options{})
	const want = "\nCluster dev: 3 held\n  = package p (reg.io/p v1) held: Crossplane installs package p from now on and takes this over; 3 objects stay as they are\n\n= held back\n"
	if !strings.Contains(b, want) {
		t.Errorf("have\n%s\nwant%s", b, want)
	}
}

// New objects that could not be validated are shown. Those that need earlier steps of the plan
// are counted, with the reason once; objects that were checked by the type to come are not.
func TestNewObjectsNotValidated(t *testing.T) {
	t.Parallel()
	var steps []plan.Step
	for i := range 10 {
		id := manifest.ID{Kind: "ConfigMap", Namespace: "ns", Name: fmt.Sprintf("c%02d", i)}
		steps = append(steps, plan.Step{Action: plan.Create, ID: id, NotValidated: "its namespace ns is created by this plan", Premature: true})
	}
	steps = append(steps, plan.Step{Action: plan.Create, ID: manifest.ID{Group: "example.org", Kind: "Widget", Namespace: "ns", Name: "w"}, NotValidated: "its namespace ns is created by this plan, by which it would be accepted", Premature: true, Checked: true})
	steps = append(steps, plan.Step{Action: plan.Create, ID: manifest.ID{Kind: "Secret", Namespace: "ns", Name: "s"}, NotValidated: "webhook failed: no answer"})
	f := &Fleet{Clusters: []ClusterPlan{{Name: "dev", Plan: &plan.Plan{Steps: steps}}}}
	for _, tt := range []struct {
		o     show.Options
		early int
	}{{show.Options{}, 1}, {show.Options{All: true}, 11}} {
		b := textOf(t, f, tt.o)
		for text, want := range map[string]int{"webhook failed: no answer": 1, "created by this plan": tt.early, "Cluster dev: 12 new, 11 not validated": 1} {
			if have := strings.Count(b, text); have != want {
				t.Errorf("%q is there %d times, want %d:\n%s", text, have, want, b)
			}
		}
	}
}
