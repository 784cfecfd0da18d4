package apply

import (
	"testing"
	"time"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// A controller that is rolled back has failed, however the version before is doing; one
// that has failed and is not rolled back says why not.
func TestHealthOfRollbacks(t *testing.T) {
	t.Parallel()
	o := manifesttest.Objects(t, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: p, namespace: gitopsd-system, labels: {gitopsd.dev/package: p}}}")[0]
	back := plan.Rollback{Done: true, Why: "v2 did not get ready; the controller is back at v1"}
	none := plan.Rollback{Why: "no revision was ready"}
	const advice = "types and rights are as declared; change the package or its DeploymentRuntimeConfig, or try the same again: kubectl annotate -n gitopsd-system deployment p gitopsd.dev/rollback-"
	progress := []Health{{ID: o.ID(), State: InProgress, Package: "p", Reason: "0 of 1 replicas are ready"}}
	due := time.Unix(1, 0)
	for _, tt := range []struct {
		name     string
		action   plan.Action
		rollback plan.Rollback
		gating   plan.Gating
		health   []Health
		want     []Health
	}{
		{name: "healthy", action: plan.Unchanged, rollback: none},
		{name: "in progress", action: plan.Unchanged, rollback: none, health: progress, want: progress},
		{
			name: "failed", action: plan.Unchanged, rollback: none,
			health: []Health{{ID: o.ID(), State: FailedState, Reason: "Progress deadline exceeded; pod x"}},
			want:   []Health{{ID: o.ID(), State: FailedState, Reason: "Progress deadline exceeded; pod x; not rolled back: no revision was ready"}},
		},
		{name: "rolled back", action: plan.Unchanged, rollback: back, want: []Health{{ID: o.ID(), State: FailedState, Package: "p", Reason: back.Why, Advice: advice}}},
		{name: "now", action: plan.Configure, rollback: back, health: progress, want: []Health{{ID: o.ID(), State: FailedState, Package: "p", Reason: back.Why + ", which is not ready: 0 of 1 replicas are ready", Advice: advice}}},
		{
			name: "now, and the condition is still about the revision that failed", action: plan.Unchanged, rollback: back,
			health: []Health{{ID: o.ID(), State: FailedState, Package: "p", Reason: "Progress deadline exceeded"}},
			want:   []Health{{ID: o.ID(), State: FailedState, Package: "p", Reason: back.Why + ", which is not ready", Advice: advice}},
		},
		{name: "nothing waits for it", action: plan.Unchanged, rollback: back, gating: plan.Gating{Gates: map[string]plan.Gates{"p": {}}}, want: []Health{{ID: o.ID(), State: FailedState, Package: "p", Reason: back.Why, Advice: advice, Passes: true}}},
		{name: "to look at again", action: plan.Unchanged, rollback: plan.Rollback{Due: due}, health: progress, want: []Health{{ID: o.ID(), State: InProgress, Package: "p", Reason: progress[0].Reason, Until: due}}},
		{
			name: "failed, and to look at again", action: plan.Unchanged, rollback: plan.Rollback{Due: due},
			health: []Health{{ID: o.ID(), State: FailedState, Reason: "Progress deadline exceeded; pod x"}},
			want:   []Health{{ID: o.ID(), State: FailedState, Reason: "Progress deadline exceeded; pod x", Until: due}},
		},
		{name: "and ready by now", action: plan.Unchanged, rollback: plan.Rollback{Due: due}},
		{name: "somebody else's", action: plan.Conflict, rollback: back},
	} {
		p := &plan.Plan{Steps: []plan.Step{{ID: o.ID(), Object: o, Package: o.Label(manifest.PackageLabel), Action: tt.action, Rollback: tt.rollback}}}
		have := withRollbacks(append([]Health(nil), tt.health...), p, &tt.gating)
		if len(have) != len(tt.want) || len(have) == 1 && have[0] != tt.want[0] {
			t.Errorf("%s: have %+v", tt.name, have)
		}
	}
}

// A controller that is rolled back does not serve the webhooks of the new version.
func TestRolledBackServesNothingNew(t *testing.T) {
	t.Parallel()
	o := manifesttest.Objects(t, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: p, namespace: gitopsd-system, labels: {gitopsd.dev/package: p}}}")[0]
	x := &execution{results: []Result{{
		Step:    &plan.Step{ID: o.ID(), Object: o, Action: plan.Unchanged, Rollback: plan.Rollback{Done: true, Why: "v2 did not get ready"}},
		Outcome: Left,
	}}}
	if why, err := x.unavailable(t.Context(), o); why != "it is rolled back: v2 did not get ready" || err != nil {
		t.Errorf("have %q, %v", why, err)
	}
}
