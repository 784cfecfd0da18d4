package plan_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/types/compat"
)

// A step that an annotation would have done says so as data, and the reason says the same.
func TestAllow(t *testing.T) {
	t.Parallel()
	helm := func(m *metav1.ObjectMeta) { m.Labels, m.ManagedFields[0].Manager = nil, "helm" }
	packaged := strings.Replace(cm, "namespace: ns", "namespace: ns, labels: {gitopsd.dev/package: p}", 1)
	var many strings.Builder
	for i := range 30 {
		fmt.Fprintf(&many, "{apiVersion: v1, kind: ConfigMap, metadata: {name: many%d, namespace: ns}}\n---\n", i)
	}
	crd := func(labels string) *manifest.Object {
		return manifesttest.Set(t, `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: things.example.org`+labels+`}, spec: {
			group: example.org, scope: Namespaced, names: {kind: Thing, plural: things}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}`).All()[0]
	}
	breaking := func(o *manifest.Object, pkg string, findings ...string) *plan.Plan {
		s := plan.Step{Action: plan.Configure, ID: o.ID(), Object: o, Package: pkg, Compatibility: compat.Breaking}
		for _, f := range findings {
			s.Findings = append(s.Findings, compat.Finding{Name: f, Severity: compat.Breaking})
		}
		p := &plan.Plan{Steps: []plan.Step{s, {Action: plan.Create, ID: manifest.ConfigMap.ID("ns", "other"), Package: pkg}}}
		plan.RefuseBreaking(p, nil, false)
		return p
	}
	for _, tt := range []struct {
		name   string
		plan   *plan.Plan
		on     plan.Holder
		value  string // with v2 as the package's version
		alike  string // for many steps
		reason string
	}{
		{"a conflict", plan.Compute("prod", manifesttest.Set(t, cm), live(t, cm, helm), inventory, plan.Options{}), plan.OnObject, "true", "helm", "it is managed by helm; annotate it"},
		{"a conflict with a package's object", plan.Compute("prod", manifesttest.Set(t, packaged), live(t, packaged, helm), inventory, plan.Options{}), plan.OnCluster, "helm", "helm", "it is managed by helm; have one"},
		{"a prune of most", plan.Compute("prod", manifesttest.Set(t, cm), live(t, many.String(), nil), inventory, plan.Options{}), plan.OnCluster, "30", "30", "kept: this would prune 30 of the 30 objects in this cluster; to allow that"},
		{"a package", breaking(crd(", labels: {gitopsd.dev/package: p}"), "p", "field-removed", "stored-version-removed"), plan.OnPackage, "v2:field-removed=<reason>", "v2:field-removed=<reason>",
			"breaking: field-removed, stored-version-removed; the API server removes no version that status.storedVersions lists: run `gitopsd migrate --yes` before; the package's annotation"},
		{"a definition by itself", breaking(crd(""), "", "field-removed"), plan.OnObject, "h1:", "h1:", "breaking: field-removed; its annotation"},
		{"what no annotation allows", breaking(crd(""), "", "stored-version-removed"), "", "", "", "breaking: stored-version-removed; the API server removes no version"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var s *plan.Step
			for i := range tt.plan.Steps {
				if !tt.plan.Steps[i].Action.Writes() && tt.plan.Steps[i].Action != plan.Unchanged && s == nil {
					s = &tt.plan.Steps[i]
				}
			}
			if s == nil || !strings.HasPrefix(s.Reason, tt.reason) {
				t.Fatalf("%+v", s)
			}
			if tt.on == "" {
				if s.Allow != nil {
					t.Errorf("%+v", s.Allow)
				}
				return
			}
			a := s.Allow
			if a == nil || a.On != tt.on || !strings.HasPrefix(a.Text("v2"), tt.value) || !strings.HasPrefix(a.ForAlike().Text("v2"), tt.alike) {
				t.Fatalf("%+v", a)
			}
			if !strings.HasPrefix(s.Reason, a.Cause+"; ") || strings.Contains(a.Cause, "annotat") || !strings.Contains(s.Reason, a.Annotation) {
				t.Errorf("cause %q of %q", a.Cause, s.Reason)
			}
			if tt.on == plan.OnPackage && (!tt.plan.Steps[1].Follows || tt.plan.Steps[1].Action != plan.Refused) {
				t.Errorf("the other step of the package: %+v", tt.plan.Steps[1])
			}
		})
	}
}

// The annotation that a plan shows really allows the step.
func TestAllowancesAreValid(t *testing.T) {
	t.Parallel()
	a := plan.Allow{On: plan.OnPackage, Findings: []string{"field-removed", "enum-value-removed"}}
	text := strings.ReplaceAll(a.Text("v2.0.0"), "<reason>", "nobody has one")
	all, err := compat.ParseAllowances(text)
	if err != nil || len(all) != 2 || all[0] != (compat.Allowance{Version: "v2.0.0", Finding: "field-removed", Reason: "nobody has one"}) {
		t.Errorf("%+v, %v", all, err)
	}
}

// If an object cannot be applied, objects that it may replace stay, as in a run.
func TestHoldIncomplete(t *testing.T) {
	t.Parallel()
	object := manifesttest.Set(t, cm).All()[0]
	for _, tt := range []struct {
		name   string
		step   plan.Step
		reason string // empty if nothing is held
	}{
		{"it is refused", plan.Step{Action: plan.Refused, Reason: "not served"}, "kept until the rest is applied: configmap/ns/a: not served"},
		{"it is in conflict", plan.Step{Action: plan.Conflict, Reason: "it is Helm's; annotate it", Allow: &plan.Allow{Cause: "it is Helm's"}}, "kept until the rest is applied: configmap/ns/a: it is Helm's"},
		{"it would be rejected", plan.Step{Action: plan.Create, Rejected: "no namespace"}, "kept until the rest is applied: configmap/ns/a: no namespace"},
		{"it is not made, and not there", plan.Step{Action: plan.Held, Reason: "disputed"}, "kept until the rest is applied: configmap/ns/a: disputed"},
		{"it is held, and there", plan.Step{Action: plan.Held, UID: "u"}, ""},
		{"it is made", plan.Step{Action: plan.Create}, ""},
		{"it is of another package", plan.Step{Action: plan.Refused, Package: "p"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.step.ID, tt.step.Object = object.ID(), object
			p := &plan.Plan{Steps: []plan.Step{
				tt.step,
				{Action: plan.Prune, ID: manifest.ConfigMap.ID("ns", "old")},
				{Action: plan.Prune, ID: manifest.ConfigMap.ID("ns", "early"), Early: true},
				{Action: plan.Wait, ID: manifest.ConfigMap.ID("ns", "going")},
			}}
			plan.HoldIncomplete(p)
			want := plan.Prune
			if tt.reason != "" {
				want = plan.Held
			}
			if s := p.Steps[1]; s.Action != want || s.Reason != tt.reason {
				t.Errorf("%s: %q", s.Action, s.Reason)
			}
			if p.Steps[2].Action != plan.Prune || p.Steps[3].Action != plan.Wait {
				t.Errorf("also held: %s, %s", p.Steps[2].Action, p.Steps[3].Action)
			}
		})
	}
}
