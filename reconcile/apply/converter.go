package apply

import (
	"context"
	"fmt"
	"slices"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/converter"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/webhook"
)

// awaitConverter waits until the workload that converts objects by rules is as desired,
// ready in its newest generation, and has an endpoint: then it serves the rules that its
// pods need. After a while it returns why it still waits.
func (x *execution) awaitConverter(ctx context.Context) (string, error) {
	for i := range x.results {
		// Its batch is over: no other goroutine writes it any more.
		r := &x.results[i]
		if r.Step.ID == converter.Workload() && r.Step.Action != plan.Unchanged && r.Outcome != Done {
			return fmt.Sprintf("waits for %s, which is to convert its objects: %s", r.Step.ID, x.because(r)), nil
		}
	}
	ctx = kube.Waiting(ctx)
	for wait := pollFirst; ; wait = min(2*wait, pollLongest) {
		what, why, err := x.unserved(ctx, converter.Service())
		if err != nil || what == "" {
			return "", err
		}
		if x.converters.over(time.Now(), backendWait) {
			return fmt.Sprintf("waits for %s, which is to convert its objects%s", what, why), nil
		}
		if err := kube.Sleep(ctx, wait); err != nil {
			return "", err
		}
	}
}

// converting returns why an object must not be pruned yet: a definition with conversion
// rules that need it could not be changed. It returns "" if the object may go.
func (x *execution) converting(s *plan.Step) string {
	if s.Action != plan.Prune || !converter.Part(s.ID) {
		return ""
	}
	for i := range x.results {
		if r := &x.results[i]; !(r.Step.Action.Writes() && r.Outcome == Done) && r.Step.NeedsConverter(s.ID) {
			return fmt.Sprintf("waits until %s no longer needs it, which is as it was: %s", r.Step.ID, x.because(r))
		}
	}
	return ""
}

// asConverted returns the step of a result as it is applied now. If it moves the conversion
// webhook of a CRD to another Service while the present one is served, the webhook stays as it
// is: [execution.moveConversions] changes it.
func (x *execution) asConverted(ctx context.Context, r *Result) (*plan.Step, error) {
	s := r.Step
	r.moves = false
	if !s.ID.Is(manifest.CRD) || s.UID == "" || s.Converts || s.Drift || len(webhook.Services(s.Object.Tree())) == 0 {
		return s, nil
	}
	live, _, err := x.getLive(ctx, s.Object)
	if err != nil {
		return s, unless(err, kube.NotFound, kube.Forbidden)
	}
	from, moves := plan.MovesConversion(live, s.Object.Tree())
	if !moves {
		return s, nil
	}
	if served, err := x.ready(ctx, from); err != nil || !served {
		return s, unless(err, kube.Forbidden)
	}
	as, err := manifest.New(plan.WithConversion(s.Object.Tree(), live), s.Object.Origin())
	if err != nil {
		return s, nil // the API server tells
	}
	now := *s
	now.Object, r.moves = as, true
	return &now, nil
}

// unless returns an error that is of none of these classes, and nil for others.
func unless(err error, classes ...kube.Class) error {
	if slices.Contains(classes, kube.ClassOf(err)) {
		return nil
	}
	return err
}

// moveConversions moves the conversion webhooks of CRDs to Services of this plan that are
// served by now. It waits a while for these. The CRDs of the others are pending, and what serves
// their webhooks is not pruned, since its replacement is missing.
func (x *execution) moveConversions(ctx context.Context) error {
	moved := false
	for i := range x.results {
		r := &x.results[i]
		if !r.moves || r.Outcome != Done {
			continue
		}
		why, err := x.awaitServices(ctx, r.Step)
		if err == nil && why != "" {
			r.Outcome, r.Reason = Pending, fmt.Sprintf("its schema is applied; its conversion webhook stays as it was, and waits for %s", why)
			continue
		}
		var t kube.Type
		var answer *kube.Applied
		if err == nil {
			t, answer, err = x.write(ctx, r.Step, precondition{uid: r.Step.UID})
		}
		if err == nil {
			x.done(r, t, r.Step.Object, answer)
			moved = true
		} else if err := x.failOrWait(r, err); err != nil {
			return err
		}
	}
	if !moved {
		return nil
	}
	// Another API server may ask the former server for a moment, which is pruned next.
	return kube.Sleep(kube.Waiting(ctx), registerWait)
}
