package plan_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/types/compat"
)

// limited defines Thing.acme.example, with sizes up to a limit.
func limited(limit int) string {
	return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.acme.example}
spec:
  group: acme.example
  scope: Namespaced
  names: {kind: Thing, plural: things}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer, maximum: %d}}}}}}}
`, limit)
}

func thing(name, spec string) string {
	return "{apiVersion: acme.example/v1, kind: Thing, metadata: {name: " + name + ", namespace: default}, spec: {" + spec + "}}"
}

const mutating = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: fixer}
webhooks:
- name: fix.acme.example
  rules: [{apiGroups: [acme.example], apiVersions: [v1], resources: [things], operations: [CREATE]}]
`

// Without a cluster objects are checked by the definitions of the second rendering.
func TestBetweenChecksObjects(t *testing.T) {
	textual := strings.Replace(limited(5), "type: integer, maximum: 5", "type: string", 1)
	fixed := strings.Replace(limited(5), "maximum: 5", "maximum: 5, x-kubernetes-validations: [{rule: self == oldSelf, message: size cannot change}]", 1)
	replaced := func(object string) string {
		return strings.Replace(object, "name: x", `name: x, annotations: {gitopsd.dev/replace: "true"}`, 1)
	}
	docs := func(all ...string) *manifest.Set { return manifesttest.Set(t, strings.Join(all, "\n---\n")) }
	const tooBig = "customresourcedefinition.apiextensions.k8s.io/things.acme.example would not accept it: spec.size: Invalid value: 7: spec.size in body should be less than or equal to 5"
	for _, tt := range []struct {
		name          string
		before, after *manifest.Set
		action        plan.Action
		reason        string
		outgrown      int
		notValidated  string
	}{
		{name: "new type, good object", before: docs(), after: docs(limited(5), thing("x", "size: 5")), action: plan.Create},
		{name: "new type, bad object", before: docs(), after: docs(limited(5), thing("x", "size: 7")), action: plan.Refused, reason: tooBig},
		{name: "same type, bad object", before: docs(limited(5)), after: docs(limited(5), thing("x", "size: 7")), action: plan.Refused, reason: tooBig},
		{name: "same type, object gets bad", before: docs(limited(5), thing("x", "size: 1")), after: docs(limited(5), thing("x", "size: 7")), action: plan.Refused, reason: tooBig},
		{name: "it was bad before, and changes elsewhere", before: docs(limited(5), thing("x", "size: 7")), after: docs(limited(5), strings.Replace(thing("x", "size: 7"), "name: x", "name: x, labels: {a: b}", 1)), action: plan.Configure},
		{name: "an unchanged object of an unchanged type", before: docs(limited(5), thing("x", "size: 7")), after: docs(limited(5), thing("x", "size: 7")), action: plan.Unchanged},
		{name: "the type grows narrower", before: docs(limited(9), thing("x", "size: 7")), after: docs(limited(5), thing("x", "size: 7")), action: plan.Unchanged, outgrown: 1},
		{name: "the type grows wider", before: docs(limited(1)), after: docs(limited(5), thing("x", "size: 4")), action: plan.Create},
		{name: "a webhook may change it", before: docs(), after: docs(limited(5), thing("x", "size: 7"), mutating), action: plan.Create, notValidated: "as it is customresourcedefinition.apiextensions.k8s.io/things.acme.example would not accept it, but mutatingwebhookconfiguration.admissionregistration.k8s.io/fixer may change it first: spec.size"},
		{name: "a webhook for deletions changes nothing", before: docs(), after: docs(limited(5), thing("x", "size: 7"), strings.Replace(mutating, "CREATE", "DELETE", 1)), action: plan.Refused, reason: tooBig},
		{name: "a webhook never sees it", before: docs(), after: docs(limited(5), thing("x", "colour: red"), mutating), action: plan.Refused, reason: "spec.colour: field not declared in schema"},
		{name: "a field gets another type, and the object with it", before: docs(textual, thing("x", `size: "1"`)), after: docs(limited(5), thing("x", "size: 1")), action: plan.Refused,
			reason: "the live object does not fit it, so that no change of it would be accepted; delete the object to have it created anew: spec.size: expected numeric (int or float), got string"},
		{name: "what was there was never accepted", before: docs(limited(5), thing("x", `size: one`)), after: docs(limited(5), thing("x", "size: 1")), action: plan.Configure},
		{name: "a field that cannot be changed", before: docs(fixed, thing("x", "size: 1")), after: docs(fixed, thing("x", "size: 2")), action: plan.Refused,
			reason: `size cannot change; to have it deleted and created anew, annotate it with gitopsd.dev/replace: "true"`},
		{name: "it is created anew for that", before: docs(fixed, thing("x", "size: 1")), after: docs(fixed, replaced(thing("x", "size: 2"))), action: plan.Configure,
			reason: "deleted and created anew, since a field cannot be changed: spec.size: Invalid value: 2: size cannot change"},
		{name: "a new one would not be accepted either", before: docs(fixed, thing("x", "size: 1")), after: docs(fixed, replaced(thing("x", "size: 7"))), action: plan.Refused, reason: "should be less than or equal to 5"},
		{name: "no namespace", before: docs(), after: docs(limited(5), strings.Replace(thing("x", "size: 1"), ", namespace: default", "", 1)), action: plan.Refused, reason: "it has no namespace"},
		{name: "a version that is gone", before: docs(limited(5)), after: docs(strings.Replace(limited(5), "name: v1, served", "name: v2, served", 1), thing("x", "size: 1")), action: plan.Refused, reason: "apiVersion: acme.example/v1 is not served; write it for v2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			allow := func(string, compat.Finding) (string, bool) { return "tested", true }
			for _, o := range tt.after.All() {
				if o.ID().Is(manifest.CRD) {
					tt.after = packaged(t, tt.after)
					break
				}
			}
			p := between(t, new(plan.Comparer), "dev", packaged(t, tt.before), tt.after, allow, nil)
			outgrown := 0
			for _, s := range p.Steps {
				outgrown += len(s.Outgrown)
				if s.ID.Kind != "Thing" {
					continue
				}
				if s.Action != tt.action || !strings.Contains(s.Reason, tt.reason) || !strings.HasPrefix(s.NotValidated, tt.notValidated) || tt.notValidated == "" && s.NotValidated != "" {
					t.Errorf("%s: %s (%s)", s.Action, s.Reason, s.NotValidated)
				}
			}
			if outgrown != tt.outgrown {
				t.Errorf("%d objects are noted, want %d", outgrown, tt.outgrown)
			}
		})
	}
}

