package kube

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// Definition reads the live definition of a kind: its CustomResourceDefinition or, if
// Crossplane made that from a CompositeResourceDefinition, the latter. For a kind that
// is built in or that an aggregated API server serves, it is nil. If the cluster does
// not serve the kind, the error is of class NoSuchType.
func (c *Client) Definition(ctx context.Context, group, kind string) (map[string]any, error) {
	t, err := c.Kind(ctx, group, kind)
	if err != nil {
		return nil, err
	}
	crds, err := c.Kind(ctx, manifest.CRD.Group, manifest.CRD.Kind)
	if err != nil {
		return nil, err
	}
	tree, meta, err := c.Get(ctx, crds, manifest.CRD.ID("", t.Resource+"."+t.Group))
	if ClassOf(err) == NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	owner := metav1.GetControllerOf(meta)
	if owner == nil {
		return tree, nil
	}
	if g, _ := manifest.GroupVersion(owner.APIVersion); (manifest.GroupKind{Group: g, Kind: owner.Kind}) != manifest.XRD {
		return tree, nil
	}
	xrds, err := c.Kind(ctx, manifest.XRD.Group, manifest.XRD.Kind)
	if err != nil {
		return nil, err
	}
	xrd, xrdMeta, err := c.Get(ctx, xrds, manifest.XRD.ID("", owner.Name))
	switch {
	case ClassOf(err) == NotFound:
		return tree, nil
	case err != nil:
		return nil, err
	case xrdMeta.UID != owner.UID || !types.Read(xrd).Defines(manifest.GroupKind{Group: group, Kind: kind}):
		return tree, nil // anybody can name an owner
	}
	return xrd, nil
}
