package apply_test

import (
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/types/compat"
)

const sized = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.$NAME.example.org}
spec:
  group: $NAME.example.org
  scope: Cluster
  names: {kind: Gadget, plural: gadgets}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer, maximum: 3}}}}}}
---
apiVersion: $NAME.example.org/v1
kind: Gadget
metadata: {name: g}
spec: {size: 1}
`

// An object is refused if the type that comes or changes with it would not accept it,
// unless a webhook of the cluster may put it right first. It is then the API server's
// to judge.
func TestObjectsOfNewTypes(t *testing.T) {
	b := newBed(t)
	of := func(s *plan.Plan) *plan.Step { return &s.Steps[len(s.Steps)-1] }
	large := b.set(strings.Replace(sized, "{size: 1}", "{size: 9}", 1))
	const why = "would not accept it: spec.size: Invalid value: 9"
	steps, results := b.apply(large)
	if n := len(steps); n != 2 || !strings.HasPrefix(steps[1], "refused gadget.$NAME.example.org/g ") || !strings.Contains(steps[1], why) {
		t.Errorf("steps %q", steps)
	}
	b.want("results", results)
	if b.get("{apiVersion: $NAME.example.org/v1, kind: Gadget, metadata: {name: g}}") != nil {
		t.Error("the object was applied all the same")
	}

	// Its type is there by now: the API server says the same.
	if s := of(b.plan(large, apply.PlanOptions{DryRun: true})); s.Action != plan.Create || !strings.Contains(s.Rejected, "Invalid value: 9") {
		t.Errorf("%s: %s (rejected: %s)", s.Action, s.Reason, s.Rejected)
	}
	b.apply(b.set(sized))

	// Where nothing changes, neither a pass nor a start reads objects or configurations of
	// admission for it.
	for range 2 {
		b.requests.take()
		b.plan(b.set(sized), apply.PlanOptions{})
		for _, r := range b.requests.take() {
			if strings.Contains(r, "/mutating") || strings.HasSuffix(r, "/gadgets/g") {
				t.Errorf("request %s", r)
			}
		}
		b.restart()
	}

	// Type and object change together. What the old type has against the object does not
	// count.
	wider := strings.Replace(sized, "maximum: 3", "maximum: 5", 1)
	if s := of(b.plan(b.set(strings.Replace(wider, "{size: 1}", "{size: 4}", 1)), apply.PlanOptions{DryRun: true})); s.Action != plan.Configure || s.Rejected != "" ||
		!strings.HasPrefix(s.NotValidated, "the type as it is would not accept it, but customresourcedefinition") || !strings.Contains(s.NotValidated, "changes that and then would: ") {
		t.Errorf("%s: %s (not validated: %s)", s.Action, s.Reason, s.NotValidated)
	}
	wrong := b.set(strings.Replace(wider, "{size: 1}", "{size: 9}", 1))
	if s := of(b.plan(wrong, apply.PlanOptions{DryRun: true})); s.Action != plan.Refused || !strings.Contains(s.Reason, why) {
		t.Errorf("%s: %s", s.Action, s.Reason)
	}

	// A webhook for the resource may change the object first.
	b.as("somebody", `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: $NAME}
webhooks:
- name: fix.$NAME.example.org
  clientConfig: {url: "https://127.0.0.1:1/"}
  failurePolicy: Ignore
  sideEffects: None
  admissionReviewVersions: [v1]
  rules: [{apiGroups: [$NAME.example.org], apiVersions: ["*"], resources: [gadgets], operations: ["*"]}]
