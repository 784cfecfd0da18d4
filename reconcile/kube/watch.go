package kube

import (
	"bufio"
	"cmp"
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

// The API server ends a watch after a time between these two, chosen at random so
// that the watches of a fleet do not all start again together.
const (
	watchShortest = 5 * time.Minute
	watchLongest  = 10 * time.Minute
)

// quietLongest is how long a watch may bring nothing. Where nothing happens, an API
// server sends a bookmark about once a minute. If none comes, the connection hangs
// somewhere on the way, or the API server knows no bookmarks, and the list is read
// again.
const quietLongest = 4 * time.Minute

var errQuiet = errors.New("the watch is quiet")

const mimeMetadataWatch = mimeJSON + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1;stream=watch"

// Event is a change to an object.
type Event struct {
	// Deleted reports whether the object was deleted, or is no longer selected.
	Deleted bool
	// Meta is the object's metadata; of a deleted object, the last.
	Meta *metav1.PartialObjectMetadata
	// Progress reports whether this is a bookmark: Meta has only the resourceVersion that
	// the watch has reached.
	Progress bool
}

// Watch calls yield with each change to the metadata of the type's objects in a
// namespace, or in all if it is empty. It begins after version, which a List returned.
// When the API server ends the watch, the error is nil, and the next may begin where
// this one ended. An error of class Expired means that a new List is needed: the API
// server no longer has version, or has sent nothing for too long.
func (c *Client) Watch(ctx context.Context, t Type, namespace, selector, version string, yield func(Event)) error {
	op := operation{verb: "watch", id: t.ID(namespace, "")}
	seconds := int((watchShortest + rand.N(watchLongest-watchShortest)).Seconds())
	u, err := c.url(op, t.path(namespace, ""), url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"}, "labelSelector": {selector},
		"resourceVersion": {version}, "timeoutSeconds": {strconv.Itoa(seconds)},
	})
	if err != nil {
		return err
	}
	watching, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := c.timeout
	late := time.AfterFunc(limit, func() { cancel(context.DeadlineExceeded) })
	defer late.Stop()
	req, err := http.NewRequestWithContext(watching, http.MethodGet, u, nil)
	if err != nil {
		return c.transportError(ctx, op, limit, err)
	}
	req.Header.Set("Accept", mimeMetadataWatch)
	req.Header.Set("User-Agent", c.userAgent)
	resp, err := c.client.Do(req)
	if err != nil {
		return c.noAnswer(ctx, op, limit, cmp.Or(context.Cause(watching), err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return c.statusError(ctx, op, resp.StatusCode, resp.Header, errorBody(resp))
	}
	late.Stop()
	quiet := time.AfterFunc(c.quiet, func() { cancel(errQuiet) })
	defer quiet.Stop()
	err = c.events(ctx, op, resp.Body, func(e Event) {
		quiet.Reset(c.quiet)
		yield(e)
	})
	e, ok := errors.AsType[*Error](err)
	switch {
	case err == nil:
		return nil
	case ok:
		return e
	case context.Cause(watching) == errQuiet:
		e = c.errorf(op, Expired, "the API server sent nothing for %s, not even a bookmark", c.quiet)
		e.cause = errQuiet
		return e
	}
	return c.noAnswer(ctx, op, limit, err)
}

// events reads a stream of JSON objects, one a line. An error that is no [Error] is
// the stream's.
func (c *Client) events(ctx context.Context, op operation, stream io.Reader, yield func(Event)) error {
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, maxEventBytes)
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
			return c.statusError(ctx, op, int(status.Code), nil, event.Object)
		}
		meta, err := decodeItem(event.Object, false)
		if err != nil {
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
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return c.malformed(op, fmt.Errorf("an event is larger than %d MiB", maxEventBytes>>20))
	}
	return lines.Err()
}
