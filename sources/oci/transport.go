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

// Retries of requests that change nothing (GET, HEAD). Retry-After is honoured up to
// maxRetryAfter and the context's deadline. Otherwise the answer is returned at once.
const (
	maxAttempts   = 3
	firstBackoff  = 250 * time.Millisecond
	backoffFactor = 4
	maxRetryAfter = 15 * time.Second
)

// baseTransport is the transport below authentication, also for token servers:
// it sets User-Agent, retries, and ends requests that hang.
type baseTransport struct {
	next      http.RoundTripper
	userAgent string
	timeout   time.Duration
	log       *slog.Logger
}

// RoundTrip implements http.RoundTripper.
func (p *baseTransport) RoundTrip(req *http.Request) (*http.Response, error) {
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
			// Read the rest of a small answer, so that the connection can be
			// used again.
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

// once sends a request, and ends it with errSilent if the registry stops
// reading or sending.
func (p *baseTransport) once(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodHead {
		// It has no body, here or there; net/http watches the rest.
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
	resp.Body = &watchedBody{body: resp.Body, ctx: ctx, cancel: cancel, timeout: p.timeout, left: p.timeout, timer: timer}
	return resp, nil
}

// named returns a copy of a request for ctx, with User-Agent.
func (p *baseTransport) named(req *http.Request, ctx context.Context) *http.Request {
	named := req.WithContext(ctx)
	named.Header = maps.Clone(req.Header) // the values are not written to
	named.Header.Set("User-Agent", p.userAgent)
	return named
}

// silent returns errSilent for net/http's own timeouts, which look like an exceeded
// deadline, and other errors unchanged.
func silent(ctx context.Context, err error) error {
	var timeout net.Error
	if err != nil && ctx.Err() == nil && errors.As(err, &timeout) && timeout.Timeout() {
		return errSilent
	}
	return err
}

// watchedUpload cancels its request if the registry reads nothing of the body for
// timeout. After the body, net/http limits the time to the answer.
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

// watchedBody cancels its request if a read takes longer than timeout, or if all reads
// together fall behind minRate by timeout. The time between reads does not count.
type watchedBody struct {
	body    io.ReadCloser
	ctx     context.Context // of the one request that the body belongs to
	cancel  context.CancelCauseFunc
	timeout time.Duration
	left    time.Duration // time that reads may still take; received bytes add to it
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
	came := time.Duration(float64(n) / minRate * float64(time.Second))
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

// retryAfter reads the Retry-After header, which has seconds or a date.
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

// checkRedirect allows redirects, for instance to a blob store, but not from TLS to plain
// HTTP, and not from a public registry to an address inside this network, such as a
// cloud's metadata service. It removes credentials for other hosts and ports.
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
