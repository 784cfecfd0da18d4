package kube

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"

	"gitopsd.dev/render/manifest"
)

// pageSize is how many objects a page of a list has.
const pageSize = 500

// A throttled request is sent at most throttleAttempts times, and only if the API
// server asks to wait no longer than throttleLongest.
const (
	throttleAttempts = 4
	throttleLongest  = 10 * time.Second
)

// Media types. Metadata travels as protobuf where the API server can (all of
// Kubernetes' own, CRDs included), which costs both sides a fraction of JSON.
const (
	mimeJSON         = "application/json"
	mimeApply        = "application/apply-patch+yaml" // JSON is YAML
	mimeMergePatch   = "application/merge-patch+json"
	mimeProtobuf     = "application/vnd.kubernetes.protobuf"
	mimeMetadata     = mimeProtobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1," + mimeJSON + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	mimeMetadataList = mimeProtobuf + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1," + mimeJSON + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	mimeDiscovery    = mimeJSON + ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
)

// protobufMagic starts every protobuf answer (k8s.io/apimachinery's
// runtime/serializer/protobuf); an envelope, runtime.Unknown, follows.
var protobufMagic = []byte("k8s\x00")

// operation is the verb and the object that errors name.
type operation struct {
	verb string
	id   manifest.ID
}

type request struct {
	method      string
	path        []string // segments, unescaped
	query       url.Values
	accept      string
	contentType string
	ifNoneMatch string
	body        []byte
	limit       int64 // bytes of a successful answer; default maxObjectBytes
}

// do sends a request and returns the body of a successful answer, nil for "304 Not
// Modified". It waits and tries again when the API server asks for it: a throttled
// request has not been executed.
func (c *Client) do(ctx context.Context, op operation, r request) ([]byte, http.Header, error) {
	if pace := paceOf(ctx); pace != nil {
		if err := pace.Before(ctx); err != nil {
			return nil, nil, err
		}
		defer pace.After()
	}
	strikes := c.strikes(op)
	for attempt := 1; ; attempt++ {
		body, header, err := c.once(ctx, op, r, c.patience(strikes))
		if e, ok := errors.AsType[*Error](err); !ok || e.RetryAfter == 0 || e.RetryAfter > throttleLongest || attempt == throttleAttempts || strikes > 0 {
			c.note(op, err)
			return body, header, err
		} else if Sleep(ctx, e.RetryAfter) != nil {
			return nil, nil, err
		}
	}
}

