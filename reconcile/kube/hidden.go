package kube

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/render/manifest"
)

// Hidden returns why there may be objects of kinds that the cluster does not serve: a
// CRD defines the kind and serves no version of it, or the server of a registered API
// is gone. A kind that nothing defines is not in the result. It costs one list of the
// metadata of all CRDs.
func (c *Client) Hidden(ctx context.Context, kinds []schema.GroupKind) (map[schema.GroupKind]string, error) {
	hidden := make(map[schema.GroupKind]string)
	crds, err := c.Kind(ctx, crdGroup, crdKind)
	if err != nil {
		return nil, err
	}
	asked := make(map[string]bool)
	for _, gk := range kinds {
		asked[gk.Group] = true
	}
	served := make(map[string]bool) // by the names of their CRDs
	for group := range asked {
		if err := c.served(ctx, group, kinds, served, hidden); err != nil {
			return nil, err
		}
	}
	var unserved []string
	_, err = c.List(ctx, crds, ListOptions{Again: func() { unserved = nil }}, func(m *metav1.PartialObjectMetadata) bool {
		if _, group, _ := strings.Cut(m.Name, "."); asked[group] && !served[m.Name] {
			unserved = append(unserved, m.Name)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	for _, name := range unserved {
		id := manifest.ID{Group: crdGroup, Kind: crdKind, Name: name}
		tree, _, err := c.Get(ctx, crds, id)
		if ClassOf(err) == NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		spec, _ := tree["spec"].(map[string]any)
		names, _ := spec["names"].(map[string]any)
		group, _ := spec["group"].(string)
		kind, _ := names["kind"].(string)
		for _, gk := range kinds {
			if gk == (schema.GroupKind{Group: group, Kind: kind}) {
				hidden[gk] = fmt.Sprintf("%s exists, and the cluster serves no version of its type", id)
			}
		}
	}
	return hidden, nil
}

// served notes the resources of a group that are served, and its kinds if one of its
// versions is not.
func (c *Client) served(ctx context.Context, group string, kinds []schema.GroupKind, served map[string]bool, hidden map[schema.GroupKind]string) error {
	if group == "" {
		return nil // no CRD can define its kinds
	}
	versions, err := c.versions(ctx, group)
	if err != nil {
		return err
	}
	for _, v := range versions {
		known, err := c.fetchTypes(ctx, group, v, 0)
		if err != nil {
			return err
		}
		for _, t := range known.kinds {
			served[t.Resource+"."+group] = true
		}
		for _, gk := range kinds {
			if known.absent && gk.Group == group {
				hidden[gk] = fmt.Sprintf("the API %s is registered, and nothing serves it", apiVersion(group, v))
			}
		}
	}
	return nil
}
