package apply

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
)

// A package that takes over definitions from another, such as one that is declared under
// another name, brings its own controller. What the former package has stays until that is
// ready. The definitions have their new labels by then, so the inventory's parent records
// which package succeeds which before they are applied.

// awaitSuccessors waits until the controllers of successors are ready, and notes those that
// are not. It waits only for what this run applied and a prune waits for, and no longer than for
// the servers of webhooks; a later pass prunes then.
func (x *execution) awaitSuccessors(ctx context.Context) error {
	ctx = kube.Waiting(ctx)
	awaited := make(map[string]bool) // by successor: whether a prune waits for it
	for former, by := range x.plan.Successors {
		for _, successor := range by {
			awaited[successor] = awaited[successor] || slices.ContainsFunc(x.plan.Steps, func(s plan.Step) bool { return s.Action == plan.Prune && s.Package == former })
		}
	}
	for i := range x.results {
		r := &x.results[i]
		s := r.Step
		await, succeeds := awaited[s.Package]
		if s.Object == nil || !succeeds || !controllerOf(s.Object) {
			continue
		}
		for wait := pollFirst; ; wait = min(2*wait, pollLongest) {
			why, err := x.unavailable(ctx, s.Object)
			if kube.IsClusterWide(err) || ctx.Err() != nil {
				return cmp.Or(err, ctx.Err())
			}
			if err != nil {
				why = kube.MessageOf(err)
			}
			if why == "" {
				break
			}
			if !await || r.Outcome != Done || x.backends.over(time.Now(), backendWait) {
				x.unready[s.Package] = blocker{s, fmt.Sprintf("%s is ready: %s", s.ID, why)}
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

// successors returns the record for the inventory after this run: which packages succeed one of
// which there is something, until they have taken over. What there is of a former package that
// stays, and of plain manifests, may go in a later commit.
func (x *execution) successors() plan.Successors {
	desired, left, planned := make(map[string]bool), make(map[string]bool), make(map[string]bool)
	for i := range x.results {
		r := &x.results[i]
		planned[r.Step.Package] = true
		if r.Step.Object != nil {
			desired[r.Step.Package] = true
		} else if r.Outcome != Done {
			left[r.Step.Package] = true
		}
	}
	missing := x.missing()
	// A package without a step has errors.
	takesOver := func(pkg string) bool {
		return len(missing[pkg]) > 0 || x.unready[pkg].step != nil || !desired[pkg] && (left[pkg] || !planned[pkg])
	}
	record := make(plan.Successors)
	for former, by := range x.plan.Successors {
		leaves := left[former] && !desired[former] && former != ""
		for _, successor := range by {
			if leaves || (desired[former] || left[former]) && takesOver(successor) {
				record.Add(former, successor)
			}
		}
	}
	return record
}