`)
	defer b.delete("{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: $NAME}}")
	if s := of(b.plan(wrong, apply.PlanOptions{})); s.Action != plan.Configure || !strings.Contains(b.short(s.NotValidated), "mutatingwebhookconfiguration.admissionregistration.k8s.io/$NAME may change it first: spec.size") {
		t.Errorf("%s: %s (not validated: %s)", s.Action, s.Reason, s.NotValidated)
	}
}

// An object that is taken over is checked as it will be: without the fields of its former
// owner.
func TestObjectsTakenOverWithTheirTypes(t *testing.T) {
	b := newBed(t)
	const limited = "properties: {size: {type: integer, maximum: 3}}"
	definition := strings.Replace(strings.Split(sized, "---")[0], "metadata: {", "metadata: {labels: {gitopsd.dev/package: gadgets}, ", 1)
	b.apply(b.set(strings.Replace(definition, limited, "properties: {size: {type: integer}, name: {type: string}}", 1)))
	theirs := "{apiVersion: $NAME.example.org/v1, kind: Gadget, metadata: {name: g, labels: {helm.toolkit.fluxcd.io/name: r}}, spec: {size: 1, name: x}}"
	b.as("helm-controller", theirs)
	const ours = "---\n{apiVersion: $NAME.example.org/v1, kind: Gadget, metadata: {name: g, annotations: {gitopsd.dev/adopt: 'true'}}, spec: {size: 2}}"
	allowed := func(string, compat.Finding) (string, bool) { return "tested", true }
	for schema, want := range map[string]string{
		"required: [name], properties: {size: {type: integer}, name: {type: string}}":                                           "spec.name: Required value",
		"properties: {size: {type: integer}, name: {type: string}}, x-kubernetes-validations: [{rule: has(self.name)}]":         "failed rule: has(self.name)",
		"properties: {size: {type: integer, x-kubernetes-validations: [{rule: self == oldSelf}]}, name: {type: string}}":        "failed rule: self == oldSelf",
		"properties: {size: {type: integer, x-kubernetes-validations: [{rule: self >= oldSelf}]}, name: {type: string}}":        "",
		"properties: {size: {type: integer}, name: {type: string}}, x-kubernetes-validations: [{rule: '!has(self.name)'}]":      "",
		"properties: {size: {type: integer, minimum: 2}, name: {type: string, x-kubernetes-validations: [{rule: self == ''}]}}": "",
	} {
		p := b.plan(b.set(strings.Replace(definition, limited, schema, 1)+ours), apply.PlanOptions{Allowed: allowed})
		if s := &p.Steps[len(p.Steps)-1]; (s.Action == plan.Refused) != (want != "") || !strings.Contains(s.Reason, want) || s.Checked != (want == "") {
			t.Errorf("%s: %s: %s (checked: %v)", schema, s.Action, s.Reason, s.Checked)
		}
	}
}

// An object that may be replaced is not refused for a field that its new type does not
// allow to change: it is deleted and created anew.
func TestObjectsReplacedWithTheirTypes(t *testing.T) {
	b := newBed(t)
	b.apply(b.set(sized))
	changed := strings.Replace(sized, "maximum: 3}", "maximum: 3, x-kubernetes-validations: [{rule: self == oldSelf, message: size is immutable}]}", 1)
	changed = strings.Replace(changed, "metadata: {name: gadgets", "metadata: {labels: {gitopsd.dev/package: gadgets}, name: gadgets", 1)
	changed = strings.Replace(changed, "{size: 1}", "{size: 2}", 1)
	opts := apply.PlanOptions{Allowed: func(string, compat.Finding) (string, bool) { return "tested", true }}
	p := b.plan(b.set(changed), opts)
	if s := &p.Steps[len(p.Steps)-1]; s.Action != plan.Refused || !strings.HasPrefix(s.Reason[strings.Index(s.Reason, "spec.size"):], `spec.size: Invalid value: 2: size is immutable; to have it deleted and created anew, annotate it with gitopsd.dev/replace: "true"`) {
		t.Errorf("%s: %s", s.Action, s.Reason)
	}
	changed = strings.Replace(changed, "metadata: {name: g}", "metadata: {name: g, annotations: {gitopsd.dev/replace: 'true'}}", 1)
	p = b.plan(b.set(changed), opts)
	if s := &p.Steps[len(p.Steps)-1]; s.Action != plan.Configure || !strings.Contains(s.Reason, "deleted and created anew, since a field cannot be changed: spec.size") {
		t.Errorf("%s: %s", s.Action, s.Reason)
	}
	report := b.execute(p)
	b.wantNothing("results", b.results(report))
	if spec := b.get("{apiVersion: $NAME.example.org/v1, kind: Gadget, metadata: {name: g}}")["spec"].(map[string]any); spec["size"] != float64(2) && spec["size"] != int64(2) {
		t.Errorf("spec is %v", spec)
	}
}
