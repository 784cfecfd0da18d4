package apply_test

import (
	"context"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/plan"
)

// A look at health that was cancelled, and one at some objects of a kind, leave
// nothing behind by which others seem to be ready.
func TestHealthOfOthers(t *testing.T) {
	text := resting + `---
apiVersion: $NAME.example.org/v1
kind: Gadget
metadata: {name: $NAME-2}
`
	for _, tt := range []struct {
		name string
		look func(b *bed, p *plan.Plan)
	}{
		{name: "cancelled", look: func(b *bed, p *plan.Plan) {
			ctx, cancel := context.WithCancel(b.t.Context())
			cancel()
			if _, err := b.applier.Health(ctx, p); err == nil {
				b.t.Fatal("it was not cancelled")
			}
		}},
		{name: "nothing", look: func(*bed, *plan.Plan) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			b.followed(b.set(text))
			b.condition("False")
			// Something waits for the gadget that is ready.
			changed := b.set(strings.Replace(text, "size: 1", "size: 2", 1) + `---
apiVersion: v1
kind: ConfigMap
metadata: {name: c, namespace: $NAME, annotations: {gitopsd.dev/depends-on: gadget.$NAME.example.org/$NAME-2}}
`)
			p := b.plan(changed, apply.PlanOptions{})
			if _, err := b.applier.Apply(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			tt.look(b, p)
			unready, err := b.applier.Health(t.Context(), p)
			if err != nil || len(unready) != 1 || unready[0].ID.Name != b.name {
				t.Errorf("not ready are %+v, %v", unready, err)
			}
		})
	}
}
