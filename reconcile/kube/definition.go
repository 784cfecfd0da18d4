package kube

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/render/manifest"
)

const (
	crdGroup = "apiextensions.k8s.io"
	crdKind  = "CustomResourceDefinition"
	xrdGroup = "apiextensions.crossplane.io"
	xrdKind  = "CompositeResourceDefinition"
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
	crds, err := c.Kind(ctx, crdGroup, crdKind)
	if err != nil {
		return nil, err
	}
	tree, meta, err := c.Get(ctx, crds, manifest.ID{Group: crdGroup, Kind: crdKind, Name: t.Resource + "." + t.Group})
	if ClassOf(err) == NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	owner := metav1.GetControllerOf(meta)
	if owner == nil || owner.Kind != xrdKind {
		return tree, nil
	}
	if g, _ := manifest.GroupVersion(owner.APIVersion); g != xrdGroup {
		return tree, nil
	}
	xrds, err := c.Kind(ctx, xrdGroup, xrdKind)
	if err != nil {
		return nil, err
	}
	xrd, xrdMeta, err := c.Get(ctx, xrds, manifest.ID{Group: xrdGroup, Kind: xrdKind, Name: owner.Name})
	switch {
	case ClassOf(err) == NotFound:
		return tree, nil
	case err != nil:
		return nil, err
	case xrdMeta.UID != owner.UID || !offers(xrd, group, kind):
		return tree, nil // anybody can name an owner
	}
	return xrd, nil
}

// offers reports whether an XRD defines a kind, for composites or for claims.
func offers(xrd map[string]any, group, kind string) bool {
	spec, _ := xrd["spec"].(map[string]any)
	names, _ := spec["names"].(map[string]any)
	claims, _ := spec["claimNames"].(map[string]any)
	return spec["group"] == group && (names["kind"] == kind || claims["kind"] == kind)
}
