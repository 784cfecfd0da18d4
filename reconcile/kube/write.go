package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/render/manifest"
)

// guard asks Config.MayWrite whether a request that changes something may be sent. It
// reads that from the request, so that no kind of write can forget to ask.
func (c *Client) guard(ctx context.Context, op operation, r request) error {
	if c.mayWrite == nil || r.method == http.MethodGet || r.query.Has("dryRun") {
		return nil
	}
	if err := c.mayWrite(ctx); err != nil {
		e := c.errorf(op, Fenced, "not sent: %v", err)
		e.cause = err
		return e
	}
	return nil
}

// applies is the verb of an operation that applies an object.
const applies = "apply"

// ApplyOptions say how an object is applied.
type ApplyOptions struct {
	// Force takes over fields that other managers own.
	Force bool
	// Manager applies in place of [FieldManager].
	Manager string
	// DryRun changes nothing.
	DryRun bool
	// Full asks for the whole object in the answer, not just its metadata.
	Full bool
	// Status applies the object's status alone, through its subresource. Everything
	// else in the body is ignored.
	Status bool
}

// Applied is the result of an apply.
type Applied struct {
	// Meta is the object's metadata afterwards.
	Meta *metav1.PartialObjectMetadata
	// Tree is the whole object, if ApplyOptions.Full was set.
	Tree map[string]any
	// Warnings are the API server's texts for people, which are withheld for a Secret.
	Warnings []string
}

// Apply applies the object in body, JSON, as [FieldManager]. A field that the type does
// not have is an error of class Invalid. Fields that other managers own are an error of
// class Conflict unless opts.Force is set.
func (c *Client) Apply(ctx context.Context, t Type, id manifest.ID, body []byte, opts ApplyOptions) (*Applied, error) {
	op, path := operation{verb: applies, id: id}, t.path(id.Namespace, id.Name)
	if err := c.checkScope(op, t); err != nil {
		return nil, err
	}
	if opts.Status {
		op.verb, path = "apply the status of", append(path, "status")
		if !t.HasStatus {
			return nil, c.errorf(op, Invalid, "kind %s has no status that can be applied", t.Kind)
		}
	}
	query := url.Values{"fieldManager": {cmp.Or(opts.Manager, FieldManager)}, "fieldValidation": {"Strict"}}
	if opts.Force {
		query.Set("force", "true")
	}
	if opts.DryRun {
		query.Set("dryRun", "All")
	}
	r := request{
		method: http.MethodPatch, path: path, query: query,
		accept: mimeMetadata, contentType: mimeApply, body: body,
	}
	if opts.Full {
		r.accept = mimeJSON
	}
	answer, header, err := c.do(ctx, op, r)
	if err != nil {
		if e, ok := errors.AsType[*Error](err); ok {
			c.suggest(ctx, t, e)
		}
		return nil, err
	}
	a := &Applied{Warnings: warnings(id, header)}
	if opts.Full {
		a.Tree, a.Meta, err = c.decodeFull(op, answer)
	} else {
		a.Meta, err = c.decodeMetadata(op, answer)
	}
	if err != nil {
		return nil, err
	}
	return a, nil
}

// Create creates the object in body, JSON. If one of its name exists, the error is of
// class Exists.
func (c *Client) Create(ctx context.Context, t Type, id manifest.ID, body []byte) (*metav1.PartialObjectMetadata, error) {
	op := operation{verb: "create", id: id}
	answer, err := c.create(ctx, op, t, body, url.Values{})
	if err != nil {
		return nil, err
	}
	return c.decodeMetadata(op, answer)
}

// Creatable returns an error if the API server would not create the object in body, JSON,
// even if none of its name existed. It sends a dry run: the API server looks for an object
// of the name last, after validation and admission (k8s.io/apiserver,
// pkg/registry/generic/registry, Store.Create).
func (c *Client) Creatable(ctx context.Context, t Type, id manifest.ID, body []byte) error {
	_, err := c.create(ctx, operation{verb: "create", id: id}, t, body, url.Values{"dryRun": {"All"}})
	if ClassOf(err) == Exists {
		return nil
	}
	return err
}

