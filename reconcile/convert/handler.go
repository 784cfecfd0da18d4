package convert

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/sources/errgroup"
)

// Bounds of a Handler, for a request and for all requests.
const (
	// maxBody bounds a review. API servers send one object in each, of at most 3 MiB. A
	// hostile review takes fifty times its size in memory, and a server of render/converter
	// has half a GiB.
	maxBody = 6 << 20
	// maxLarge bounds all bodies larger than smallBody together, and maxSmall the others, of which
	// a client may have smallShare. Each counts as at least leastBody, so that there are not too
	// many; that is also the largest buffer that is used again. A body counts until its answer,
	// of about the same size, is sent.
	maxLarge, smallBody             = maxBody, 256 << 10
	maxSmall, smallShare, leastBody = 32 << 20, maxSmall / 4, 32 << 10
	// maxWorking bounds the objects that are converted at a time, on any number of cores.
	maxWorking = 8
	// API servers wait 30 s for the answer.
	maxTime  = 30 * time.Second
	bodyTime = 10 * time.Second // to send a body, or to read a large answer
)

// Config configures a [Handler].
type Config struct {
	// Table has the rules; required.
	Table *Table
	// Log gets failed rules and lost fields, without values, each at most once a minute;
	// required.
	Log *slog.Logger
}

// Handler answers ConversionReviews, v1. It is safe for concurrent use.
//
// A review fails only if its rules are not served, if an object is not of their type, or if
// there is so much to do that the rules take too long. Nothing else depends on the time. A
// request that is no review is answered with a status of 400 and above.
type Handler struct {
	table *Table
	log   *slog.Logger
	stats stats
	// working bounds the conversions at a time, large and small the bytes of bodies.
	working, large, small *queue
	buffers               sync.Pool

	mu   sync.Mutex
	told map[string]time.Time
}

// New makes a Handler.
func New(c Config) (*Handler, error) {
	if c.Table == nil || c.Log == nil {
		return nil, errors.New("convert: Table and Log are required")
	}
	working := int64(min(2*runtime.GOMAXPROCS(0), maxWorking))
	return &Handler{
		table: c.Table, log: c.Log, told: make(map[string]time.Time),
		working: newQueue(working, working), large: newQueue(maxLarge, maxLarge), small: newQueue(maxSmall, smallShare),
		buffers: sync.Pool{New: func() any { return new([]byte) }},
	}, nil
}

// refusal is why a request gets no review for an answer.
type refusal struct {
	status int
	why    string
}

func (r *refusal) Error() string { return r.why }

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), maxTime)
	defer cancel()
	var held part
	defer func() { held.release() }()
	answer, err := h.serve(ctx, w, r, &held)
	if err != nil {
		refused, ok := errors.AsType[*refusal](err)
		if !ok {
			refused = &refusal{http.StatusServiceUnavailable, "the server has too much to do; try again"}
		}
		// The rest of the body is not waited for.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now())
		http.Error(w, refused.why, refused.status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if len(answer) > leastBody { // the client may not read it
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(bodyTime))
	}
	_, _ = w.Write(answer) // fails only if the client is gone
}

// serve returns the answer to a request, which has the part of a queue in held. The error is a
// [refusal], or the context's.
func (h *Handler) serve(ctx context.Context, w http.ResponseWriter, r *http.Request, held *part) ([]byte, error) {
	name, ok := nameOf(r.URL.Path)
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case !ok:
		return nil, &refusal{http.StatusNotFound, "want /convert/<cluster>/<definition>/<digest>"}
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		return nil, &refusal{http.StatusMethodNotAllowed, "conversion reviews are sent by POST"}
	case media != "application/json":
		return nil, &refusal{http.StatusUnsupportedMediaType, "want Content-Type: application/json"}
	case r.ContentLength > maxBody:
		return nil, errTooLarge
	}
	bodies, size := h.large, r.ContentLength
	switch {
	case size < 0:
		size = maxBody
	case size <= smallBody:
		bodies, size = h.small, max(size, leastBody)
	}
	var err error
	if *held, err = bodies.acquire(ctx, clientOf(r), size); err != nil {
		return nil, err
	}
	buffer := h.buffers.Get().(*[]byte)
	defer func() {
		if cap(*buffer) <= leastBody {
			h.buffers.Put(buffer)
		}
	}()
	body, err := h.read(w, r, (*buffer)[:0])
	if err != nil {
		return nil, err
	}
	*buffer = body
	asked, err := readReview(body)
	if err != nil {
		return nil, &refusal{http.StatusBadRequest, "the body is no conversion review: " + err.Error()}
	}
	turn, err := h.working.acquire(ctx, clientOf(r), 1)
	if err != nil {
		return nil, err
	}
	defer turn.release()
	set := h.table.Find(name)
	if set == nil {
		crd, digest, _ := strings.Cut(name, "/")
		return writeReview(nil, asked.uid, nil, fmt.Sprintf("gitopsd does not serve the conversion rules of %s with the digest %.12s…; they are served once gitopsd has applied the cluster's manifests again", crd, digest)), nil
	}
	converted, failure := h.convert(ctx, set, asked)
	return writeReview(make([]byte, 0, len(body)+len(body)/8+256), asked.uid, converted, failure), nil
}

