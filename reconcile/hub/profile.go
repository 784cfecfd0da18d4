package hub

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
)

// profileKeys are the keys of a ClusterProfile's Secret that may hold its kubeconfig: the
// one of KEP-4322 in both of its spellings, and the one of our own Secrets.
var profileKeys = []string{"Config", "config", "kubeconfig"}

// profile reads the kubeconfig of a ClusterProfile that the cluster may use. The label on
// the profile is the operator's: whoever registers clusters in the hub writes the rest of
// it, and its Secret.
func (h *Hub) profile(ctx context.Context, cluster, name string) ([]byte, error) {
	client, err := h.Client()
	if err != nil {
		return nil, fmt.Errorf("no hub to read ClusterProfiles from: %w", err)
	}
	kind := manifest.ClusterProfile
	typ, err := client.Kind(ctx, kind.Group, kind.Kind)
	if err != nil {
		if kube.ClassOf(err) == kube.NoSuchType {
			client.Forget(kind.Group) // it may be served by the next time
		}
		return nil, err
	}
	where := fmt.Sprintf("ClusterProfile %s/%s", h.cfg.Namespace, name)
	meta, err := client.GetMetadata(ctx, typ, kind.ID(h.cfg.Namespace, name))
	if err != nil {
		return nil, err
	}
	if meta.Labels[manifest.ClusterLabel] != cluster {
		return nil, fmt.Errorf("%s does not carry the label %s: %s, which allows this cluster to use it", where, manifest.ClusterLabel, cluster)
	}
	secrets, err := client.Type(ctx, "v1", manifest.Secret.Kind)
	if err != nil {
		return nil, err
	}
	found := make(map[string]bool)
	opts := kube.ListOptions{Namespace: h.cfg.Namespace, Selector: manifest.ClusterProfileLabel + "=" + name, Again: func() { clear(found) }}
	_, err = client.List(ctx, secrets, opts, func(secret *metav1.PartialObjectMetadata) bool {
		if namespace := secret.Labels[manifest.ClusterProfileNamespaceLabel]; namespace == "" || namespace == h.cfg.Namespace {
			found[secret.Name] = true
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(found))
	if len(names) != 1 {
		return nil, fmt.Errorf("%s: exactly one Secret of its namespace has to carry the label %s: %s; have %s", where, manifest.ClusterProfileLabel, name, cmp.Or(strings.Join(names, ", "), "none"))
	}
	s, err := h.secret(ctx, names[0])
	if err != nil {
		return nil, err
	}
	if s.labels[manifest.ClusterProfileLabel] != name {
		return nil, fmt.Errorf("%s does not carry the label %s: %s any more", s.where, manifest.ClusterProfileLabel, name)
	}
	for _, key := range profileKeys {
		if s.data[key] != nil {
			return s.entry(key)
		}
	}
	return s.entry(profileKeys[0])
}
