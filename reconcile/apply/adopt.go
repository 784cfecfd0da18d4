package apply

import (
	"context"

	"gitopsd.dev/reconcile/apply/managed"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
)

// takeOver makes the former owner's fields ours. A process that ends after it
// leaves an object that has our entry and not our label, which is taken into the
// inventory by the next pass.
func (a *Applier) takeOver(ctx context.Context, s *plan.Step) error {
	t, err := a.cluster.Type(ctx, s.Object.APIVersion(), s.ID.Kind)
	if err != nil {
		return err
	}
	meta, err := a.cluster.GetMetadata(ctx, t, s.ID)
	if kube.ClassOf(err) == kube.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	entries, err := managed.TakeOver(&meta.ObjectMeta, s.Object.APIVersion())
	if err != nil || entries == nil {
		return err
	}
	return a.cluster.SetManagedFields(ctx, t, s.ID, entries, meta.ResourceVersion)
}
