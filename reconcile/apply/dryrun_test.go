package apply_test

import (
	"net/http"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// A plan for people shows the changes field by field, and objects that the API server
// would not accept, and changes nothing itself.
func TestDryRun(t *testing.T) {
	b := newBed(t)
	parts := strings.Split(everything, "---")
	b.apply(b.set(strings.Join(parts[:6], "---")))
	b.requests.take()
	text := strings.NewReplacer(
		"color: green", "color: red",
		"hunter2}", "hunter3, more: x}",
		"replicas: 2", "replicas: 3",
		"web:1", "web:2",
		`{name: B, value: ""}`, `{name: C, value: "3"}`,
	).Replace(everything)
	set := b.set(text + `
---
apiVersion: v1
kind: ConfigMap
metadata: {name: bad, namespace: $NAME}
data: {a: 1}
---
apiVersion: v1
kind: Namespace
metadata: {name: $NAME-2}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: a, namespace: $NAME-2}
`)
	p := b.plan(set, apply.PlanOptions{DryRun: true})
	b.wantNothing("writes", b.writes())
	var have []string
	for _, s := range p.Steps {
		if s.Action == plan.Unchanged {
			continue
		}
		have = append(have, b.short(string(s.Action)+" "+s.ID.String()))
		for _, c := range s.Changes {
			have = append(have, "  "+c.String())
		}
		if s.NotValidated != "" {
			have = append(have, "  not validated: "+b.short(s.NotValidated))
		}
		if s.Rejected != "" {
			have = append(have, "  rejected: "+s.Rejected)
		}
	}
	b.want("plan", have,
		"create namespace/$NAME-2",
		"create customresourcedefinition.apiextensions.k8s.io/widgets.$NAME.example.org",
		"create configmap/$NAME/bad",
		"  rejected: data.a: expected string, got 1",
		"configure configmap/$NAME/settings",
		`  data.color: "green" -> "red"`,
		"create configmap/$NAME-2/a",
		"  not validated: its namespace $NAME-2 is created by this plan",
		"configure secret/$NAME/password",
		"  data.more: (added)",
		"  data.password: (changed)",
		"configure deployment.apps/$NAME/web",
		"  spec.replicas: 2 -> 3",
		`  spec.template.spec.containers[name=web].env[name=B]: - {"name":"B"}`,
		`  spec.template.spec.containers[name=web].env[name=C]: + {"name":"C","value":"3"}`,
		`  spec.template.spec.containers[name=web].image: "example.org/web:1" -> "example.org/web:2"`,
		"create widget.$NAME.example.org/one",
		"  not validated: its type is installed by customresourcedefinition.apiextensions.k8s.io/widgets.$NAME.example.org, by which it would be accepted",
	)
	// What is executed is the same plan.
	if run := b.plan(set, apply.PlanOptions{}); strings.Join(b.steps(run), "\n") != strings.Join(b.steps(p), "\n") {
		t.Errorf("without a dry run the plan is\n%s", strings.Join(b.steps(run), "\n"))
	}
}

// afterDryRun calls do after the first dry run of an object.
type afterDryRun struct {
	next http.RoundTripper
	of   string
	do   func()
	runs int
}

func (a *afterDryRun) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := a.next.RoundTrip(req)
	if req.URL.Query().Has("dryRun") && strings.HasSuffix(req.URL.Path, a.of) {
		if a.runs++; a.runs == 1 {
			a.do()
		}
	}
	return resp, err
}

// What others write while the plan is made is none of its changes.
func TestDryRunMeanwhile(t *testing.T) {
	b := newBed(t)
	both := func(value string) *manifest.Set {
		text := strings.Split(two, "---")[0]
		for _, name := range []string{"busy", "quiet"} {
			text += "\n---\n" + strings.TrimSuffix(cm(name), "}") + ", data: {k: " + value + "}}"
		}
		return b.set(text)
	}
	b.apply(both("a"))
	busy := &afterDryRun{of: "/busy", do: func() { b.edit("a-controller", cm("busy"), `{"metadata":{"annotations":{"revision":"1"}}}`) }}
	quiet := &afterDryRun{of: "/quiet", do: func() {}}
	b.cluster = b.connect(b.name, func(next http.RoundTripper) http.RoundTripper {
		busy.next = next
		quiet.next = busy
		return quiet
	})
	b.restart()
	p := b.plan(both("b"), apply.PlanOptions{DryRun: true})
	var have []string
	for _, s := range p.Steps {
		for _, c := range s.Changes {
			have = append(have, s.ID.Name+" "+c.String())
		}
	}
	b.want("changes", have, `busy data.k: "a" -> "b"`, `quiet data.k: "a" -> "b"`)
	if busy.runs != 2 || quiet.runs != 1 {
		t.Errorf("%d and %d dry runs, want 2 and 1", busy.runs, quiet.runs)
	}
}