// packaged puts the definitions into a package, so that breaking changes can be
// allowed.
func packaged(t *testing.T, set *manifest.Set) *manifest.Set {
	t.Helper()
	var all []*manifest.Object
	for _, o := range set.All() {
		if o.ID().Is(manifest.CRD) {
			o = o.WithMetadata(map[string]string{manifest.PackageLabel: "things"}, nil)
		}
		all = append(all, o)
	}
	packaged, duplicates := manifest.NewSet(all)
	if len(duplicates) > 0 {
		t.Fatal(duplicates[0])
	}
	return packaged
}

// For a live cluster only objects with changed types are checked, changed ones against
// the live objects.
func TestCheckObjects(t *testing.T) {
	definition := manifesttest.Objects(t, limited(5))[0]
	object := manifesttest.Objects(t, thing("x", "size: 7"))[0]
	live := func(spec string) map[string]any { return manifesttest.Tree(t, thing("x", spec)) }
	forbidden := errors.New("forbidden")
	for _, tt := range []struct {
		name       string
		definition plan.Action
		severity   compat.Severity
		object     plan.Action
		live       plan.LiveObject
		mutators   []map[string]any
		unreadable error
		want       plan.Action
		asked      bool
		notValid   string
		retyped    int
		told       bool
	}{
		{name: "the type stays", definition: plan.Unchanged, object: plan.Create, want: plan.Create},
		{name: "only its documentation changes", definition: plan.Configure, severity: compat.Documentation, object: plan.Create, want: plan.Create},
		{name: "the type is refused", definition: plan.Refused, object: plan.Create, want: plan.Create},
		{name: "the type is new", definition: plan.Create, object: plan.Create, want: plan.Refused, asked: true},
		{name: "the type changes, the object is new", definition: plan.Configure, severity: compat.Compatible, object: plan.Create, want: plan.Refused, asked: true},
		{name: "it was wrong before", definition: plan.Configure, severity: compat.Compatible, object: plan.Configure, live: plan.LiveObject{Tree: live("size: 7")}, want: plan.Configure, retyped: 1},
		{name: "it was right before", definition: plan.Configure, severity: compat.Compatible, object: plan.Configure, live: plan.LiveObject{Tree: live("size: 1")}, want: plan.Refused, asked: true, retyped: 1},
		{name: "it is gone by now", definition: plan.Configure, severity: compat.Compatible, object: plan.Configure, want: plan.Refused, asked: true, retyped: 1},
		{name: "it cannot be read", definition: plan.Configure, severity: compat.Compatible, object: plan.Configure, live: plan.LiveObject{Err: forbidden}, want: plan.Configure, retyped: 1, notValid: "forbidden"},
		{name: "it stays", definition: plan.Configure, severity: compat.Compatible, object: plan.Unchanged, want: plan.Unchanged, asked: true, told: true},
		{name: "a webhook of the cluster", definition: plan.Create, object: plan.Create, mutators: []map[string]any{manifesttest.Tree(t, mutating)}, want: plan.Create, asked: true, notValid: "fixer may change it first"},
		{name: "webhooks cannot be read", definition: plan.Create, object: plan.Create, unreadable: forbidden, want: plan.Create, asked: true, notValid: "is not known (forbidden)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &plan.Plan{Steps: []plan.Step{
				{Action: tt.definition, ID: definition.ID(), Object: definition, Compatibility: tt.severity},
				{Action: tt.object, ID: object.ID(), Object: object},
			}}
			asked, retyped := false, 0
			plan.CheckObjects(t.Context(), p, plan.ObjectCheck{
				Live: func(context.Context, *plan.Step) plan.LiveObject {
					retyped++
					return tt.live
				},
				Mutators: func() ([]map[string]any, error) {
					asked = true
					return tt.mutators, tt.unreadable
				},
			})
			if retyped != tt.retyped {
				t.Errorf("%d live objects are read, want %d", retyped, tt.retyped)
			}
			s := p.Steps[1]
			if s.Action != tt.want || asked != tt.asked || !strings.Contains(s.NotValidated, tt.notValid) || tt.notValid == "" && s.NotValidated != "" {
				t.Errorf("%s: %s (%s); webhooks asked for: %v", s.Action, s.Reason, s.NotValidated, asked)
			}
			if told := len(p.Steps[0].Outgrown) > 0; told != tt.told {
				t.Errorf("it is noted: %v", p.Steps[0].Outgrown)
			}
		})
	}
}

