package kube

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/render/manifest"
)

// Rewrite has the API server store an object again as it is. If the stored bytes are in
// another version than the storage version, they are written anew; else nothing is
// written (k8s.io/apiserver, pkg/storage/etcd3, GuaranteedUpdate). Admission sees an
// update that changes nothing.
//
// The request is an empty merge patch, so that it needs no precondition: whatever the
// object is by then stays. It leaves no field manager behind, as an empty server-side
// apply does in objects without managed fields, and does not depend on these being in
// order.
func (c *Client) Rewrite(ctx context.Context, t Type, id manifest.ID) error {
	op := operation{verb: "rewrite", id: id}
	if err := c.checkScope(op, t); err != nil {
		return err
	}
	_, _, err := c.do(ctx, op, request{
		method: http.MethodPatch, path: t.path(id.Namespace, id.Name), query: url.Values{"fieldManager": {FieldManager}},
		accept: mimeMetadata, contentType: mimeMergePatch, body: []byte("{}"),
	})
	return err
}

// SetStoredVersions replaces status.storedVersions of a CRD. If the CRD is no longer at
// the given resourceVersion, the error is of class Changed.
func (c *Client) SetStoredVersions(ctx context.Context, name string, versions []string, resourceVersion string) error {
	op := operation{verb: "set the stored versions of", id: manifest.CRD.ID("", name)}
	crds, err := c.Kind(ctx, manifest.CRD.Group, manifest.CRD.Kind)
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": resourceVersion}, // as a precondition
		"status":   map[string]any{"storedVersions": versions},
	})
	if err != nil {
		return err
	}
	_, _, err = c.do(ctx, op, request{
		method: http.MethodPatch, path: append(crds.path("", name), "status"), query: url.Values{"fieldManager": {FieldManager}},
		accept: mimeMetadata, contentType: mimeMergePatch, body: body,
	})
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
