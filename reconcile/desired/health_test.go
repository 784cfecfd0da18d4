package desired

import (
	"strings"
	"testing"
	"time"

	"gitopsd.dev/reconcile/health"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources/resolve"
)

// Rules for the health of kinds are compiled when a commit is computed: an error names
// the rule, its place and the position in the expression, and nothing else is held up.
func TestHealthRules(t *testing.T) {
	crd := func(annotation string) string {
		return `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.example.org, annotations: {` + annotation + `}}
spec:
  group: example.org
  scope: Namespaced
  names: {kind: Gadget, plural: gadgets}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {status: {type: object, properties: {phase: {type: string}}}}}}}
`
	}
	rule := func(kind, current string) string {
		return strings.TrimSuffix(cluster("a"), "}\n") + ", health: [{group: example.org, kind: " + kind + ", current: \"" + current + "\"}]}\n"
	}
	for _, tt := range []struct {
		name, registry, objects string
		problem, note           string
		want                    health.Verdict // of a Gadget whose phase is Ready
	}{
		{name: "of the CRD", registry: cluster("a"), objects: crd(`gitopsd.dev/health: "current: status.phase == 'Ready'"`),
			want: health.Verdict{Status: health.Healthy, Rule: "annotation gitopsd.dev/health", Reason: "current holds: status.phase == 'Ready'"}},
		{name: "of the cluster", registry: rule("Gadget", "status.phase == 'Gone'"), objects: crd(""),
			want: health.Verdict{Status: health.InProgress, Rule: "spec.health (clusters.yaml:5)", Reason: "current does not hold yet: status.phase == 'Gone'"}},
		{name: "of both", registry: rule("Gadget", "status.phase == 'Gone'"), objects: crd(`gitopsd.dev/health: "current: status.phase == 'Ready'"`),
			note: "clusters.yaml:5: spec.health for Gadget.example.org judges nothing: the annotation gitopsd.dev/health on the kind's definition comes first",
			want: health.Verdict{Status: health.Healthy, Rule: "annotation gitopsd.dev/health", Reason: "current holds: status.phase == 'Ready'"}},
		{name: "of a package that Crossplane installs", registry: strings.ReplaceAll(rule("Provider", "true"), "group: example.org", "group: pkg.crossplane.io"), objects: crd(""),
			note: "clusters.yaml:5: spec.health for Provider.pkg.crossplane.io judges nothing: objects of this kind are judged by what Crossplane reports"},
		{name: "typo in the CRD", registry: cluster("a"), objects: crd(`gitopsd.dev/health: "current: status.phse == 'Ready'"`),
			problem: "cluster a: customresourcedefinition.apiextensions.k8s.io/gadgets.example.org: gitopsd.dev/health: current:1:7: undefined field 'phse' (c/a/objects.yaml:4)",
			want:    health.Verdict{Status: health.Unknown}},
		{name: "typo in the cluster", registry: rule("Gadget", "status.phse == 'Ready'"), objects: crd(""),
			problem: "cluster a: clusters.yaml:5: spec.health for Gadget.example.org: current:1:7: undefined field 'phse'",
			want:    health.Verdict{Status: health.Unknown}},
		{name: "another kind", registry: rule("Gadgets", "true"), objects: crd(""),
			note: "clusters.yaml:5: spec.health for Gadgets.example.org judges nothing"},
		{name: "a kind of somebody else", registry: rule("Gadget", "status.phase == 'Ready'"), objects: "---\napiVersion: example.org/v1\nkind: Gadget\nmetadata: {name: a, namespace: default}\n",
			want: health.Verdict{Status: health.Healthy, Rule: "spec.health (clusters.yaml:5)", Reason: "current holds: status.phase == 'Ready'"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			repository := files{"clusters.yaml": tt.registry, "c/a/objects.yaml": tt.objects}
			s, err := New(Config{Resolve: resolve.Config{}}).Compute(t.Context(), repository.commit(), Earlier{})
			if err != nil {
				t.Fatal(err)
			}
			unit := s.Get("a")
			have := ""
			if err := problem.Join(s.Problems()); err != nil {
				have = err.Error()
			}
			if !strings.HasPrefix(have, tt.problem) || tt.problem == "" && have != "" {
				t.Errorf("the problem is %s\nwant %s", have, tt.problem)
			}
			if notes := strings.Join(unit.Notes, "\n"); !strings.HasPrefix(notes, tt.note) || tt.note == "" && notes != "" {
				t.Errorf("the note is %s\nwant %s", notes, tt.note)
			}
			if unit.Objects.Len() != 1 {
				t.Errorf("%d objects are applied", unit.Objects.Len())
			}
			v, _ := unit.Health.Of(manifesttest.Tree(t, "{apiVersion: example.org/v1, kind: Gadget, status: {phase: Ready}}"), nil, time.Time{})
			if tt.want.Reason == "" {
				v = health.Verdict{Status: v.Status}
			}
			if v != tt.want {
				t.Errorf("the verdict is %+v\nwant %+v", v, tt.want)
			}
		})
	}
}
