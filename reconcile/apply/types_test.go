package apply_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
)

// A change in a live definition is not undone if that breaks objects that use it by now,
// whether the repository changes or not, and it is not compared again in every plan.
func TestEditedDefinition(t *testing.T) {
	const object = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: gadgets.$NAME.example.org}}"
	const spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec"
	b := newBed(t)
	set := b.set(gadgets)
	b.apply(set)
	b.apply(set)
	edit := func(patch string) { b.patch("kubectl-edit", object, "application/json-patch+json", patch) }
	asked := func() int {
		n := 0
		for _, r := range b.requests.take() {
			if strings.HasPrefix(r, "GET ") && strings.Contains(r, "customresourcedefinitions/gadgets") {
				n++
			}
		}
		return n
	}

	// A field that no object uses goes again.
	add := `[{"op":"add","path":"` + spec + `/properties/weight","value":{"type":"integer"}}]`
	edit(add)
	steps, results := b.apply(set)
	b.wantNothing("results", results)
	if len(steps) != 1 || !strings.Contains(steps[0], "changed by kubectl-edit; breaking (field-removed), but it goes back to types that were there before: ") {
		t.Fatalf("unused: %q", steps)
	}
	b.settled(set)

	edit(add)
	used := b.set("{apiVersion: $NAME.example.org/v1, kind: Gadget, metadata: {name: one}, spec: {weight: 3}}").All()[0]
	eventually(t, "the field is served", func(context.Context) bool {
		// Until then it is dropped, or refused.
		_, stored := b.send(http.MethodPatch, used, "", "fieldManager=kubectl&force=true", "application/apply-patch+yaml", used.AppendJSON(nil))
		spec, _ := stored["spec"].(map[string]any)
		return spec["weight"] != nil
	})
	b.requests.take()
	for look, want := range []int{1, 0} {
		steps := b.steps(b.plan(set, apply.PlanOptions{}))
		if len(steps) != 1 || !strings.HasPrefix(steps[0], "refused ") || !strings.Contains(steps[0], "changed by kubectl-edit; correcting it is a breaking change: field-removed; ") {
			t.Fatalf("look %d: %q", look, steps)
		}
		if n := asked(); n != want {
			t.Errorf("look %d: the definition was asked for %d times, want %d", look, n, want)
		}
	}

	// Its annotation still says that its types are the wanted ones.
	described := b.set(strings.Replace(gadgets, "{type: integer}", "{type: integer, description: in metres}", 1))
	steps = b.steps(b.plan(described, apply.PlanOptions{}))
	if len(steps) != 1 || !strings.Contains(steps[0], "breaking: field-removed") {
		t.Fatalf("documentation over a changed type: %q", steps)
	}

	// Putting back what was taken away breaks nobody.
	edit(`[{"op":"remove","path":"` + spec + `/properties/weight"},{"op":"remove","path":"` + spec + `/properties/size"}]`)
	steps, results = b.apply(set)
	b.wantNothing("results", results)
	if len(steps) != 1 || !strings.HasPrefix(steps[0], "configure ") {
		t.Fatalf("%q", steps)
	}
	b.settled(set)
	b.requests.take()
	if steps := b.steps(b.plan(described, apply.PlanOptions{})); len(steps) != 1 || !strings.HasPrefix(steps[0], "configure ") {
		t.Fatalf("documentation: %q", steps)
	}
}
