package kube

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A watch is ended by the API server after a time between these two, so that
// those of a fleet do not all start anew together.
const (
	watchShortest = 5 * time.Minute
	watchLongest  = 10 * time.Minute
)

const mimeMetadataWatch = mimeJSON + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1;stream=watch"

// Event is a change to an object.
type Event struct {
	// Deleted says that the object is gone, or no longer selected.
	Deleted bool
	// Meta is the object's metadata, as it is now or was at last.
	Meta *metav1.PartialObjectMetadata
	// Progress says that Meta holds no more than the resourceVersion that the
	// watch has got to.
	Progress bool
}

// Watch hands the changes to the metadata of the type's objects in a namespace (all
// of them where it is empty) after version, which a List returned, to yield, in order, until the API server ends the
// watch (then the error is nil, and a new one may begin where this one ended),
// or something fails. The error's class is Expired when the API server does not
// remember version any more.
func (c *Cluster) Watch(ctx context.Context, t Type, namespace, selector, version string, yield func(Event)) error {
	op := operation{verb: "watch", id: t.ID(namespace, "")}
	seconds := int((watchShortest + rand.N(watchLongest-watchShortest)).Seconds())
	// An API server that keeps quiet past the end is gone; connections that
	// are dead are noticed by HTTP/2's pings before.
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(seconds)*time.Second+c.timeout, errors.New("the watch did not end in time"))
	defer cancel()
	u, err := c.url(op, t.path(namespace, ""), url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"}, "labelSelector": {selector},
		"resourceVersion": {version}, "timeoutSeconds": {strconv.Itoa(seconds)},
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return c.transportError(ctx, op, err)
	}
	req.Header.Set("Accept", mimeMetadataWatch)
	req.Header.Set("User-Agent", c.userAgent)
	resp, err := c.client.Do(req)
	if err != nil {
		return c.transportError(ctx, op, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, err := readAll(resp, maxObjectBytes)
		if err != nil {
			return c.transportError(ctx, op, err)
		}
		return c.statusError(op, resp.StatusCode, resp.Header, body)
	}
	return c.events(ctx, op, resp.Body, yield)
}

// events reads a stream of JSON objects, one a line.
func (c *Cluster) events(ctx context.Context, op operation, stream io.Reader, yield func(Event)) error {
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, maxObjectBytes)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return c.malformed(op, err)
		}
		if event.Type == "ERROR" {
			var status metav1.Status
			if err := json.Unmarshal(event.Object, &status); err != nil {
				return c.malformed(op, err)
			}
			return c.statusError(op, int(status.Code), nil, event.Object)
		}
		meta := new(metav1.PartialObjectMetadata)
		if err := json.Unmarshal(event.Object, meta); err != nil {
			return c.malformed(op, err)
		}
		switch event.Type {
		case "ADDED", "MODIFIED":
			yield(Event{Meta: meta})
		case "DELETED":
			yield(Event{Meta: meta, Deleted: true})
		case "BOOKMARK":
			yield(Event{Meta: meta, Progress: true})
		default:
			return c.malformed(op, fmt.Errorf("an event of type %q", event.Type))
		}
	}
	if err := lines.Err(); err != nil {
		return c.transportError(ctx, op, err)
	}
	return nil
}
