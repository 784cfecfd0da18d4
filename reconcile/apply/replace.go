package apply

import (
	"context"
	"errors"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
)

// replaceable reports whether a step failed because of an immutable field, and the
// object may be replaced.
func replaceable(s *plan.Step, err error) bool {
	e, ok := errors.AsType[*kube.Error](err)
	return ok && e.Immutable() && s.Force && s.UID != "" && s.Replaceable()
}

// acceptable asks the API server whether it would accept an object if it did not exist
// yet. Its refusal to change a field tells nothing about the other rules, and about the
// admission of new objects.
func (a *Applier) acceptable(ctx context.Context, s *plan.Step) error {
	t, err := a.cluster.Type(ctx, s.Object.APIVersion(), s.ID.Kind)
	if err == nil {
		err = a.cluster.Creatable(ctx, t, s.ID, a.member(s.Object).AppendJSON(nil))
	}
	if err == nil || kube.IsClusterWide(err) {
		return err
	}
	return &problem.Error{Err: err, Advice: "the old object stays until the new one would be accepted"}
}

// remove deletes an object that is to be created again, and waits a moment until it is
// gone; kept says why it still exists then. If the process ends in between, the object is
// missing, and the next pass creates it.
func (x *execution) remove(ctx context.Context, s *plan.Step) (kept string, err error) {
	if err := x.acceptable(ctx, s); err != nil {
		return "", err
	}
	left, err := x.deleteStep(ctx, s)
	if err != nil {
		return "", err
	}
	deadline := time.Now().Add(goneWait)
	for wait := pollFirst; left != nil; wait = min(2*wait, pollLongest) {
		if time.Now().After(deadline) {
			return "is to be created anew, and " + going(left), nil
		}
		if err := kube.Sleep(ctx, wait); err != nil {
			return "", err
		}
		t, err := x.cluster.Kind(ctx, s.ID.Group, s.ID.Kind)
		if err != nil {
			return "", err
		}
		meta, err := x.cluster.GetMetadata(ctx, t, s.ID)
		switch {
		case kube.ClassOf(err) == kube.NotFound, err == nil && string(meta.UID) != s.UID:
			x.gone(s.ID, s.UID)
			left = nil
		case err != nil:
			return "", err
		default:
			left = &meta.ObjectMeta
		}
	}
	return "", nil
}
