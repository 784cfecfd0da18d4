package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// goneWait is how long a pass waits for objects with finalizers to go, before it
// leaves what they may need to a later pass.
const goneWait = 5 * time.Second

// prune deletes what is not wanted any more, the last stage first. Objects are
// still members while they are being deleted: the inventory lets go of a kind
// only when a look at the cluster finds none. So a delete that is refused, or
// that this process does not live to see, is tried again.
func (x *execution) prune(ctx context.Context) error {
	incomplete := x.incompletePackages()
	var todo []*Result
	for i := range x.results {
		if r := &x.results[i]; r.Step.Object == nil && (r.Step.Action == plan.Prune || r.Step.Action == plan.Wait) {
			todo = append(todo, r)
		}
	}
	for len(todo) > 0 {
		// The plan has them in the order of pruning; what is of one stage and
		// rank goes together.
		n := 1
		for n < len(todo) && todo[n].Step.Stage == todo[0].Step.Stage && plan.First(todo[n].Step.ID) == plan.First(todo[0].Step.ID) {
			n++
		}
		batch, rest := todo[:n], todo[n:]
		err := x.each(ctx, batch, func(ctx context.Context, r *Result) error {
			if why := incomplete[r.Step.Package]; why != "" && r.Step.Action == plan.Prune {
				r.Outcome, r.Reason = Skipped, "kept until the rest is applied: "+why
				return nil
			}
			return x.delete(ctx, r)
		})
		if err != nil {
			return err
		}
		if len(rest) == 0 {
			return nil
		}
		held, err := x.awaitGone(ctx, batch)
		if err != nil {
			return err
		}
		if held != "" {
			for _, r := range rest {
				if r.Step.Action == plan.Prune {
					r.Outcome, r.Reason = Pending, "waits until "+held
				}
			}
			return nil
		}
		todo = rest
	}
	return nil
}

// incompletePackages says of packages ("" for plain manifests) what of them
// could not be applied: what replaces an object must be there before it goes.
func (x *execution) incompletePackages() map[string]string {
	why := make(map[string]string)
	for i := range x.results {
		r := &x.results[i]
		s := r.Step
		if s.Object == nil || why[s.Package] != "" {
			continue
		}
		switch {
		case r.Outcome == Failed, r.Outcome == Skipped, r.Outcome == Pending,
			s.Action == plan.Conflict, s.Action == plan.Refused:
			why[s.Package] = fmt.Sprintf("%s: %s", s.ID, x.because(r))
		}
	}
	return why
}

func (x *execution) delete(ctx context.Context, r *Result) error {
	s := r.Step
	if s.Action == plan.Wait {
		return nil
	}
	t, err := x.cluster.Kind(ctx, s.ID.Group, s.ID.Kind)
	if kube.ClassOf(err) == kube.NoSuchType {
		// The CRD went meanwhile, and the object with it.
		x.forget(s.ID)
		r.Outcome, r.Reason = Done, ""
		return nil
	}
	if err != nil {
		return x.fail(r, err)
	}
	gone, meta, err := x.cluster.Delete(ctx, t, s.ID, s.UID)
	if kube.ClassOf(err) == kube.NoSuchType {
		gone, err = true, nil
	}
	if err != nil {
		return x.fail(r, err)
	}
	x.forget(s.ID)
	if plan.IsCRD(s.ID) {
		_, group, _ := strings.Cut(s.ID.Name, ".")
		x.cluster.Forget(group)
	}
	r.Outcome, r.Reason = Done, ""
	if !gone {
		r.Outcome, r.Reason = Pending, going(&meta.ObjectMeta)
	}
	return nil
}

// going says what keeps an object that is being deleted.
func going(meta *metav1.ObjectMeta) string {
	if len(meta.Finalizers) == 0 {
		return "is being deleted"
	}
	return "is being deleted, held by finalizer " + strings.Join(meta.Finalizers, ", ")
}

// awaitGone waits for objects that are being deleted, and says which is not
// gone in time.
func (x *execution) awaitGone(ctx context.Context, batch []*Result) (string, error) {
	var left []*Result
	for _, r := range batch {
		if r.Outcome == Pending || r.Step.Action == plan.Wait {
			left = append(left, r)
		}
	}
	deadline := time.Now().Add(goneWait)
	for wait := pollFirst; len(left) > 0; wait = min(2*wait, pollLongest) {
		var err error
		left = slices.DeleteFunc(left, func(r *Result) bool {
			if err != nil {
				return false
			}
			var gone bool
			gone, err = x.gone(ctx, r.Step.ID, r.Step.UID)
			if gone {
				r.Outcome, r.Reason = Done, ""
			}
			return gone
		})
		if err != nil {
			return "", err
		}
		if len(left) > 0 && time.Now().After(deadline) {
			r := left[0]
			if r.Reason == "" {
				r.Reason = r.Step.Reason
			}
			return fmt.Sprintf("%s is gone, which %s", r.Step.ID, r.Reason), nil
		}
		if len(left) > 0 {
			if err := pause(ctx, wait); err != nil {
				return "", err
			}
		}
	}
	return "", nil
}

// gone looks whether the object of that UID is still there.
func (x *execution) gone(ctx context.Context, id manifest.ID, uid string) (bool, error) {
	t, err := x.cluster.Kind(ctx, id.Group, id.Kind)
	if err == nil {
		var meta *metav1.PartialObjectMetadata
		meta, err = x.cluster.GetMetadata(ctx, t, id)
		if err == nil {
			return string(meta.UID) != uid, nil
		}
	}
	switch kube.ClassOf(err) {
	case kube.NotFound, kube.NoNamespace, kube.NoSuchType:
		return true, nil
	}
	if kube.IsClusterWide(err) {
		return false, err
	}
	return false, nil
}
