package unit

import (
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources/clusters"
)

// What nothing waits for is told, and holds nothing up.
func TestPassing(t *testing.T) {
	id := func(name string) manifest.ID { return manifest.ID{Group: "acme.example", Kind: "Widget", Name: name} }
	for _, tt := range []struct {
		name     string
		health   []apply.Health
		phase    status.Phase
		problems int
		note     string // a part
	}{
		{name: "waited for", health: []apply.Health{{ID: id("a"), State: apply.InProgress}}, phase: status.Progressing, problems: 1},
		{name: "failed", health: []apply.Health{{ID: id("a"), State: apply.FailedState}}, phase: status.Failed, problems: 1},
		{name: "not waited for", health: []apply.Health{{ID: id("a"), State: apply.FailedState, Package: "p", Passes: true}}, phase: status.Ready, problems: 1},
		{name: "unknown", health: []apply.Health{{ID: id("a"), State: apply.UnknownState}}, phase: status.Progressing, problems: 1},
		{name: "unknown, and counts as ready", health: []apply.Health{
			{ID: id("a"), State: apply.UnknownState, Passes: true}, {ID: id("b"), State: apply.UnknownState, Passes: true},
		}, phase: status.Ready, note: "no rule can judge whether 2 objects are ready, and they count as ready: widget.acme.example/a, widget.acme.example/b; give the kind a rule"},
	} {
		o := newOutcome(desired.ID{Cluster: "dev"}, &plan.Plan{})
		for _, h := range tt.health {
			o.unhealthy(h)
		}
		o.conclude(desired.Registered(clusters.Cluster{Name: "dev"}, ""), &plan.Plan{})
		notes := strings.Join(o.Notes, "; ")
		if o.Phase != tt.phase || len(o.Problems) != tt.problems || len(o.Packages) > 0 || !strings.HasPrefix(notes, tt.note) || tt.note == "" && notes != "" {
			t.Errorf("%s: %s, problems %v, packages %v, notes %q", tt.name, o.Phase, o.Problems, o.Packages, notes)
		}
	}
}
