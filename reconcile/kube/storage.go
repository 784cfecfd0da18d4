package kube

import (
	"context"
	"net/http"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/render/manifest"
)

// Rewrite has the API server store an object again, unchanged. It writes only if the stored
// bytes are not in the storage version (k8s.io/apiserver, pkg/storage/etcd3,
// GuaranteedUpdate). Admission sees an update that changes nothing.
//
// The request is an empty merge patch, which needs no precondition: it keeps whatever the
// object is by then. Unlike an empty server-side apply, it adds no field manager to objects
// without managed fields, and does not need valid ones.
func (c *Client) Rewrite(ctx context.Context, t Type, id manifest.ID) error {
	_, err := c.merge(ctx, operation{verb: "rewrite", id: id}, t, map[string]any{}, request{})
	return err
}

// SetStoredVersions replaces status.storedVersions of a CRD. If the CRD is no longer at
// the given resourceVersion, the error is of class Changed.
func (c *Client) SetStoredVersions(ctx context.Context, name string, versions []string, resourceVersion string) error {
	crds, err := c.Kind(ctx, manifest.CRD.Group, manifest.CRD.Kind)
	if err != nil {
		return err
	}
	op := operation{verb: "set the stored versions of", id: manifest.CRD.ID("", name)}
	_, err = c.merge(ctx, op, crds, map[string]any{
		"metadata": map[string]any{"resourceVersion": resourceVersion}, // as a precondition
		"status":   map[string]any{"storedVersions": versions},
	}, request{path: []string{"status"}})
	return err
}

// Count returns how many objects of a type there are, as far as the API server knows
// without reading them.
func (c *Client) Count(ctx context.Context, t Type) (int, error) {
	op := operation{verb: "list", id: t.ID("", "")}
	answer, _, err := c.do(ctx, op, request{
		method: http.MethodGet, path: t.path("", ""), query: url.Values{"limit": {"1"}}, accept: mimeMetadataList, limit: maxPageBytes,
	})
	if err != nil {
		return 0, err
	}
	n := 0
	page, _, err := decodeMetadataList(answer, func(*metav1.PartialObjectMetadata) bool {
		n++
		return true
	})
	if err != nil {
		return 0, c.malformed(op, err)
	}
	if page.RemainingItemCount != nil {
		n += int(*page.RemainingItemCount)
	}
	return n, nil
}
