package apply

import (
	"context"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// beside finds the inventories of the fleet's other clusters in this one. It looks for
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
		if i < 0 && (clusters == nil || meta.Annotations[manifest.ApplicationAnnotation] != "") {
			continue // an application has no others to compare with
		}
		if i < 0 {
			if name, err := a.former(ctx, label); err != nil {
				return nil, err
			} else if name != "" {
				found[label] = plan.Beside{Cluster: name, Left: true}
			}
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

// former returns the name of the fleet's cluster that has an ApplySet, from its inventory
// here; "" if there is none. Nobody is registered under that name now.
func (a *Applier) former(ctx context.Context, id string) (string, error) {
	var found string
	_, err := a.cluster.List(ctx, configMaps, kube.ListOptions{Namespace: Namespace, Selector: idLabel + "=" + id}, func(meta *metav1.PartialObjectMetadata) bool {
		name, ok := strings.CutPrefix(meta.Name, manifest.InventoryPrefix)
		fleet := meta.Annotations[manifest.FleetAnnotation]
		ours := fleet == a.fleet.Name || a.fleet.Accepts != nil && a.fleet.Accepts(fleet)
		if ok && ours && newApplySet(name).id == id {
			found = name
		}
		return true
	})
	if err != nil && !kube.IsClusterWide(err) {
		return "", nil // the conflict names the ApplySet then
	}
	return found, err
}
