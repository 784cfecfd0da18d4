package apply_test

import (
	"fmt"
	"strings"
	"testing"
)

// Fields that somebody changes again and again are corrected ever more rarely, with both
// writers named; everything else is still corrected.
func TestDispute(t *testing.T) {
	b := newBed(t)
	set := b.set(drifting)
	b.apply(set)
	for i := range 3 {
		b.edit("autoscaler", deploymentWeb, fmt.Sprintf(`{"spec":{"replicas":%d}}`, i+2))
		steps, results := b.apply(set)
		b.wantNothing("results", results)
		b.want("steps", steps, "configure deployment.apps/$NAME/web drift: spec.replicas changed by autoscaler")
	}
	b.edit("autoscaler", deploymentWeb, `{"spec":{"replicas":7}}`)
	b.edit("kubectl-edit", cm("a"), `{"data":{"color":"red"}}`)
	b.requests.take()
	steps, _ := b.apply(set)
	held := "held deployment.apps/$NAME/web drift: spec.replicas changed by autoscaler; gitopsd corrected it 3 times in "
	if len(steps) != 2 || steps[0] != "configure configmap/$NAME/a drift: data.color changed by kubectl-edit" || !strings.HasPrefix(steps[1], held) {
		t.Errorf("the steps are %q", steps)
	}
	for _, line := range b.writes() {
		if strings.HasSuffix(line, "/web") {
			t.Errorf("it is corrected all the same: %s", line)
		}
	}
	// A commit that changes the object is no correction.
	_, results := b.apply(b.set(strings.ReplaceAll(drifting, "example.org/web:1", "example.org/web:2")))
	b.wantNothing("results", results)
}

// Objects that somebody deletes again and again, or creates again after a prune, are
// corrected ever more rarely.
func TestDisputedExistence(t *testing.T) {
	b := newBed(t)
	set := b.set(two)
	b.apply(set)
	for range 3 {
		b.delete(cm("a"))
		steps, _ := b.apply(set)
		b.want("steps", steps, "create configmap/$NAME/a drift: somebody deleted it")
	}
	b.delete(cm("a"))
	steps, _ := b.apply(set)
	if len(steps) != 1 || !strings.HasPrefix(steps[0], "held configmap/$NAME/a it is gone; gitopsd created it again 3 times in ") {
		t.Errorf("the steps are %q", steps)
	}

	backup := b.copied(cm("b"), "b", "$NAME")
	rest := b.set(strings.Split(two, "---")[0] + "---\n" + cm("c")) // the inventory still holds the kind
	b.apply(rest)
	for range 2 {
		b.as("backup", backup)
		steps, _ := b.apply(rest)
		b.want("steps", steps, "prune configmap/$NAME/b")
	}
	b.as("backup", backup)
	steps, _ = b.apply(rest)
	if len(steps) != 1 || !strings.HasPrefix(steps[0], "held configmap/$NAME/b kept: gitopsd pruned it 3 times in ") {
		t.Errorf("the steps are %q", steps)
	}
	if b.get(cm("b")) == nil {
		t.Error("it is corrected all the same")
	}
}
