package plan_test

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// An object is refused only if another controller acts on its type than the pinned one,
// or if that cannot be told.
func TestCheckControllers(t *testing.T) {
	workload := manifest.Deployment.ID("gitopsd-system", "things")
	runs := func(image string) *behaviour.Identity {
		return &behaviour.Identity{Workload: workload, Images: []behaviour.Part{{Name: "c", Value: image}}}
	}
	v1, v2 := runs("reg.io/things:v1"), runs("reg.io/things:v2")
	find := func(schema.GroupKind, string) (*behaviour.Identity, string) { return v2, "cluster dev" }
	for _, tt := range []struct {
		name string
		pin  string
		// here acts on the type in this cluster; err is that of finding it.
		here *behaviour.Identity
		err  error
		// undefined: the cluster has no definition of the type.
		undefined bool
		find      func(schema.GroupKind, string) (*behaviour.Identity, string)
		object    plan.Action
		workload  plan.Action // default Unchanged
		rollback  string      // why the workload is rolled back
		typePin   string      // the object is refused for it already
		want      string      // in the reason; empty where the object goes ahead
	}{
		{name: "no pin", here: v1, object: plan.Create},
		{name: "the same", pin: v1.Digest(), here: v1, object: plan.Create},
		{name: "another", pin: v2.Digest(), here: v1, object: plan.Create, want: "; how they differ is not known"},
		{name: "another, which is known", pin: v2.Digest(), here: v1, object: plan.Unchanged, find: find, want: "(cluster dev), which is " + v1.Digest() + " here: image c: reg.io/things:v2 -> reg.io/things:v1; bring"},
		{name: "not applied here", pin: v1.Digest(), here: v1, object: plan.Create, workload: plan.Refused, want: "which is not applied here: deployment.apps/gitopsd-system/things is refused: because"},
		{name: "somebody else's", pin: v1.Digest(), here: v1, object: plan.Configure, workload: plan.Conflict, want: "is conflict"},
		{name: "rolled back", pin: v1.Digest(), here: v1, object: plan.Create, rollback: "v1 did not get ready", want: "which is rolled back here: v1 did not get ready"},
		{name: "rolled back, and nothing changes", pin: v1.Digest(), here: v1, object: plan.Unchanged, rollback: "v1 did not get ready"},
		{name: "nothing changes", pin: v2.Digest(), here: v1, object: plan.Unchanged, workload: plan.Refused},
		{name: "nothing declared", pin: v1.Digest(), object: plan.Create, want: "nothing declares what acts on the type here"},
		{name: "not rendered", pin: v1.Digest(), err: errors.New("there is no Deployment"), object: plan.Create, want: "cannot be compared: there is no Deployment"},
		{name: "not defined", pin: v1.Digest(), undefined: true, object: plan.Create, want: "no package and no manifest of this cluster defines the type"},
		{name: "no digest", pin: "team/things", here: v1, object: plan.Create, want: "is no digest of a behaviour"},
		{name: "somebody else's object", pin: v2.Digest(), here: v1, object: plan.Conflict},
		{name: "refused for its type too", pin: v2.Digest(), here: v1, object: plan.Refused, typePin: "pinned to a type", want: "pinned to a type; and pinned to the controller"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			definition := crd(t, "a")
			annotations := ""
			if tt.pin != "" {
				annotations = fmt.Sprintf("annotations: {%s: %q}", manifest.ControllerAnnotation, tt.pin)
			}
			o := manifesttest.Objects(t, fmt.Sprintf("{apiVersion: acme.example/v1, kind: Thing, metadata: {name: x, namespace: default, %s}}", annotations))[0]
			p := new(plan.Plan)
			if !tt.undefined {
				p.Steps = append(p.Steps, plan.Step{Action: plan.Unchanged, ID: definition.ID(), Object: definition})
			}
			p.Steps = append(p.Steps, plan.Step{Action: cmp.Or(tt.workload, plan.Unchanged), ID: workload, Reason: "because", Rollback: plan.Rollback{Done: tt.rollback != "", Why: tt.rollback}})
			last := plan.Step{Action: tt.object, ID: o.ID(), Object: o, Reason: tt.typePin}
			if tt.typePin != "" {
				last.Pin = new(plan.Mismatch)
			}
			p.Steps = append(p.Steps, last)
			plan.CheckControllers(p, plan.Controllers{Of: func(*manifest.Object) (*behaviour.Identity, error) { return tt.here, tt.err }, Find: tt.find})
			have := p.Steps[len(p.Steps)-1]
			switch {
			case tt.want == "" && have.Action != tt.object:
				t.Errorf("%s: %s", have.Action, have.Reason)
			case tt.want != "" && (have.Action != plan.Refused || !strings.Contains(have.Reason, tt.want)):
				t.Errorf("%s: %s\nwant refused: …%s…", have.Action, have.Reason, tt.want)
			}
			if p.Steps[0].Action == plan.Refused && !tt.undefined {
				t.Error("the definition was held back")
			}
		})
	}
}
