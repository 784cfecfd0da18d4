package apply

import (
	"context"
	"fmt"
	"slices"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
)

// dependencyWait is how long a pass waits for dependencies of objects. After that the
// objects are reported as pending, and a later pass continues.
const dependencyWait = 15 * time.Second

// startable returns the results with dependencies that are ready, and defers the others.
func (x *execution) startable(ctx context.Context, todo []*Result) ([]*Result, error) {
	var ready []*Result
	known := make(map[string]string) // why a name is not ready
	for _, r := range todo {
		why, err := x.waitsFor(ctx, r.Step, known)
		if err != nil {
			return nil, err
		}
		if why == "" && x.typeDeferred(r.Step) {
			_, why = x.unmet(r.Step)
		}
		if why == "" {
			ready = append(ready, r)
			continue
		}
		r.Outcome, r.Reason = Pending, why
		x.deferred = append(x.deferred, r)
	}
	return ready, nil
}

// typeDeferred reports whether a step needs a CRD or Namespace that is itself deferred,
// or has the digests of a deferred definition.
func (x *execution) typeDeferred(s *plan.Step) bool {
	return slices.Contains(x.deferred, x.stale(s)) ||
		slices.Contains(x.deferred, x.defined[kindOf(s.ID)]) || slices.Contains(x.deferred, x.spaces[s.ID.Namespace])
}

// waitsFor describes a dependency of a step that is not ready; "" if all are.
func (x *execution) waitsFor(ctx context.Context, s *plan.Step, known map[string]string) (string, error) {
	for _, name := range s.After {
		why, asked := known[name]
		if !asked {
			var err error
			if why, err = x.notReady(ctx, name); err != nil {
				return "", err
			}
			known[name] = why
		}
		if why != "" {
			return fmt.Sprintf("waits for %s: %s", name, why), nil
		}
	}
	return "", nil
}

// notReady returns why the objects behind a name are not all applied and healthy.
func (x *execution) notReady(ctx context.Context, name string) (string, error) {
	members := &plan.Plan{Cluster: x.plan.Cluster}
	for _, i := range x.plan.Behind(name) {
		r := &x.results[i]
		s := *r.Step
		switch {
		case s.Action.Writes() && r.Outcome != Done, s.Action == plan.Wait, s.Action == plan.Conflict, s.Action == plan.Refused,
			s.Action == plan.Held && s.UID == "":
			return fmt.Sprintf("%s: %s", s.ID, x.because(r)), nil
		case s.Action == plan.Held:
			s.Action = plan.Unchanged // as it is, it must be healthy
		}
		members.Steps = append(members.Steps, s)
	}
	unhealthy, err := x.health(ctx, members, x.plan)
	for i := range members.Steps {
		x.stir(kindOf(members.Steps[i].ID)) // of the others nothing is known now
	}
	unhealthy = slices.DeleteFunc(unhealthy, func(h Health) bool { return h.Passes })
	switch {
	case err != nil:
		return "", err
	case len(unhealthy) == 0:
		return "", nil
	}
	h := unhealthy[0]
	why := fmt.Sprintf("%s is %s", h.ID, h.State)
	if h.Reason != "" {
		why += ": " + h.Reason
	}
	return why, nil
}

// dependents applies the deferred objects as their dependencies become ready.
func (x *execution) dependents(ctx context.Context) error {
	deadline := time.Now().Add(dependencyWait)
	wait := pollFirst
	for len(x.deferred) > 0 {
		before := x.deferred
		x.deferred, x.backends, x.hooks = nil, new(cutoff), new(cutoff)
		for stage := plan.Definitions; stage <= plan.Custom; stage++ {
			todo := slices.DeleteFunc(slices.Clone(before), func(r *Result) bool { return r.Step.Stage != stage })
			todo, err := x.startable(kube.Waiting(ctx), todo)
			if err != nil {
				return err
			}
			if len(todo) > 0 {
				if err := x.batches(ctx, stage, todo); err != nil {
					return err
				}
			}
		}
		if len(x.deferred) < len(before) {
			wait = pollFirst
			continue
		}
		if time.Now().After(deadline) || !x.hopeful() {
			return nil
		}
		if err := kube.Sleep(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, pollLongest)
	}
	return nil
}

// hopeful reports whether a dependency may still become ready in this pass: all
// dependencies of some deferred step were applied, or existed before.
func (x *execution) hopeful() bool {
	applied := func(i int) bool {
		r := &x.results[i]
		return r.Outcome == Done || r.Step.Action == plan.Unchanged
	}
	return slices.ContainsFunc(x.deferred, func(r *Result) bool {
		return len(r.Step.After) > 0 && !slices.ContainsFunc(r.Step.After, func(name string) bool {
			return slices.ContainsFunc(x.plan.Behind(name), func(i int) bool { return !applied(i) })
		})
	})
}
