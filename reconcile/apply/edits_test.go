package apply_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/plan"
)

// file writes a manifest for kubectl.
func (b *bed) file(text string) string {
	b.t.Helper()
	name := filepath.Join(b.t.TempDir(), "x.yaml")
	if err := os.WriteFile(name, []byte(strings.ReplaceAll(text, "$NAME", b.name)), 0o600); err != nil {
		b.t.Fatal(err)
	}
	return name
}

// Fields that people add with kubectl are shown and removed; operations stay.
func TestKubectlEdits(t *testing.T) {
	for _, tt := range []struct {
		name    string
		kubectl [][]string
		// reason is that of the one step, "" when nothing is to be done.
		reason string
		// has is in the Deployment before, and afterwards only if it stays.
		has   string
		stays bool
	}{
		{
			name: "set env", kubectl: [][]string{{"set", "env", "deployment/web", "DEBUG=yes"}}, has: "DEBUG",
			reason: `drift: spec.template.spec.containers[name=web].env[name=DEBUG] added by kubectl-set`,
		},
		{
			name: "label", kubectl: [][]string{{"label", "deployment/web", "tier=gold"}}, has: "tier:gold",
			reason: "drift: metadata.labels.tier added by kubectl-label",
		},
		{
			name: "annotate", kubectl: [][]string{{"annotate", "deployment/web", "example.org/note=x"}}, has: "example.org/note",
			reason: `drift: metadata.annotations["example.org/note"] added by kubectl-annotate`,
		},
		{
			name: "patch", kubectl: [][]string{{"patch", "deployment/web", "-p", `{"spec":{"template":{"spec":{"hostNetwork":true}}}}`}}, has: "hostNetwork:true",
			reason: "drift: spec.template.spec.hostNetwork added by kubectl-patch",
		},
		{name: "scale", kubectl: [][]string{{"scale", "deployment/web", "--replicas=3"}}, has: "replicas:3", stays: true},
		{name: "restart", kubectl: [][]string{{"rollout", "restart", "deployment/web"}}, has: "restartedAt", stays: true},
		{
			name: "two of them", kubectl: [][]string{{"rollout", "restart", "deployment/web"}, {"set", "env", "deployment/web", "DEBUG=yes"}}, has: "restartedAt", stays: true,
			reason: `drift: spec.template.spec.containers[name=web].env[name=DEBUG] added by kubectl-set`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			set := b.set(strings.Replace(drifting, "  replicas: 1\n", "", 1))
			b.apply(set)
			b.apply(set) // what controllers add is looked at
			for _, args := range tt.kubectl {
				t.Log(runKubectl(t, append(args, "-n", b.name)...))
			}
			t.Log(runKubectl(t, "rollout", "status", "deployment/web", "-n", b.name)) // its controller has written what it has to
			has := func() bool {
				o := b.get(deploymentWeb)
				meta := o["metadata"].(map[string]any)
				return strings.Contains(fmt.Sprint(meta["labels"], meta["annotations"], o["spec"]), tt.has)
			}
			if !has() {
				t.Fatalf("kubectl did not add %s", tt.has)
			}
			p := b.plan(set, apply.PlanOptions{DryRun: true})
			for _, s := range p.Steps {
				if s.Action == plan.Configure && len(s.Changes) == 0 {
					t.Error("the plan does not show what changes")
				}
				for _, c := range s.Changes {
					if !c.Removed && !strings.Contains(c.Path, "containers[name=web].ports") {
						t.Errorf("the plan shows %s", c)
					}
				}
			}
			b.restart()
			b.requests.take()
			steps, results := b.apply(set)
			b.wantNothing("results", results)
			if tt.reason == "" {
				b.wantNothing("steps", steps)
			} else {
				b.want("steps", steps, "configure deployment.apps/$NAME/web "+tt.reason)
				// The controller's write to status in between costs one more.
				if w := b.writes(); len(w) > 3 {
					t.Errorf("it took %q", w)
				}
			}
			if has() != tt.stays {
				t.Errorf("%s: there is %s: %t", tt.name, tt.has, has())
			}
			b.settled(set)
		})
	}
}

