package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// Hidden returns why kinds that the cluster did not serve may have objects: a CRD
// defines the kind and serves no version of it, or another one by now, the server of
// a registered API is gone, or the API server lists the kind all the same, so that
// something in front of it may have answered. Other kinds are not in the result. It costs
// one list of the metadata of all CRDs.
func (c *Client) Hidden(ctx context.Context, kinds []schema.GroupKind) (map[schema.GroupKind]string, error) {
	hidden := make(map[schema.GroupKind]string)
	crds, err := c.Kind(ctx, manifest.CRD.Group, manifest.CRD.Kind)
	if err != nil {
		return nil, err
	}
	asked := make(map[string]bool)
	for _, gk := range kinds {
		asked[gk.Group] = true
	}
	served := make(map[string]schema.GroupKind) // by the names of their CRDs
	for group := range asked {
		if err := c.served(ctx, group, kinds, served, hidden); err != nil {
			return nil, err
		}
	}
	var perhaps []string
	_, err = c.List(ctx, crds, ListOptions{Again: func() { perhaps = nil }}, func(m *metav1.PartialObjectMetadata) bool {
		_, group, _ := strings.Cut(m.Name, ".")
		if gk, ok := served[m.Name]; asked[group] && (!ok || slices.Contains(kinds, gk)) {
			perhaps = append(perhaps, m.Name)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	for _, name := range perhaps {
		id := manifest.CRD.ID("", name)
		tree, _, err := c.Get(ctx, crds, id)
		if ClassOf(err) == NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		why := "the cluster serves no version of its type"
		if _, again := served[name]; again {
			why = "the versions of its type have just changed"
		}
		defined := types.Read(tree)
		for _, gk := range kinds {
			if defined.Defines(manifest.GroupKind(gk)) {
				hidden[gk] = fmt.Sprintf("%s exists, and %s", id, why)
			}
		}
	}
	return hidden, nil
}

// served adds the resources of a group that are served, and why its kinds are hidden if a
// version is not served.
func (c *Client) served(ctx context.Context, group string, kinds []schema.GroupKind, served map[string]schema.GroupKind, hidden map[schema.GroupKind]string) error {
	versions := []string{"v1"} // of the core group
	if group != "" {
		var err error
		if versions, err = c.versions(ctx, group, true); err != nil {
			return err
		}
	}
	for _, v := range versions {
		known, err := c.fetchTypes(ctx, group, v, 0)
		if err != nil {
			return err
		}
		for _, t := range known.kinds {
			served[t.Resource+"."+group] = schema.GroupKind{Group: group, Kind: t.Kind}
		}
		for _, gk := range kinds {
			// Discovery may lag behind the deletion of a CRD.
			if _, listed := known.kinds[gk.Kind]; listed && gk.Group == group && manifest.BuiltIn(group) {
				hidden[gk] = fmt.Sprintf("the API server lists it in %s, and answered that there is no such kind", apiVersion(group, v))
			}
			if known.absent && gk.Group == group {
				hidden[gk] = fmt.Sprintf("the API %s is registered, and nothing serves it", apiVersion(group, v))
			}
		}
	}
	return nil
}
