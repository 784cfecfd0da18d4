package kube

import (
	"context"
	"net/http"
	"net/url"

	"gitopsd.dev/render/manifest"
)

// Creatable asks whether the object in body, JSON, would be accepted if there were
// none of its name. It changes nothing: it is a dry run of creating it. That
// there is one under the name is found out last, after validation and admission
// (k8s.io/apiserver, pkg/registry/generic/registry, Store.Create), so that this
// answer means that nothing else is wrong.
func (c *Client) Creatable(ctx context.Context, t Type, id manifest.ID, body []byte) error {
	op := operation{verb: "create", id: id}
	if err := c.checkScope(op, t); err != nil {
		return err
	}
	_, _, err := c.do(ctx, op, request{
		method: http.MethodPost, path: t.path(id.Namespace, ""),
		query:  url.Values{"fieldManager": {FieldManager}, "fieldValidation": {"Strict"}, "dryRun": {"All"}},
		accept: mimeMetadata, contentType: mimeJSON, body: body,
	})
	if ClassOf(err) == Exists {
		return nil
	}
	return err
}
