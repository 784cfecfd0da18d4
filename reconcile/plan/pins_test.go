package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/pins"
	"gitopsd.dev/render/types"
)

// crd is the definition of Thing.acme.example, in version v1 with some fields.
func crd(t *testing.T, fields ...string) *manifest.Object {
	t.Helper()
	return manifesttest.Objects(t, fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.acme.example}
spec:
  group: acme.example
  scope: Namespaced
  names: {kind: Thing, plural: things}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {%s: {type: string}}}}}
`, strings.Join(fields, ": {type: string}, ")))[0]
}

// A refusal names the differences behind two digests, documentation of a rule too.
func TestPinsSayWhatDiffers(t *testing.T) {
	v1 := manifesttest.Objects(t, ruled)[0]
	gk := plan.Defines(v1)[0].GroupKind()
	pinned, err := types.Of(v1.Tree())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ from, to, want string }{
		{"message: m", "message: other", "rule-message-changed .spec"},
		{"self.a > 1", "self.a>1", "spelling-changed .spec"},
		{"{type: integer}", "{type: integer, minimum: 3}", "minimum-added .spec.a"},
	} {
		live := manifesttest.Objects(t, strings.Replace(ruled, tt.from, tt.to, 1))[0].Tree()
		o := manifesttest.Objects(t, fmt.Sprintf("{apiVersion: acme.example/v1, kind: Thing, metadata: {name: x, namespace: default, annotations: {%s: %q}}}", manifest.PinAnnotation, pinned[0].Digest))[0]
		p := &plan.Plan{Steps: []plan.Step{{Action: plan.Create, ID: o.ID(), Object: o}}}
		find := func(schema.GroupVersionKind, string) (map[string]any, string) { return v1.Tree(), "cluster dev" }
		plan.CheckPins(t.Context(), p, map[schema.GroupKind]plan.LiveDefinition{gk: {Tree: live}}, find, false)
		if s := p.Steps[0]; s.Action != plan.Refused || !strings.Contains(s.Reason, " here: "+tt.want+"; ") {
			t.Errorf("%s: %s %s", tt.to, s.Action, s.Reason)
		}
	}
}

const ruled = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.acme.example}
spec:
  group: acme.example
  scope: Namespaced
  names: {kind: Thing, plural: things}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {a: {type: integer}}, x-kubernetes-validations: [{rule: self.a > 1, message: m}]}
`