func (c *Client) once(ctx context.Context, op operation, r request, limit time.Duration) ([]byte, http.Header, error) {
	u, err := c.url(op, r.path, r.query)
	if err != nil {
		return nil, nil, err
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(limited, r.method, u, bytes.NewReader(r.body))
	if err != nil {
		return nil, nil, c.transportError(ctx, op, limit, err)
	}
	req.Header.Set("Accept", r.accept)
	req.Header.Set("User-Agent", c.userAgent)
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	if r.ifNoneMatch != "" {
		req.Header.Set("If-None-Match", r.ifNoneMatch)
	}
	if err := c.guard(ctx, op, r); err != nil {
		return nil, nil, err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, nil, c.noAnswer(ctx, op, limit, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotModified {
		return nil, resp.Header, nil
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return nil, nil, c.statusError(ctx, op, resp.StatusCode, resp.Header, errorBody(resp))
	}
	most := cmp.Or(r.limit, maxObjectBytes)
	body, err := readAll(resp, most)
	switch {
	case errors.Is(err, errTooLarge):
		return nil, nil, c.malformed(op, &tooLarge{most})
	case err != nil:
		return nil, nil, c.noAnswer(ctx, op, limit, err)
	}
	return body, resp.Header, nil
}

// url returns the URL of a path. It fails for a segment that would change the path's
// meaning.
func (c *Client) url(op operation, path []string, query url.Values) (string, error) {
	u := *c.base
	for _, segment := range path {
		if bad := rest.IsValidPathSegmentName(segment); segment == "" || len(bad) > 0 {
			return "", c.errorf(op, Invalid, "%q cannot be part of a name: %s", segment, strings.Join(bad, ", "))
		}
		u.Path = strings.TrimSuffix(u.Path, "/") + "/" + segment
	}
	u.RawQuery = query.Encode()
	return u.String(), nil
}

var errTooLarge = errors.New("answer too large")

// tooLarge is the error of an answer beyond its limit, in bytes.
type tooLarge struct{ limit int64 }

func (e *tooLarge) Error() string { return fmt.Sprintf("it is larger than %d MiB", e.limit>>20) }

// Is reports whether target is errTooLarge.
func (e *tooLarge) Is(target error) bool { return target == errTooLarge }

func readAll(resp *http.Response, limit int64) ([]byte, error) {
	var b bytes.Buffer
	if n := resp.ContentLength; n > limit {
		return nil, errTooLarge
	} else if n > 0 {
		b.Grow(int(n) + bytes.MinRead) // so that ReadFrom does not grow it again
	}
	n, err := b.ReadFrom(io.LimitReader(resp.Body, limit+1))
	if n > limit {
		return nil, errTooLarge
	}
	return b.Bytes(), err
}

// errorBody returns the beginning of an error's text. The status matters most, so a text
// that is cut off is enough.
func errorBody(resp *http.Response) []byte {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBytes))
	return body
}

// path returns the path of the type's objects in a namespace, or in all if it is empty;
// with a name, the path of one object.
func (t Type) path(namespace, name string) []string {
	p := []string{"apis", t.Group, t.Version}
	if t.Group == "" {
		p = []string{"api", t.Version}
	}
	if t.Namespaced && namespace != "" {
		p = append(p, "namespaces", namespace)
	}
	p = append(p, t.Resource)
	if name != "" {
		p = append(p, name)
	}
	return p
}

// checkScope returns an error if an object's namespace does not fit its type: the path
// would lead to another object.
func (c *Client) checkScope(op operation, t Type) error {
	switch {
	case t.Namespaced && op.id.Namespace == "":
		return c.errorf(op, Invalid, "kind %s lives in namespaces, and the object has none; set metadata.namespace", t.Kind)
	case !t.Namespaced && op.id.Namespace != "":
		return c.errorf(op, Invalid, "kind %s is cluster-wide, and the object has namespace %q; remove metadata.namespace", t.Kind, op.id.Namespace)
	}
	return nil
}

// Get reads a whole object.
func (c *Client) Get(ctx context.Context, t Type, id manifest.ID) (map[string]any, *metav1.PartialObjectMetadata, error) {
	op, answer, err := c.get(ctx, t, id, mimeJSON)
	if err != nil {
		return nil, nil, err
	}
	return c.decodeFull(op, answer)
}

// GetMetadata reads an object's metadata.
func (c *Client) GetMetadata(ctx context.Context, t Type, id manifest.ID) (*metav1.PartialObjectMetadata, error) {
	op, answer, err := c.get(ctx, t, id, mimeMetadata)
	if err != nil {
		return nil, err
	}
	return c.decodeMetadata(op, answer)
}

func (c *Client) get(ctx context.Context, t Type, id manifest.ID, accept string) (op operation, answer []byte, err error) {
	op = operation{verb: "get", id: id}
	if err := c.checkScope(op, t); err != nil {
		return op, nil, err
	}
	answer, _, err = c.do(ctx, op, request{method: http.MethodGet, path: t.path(id.Namespace, id.Name), accept: accept})
	return op, answer, err
}

// ListOptions select objects of a list.
type ListOptions struct {
	// Namespace limits the list to one; empty lists all of them.
	Namespace string
	// Selector is a label selector, "key=value".
	Selector string
	// Most is how many objects are listed at most; 0 lists all.
	Most int
	// Page is how many objects are read at a time; default 500. Use small pages for large
	// objects.
	Page int
	// Again is called before a list that took too long for the API server starts over. It
	// must drop everything listed so far: some of it may be gone. If Again is nil, such a
	// list fails with an error of class Expired.
	Again func()
}

// List calls yield with the metadata of each object of the type until yield returns
// false, and returns the resourceVersion of the list.
func (c *Client) List(ctx context.Context, t Type, opts ListOptions, yield func(*metav1.PartialObjectMetadata) bool) (version string, err error) {
	listed := 0
	if again := opts.Again; again != nil {
		opts.Again = func() {
			listed = 0
			again()
		}
	}
	err = c.list(ctx, t, opts, mimeMetadataList, func(op operation, answer []byte) (string, bool, error) {
		page, more, err := decodeMetadataList(answer, func(m *metav1.PartialObjectMetadata) bool {
			listed++
			return yield(m)
		})
		if err != nil {
			return "", false, c.malformed(op, err)
		}
		if listed > maxListed {
			return "", false, c.malformed(op, fmt.Errorf("the list has more than %d objects", maxListed))
		}
		version = page.ResourceVersion
		return page.Continue, more, nil
	})
	return version, err
}

// ListFull is like List, with the whole objects.
func (c *Client) ListFull(ctx context.Context, t Type, opts ListOptions, yield func(tree map[string]any) bool) error {
	var malformed error
	err := c.ListRaw(ctx, t, opts, func(item []byte) bool {
		var tree map[string]any
		if err := utiljson.Unmarshal(item, &tree); err != nil {
			malformed = c.malformed(operation{verb: "list", id: t.ID(opts.Namespace, "")}, err)
			return false
		}
		// Items of built-in types come without these.
		tree["apiVersion"], tree["kind"] = t.APIVersion(), t.Kind
		return yield(tree)
	})
	if malformed != nil {
		return malformed
	}
	return err
}

// ListRaw is like List, with the whole objects as JSON. An item is valid until yield
// returns. Items of built-in types come without apiVersion and kind.
func (c *Client) ListRaw(ctx context.Context, t Type, opts ListOptions, yield func(item []byte) bool) error {
	return c.list(ctx, t, opts, mimeJSON, func(op operation, answer []byte) (string, bool, error) {
		var page jsonList
		err := decodeJSON(answer, maxValues, &page)
		if err == nil {
			err = checkList(page.Kind)
		}
		if err != nil {
			return "", false, c.malformed(op, err)
		}
		for _, item := range page.Items {
			if !yield(item) {
				return "", false, nil
			}
		}
		return page.Metadata.Continue, true, nil
	})
}

func (c *Client) list(ctx context.Context, t Type, opts ListOptions, accept string,
	page func(operation, []byte) (next string, more bool, err error),
) error {
	op := operation{verb: "list", id: t.ID(opts.Namespace, "")}
	size := cmp.Or(opts.Page, pageSize)
	if opts.Most > 0 {
		size = min(size, opts.Most)
	}
	query := url.Values{"limit": {strconv.Itoa(size)}}
	if opts.Selector != "" {
		query.Set("labelSelector", opts.Selector)
	}
	const mostRestarts = 3
	restarts, total := 0, 0
	for pages := 1; ; pages++ {
		answer, _, err := c.do(ctx, op, request{
			method: http.MethodGet, path: t.path(opts.Namespace, ""), query: query, accept: accept, limit: maxPageBytes,
		})
		if ClassOf(err) == Expired && opts.Again != nil && restarts < mostRestarts {
			restarts++
			pages, total = 0, 0
			query.Del("continue")
			opts.Again()
			continue
		}
		if errors.Is(err, errTooLarge) && size > 1 {
			size = (size + 9) / 10
			query.Set("limit", strconv.Itoa(size))
			continue
		}
		if err != nil {
			return err
		}
		next, more, err := page(op, answer)
		if err != nil || !more || next == "" || opts.Most > 0 {
			return err
		}
		switch total += len(answer); {
		case total > maxListBytes:
			return c.malformed(op, fmt.Errorf("the list is larger than %d MiB", maxListBytes>>20))
		case pages == maxPages || next == query.Get("continue"):
			return c.malformed(op, errors.New("the list does not end"))
		}
		query.Set("continue", next)
	}
}

func (c *Client) decodeMetadata(op operation, answer []byte) (*metav1.PartialObjectMetadata, error) {
	m, err := decodeMetadataAnswer(answer)
	if err != nil {
		return nil, c.malformed(op, err)
	}
	return m, nil
}

func (c *Client) decodeFull(op operation, answer []byte) (map[string]any, *metav1.PartialObjectMetadata, error) {
	var tree map[string]any
	if countValues(answer) > maxValues {
		return nil, nil, c.malformed(op, fmt.Errorf("it has more than %d values", maxValues))
	}
	if err := utiljson.Unmarshal(answer, &tree); err != nil {
		return nil, nil, c.malformed(op, errors.New("it is not a JSON object"))
	}
	var meta metav1.PartialObjectMetadata
	if err := json.Unmarshal(answer, &meta); err != nil {
		return nil, nil, c.malformed(op, errors.New("it has no metadata"))
	}
	return tree, &meta, nil
}
