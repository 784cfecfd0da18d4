package apply

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"

	"gitopsd.dev/reconcile/apply/managed"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// checkObjects refuses objects that the types which the plan installs or changes would
// not accept. It reads the live objects that change together with their types, a few at a
// time. If the plan changes no types, it does nothing.
func (a *Applier) checkObjects(ctx context.Context, p *plan.Plan, opts PlanOptions) error {
	within, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	plan.CheckObjects(within, p, plan.ObjectCheck{
		Types: opts.Types, ReportDrift: opts.ReportDrift,
		Live: func(ctx context.Context, s *plan.Step) plan.LiveObject {
			tree, err := a.liveObject(ctx, s)
			if kube.IsClusterWide(err) {
				stop(err)
			}
			return plan.LiveObject{Tree: tree, Err: err}
		},
		Mutators: func() ([]map[string]any, error) {
			all, err := a.mutators(within)
			if kube.IsClusterWide(err) {
				stop(err)
			}
			return all, err
		},
	})
	return context.Cause(within)
}

// liveObject reads the object that a step changes; nil if it is gone. If the step takes
// over fields, they are recorded as ours, as when the step is applied.
func (a *Applier) liveObject(ctx context.Context, s *plan.Step) (map[string]any, error) {
	tree, meta, err := get(ctx, a.cluster, s.ID)
	if kube.ClassOf(err) == kube.NotFound {
		return nil, nil
	}
	if err != nil || !s.Adopt && s.Reclaim == plan.ReclaimNothing {
		return tree, err
	}
	entries, err := managed.TakeOver(s.Object, &meta.ObjectMeta, from(s))
	if err != nil || entries == nil {
		return tree, err
	}
	var record []any
	for i := range entries {
		entry, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&entries[i])
		if err != nil {
			return nil, err
		}
		record = append(record, entry)
	}
	manifest.Mapping(tree, "metadata")["managedFields"] = record
	return tree, nil
}

// mostMutators is how many of these configurations are read.
const mostMutators = 1000

// mutators lists the webhook configurations and policies that may change objects at
// admission.
func (a *Applier) mutators(ctx context.Context) ([]map[string]any, error) {
	var all []map[string]any
	for _, kind := range []manifest.GroupKind{manifest.MutatingWebhooks, manifest.MutatingPolicy} {
		t, err := a.cluster.Kind(ctx, kind.Group, kind.Kind)
		if kube.ClassOf(err) == kube.NoSuchType {
			continue
		}
		if err != nil {
			return all, err
		}
		err = a.cluster.ListFull(ctx, t, kube.ListOptions{}, func(tree map[string]any) bool {
			all = append(all, tree)
			return len(all) <= mostMutators
		})
		if err != nil {
			return all, err
		}
		if len(all) > mostMutators {
			return all[:mostMutators], fmt.Errorf("there are more than %d of them", mostMutators)
		}
	}
	return all, nil
}
