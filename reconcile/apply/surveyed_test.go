package apply_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/testscripts/devcluster"
)

func newPopulation(t *testing.T) *population {
	t.Parallel()
	return newSerialPopulation(t)
}

func newSerialPopulation(t *testing.T) *population {
	config, err := clientcmd.BuildConfigFromFlags("", devcluster.Start(t, "apply").Kubeconfig("apply"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return &population{bed: newBedSerial(t), client: client, host: config.Host, types: 1}
}

// limited returns a type with a field that may be limited, and perhaps another field.
func limited(size, more string) string {
	return fmt.Sprintf(`
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things0.$NAME.example.org}
spec:
  group: $NAME.example.org
  scope: Namespaced
  names: {kind: Thing0, plural: things0}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: %s%s}}}}}}
`, size, more)
}

// A survey that was made while a change was refused does not let it through later: there
// may be other objects by then.
func TestSurveyIsNotReused(t *testing.T) {
	p := newPopulation(t)
	p.apply(p.set(limited("{type: integer}", "")))
	narrower := p.set(limited("{type: integer, maximum: 3}", ""))
	step := func(byData bool) plan.Step {
		opts := apply.PlanOptions{BreakingByData: byData}
		return p.plan(narrower, opts).Steps[0]
	}
	if s := step(false); s.Action != plan.Refused || s.Survey.Looked != 0 {
		t.Fatalf("%s: %s; %+v", s.Action, s.Reason, s.Survey)
	}
	code, answer, err := p.send(http.MethodPost, p.path(0, ""), p.body(0, "large", "{size: 9}"))
	if err != nil || code != http.StatusCreated {
		t.Fatalf("%d %v %v", code, answer["message"], err)
	}
	if s := step(true); s.Action != plan.Refused || s.Survey.Harmed != 1 {
		t.Errorf("%s: %s; %+v", s.Action, s.Reason, s.Survey)
	}
}

// A change of a type that relies on a change of an object is refused with it.
func TestSurveyRelies(t *testing.T) {
	p := newPopulation(t)
	object := func(label, spec string) string {
		return fmt.Sprintf("\n---\n{apiVersion: $NAME.example.org/v1, kind: Thing0, metadata: {namespace: default, name: a, labels: {l: %q}}, spec: %s}\n", label, spec)
	}
	wide, narrow := limited("{type: integer}", ", colour: {type: string}"), limited("{type: integer}", "")
	p.apply(p.set(wide + object("one", "{size: 1, colour: red}")))
	actions := func(manifests string) string {
		var all []string
		for _, s := range p.plan(p.set(manifests), apply.PlanOptions{BreakingByData: true}).Steps {
			all = append(all, s.ID.Kind+" "+string(s.Action))
			t.Log(s.ID, s.Action, s.Reason)
		}
		return strings.Join(all, ", ")
	}
	// The object still has the field, so that its own change is refused.
	if have := actions(narrow + object("two", "{size: 1, colour: red}")); strings.Contains(have, "Definition configure") {
		t.Errorf("the field is lost: %s", have)
	}
	along := narrow + object("two", "{size: 1}")
	if have := actions(along); !strings.Contains(have, "Definition configure") {
		t.Errorf("the object goes along: %s", have)
	}

	report := p.execute(p.plan(p.set(along), apply.PlanOptions{BreakingByData: true}))
	p.wantNothing("results", p.results(report))
}

// An older gitopsd brings back a definition of its own that lacks a field of the status, but
// none that lacks a field of specs in use.
func TestSurveyOwnDefinition(t *testing.T) {
	p := newPopulation(t)
	own := func(fields string) *manifest.Set {
		text := strings.Replace(limited("{type: integer}", fields), "properties: {spec:", "properties: {status: {type: object, properties: {phase: {type: string}"+fields+"}}, spec:", 1)
		set, _ := manifest.NewSet([]*manifest.Object{p.set(text).All()[0].WithOrigin(manifest.Origin{For: "things"})})
		return set
	}
	p.apply(own(", future: {type: string}"))
	write := func(name, fields string) {
		t.Helper()
		body := strings.TrimSuffix(string(p.body(0, name, "{}")), `,"spec":{}}`) + fields + "}"
		if code, answer, err := p.send(http.MethodPost, p.path(0, "")+"?fieldManager=gitopsd", []byte(body)); err != nil || code != http.StatusCreated {
			t.Fatalf("%d %v %v", code, answer["message"], err)
		}
	}
	write("status", `,"status":{"future":"x"}`)
	if s := p.plan(own(""), apply.PlanOptions{}).Steps[0]; s.Action != plan.Configure || s.Survey == nil || s.Survey.Looked != 1 {
		t.Errorf("%s: %s", s.Action, s.Reason)
	}
	write("spec", `,"spec":{"future":"x"}`)
	if s := p.plan(own(""), apply.PlanOptions{}).Steps[0]; s.Action != plan.Refused || !strings.Contains(s.Reason, "harms 1 of 2 objects: default/spec .spec.future would be dropped") {
		t.Errorf("%s: %s", s.Action, s.Reason)
	}
}

// Objects written between the plan and the write of a type are found: the type waits,
// with the rest of its package.
func TestSurveyAgain(t *testing.T) {
	p := newPopulation(t)
	const wheel = "\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: $NAME, namespace: default}, data: {type: %s}}\n"
	packaged := func(text string) string {
		return strings.ReplaceAll(text, "metadata: {", "metadata: {labels: {gitopsd.dev/package: things}, ")
	}
	p.apply(p.set(packaged(limited("{type: integer}", "") + fmt.Sprintf(wheel, "wide"))))
	narrow := p.set(packaged(limited("{type: integer, maximum: 3}", "") + fmt.Sprintf(wheel, "narrow")))
	let := p.plan(narrow, apply.PlanOptions{BreakingByData: true})
	for _, s := range let.Steps {
		if s.Action != plan.Configure {
			t.Fatalf("%s %s: %s", s.ID, s.Action, s.Reason)
		}
	}
	code, answer, err := p.send(http.MethodPost, p.path(0, ""), p.body(0, "large", "{size: 9}"))
	if err != nil || code != http.StatusCreated {
		t.Fatalf("%d %v %v", code, answer["message"], err)
	}
	report := p.execute(let)
	for _, r := range report.Results {
		if r.Outcome != apply.Pending || !strings.Contains(r.Reason, "its objects were looked at again, and it harms 1 of 1 object: default/large .spec.size") {
			t.Errorf("%s is %s: %s", r.Step.ID, r.Outcome, r.Reason)
		}
	}
	for _, s := range p.plan(narrow, apply.PlanOptions{BreakingByData: true}).Steps {
		if s.Action != plan.Refused {
			t.Errorf("%s %s: %s", s.ID, s.Action, s.Reason)
		}
	}
	p.restart() // nothing was written
	if code, answer, err = p.send(http.MethodPost, p.path(0, ""), p.body(0, "larger", "{size: 10}")); err != nil || code != http.StatusCreated {
		t.Errorf("%d %v %v", code, answer["message"], err)
	}

	// Without such objects the same goes through.
	for _, name := range []string{"large", "larger"} {
		if code, answer, err = p.send(http.MethodDelete, p.path(0, "/"+name), nil); err != nil || code != http.StatusOK {
			t.Fatalf("%d %v %v", code, answer["message"], err)
		}
	}
	report = p.execute(p.plan(narrow, apply.PlanOptions{BreakingByData: true}))
	p.wantNothing("results", p.results(report))
}