var errTooLarge = &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("a conversion review may have %d MiB", maxBody>>20)}

// read appends the body to b.
func (h *Handler) read(w http.ResponseWriter, r *http.Request, b []byte) ([]byte, error) {
	// A ResponseWriter of a test may have no deadlines.
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Now().Add(bodyTime))
	defer func() { _ = connection.SetReadDeadline(time.Time{}) }()
	body := http.MaxBytesReader(w, r.Body, maxBody)
	if size := int(r.ContentLength) + 1; size > cap(b) { // one more, so that the end is seen
		b = make([]byte, 0, size)
	}
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err == io.EOF {
			return b, nil
		}
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			return nil, errTooLarge
		}
		if err != nil {
			return nil, &refusal{http.StatusBadRequest, "the body could not be read"}
		}
	}
}

// convert converts the objects of a review in order. failure is why one could not be
// converted.
func (h *Handler) convert(ctx context.Context, set *conversion.Set, r review) (converted [][]byte, failure string) {
	converted = make([][]byte, len(r.objects))
	for i, object := range r.objects {
		if ctx.Err() != nil {
			return nil, fmt.Sprintf("%d of %d objects were converted in time", i, len(r.objects))
		}
		group, from, _ := strings.Cut(versionOf(object), "/")
		begun := time.Now()
		out, report, err := h.one(set, object, r.to)
		if err == nil && group != r.group {
			err = fmt.Errorf("the review asks for a version of the group %s", r.group)
		}
		h.stats.add(set, from, r.to, time.Since(begun), &report, err)
		if err != nil {
			return nil, fmt.Sprintf("object %d of the review: %v", i, err)
		}
		converted[i] = out
		h.tell(set, from, r.to, &report)
	}
	return converted, ""
}

// one converts an object. A panic is an error of the object.
func (h *Handler) one(set *conversion.Set, object []byte, to string) (out []byte, report conversion.Report, err error) {
	defer func() {
		if v := recover(); v != nil {
			p := errgroup.Recovered(v)
			h.log.Error("converting an object", "definition", set.Name(), "error", p, "stack", string(p.Stack))
			out, report, err = nil, conversion.Report{}, p
		}
	}()
	return set.ConvertJSON(object, to)
}

// tellPause is the pause before an equal message is logged again, and mostTold bounds the
// messages that are remembered.
const (
	tellPause = time.Minute
	mostTold  = 1000
)

// tell logs failed rules and lost fields, without errors of rules, which may quote values.
func (h *Handler) tell(set *conversion.Set, from, to string, report *conversion.Report) {
	for _, n := range report.Failed {
		h.warn("a conversion rule failed on an object; its field is left out, and what it reads is kept", set, from, to, n.Path, "rule", n.Rule)
	}
	for _, n := range report.Dropped {
		h.warn("a field of an object is lost by conversion", set, from, to, n.Path, "bytes", n.Bytes, "reason", cmp.Or(n.Err, "it is too large to be kept"))
	}
}

func (h *Handler) warn(message string, set *conversion.Set, from, to, path string, more ...any) {
	key := set.Name() + " " + from + " " + to + " " + path
	now := time.Now()
	h.mu.Lock()
	again := now.Sub(h.told[key]) < tellPause
	if !again {
		if len(h.told) >= mostTold {
			clear(h.told)
		}
		h.told[key] = now
	}
	h.mu.Unlock()
	if !again {
		h.log.Warn(message, append([]any{"definition", set.Name(), "from", from, "to", to, "field", path}, more...)...)
	}
}