// A field that leaves the repository goes, also where kubectl applied it too, now
// or long ago.
func TestKubectlAppliedToo(t *testing.T) {
	b := newBed(t)
	set := b.set(two)
	b.apply(set)
	same := b.file(strings.Split(two, "---")[1])
	t.Log(runKubectl(t, "apply", "--server-side", "-f", same))
	steps, _ := b.apply(set)
	b.wantNothing("steps", steps)
	b.settled(set)
	fewer := b.set(strings.Replace(two, `green, size: "1"`, "green", 1))
	p := b.plan(fewer, apply.PlanOptions{DryRun: true})
	for _, s := range p.Steps {
		if s.Action == plan.Configure && (len(s.Changes) != 1 || s.Changes[0].String() != `data.size: - "1"`) {
			t.Errorf("the plan shows %v", s.Changes)
		}
	}
	b.apply(fewer)
	if data := fmt.Sprint(b.get(cm("a"))["data"]); data != "map[color:green]" {
		t.Errorf("data is %s", data)
	}
	b.settled(fewer)

	// kubectl's own record of what it applied goes as well.
	t.Log(runKubectl(t, "apply", "-f", same))
	steps, results := b.apply(fewer)
	b.wantNothing("results", results)
	b.want("steps", steps, `configure configmap/$NAME/a drift: data.size, metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"] added by kubectl-client-side-apply`)
	b.settled(fewer)
}

// A field of an unknown writer (before-first-apply) stays, unless it was ours and leaves
// the repository.
func TestClearedManagedFields(t *testing.T) {
	b := newBed(t)
	set := b.set(two)
	b.apply(set)
	b.edit("autoscaler", cm("a"), `{"data":{"scaled":"3"}}`)
	b.edit("x", cm("a"), `{"metadata":{"managedFields":[{}]}}`)
	b.apply(set)
	b.settled(set)
	fewer := b.set(strings.Replace(two, `green, size: "1"`, "green", 1))
	b.apply(fewer)
	if data := fmt.Sprint(b.get(cm("a"))["data"]); data != "map[color:green scaled:3]" {
		t.Errorf("data is %s", data)
	}
	b.settled(fewer)
}

// Where drift is only reported, fields that people added stay, even when the repository
// changes something else.
func TestReportedEdits(t *testing.T) {
	b := newBed(t)
	b.apply(b.set(two))
	b.edit("kubectl-edit", cm("a"), `{"data":{"more":"x"}}`)
	report := apply.PlanOptions{Options: plan.Options{ReportDrift: true}}
	b.want("steps", b.steps(b.plan(b.set(two), report)), "configure configmap/$NAME/a drift: data.more added by kubectl-edit")
	p := b.plan(b.set(strings.Replace(two, "green", "red", 1)), report)
	b.want("steps", b.steps(p), "configure configmap/$NAME/a changed in the repository")
	b.execute(p)
	if data := fmt.Sprint(b.get(cm("a"))["data"]); data != "map[color:red more:x size:1]" {
		t.Errorf("data is %s", data)
	}
	b.want("steps", b.steps(b.plan(b.set(strings.Replace(two, "green", "red", 1)), report)), "configure configmap/$NAME/a drift: data.more added by kubectl-edit")
}

// An object can be left to people as far as the repository says nothing about it.
func TestKeepEdits(t *testing.T) {
	b := newBed(t)
	set := b.set(strings.Replace(two, "name: a, namespace: $NAME", `name: a, namespace: $NAME, annotations: {gitopsd.dev/keep-edits: "true"}`, 1))
	b.apply(set)
	b.edit("kubectl-edit", cm("a"), `{"data":{"more":"x"}}`)
	b.settled(set)
	b.edit("kubectl-edit", cm("a"), `{"data":{"color":"red"}}`)
	steps, _ := b.apply(set)
	b.want("steps", steps, "configure configmap/$NAME/a drift: data.color changed by kubectl-edit")
	if data := fmt.Sprint(b.get(cm("a"))["data"]); data != "map[color:green more:x size:1]" {
		t.Errorf("data is %s", data)
	}
}

// A process that ends between taking an edit over and applying leaves an object
// that the next one applies.
func TestKilledWhileReclaiming(t *testing.T) {
	b := newBed(t)
	set := b.set(two)
	b.apply(set)
	b.edit("kubectl-edit", cm("a"), `{"data":{"more":"x"}}`)
	const taken = `{"manager":"gitopsd","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{
		"f:data":{"f:color":{},"f:size":{},"f:more":{}},
		"f:metadata":{"f:labels":{"f:applyset.kubernetes.io/part-of":{}},"f:annotations":{"f:gitopsd.dev/applied":{}}}}}`
	b.edit("gitopsd", cm("a"), `{"metadata":{"managedFields":[`+taken+`],"annotations":{"gitopsd.dev/applied":null}}}`)
	b.restart()
	steps, results := b.apply(set)
	b.wantNothing("results", results)
	b.want("steps", steps, "configure configmap/$NAME/a changed in the repository")
	if data := fmt.Sprint(b.get(cm("a"))["data"]); data != "map[color:green size:1]" {
		t.Errorf("data is %s", data)
	}
	b.settled(set)
}