// In a namespace that the plan creates no dry run is possible, so that objects of types
// that stay are checked too.
func TestCheckObjectsOfNewNamespaces(t *testing.T) {
	docs := manifesttest.Objects(t, limited(5)+"\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: default}}\n---\n"+thing("x", "size: 7"))
	for _, tt := range []struct{ definition, space, want plan.Action }{
		{definition: plan.Unchanged, space: plan.Create, want: plan.Refused},
		{definition: plan.Configure, space: plan.Create, want: plan.Refused}, // only its documentation changes
		{definition: plan.Unchanged, space: plan.Unchanged, want: plan.Create},
	} {
		p := &plan.Plan{Steps: []plan.Step{
			{Action: tt.definition, ID: docs[0].ID(), Object: docs[0], Compatibility: compat.Documentation},
			{Action: tt.space, ID: docs[1].ID(), Object: docs[1]},
			{Action: plan.Create, ID: docs[2].ID(), Object: docs[2]},
		}}
		plan.CheckObjects(t.Context(), p, plan.ObjectCheck{})
		if s := p.Steps[2]; s.Action != tt.want {
			t.Errorf("type %s, namespace %s: %s: %s", tt.definition, tt.space, s.Action, s.Reason)
		}
	}
}

// An object of a kind that Crossplane makes is checked by its XRD.
func TestCheckComposites(t *testing.T) {
	const xrd = `
apiVersion: apiextensions.crossplane.io/v1
kind: CompositeResourceDefinition
metadata: {name: xdatabases.acme.example}
spec:
  group: acme.example
  names: {kind: XDatabase, plural: xdatabases}
  claimNames: {kind: Database, plural: databases}
  versions:
  - name: v1
    served: true
    referenceable: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, required: [size], properties: {size: {type: integer, minimum: 1}}}
          status: {type: object, properties: {url: {type: string}}}
`
	for object, want := range map[string]string{
		`{apiVersion: acme.example/v1, kind: XDatabase, metadata: {name: a}, spec: {size: 1, compositionRef: {name: a}, resourceRefs: []}}`:        "",
		`{apiVersion: acme.example/v1, kind: Database, metadata: {name: a, namespace: b}, spec: {size: 1, writeConnectionSecretToRef: {name: a}}}`: "",
		`{apiVersion: acme.example/v1, kind: Database, metadata: {name: a, namespace: b}, spec: {size: 0}}`:                                        "spec.size: Invalid value: 0",
		`{apiVersion: acme.example/v1, kind: Database, metadata: {name: a, namespace: b}}`:                                                         "spec: Required value",
		`{apiVersion: acme.example/v1, kind: Database, metadata: {name: a, namespace: b}, spec: {size: 1, colour: red}}`:                           "spec.colour: field not declared in schema",
		`{apiVersion: acme.example/v1, kind: XDatabase, metadata: {name: ` + strings.Repeat("a", 64) + `}, spec: {size: 1}}`:                       "metadata.name: Too long",
		`{apiVersion: acme.example/v1, kind: XDatabase, metadata: {name: a}, spec: {size: 1}, status: {conditions: [], url: a}}`:                   "",
	} {
		none, _ := manifest.NewSet(nil)
		p := between(t, new(plan.Comparer), "dev", none, manifesttest.Set(t, xrd+"\n---\n"+object), nil, nil)
		s := p.Steps[len(p.Steps)-1]
		if (s.Action == plan.Refused) != (want != "") || !strings.Contains(s.Reason, want) {
			t.Errorf("%s: %s: %s", object, s.Action, s.Reason)
		}
	}
}
