package apply

import (
	"context"
	"errors"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
)

// replaceable says that a step failed for a field that cannot be changed, and
// that the object may be replaced for it. Namespaces and CRDs hold other
// objects, and are never replaced.
func replaceable(s *plan.Step, err error) bool {
	e, ok := errors.AsType[*kube.Error](err)
	return ok && e.Immutable() && s.Force && s.UID != "" && !plan.IsNamespace(s.ID) && !plan.IsCRD(s.ID) &&
		s.Object.Annotation(plan.ReplaceAnnotation) == "true"
}

// remove deletes an object that is to be created anew, and waits a moment until
// it is gone; else it says what keeps it. A process that ends in between leaves
// an object that is wanted and not there, which the next pass creates.
func (x *execution) remove(ctx context.Context, s *plan.Step) (kept string, err error) {
	t, err := x.cluster.Type(ctx, s.Object.APIVersion(), s.ID.Kind)
	if err != nil {
		return "", err
	}
	gone, meta, err := x.cluster.Delete(ctx, t, s.ID, s.UID)
	if err != nil {
		return "", err
	}
	x.deleted(s.ID)
	deadline := time.Now().Add(goneWait)
	for wait := pollFirst; !gone; wait = min(2*wait, pollLongest) {
		if time.Now().After(deadline) {
			return "is to be created anew, and " + going(&meta.ObjectMeta), nil
		}
		if err := pause(ctx, wait); err != nil {
			return "", err
		}
		meta, err = x.cluster.GetMetadata(ctx, t, s.ID)
		switch {
		case kube.ClassOf(err) == kube.NotFound:
			gone = true
		case err != nil:
			return "", err
		default:
			gone = string(meta.UID) != s.UID
		}
	}
	return "", nil
}
