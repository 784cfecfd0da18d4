package apply

import (
	"context"
	"slices"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
)

// beside finds the inventories of other registered clusters in this one. It looks for
// those whose labels are on objects with the names of desired ones; a label alone is no
// proof, since copies have it. A cluster without such objects costs no request.
func (a *Applier) beside(ctx context.Context, seen *view, clusters []string) (map[string]plan.Beside, error) {
	found := make(map[string]plan.Beside)
	asked := map[string]bool{"": true, a.set.id: true}
	for _, o := range seen.desired.All() {
		meta := seen.live.Objects[o.ID()]
		if meta == nil || asked[meta.Labels[plan.PartOfLabel]] {
			continue
		}
		label := meta.Labels[plan.PartOfLabel]
		asked[label] = true
		i := slices.IndexFunc(clusters, func(name string) bool { return newApplySet(name).id == label })
		if i < 0 {
			continue
		}
		parent := newApplySet(clusters[i]).parent
		switch _, err := a.cluster.GetMetadata(ctx, configMaps, parent); {
		case err == nil:
			found[label] = plan.Beside{Cluster: clusters[i], Inventory: parent}
		case kube.IsClusterWide(err):
			return nil, err
		}
	}
	return found, nil
}