func (c *Client) create(ctx context.Context, op operation, t Type, body []byte, query url.Values) ([]byte, error) {
	if err := c.checkScope(op, t); err != nil {
		return nil, err
	}
	query.Set("fieldManager", FieldManager)
	query.Set("fieldValidation", "Strict")
	answer, _, err := c.do(ctx, op, request{
		method: http.MethodPost, path: t.path(op.id.Namespace, ""), query: query,
		accept: mimeMetadata, contentType: mimeJSON, body: body,
	})
	return answer, err
}

// Token requests a token of a service account, and returns when it expires: the API
// server may choose another lifetime than asked for. One below ten minutes is an error of
// class Invalid, an account that does not exist one of class NotFound.
func (c *Client) Token(ctx context.Context, account ServiceAccount, lifetime time.Duration) (token string, expires time.Time, err error) {
	t := Type{Version: "v1", Kind: manifest.ServiceAccount.Kind, Resource: "serviceaccounts", Namespaced: true}
	op := operation{verb: "request a token of", id: t.ID(account.Namespace, account.Name)}
	if err := c.checkScope(op, t); err != nil {
		return "", time.Time{}, err
	}
	seconds := int64(lifetime.Seconds())
	ask := authenticationv1.TokenRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"},
		Spec:     authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds},
	}
	body, err := json.Marshal(ask)
	if err != nil {
		return "", time.Time{}, err
	}
	answer, _, err := c.do(ctx, op, request{
		method: http.MethodPost, path: append(t.path(account.Namespace, account.Name), "token"),
		accept: mimeJSON, contentType: mimeJSON, body: body,
	})
	if err != nil {
		return "", time.Time{}, err
	}
	var got authenticationv1.TokenRequest
	if err := decodeJSON(answer, maxValues, &got); err != nil || got.Status.Token == "" {
		return "", time.Time{}, c.malformed(op, errors.New("it holds no token")) // the cause may quote it
	}
	return got.Status.Token, got.Status.ExpirationTimestamp.Time, nil
}

// SetManagedFields replaces metadata.managedFields and removes an annotation. If the
// object is no longer at the given resourceVersion, the error is of class Changed.
func (c *Client) SetManagedFields(ctx context.Context, t Type, id manifest.ID, entries []metav1.ManagedFieldsEntry, version, annotation string) error {
	_, err := c.merge(ctx, operation{verb: "adopt", id: id}, t, map[string]any{"metadata": map[string]any{
		"managedFields":   entries,
		"resourceVersion": version, // as a precondition
		"annotations":     map[string]any{annotation: nil},
	}}, request{})
	return err
}

