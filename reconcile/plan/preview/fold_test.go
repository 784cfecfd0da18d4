package preview

import (
	"fmt"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// A guard that holds many objects back says so once.
func TestHeldAlikeIsFolded(t *testing.T) {
	t.Parallel()
	var steps []plan.Step
	for i := range 40 {
		steps = append(steps, plan.Step{Action: plan.Held, ID: manifest.ID{Kind: "ConfigMap", Namespace: "ns", Name: fmt.Sprintf("c%02d", i)}, Reason: "kept: too many"})
	}
	steps = append(steps, plan.Step{Action: plan.Held, ID: manifest.ID{Kind: "ConfigMap", Namespace: "ns", Name: "other"}, Reason: "kept: it is Crossplane's"})
	var b strings.Builder
	f := &Fleet{Clusters: []Cluster{{Name: "dev", Plan: &plan.Plan{Steps: steps}}}}
	if err := f.WriteText(&b, TextOptions{}); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{"kept: too many": 1, "40 × configmap: ns/c00, ": 1, "configmap/ns/other held: kept: it is Crossplane's": 1} {
		if have := strings.Count(b.String(), text); have != want {
			t.Errorf("%q is there %d times, want %d:\n%s", text, have, want, b.String())
		}
	}
}
