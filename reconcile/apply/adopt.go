package apply

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/apply/managed"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// keepsEdits reports whether the repository keeps what people add to an object with kubectl.
func keepsEdits(o *manifest.Object) bool { return o.Annotation(manifest.KeepEditsAnnotation) == "true" }

// added describes the fields that people added to an object of ours; "" if the repository
// keeps their edits.
func added(o *manifest.Object, meta *metav1.ObjectMeta) string {
	if keepsEdits(o) {
		return ""
	}
	return managed.FindEdits(o, meta).Text()
}

// reclaim marks the steps that take over fields from people, so that fields which the
// repository does not have, or no longer has, are removed. With report, added fields
// stay.
func reclaim(p *plan.Plan, v *view, report bool) {
	for i := range p.Steps {
		s := &p.Steps[i]
		meta := v.live.Objects[s.ID]
		if s.Action != plan.Configure || !s.Force || s.Adopt || meta == nil {
			continue
		}
		switch {
		case !report && added(s.Object, meta) != "":
			s.Reclaim = plan.ReclaimAll
		case managed.FindEdits(s.Object, meta).Shared():
			s.Reclaim = plan.ReclaimShared
		}
	}
}

// from returns the owners whose fields a step takes over.
func from(s *plan.Step) managed.Owners {
	switch {
	case s.Adopt && keepsEdits(s.Object):
		return managed.Tools
	case s.Adopt:
		return managed.Deployers
	case s.Reclaim == plan.ReclaimAll:
		return managed.People
	}
	return managed.Sharers
}

// An object is read again, adoptAttempts times in all, if others write it meanwhile, such as a
// controller that has just seen the mark.
const (
	adoptAttempts = 10
	adoptPause    = 20 * time.Millisecond
)

// mark records on an object that it was there before gitopsd. It comes before all else that
// adopts the object: if the process ends right after it, the next pass finds the record. It is
// an update, not a part of what is applied, so that later applies leave it. If the live object
// is not the step's any more, the error is errLeft.
func (a *Applier) mark(ctx context.Context, s *plan.Step) error {
	t, err := a.cluster.Kind(ctx, s.ID.Group, s.ID.Kind)
	if err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		meta, err := a.cluster.GetMetadata(ctx, t, s.ID)
		switch {
		case kube.ClassOf(err) == kube.NotFound || err == nil && string(meta.UID) != s.UID:
			return errLeft
		case err != nil:
			return err
		}
		err = a.cluster.Patch(ctx, t, s.ID, map[string]any{"metadata": map[string]any{
			"annotations": map[string]any{manifest.AdoptedAnnotation: "true"},
		}}, meta.ResourceVersion)
		if kube.ClassOf(err) != kube.Changed || attempt == adoptAttempts {
			return err
		}
		if err := kube.Sleep(ctx, adoptPause); err != nil {
			return err
		}
	}
}

// takeOver makes the fields of former owners ours. It also removes the digest annotation:
// if the process ends right after it, the next pass applies the object. If the live object is
// not the step's any more, the error is errLeft.
func (a *Applier) takeOver(ctx context.Context, s *plan.Step) error {
	t, err := a.cluster.Type(ctx, s.Object.APIVersion(), s.ID.Kind)
	if err != nil {
		return err
	}
	meta := a.remembered(s.ID)
	for attempt := 1; ; attempt++ {
		if meta == nil {
			answer, err := a.cluster.GetMetadata(ctx, t, s.ID)
			if kube.ClassOf(err) == kube.NotFound {
				return nil
			}
			if err != nil {
				return err
			}
			meta = &answer.ObjectMeta
		}
		if string(meta.UID) != s.UID || s.Member && a.inv.Membership(s.ID, meta) != plan.Member {
			return errLeft
		}
		entries, err := managed.TakeOver(s.Object, meta, from(s))
		if err != nil || entries == nil {
			return err
		}
		err = a.cluster.SetManagedFields(ctx, t, s.ID, entries, meta.ResourceVersion, manifest.AppliedAnnotation)
		if kube.ClassOf(err) != kube.Changed || attempt == adoptAttempts {
			return err
		}
		if meta = nil; attempt > 1 { // it was written to since it was read, not only since the look
			if err := kube.Sleep(ctx, adoptPause); err != nil {
				return err
			}
		}
	}
}
