package apply

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/apply/managed"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// added says what people added to an object of ours; nothing where the repository
// leaves that to them.
func added(o *manifest.Object, meta *metav1.ObjectMeta) string {
	if o.Annotation(manifest.KeepEditsAnnotation) == "true" {
		return ""
	}
	return managed.FindEdits(o, meta).Text()
}

// reclaim marks the steps that change objects of which people own something: what
// the repository does not have of it, or will not have, would stay for their sake.
// With report, what they added stays.
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

// from says whose fields a step takes over.
func from(s *plan.Step) managed.Owners {
	switch {
	case s.Adopt:
		return managed.Deployers
	case s.Reclaim == plan.ReclaimAll:
		return managed.People
	}
	return managed.Sharers
}

// takeOver makes the fields of former owners ours. The record of what was applied
// goes with it, so that a process that ends after it leaves an object that the next
// pass applies.
func (a *Applier) takeOver(ctx context.Context, s *plan.Step) error {
	t, err := a.cluster.Type(ctx, s.Object.APIVersion(), s.ID.Kind)
	if err != nil {
		return err
	}
	meta := a.remembered(s.ID)
	for {
		known := meta != nil
		if !known {
			answer, err := a.cluster.GetMetadata(ctx, t, s.ID)
			if kube.ClassOf(err) == kube.NotFound {
				return nil
			}
			if err != nil {
				return err
			}
			meta = &answer.ObjectMeta
		}
		entries, err := managed.TakeOver(s.Object, meta, from(s))
		if err != nil || entries == nil {
			return err
		}
		err = a.cluster.SetManagedFields(ctx, t, s.ID, entries, meta.ResourceVersion, manifest.AppliedAnnotation)
		if !known || kube.ClassOf(err) != kube.Changed {
			return err
		}
		meta = nil // it was written to since
	}
}
