package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"
)

// Retries of requests that change nothing (GET, HEAD). With Retry-After the
// registry's wish is followed as far as maxRetryAfter, and never beyond the
// context's deadline: then its answer is returned at once, and says how long.
const (
	maxAttempts   = 3
	firstBackoff  = 250 * time.Millisecond
	backoffFactor = 4
	maxRetryAfter = 15 * time.Second
)

// retrying is the transport below authentication, so that token servers get the
// same treatment: it sends the user agent, retries temporary errors, and ends requests that hang.
type retrying struct {
	next      http.RoundTripper
	userAgent string
	timeout   time.Duration
	minRate   int64 // bytes a second
	log       *slog.Logger
}

// RoundTrip implements http.RoundTripper.
func (p *retrying) RoundTrip(req *http.Request) (*http.Response, error) {
	backoff := firstBackoff
	for attempt := 1; ; attempt++ {
		resp, err := p.once(req)
		if attempt == maxAttempts || req.Method != http.MethodGet && req.Method != http.MethodHead {
			return resp, err
		}
		wait := time.Duration(float64(backoff) * (0.8 + 0.4*rand.Float64()))
		why := err
		switch {
		case err != nil:
			if req.Context().Err() != nil || !isBroken(err) || errors.Is(err, syscall.ECONNREFUSED) {
				return nil, err
			}
		case isTemporary(resp.StatusCode):
			why = fmt.Errorf("status %d", resp.StatusCode)
			if asked, ok := retryAfter(resp.Header); ok {
				wait = asked
			}
			if deadline, ok := req.Context().Deadline(); wait > maxRetryAfter || ok && time.Until(deadline) < wait {
				return resp, nil
			}
			// Read a little, so that the connection can be used again.
			io.CopyN(io.Discard, resp.Body, 64<<10)
			resp.Body.Close()
		default:
			return resp, nil
		}
		p.log.DebugContext(req.Context(), "asking the registry again", "host", req.URL.Host, "method", req.Method, "wait", wait, "because", why)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-req.Context().Done():
			timer.Stop()
			return nil, context.Cause(req.Context())
		}
		backoff *= backoffFactor
	}
}

// once sends a request and makes it end, with errSilent, when the registry stops
// reading or sending in the middle of it.
func (p *retrying) once(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodHead {
		// It has no body, here or there, and the rest net/http watches.
		resp, err := p.next.RoundTrip(p.named(req, req.Context()))
		return resp, silent(req.Context(), err)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	named := p.named(req, ctx)
	timer := time.AfterFunc(p.timeout, func() { cancel(errSilent) })
	timer.Stop()
	if req.Body != nil && req.Body != http.NoBody {
		named.Body = &watchedUpload{req.Body, timer, p.timeout}
	}
	resp, err := p.next.RoundTrip(named)
	if err != nil {
		if req.Context().Err() == nil && errors.Is(context.Cause(ctx), errSilent) {
			err = errSilent
		}
		cancel(nil)
		return nil, silent(req.Context(), err)
	}
	resp.Body = &watchedBody{body: resp.Body, ctx: ctx, cancel: cancel, timeout: p.timeout, minRate: p.minRate, left: p.timeout, timer: timer}
	return resp, nil
}

// named is a request with our name, for ctx. The caller's is left as it is.
func (p *retrying) named(req *http.Request, ctx context.Context) *http.Request {
	named := req.WithContext(ctx)
	named.Header = maps.Clone(req.Header) // the values are not written to
	named.Header.Set("User-Agent", p.userAgent)
	return named
}

// silent is an error of net/http's, in our words if it is one of its own timeouts,
// which look like a deadline of the context's.
func silent(ctx context.Context, err error) error {
	var timeout net.Error
	if err != nil && ctx.Err() == nil && errors.As(err, &timeout) && timeout.Timeout() {
		return errSilent
	}
	return err
}

// watchedUpload cancels its request when nobody wants more of its body for as
// long as timeout, which is when the registry reads no more of it. After its end
// the registry is to answer, which net/http watches.
type watchedUpload struct {
	io.ReadCloser
	timer   *time.Timer
	timeout time.Duration
}

func (u *watchedUpload) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	if err == nil {
		u.timer.Reset(u.timeout)
	} else {
		u.timer.Stop()
	}
	return n, err
}

func (u *watchedUpload) Close() error {
	u.timer.Stop()
	return u.ReadCloser.Close()
}

// watchedBody cancels its request when a read takes longer than timeout, or when
// all reads together fall behind minRate by as much. The time between reads,
// which is the reader's own, does not count.
type watchedBody struct {
	body    io.ReadCloser
	ctx     context.Context // of the one request that the body belongs to
	cancel  context.CancelCauseFunc
	timeout time.Duration
	minRate int64
	left    time.Duration // that may still be waited; what comes adds to it
	timer   *time.Timer
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.timer.Reset(max(0, b.left))
	start := time.Now()
	n, err := b.body.Read(p)
	b.timer.Stop()
	if err != nil && err != io.EOF && errors.Is(context.Cause(b.ctx), errSilent) {
		err = errSilent
		if b.left < b.timeout/2 {
			err = errSlow
		}
	}
	came := time.Duration(float64(n) / float64(b.minRate) * float64(time.Second))
	b.left = min(b.left-time.Since(start)+came, b.timeout)
	return n, err
}

func (b *watchedBody) Close() error {
	b.timer.Stop()
	err := b.body.Close()
	b.cancel(nil)
	return err
}

func isTemporary(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// retryAfter reads the header of that name: seconds, or a date.
func retryAfter(h http.Header) (time.Duration, bool) {
	v := h.Get("Retry-After")
	if v == "" {
		return 0, false
	}
	if s, err := strconv.ParseUint(v, 10, 31); err == nil {
		return time.Duration(s) * time.Second, true
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(0, time.Until(t)).Round(time.Second), true
	}
	return 0, false
}

// checkRedirect follows a registry to where it stores its blobs, but not from
// TLS to plain HTTP, nor from a registry elsewhere to an address inside our own
// network (a cloud's metadata service, for instance), and never takes
// credentials along to another host or port.
func checkRedirect(req *http.Request, via []*http.Request) error {
	first := via[0].URL
	if len(via) >= 5 {
		return &problem{Malformed, fmt.Sprintf("%s redirects in circles", first.Host)}
	}
	if req.URL.Host == first.Host && req.URL.Scheme == first.Scheme {
		return nil
	}
	req.Header.Del("Authorization")
	if req.URL.Scheme != "https" && first.Scheme == "https" {
		return &problem{Untrusted, fmt.Sprintf("%s redirects to an address without TLS (%s)", first.Host, printable(req.URL.Host))}
	}
	if ip := net.ParseIP(req.URL.Hostname()); ip != nil && !isInside(net.ParseIP(first.Hostname())) && isInside(ip) {
		return &problem{Untrusted, fmt.Sprintf("%s redirects to %s, an address inside this network", first.Host, ip)}
	}
	return nil
}

func isInside(ip net.IP) bool {
	return ip != nil && (ip.IsLoopback() || ip.IsPrivate() || ip.IsLinkLocalUnicast() || ip.IsLinkLocalMulticast() || ip.IsUnspecified())
}