// merge sends a JSON merge patch (RFC 7386). r has the subresource as its path, what the
// query has besides the field manager, and the accepted type, by default metadata.
func (c *Client) merge(ctx context.Context, op operation, t Type, patch map[string]any, r request) ([]byte, error) {
	if err := c.checkScope(op, t); err != nil {
		return nil, err
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	if r.query == nil {
		r.query = make(url.Values)
	}
	r.query.Set("fieldManager", FieldManager)
	r.method, r.path, r.body = http.MethodPatch, append(t.path(op.id.Namespace, op.id.Name), r.path...), body
	r.accept, r.contentType = cmp.Or(r.accept, mimeMetadata), mimeMergePatch
	answer, _, err := c.do(ctx, op, r)
	return answer, err
}

// Patch merges fields into an object, as a JSON merge patch (RFC 7386). If the object is
// no longer at the given resourceVersion, the error is of class Changed.
func (c *Client) Patch(ctx context.Context, t Type, id manifest.ID, fields map[string]any, version string) error {
	patch := manifest.With(fields, version, "metadata", "resourceVersion") // as a precondition
	_, err := c.merge(ctx, operation{verb: "patch", id: id}, t, patch, request{query: url.Values{"fieldValidation": {"Strict"}}})
	return err
}

// Merged returns an object as it would be if its content changed from one to another, by a
// dry run: the API server fills in what it does for any object.
func (c *Client) Merged(ctx context.Context, t Type, id manifest.ID, from, to map[string]any) (map[string]any, error) {
	op := operation{verb: "patch", id: id}
	answer, err := c.merge(ctx, op, t, mergePatch(withoutServers(from), withoutServers(to)),
		request{accept: mimeJSON, query: url.Values{"dryRun": {"All"}}})
	if err != nil {
		return nil, err
	}
	tree, _, err := c.decodeFull(op, answer)
	return tree, err
}

// withoutServers returns an object without the metadata that the API server alone writes.
func withoutServers(tree map[string]any) map[string]any {
	for _, key := range []string{"creationTimestamp", "generation", "managedFields", "resourceVersion", "uid"} {
		tree = manifest.Without(tree, "metadata", key)
	}
	return tree
}

// mergePatch returns the merge patch (RFC 7386) that makes one mapping another.
func mergePatch(from, to map[string]any) map[string]any {
	patch := make(map[string]any)
	for key := range from {
		if _, stays := to[key]; !stays {
			patch[key] = nil
		}
	}
	for key, now := range to {
		was, is := from[key]
		before, isMap := was.(map[string]any)
		after, staysMap := now.(map[string]any)
		switch {
		case is && isMap && staysMap:
			if part := mergePatch(before, after); len(part) > 0 {
				patch[key] = part
			}
		case !is || !reflect.DeepEqual(was, now):
			patch[key] = now
		}
	}
	return patch
}

// Delete deletes the object that has the given UID, and reports whether it is gone. If
// finalizers keep it, meta is its metadata. If the object of the name has another UID,
// the error is of class Changed.
func (c *Client) Delete(ctx context.Context, t Type, id manifest.ID, uid string) (gone bool, meta *metav1.PartialObjectMetadata, err error) {
	return c.delete(ctx, t, id, map[string]string{"uid": uid})
}

// DeleteUnchanged is like Delete. If the object is no longer at the given
// resourceVersion, the error is of class Changed.
func (c *Client) DeleteUnchanged(ctx context.Context, t Type, id manifest.ID, uid, version string) (gone bool, meta *metav1.PartialObjectMetadata, err error) {
	return c.delete(ctx, t, id, map[string]string{"uid": uid, "resourceVersion": version})
}

func (c *Client) delete(ctx context.Context, t Type, id manifest.ID, preconditions map[string]string) (gone bool, meta *metav1.PartialObjectMetadata, err error) {
	op := operation{verb: "delete", id: id}
	if err := c.checkScope(op, t); err != nil {
		return false, nil, err
	}
	options, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "DeleteOptions",
		"preconditions":     preconditions,
		"propagationPolicy": metav1.DeletePropagationBackground,
	})
	if err != nil {
		return false, nil, err
	}
	answer, _, err := c.do(ctx, op, request{
		method: http.MethodDelete, path: t.path(id.Namespace, id.Name),
		accept: mimeJSON, contentType: mimeJSON, body: options,
	})
	if ClassOf(err) == NotFound {
		return true, nil, nil
	}
	if err != nil {
		return false, nil, err
	}
	meta = new(metav1.PartialObjectMetadata)
	if err := json.Unmarshal(answer, meta); err != nil {
		return false, nil, c.malformed(op, err)
	}
	// For an object that is gone the answer is a Status or, with some types, its last
	// state. One that finalizers keep has a deletionTimestamp.
	switch {
	case meta.Kind == "Status":
		return true, nil, nil
	case string(meta.UID) != preconditions["uid"]:
		return false, nil, c.malformed(op, errors.New("the answer is not about the object"))
	case meta.DeletionTimestamp == nil:
		return true, nil, nil
	}
	return false, meta, nil
}

// warnings reads the texts of Warning headers (RFC 7234, 5.5): 299 - "text". id is the
// object that they are about.
func warnings(id manifest.ID, header http.Header) []string {
	var list []string
	for _, h := range header.Values("Warning") {
		if _, rest, ok := strings.Cut(h, `"`); ok {
			text, _, _ := strings.Cut(strings.ReplaceAll(rest, `\"`, `'`), `"`)
			if id.Is(manifest.Secret) {
				text = withheld
			}
			list = append(list, text)
		}
	}
	return list
}
