package registry

import (
	"errors"
	"net/http"
	"path"
	"strings"
	"time"
)

// Fault is a way to misbehave. With Status or Hang the fault answers instead of
// the registry; otherwise it changes the registry's answer.
type Fault struct {
	// Method is the method of the requests that fail; empty means any.
	Method string
	// Path is a pattern of path.Match for the request's path; one that ends in
	// "/**" matches everything below.
	Path string
	// Times is how many requests fail; 0 means all until healed.
	Times int

	// Status is the HTTP status to answer, with RetryAfter as that header if not
	// empty.
	Status     int
	RetryAfter string
	// Hang gives no answer until the client disconnects.
	Hang bool
	// Until is waited for before anything else.
	Until <-chan struct{}
	// Redirect is an address to send the client to.
	Redirect string
	// DropAfter cuts the connection after this many bytes of the body.
	DropAfter int
	// HangAfter sends this many bytes of the body, then nothing more.
	HangAfter int
	// Drip sends the body one byte at a time, with this pause after each.
	Drip time.Duration
	// Corrupt flips a bit of the body's first byte.
	Corrupt bool
	// Digest is sent as Docker-Content-Digest; "none" leaves the header out.
	Digest string
	// NoRange ignores the Range header, RefuseRange answers it with 416, as
	// some registries do.
	NoRange, RefuseRange bool
}

func (f *activeFault) matches(req *http.Request) bool {
	if f.healed.Load() || f.Method != "" && f.Method != req.Method {
		return false
	}
	if below, ok := strings.CutSuffix(f.Path, "/**"); ok {
		if !strings.HasPrefix(req.URL.Path, below+"/") {
			return false
		}
	} else if ok, err := path.Match(f.Path, req.URL.Path); err != nil || !ok {
		return false
	}
	return f.Times == 0 || f.left.Add(-1) >= 0
}

// apply carries out the fault. It returns the writer to answer on, or done if the
// request is answered.
func (f *activeFault) apply(w http.ResponseWriter, req *http.Request) (next http.ResponseWriter, done bool) {
	if f.Until != nil {
		select {
		case <-f.Until:
		case <-req.Context().Done():
			return nil, true
		}
	}
	switch {
	case f.Hang:
		<-req.Context().Done()
		return nil, true
	case f.Redirect != "":
		http.Redirect(w, req, f.Redirect, http.StatusTemporaryRedirect)
		return nil, true
	case f.RefuseRange && req.Header.Get("Range") != "":
		w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		return nil, true
	case f.Status != 0:
		if f.RetryAfter != "" {
			w.Header().Set("Retry-After", f.RetryAfter)
		}
		w.WriteHeader(f.Status)
		return nil, true
	}
	if f.NoRange {
		req.Header.Del("Range")
	}
	return &faultyWriter{ResponseWriter: w, fault: f, req: req}, false
}

// faultyWriter changes an answer on its way.
type faultyWriter struct {
	http.ResponseWriter
	fault *activeFault
	req   *http.Request
	sent  int
}

func (w *faultyWriter) WriteHeader(status int) {
	switch w.fault.Digest {
	case "":
	case "none":
		w.Header().Del("Docker-Content-Digest")
	default:
		w.Header().Set("Docker-Content-Digest", w.fault.Digest)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *faultyWriter) Write(p []byte) (int, error) {
	if w.fault.Corrupt && w.sent == 0 && len(p) > 0 {
		p = append([]byte{p[0] ^ 1}, p[1:]...)
	}
	if w.fault.Drip > 0 {
		return w.drip(p)
	}
	limit := w.fault.DropAfter + w.fault.HangAfter
	if limit == 0 || w.sent+len(p) <= limit {
		n, err := w.ResponseWriter.Write(p)
		w.sent += n
		return n, err
	}
	n, err := w.ResponseWriter.Write(p[:limit-w.sent])
	w.sent += n
	if err != nil {
		return n, err
	}
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
	if w.fault.HangAfter > 0 {
		<-w.req.Context().Done()
		return n, errors.New("hanging on purpose")
	}
	panic(http.ErrAbortHandler) // net/http's way to cut a connection
}

func (w *faultyWriter) drip(p []byte) (int, error) {
	for i := range p {
		if _, err := w.ResponseWriter.Write(p[i : i+1]); err != nil {
			return i, err
		}
		if f, ok := w.ResponseWriter.(http.Flusher); ok {
			f.Flush()
		}
		select {
		case <-time.After(w.fault.Drip):
		case <-w.req.Context().Done():
			return i, w.req.Context().Err()
		}
	}
	return len(p), nil
}
