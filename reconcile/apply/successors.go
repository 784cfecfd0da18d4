package apply

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
)

// A package that takes over definitions from another, such as one that is declared under
// another name, brings its own controller. What the former package has stays until that is
// ready. The definitions have their new labels by then, so the inventory's parent records
// which package succeeds which before they are applied.

// awaitSuccessors waits until the controllers of successors are ready, and notes those that
// are not. It waits only for what this run applied, and no longer than for the servers of
// webhooks; a later pass prunes then.
func (x *execution) awaitSuccessors(ctx context.Context) error {
	ctx = kube.Waiting(ctx)
	takeOver := make(map[string]bool)
	for i := range x.plan.Steps {
		if s := &x.plan.Steps[i]; s.Action == plan.Prune {
			for _, successor := range x.plan.Successors[s.Package] {
				takeOver[successor] = true
			}
		}
	}
	for i := range x.results {
		r := &x.results[i]
		if s := r.Step; s.Object == nil || !takeOver[s.Package] || !controllerOf(s.Object) {
			continue
		}
		for wait := pollFirst; ; wait = min(2*wait, pollLongest) {
			why, err := x.unavailable(ctx, r.Step.Object)
			if kube.IsClusterWide(err) || ctx.Err() != nil {
				return cmp.Or(err, ctx.Err())
			}
			if err != nil {
				why = kube.MessageOf(err)
			}
			if why == "" {
				break
			}
			if r.Outcome != Done || x.backends.over(time.Now(), backendWait) {
				x.unready[r.Step.Package] = blocker{r.Step, fmt.Sprintf("%s is ready: %s", r.Step.ID, why)}
				break
			}
			if err := kube.Sleep(ctx, wait); err != nil {
				return err
			}
		}
	}
	return nil
}

// untaken returns the controller that a prune waits for, as postponed does; "" if it waits
// for none.
func (x *execution) untaken(s *plan.Step) string {
	if s.Action != plan.Prune {
		return ""
	}
	for _, successor := range x.plan.Successors[s.Package] {
		if b, ok := x.unready[successor]; ok && x.needs.Replaced(b.step, s) {
			return b.until
		}
	}
	return ""
}

// successors returns the record for the inventory after this run. A former package that
// leaves needs it as long as it has objects; one that stays, and plain manifests, only as
// long as a prune waits for the successor.
func (x *execution) successors() plan.Successors {
	stays, left := make(map[string]bool), make(map[string]bool)
	for i := range x.results {
		r := &x.results[i]
		if r.Step.Object != nil {
			stays[r.Step.Package] = true
		} else if r.Outcome != Done {
			left[r.Step.Package] = true
		}
	}
	missing := x.missing()
	record := make(plan.Successors)
	for former, by := range x.plan.Successors {
		for _, successor := range by {
			if left[former] && (!stays[former] && former != "" || len(missing[successor]) > 0 || x.unready[successor].step != nil) {
				record.Add(former, successor)
			}
		}
	}
	return record
}
