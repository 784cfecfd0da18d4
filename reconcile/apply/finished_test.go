package apply_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/reconcile/apply"
)

// finish has a Job end some time ago, as the Job controller does.
func (b *bed) finish(job, kind string, ago time.Duration) {
	b.t.Helper()
	at := time.Now().Add(-ago).UTC().Format(time.RFC3339)
	why := map[string]string{"Complete": "SuccessCriteriaMet", "Failed": "FailureTarget"}[kind]
	completed := ""
	if kind == "Complete" {
		completed = `"completionTime":"` + at + `",`
	}
	condition := `{"type":"%s","status":"True","reason":"Test","lastProbeTime":"%[2]s","lastTransitionTime":"%[2]s"}`
	b.rawAt(http.MethodPatch, b.set(job).All()[0], "/status", "fieldManager=controller", "application/merge-patch+json",
		[]byte(`{"status":{"startTime":"`+at+`",`+completed+`"active":0,"ready":0,"terminating":0,"uncountedTerminatedPods":{},"conditions":[`+
			fmt.Sprintf(condition, why, at)+","+fmt.Sprintf(condition, kind, at)+`]}}`))
}

// A finished Job that Kubernetes deletes after its time to live does not run again until
// its manifest changes, also after a restart.
func TestFinishedJob(t *testing.T) {
	const job = `{apiVersion: batch/v1, kind: Job, metadata: {name: once, namespace: $NAME}, spec: {suspend: true, ttlSecondsAfterFinished: 60, ` +
		`template: {spec: {restartPolicy: Never, containers: [{name: c, image: example.org/c:1}]}}}}`
	// Its time to live is over as far as clocks can tell, and Kubernetes does not delete it yet.
	const due = 20 * time.Second
	space := strings.Split(two, "---")[0] + "\n---\n"
	for _, tt := range []struct {
		kind, health string
		ago          time.Duration
		runs         bool
	}{
		{kind: "Complete", ago: due},
		{kind: "Failed", ago: due, health: "Failed it failed, and Kubernetes deleted it after spec.ttlSecondsAfterFinished; it runs again once its manifest changes"},
		{kind: "Complete", ago: -time.Hour, runs: true}, // its time to live is not over: somebody else deleted it
		{runs: true},
	} {
		t.Run(fmt.Sprintf("%s %t", tt.kind, tt.runs), func(t *testing.T) {
			b := newBed(t)
			set := b.set(space + job)
			pass := func() (steps []string, health string) {
				p := b.plan(set, apply.PlanOptions{})
				b.execute(p)
				unready, err := b.applier.Health(t.Context(), p)
				if err == nil {
					err = b.applier.Record(t.Context(), p)
				}
				if err != nil {
					t.Fatal(err)
				}
				for _, h := range unready {
					health += string(h.State) + " " + h.Reason
				}
				return b.steps(p), health
			}
			pass()
			if tt.kind != "" {
				b.finish(job, tt.kind, tt.ago)
			}
			pass()
			for _, restart := range []bool{false, true} {
				b.send(http.MethodDelete, b.set(job).All()[0], "", "propagationPolicy=Background", "", nil)
				if restart {
					b.restart()
				}
				steps, health := pass()
				if tt.runs {
					if len(steps) != 1 || !strings.HasPrefix(steps[0], "create job.batch/$NAME/once") {
						t.Fatalf("after a restart %t: have %q", restart, steps)
					}
					return
				}
				b.wantNothing("steps", steps)
				if health != tt.health {
					t.Errorf("not ready: %q, want %q", health, tt.health)
				}
				if checkpoint := b.applier.Checkpoint(b.plan(set, apply.PlanOptions{})); checkpoint == nil {
					t.Error("it has no checkpoint")
				}
				if !restart {
					b.as("somebody", job) // to be deleted again
				}
			}
			set = b.set(space + strings.Replace(job, "c:1", "c:2", 1))
			if steps, _ := pass(); len(steps) != 1 || steps[0] != "create job.batch/$NAME/once" {
				t.Errorf("changed: have %q", steps)
			}
			b.settled(set)
		})
	}
}