// An object is held back where its type is not, or will not be, the one that it is
// pinned to, and nothing else is.
func TestCheckPins(t *testing.T) {
	digest := func(o *manifest.Object) string {
		all, err := types.Of(o.Tree())
		if err != nil {
			t.Fatal(err)
		}
		return all[0].Digest
	}
	thing := func(pin string) *manifest.Object {
		return manifesttest.Objects(t, fmt.Sprintf("{apiVersion: acme.example/v1, kind: Thing, metadata: {name: x, namespace: default, annotations: {%s: %q}}}", manifest.PinAnnotation, pin))[0]
	}
	v1, v2, v3 := crd(t, "a"), crd(t, "a", "b"), crd(t, "a", "c")
	gk := plan.Defines(v1)[0].GroupKind()
	known := func(o *manifest.Object) plan.FindType {
		return func(_ schema.GroupVersionKind, d string) (map[string]any, string) {
			if d == digest(o) {
				return o.Tree(), "cluster dev"
			}
			return nil, ""
		}
	}
	for _, tt := range []struct {
		name string
		pin  string
		// definition is the step of the CRD, if the plan has one.
		definition *plan.Step
		object     plan.Action
		live       map[string]any
		liveErr    error
		nothing    bool // is known of the live type
		find       plan.FindType
		drift      bool
		want       string // in the reason; empty where the object goes ahead
	}{
		{name: "no pin", object: plan.Create, live: v1.Tree()},
		{name: "the live type", pin: digest(v1), object: plan.Create, live: v1.Tree()},
		{name: "another live type", pin: digest(v2), object: plan.Create, live: v1.Tree(), want: "how they differ is not known"},
		{name: "another live type, and the pinned one is known", pin: digest(v2), object: plan.Create, live: v1.Tree(), find: known(v2), want: digest(v2) + " (cluster dev), which is " + digest(v1) + " here: field-removed .b; "},
		{name: "the type that the plan creates", pin: digest(v2), object: plan.Create, definition: &plan.Step{Action: plan.Create, Object: v2}, nothing: true},
		{name: "the type that the plan installs", pin: digest(v2), object: plan.Create, definition: &plan.Step{Action: plan.Configure, Object: v2}, live: v1.Tree()},
		{name: "the type that the plan replaces", pin: digest(v1), object: plan.Unchanged, definition: &plan.Step{Action: plan.Configure, Object: v2}, live: v1.Tree(), want: "(this cluster until now), which is " + digest(v2) + " here: field-added .b; "},
		{name: "the type whose replacement is refused", pin: digest(v1), object: plan.Configure, definition: &plan.Step{Action: plan.Refused, Object: v2}, live: v1.Tree()},
		{name: "drift that is corrected", pin: digest(v2), object: plan.Create, definition: &plan.Step{Action: plan.Configure, Drift: true, Object: v2}, live: v3.Tree()},
		{name: "drift that is reported", pin: digest(v2), object: plan.Create, definition: &plan.Step{Action: plan.Configure, Drift: true, Object: v2}, live: v3.Tree(), drift: true, want: "which is " + digest(v3)},
		{name: "fields of others in the definition", pin: digest(v2), object: plan.Create, definition: &plan.Step{Action: plan.Unchanged, Object: v2}, live: v3.Tree(), want: "which is " + digest(v3)},
		{name: "nothing changes", pin: digest(v2), object: plan.Unchanged, definition: &plan.Step{Action: plan.Unchanged, Object: v2}, nothing: true},
		{name: "somebody else's object", pin: digest(v2), object: plan.Conflict, live: v1.Tree()},
		{name: "no CRD", pin: digest(v2), object: plan.Create, want: "which no CRD defines"},
		{name: "unreadable", pin: digest(v2), object: plan.Create, liveErr: fmt.Errorf("forbidden"), want: "which cannot be compared with this cluster's type: forbidden"},
		{name: "no digest", pin: "h1:short", object: plan.Create, live: v1.Tree(), want: "is no type digest"},
		{name: "without a cluster", pin: digest(v2), object: plan.Create, nothing: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &plan.Plan{Steps: []plan.Step{{Action: plan.Create, ID: manifest.ID{Kind: "ConfigMap", Namespace: "default", Name: "beside"}}}}
			if tt.definition != nil {
				tt.definition.ID = tt.definition.Object.ID()
				p.Steps = append(p.Steps, *tt.definition)
			}
			o := thing(tt.pin)
			p.Steps = append(p.Steps, plan.Step{Action: tt.object, ID: o.ID(), Object: o})
			found := make(map[schema.GroupKind]plan.LiveDefinition)
			if !tt.nothing {
				found[gk] = plan.LiveDefinition{Tree: tt.live, Err: tt.liveErr}
			}
			plan.CheckPins(t.Context(), p, found, tt.find, tt.drift)
			last := p.Steps[len(p.Steps)-1]
			switch {
			case tt.want == "" && last.Action != tt.object:
				t.Errorf("%s: %s", last.Action, last.Reason)
			case tt.want != "" && (last.Action != plan.Refused || !strings.Contains(last.Reason, tt.want)):
				t.Errorf("%s: %s\nwant refused: …%s…", last.Action, last.Reason, tt.want)
			}
			if p.Steps[0].Action != plan.Create || tt.definition != nil && p.Steps[1].Action != tt.definition.Action {
				t.Error("something else was held back")
			}
		})
	}
}

