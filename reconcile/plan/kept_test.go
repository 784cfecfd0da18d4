package plan_test

import (
	"strings"
	"testing"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest/manifesttest"
)

// twoVersions returns a CRD that stores v1, which has no note, and serves v1alpha1, which has one.
const twoVersions = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.acme.example}
spec:
  group: acme.example
  scope: Namespaced
  names: {kind: Thing, plural: things}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}}
  - {name: v1alpha1, served: true, storage: false, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}, note: {type: string}}}}}}}
`

// A field that the version of an object has, and the storage version does not, is accepted and dropped by the API server.
func TestUnkept(t *testing.T) {
	const lost = "the API server would drop spec.note: objects of customresourcedefinition.apiextensions.k8s.io/things.acme.example are stored in v1, which does not have it, and nothing converts them"
	old := func(spec string) string {
		return strings.Replace(thing("x", spec), "acme.example/v1", "acme.example/v1alpha1", 1)
	}
	open := strings.Replace(twoVersions, "spec: {type: object,", "spec: {type: object, x-kubernetes-preserve-unknown-fields: true,", 1)
	for _, tt := range []struct {
		name, definition string
		defined          plan.Action
		object           string
		action, want     plan.Action
		reason           string
	}{
		{"new", twoVersions, plan.Unchanged, old("note: a, size: 1"), plan.Create, plan.Refused, lost},
		{"changed", twoVersions, plan.Unchanged, old("note: a"), plan.Configure, plan.Refused, lost},
		{"with its type", twoVersions, plan.Create, old("note: a"), plan.Create, plan.Refused, lost},
		{"unchanged", twoVersions, plan.Unchanged, old("note: a"), plan.Unchanged, plan.Unchanged, ""},
		{"without the field", twoVersions, plan.Unchanged, old("size: 1"), plan.Create, plan.Create, ""},
		{"in the storage version", twoVersions, plan.Unchanged, thing("x", "size: 1"), plan.Create, plan.Create, ""},
		{"kept as unknown", open, plan.Unchanged, old("note: a"), plan.Create, plan.Create, ""},
		{"in no version", twoVersions, plan.Unchanged, old("colour: a"), plan.Create, plan.Create, ""}, // as the API server says itself
		{"converted", strings.Replace(twoVersions, "  scope:", "  conversion: {strategy: Webhook}\n  scope:", 1), plan.Unchanged, old("note: a"), plan.Create, plan.Create, ""},
		{"converted by rules", strings.Replace(twoVersions, "{name: things.acme.example}", "{name: things.acme.example, annotations: {gitopsd.dev/conversion: h1}}", 1), plan.Unchanged, old("note: a"), plan.Create, plan.Create, ""},
		{"the type has drifted, which stays", twoVersions, plan.Configure, old("note: a"), plan.Create, plan.Create, ""},
		{"the type is refused", twoVersions, plan.Refused, old("note: a"), plan.Create, plan.Create, ""},
	} {
		definition, object := manifesttest.Objects(t, tt.definition)[0], manifesttest.Objects(t, tt.object)[0]
		p := &plan.Plan{Steps: []plan.Step{
			{Action: tt.defined, ID: definition.ID(), Object: definition, Drift: tt.defined == plan.Configure},
			{Action: tt.action, ID: object.ID(), Object: object},
		}}
		plan.CheckObjects(t.Context(), p, plan.ObjectCheck{ReportDrift: true})
		if s := p.Steps[1]; s.Action != tt.want || !strings.Contains(s.Reason, tt.reason) || tt.reason == "" && s.Reason != "" {
			t.Errorf("%s: %s (%s)", tt.name, s.Action, s.Reason)
		}
	}
}
