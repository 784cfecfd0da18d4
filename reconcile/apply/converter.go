package apply

import (
	"context"
	"fmt"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/converter"
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