// An XRD and the CRD that Crossplane makes from it are two definitions of one kind.
// Objects are pinned to the XRD, in whatever order they are rendered.
func TestPinsOfXRDAndCRD(t *testing.T) {
	both := manifesttest.Objects(t, `
apiVersion: apiextensions.crossplane.io/v1
kind: CompositeResourceDefinition
metadata: {name: things.acme.example}
spec:
  group: acme.example
  names: {kind: Thing, plural: things}
  versions:
  - {name: v1, served: true, referenceable: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {a: {type: string}}}}}}}
`)
	both = append(both, crd(t, "b"))
	all, err := types.Of(both[0].Tree())
	if err != nil {
		t.Fatal(err)
	}
	o := manifesttest.Objects(t, fmt.Sprintf("{apiVersion: acme.example/v1, kind: Thing, metadata: {name: x, annotations: {%s: %q}}}", manifest.PinAnnotation, all[0].Digest))[0]
	for range both {
		p := &plan.Plan{}
		for _, d := range both {
			p.Steps = append(p.Steps, plan.Step{Action: plan.Create, ID: d.ID(), Object: d})
		}
		p.Steps = append(p.Steps, plan.Step{Action: plan.Create, ID: o.ID(), Object: o})
		plan.CheckPins(t.Context(), p, nil, nil, false)
		if s := p.Steps[len(both)]; s.Action != plan.Create {
			t.Errorf("after %s: %s %s", both[1].ID(), s.Action, s.Reason)
		}
		both[0], both[1] = both[1], both[0]
	}
}

// policies returns the policy for pins to the types of a definition, and its binding.
func policies(t *testing.T, definition *manifest.Object) []*manifest.Object {
	t.Helper()
	set, _ := manifest.NewSet([]*manifest.Object{definition})
	all, err := pins.Objects(set, func(*manifest.Object) (*behaviour.Identity, error) { return nil, nil })
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	return all
}

// The digests that the API server compares pins with stay as they are while the type
// does.
func TestPoliciesOfRefusedTypes(t *testing.T) {
	policy := policies(t, crd(t, "a"))[0]
	for action, want := range map[plan.Action]plan.Action{plan.Configure: plan.Configure, plan.Unchanged: plan.Configure, plan.Refused: plan.Held, plan.Conflict: plan.Held} {
		definition := crd(t, "a")
		p := &plan.Plan{Steps: []plan.Step{{Action: action, ID: definition.ID(), Object: definition}, {Action: plan.Configure, ID: policy.ID(), Object: policy}}}
		plan.CheckPins(t.Context(), p, nil, nil, false)
		if s := p.Steps[1]; s.Action != want {
			t.Errorf("the definition is %s: %s %s, want %s", action, s.Action, s.Reason, want)
		}
	}
}

// An XRD can be refused by its own type, last of all.
func TestPoliciesOfInvalidTypes(t *testing.T) {
	all := manifesttest.Objects(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: compositeresourcedefinitions.apiextensions.crossplane.io}
spec:
  group: apiextensions.crossplane.io
  scope: Cluster
  names: {kind: CompositeResourceDefinition, plural: compositeresourcedefinitions}
  versions: [{name: v2, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true, required: [scope]}}}}}]
---
apiVersion: apiextensions.crossplane.io/v2
kind: CompositeResourceDefinition
metadata: {name: stores.acme.example}
spec: {group: acme.example, names: {kind: Store, plural: stores}, versions: [{name: v1, served: true, referenceable: true}]}
`)
	all = append(all, policies(t, all[1])...)
	p := &plan.Plan{}
	for _, o := range all {
		p.Steps = append(p.Steps, plan.Step{Action: plan.Create, ID: o.ID(), Object: o})
	}
	plan.CheckPins(t.Context(), p, nil, nil, false)
	plan.CheckObjects(t.Context(), p, plan.ObjectCheck{})
	if xrd, policy := p.Steps[1], p.Steps[2]; xrd.Action != plan.Refused || policy.Action != plan.Held {
		t.Errorf("the XRD is %s (%s), and its digests are %s", xrd.Action, xrd.Reason, policy.Action)
	}
}
