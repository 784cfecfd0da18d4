package oci

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/roots"
)

// Reason classifies an [Error] for the caller's decisions.
type Reason int

// The reasons. From RateLimited on another attempt may succeed.
const (
	// Malformed: the registry's answer, or the request, is invalid.
	Malformed Reason = iota
	// NotFound: the repository, tag or digest does not exist, or is hidden.
	NotFound
	// Unauthorized: credentials are missing, wrong or insufficient.
	Unauthorized
	// Untrusted: the TLS certificate is not valid, or there is no TLS.
	Untrusted
	// Unasked: only a registry could answer, and none may be asked.
	Unasked
	// RateLimited: the registry limits requests.
	RateLimited
	// Unreachable: no connection, or it broke too often.
	Unreachable
	// Failing: the registry reports an error of its own.
	Failing
	// TimedOut: the registry was silent for too long or too slow, or the
	// context's deadline passed.
	TimedOut
	// Canceled: the caller canceled the context.
	Canceled
)

// Error is a failed request to a registry. It has no credentials, and no addresses that
// may contain them (registries redirect to signed URLs).
type Error struct {
	// Subject is the reference, repository or repository@digest.
	Subject string
	Reason  Reason
	// RetryAfter is how long the registry asked to wait, zero if it did not.
	RetryAfter time.Duration
	// Text says what happened and what to do.
	Text string
	// Err is the context's error if that ended the call.
	Err error
}

func (e *Error) Error() string { return e.Subject + ": " + e.Text }
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is the sentinel error for e.Reason: [sources.ErrNotFound]
// for NotFound, [sources.ErrLate] for TimedOut, [sources.ErrUnasked] for Unasked.
func (e *Error) Is(target error) bool {
	switch e.Reason {
	case NotFound:
		return target == sources.ErrNotFound
	case TimedOut:
		return target == sources.ErrLate
	case Unasked:
		return target == sources.ErrUnasked
	}
	return false
}

// say sets the reason and the text, and returns the error.
func (e *Error) say(r Reason, format string, args ...any) error {
	e.Reason, e.Text = r, fmt.Sprintf(format, args...)
	return e
}

// Temporary reports whether the same request may succeed later.
func (e *Error) Temporary() bool { return e.Reason >= RateLimited && e.Reason < Canceled }

// MismatchError is the error for content without the requested digest. It is not used or
// kept.
type MismatchError struct {
	// Subject is repository@digest.
	Subject string
	// Registry is the host that answered.
	Registry string
	// Want and Seen are the digests. Seen is empty if the size was wrong.
	Want, Seen sources.Digest
	// WantSize and SeenSize are in bytes, -1 if unknown.
	WantSize, SeenSize int64
}

// mismatchText follows the first line, which names the subject, and the digests.
const mismatchText = `
A digest names exactly one content, and %s answered with another. Somebody may
have replaced the content or may be changing it on its way here: the registry, a
mirror or proxy, or whoever controls one of them. Damaged storage looks the same.

Nothing of it was used or kept. Fetch the same digest from another network and
compare. If it differs there too, tell whoever runs the registry and whoever
publishes the package. Do not put the digest that was seen in the place of the
one that was wanted, unless its publisher confirms it.
`

func (e *MismatchError) Error() string {
	return fmt.Sprintf("%s: SECURITY ERROR: this is not the content that was asked for\n\twanted: %s\n\tseen:   %s\n%s",
		e.Subject, identity(e.Want, e.WantSize), identity(e.Seen, e.SeenSize), fmt.Sprintf(mismatchText, e.Registry))
}

func identity(d sources.Digest, size int64) string {
	switch {
	case d == "":
		return fmt.Sprintf("%d bytes", size)
	case size < 0:
		return string(d)
	}
	return fmt.Sprintf("%s, %d bytes", d, size)
}

// status is the error for an answer with an unexpected status.
type status struct {
	code       int
	retryAfter time.Duration
	// message is the registry's text, made printable.
	message string
	// unknownName reports whether the repository is missing, not a tag or digest.
	unknownName bool
}

func (s *status) Error() string { return fmt.Sprintf("status %d %s", s.code, s.message) }

// statusError returns the error for an answer.
func statusError(resp *http.Response) error {
	return fromTransport(transport.CheckError(resp), resp.Header)
}

// fromTransport returns a *status for the library's error with one.
func fromTransport(err error, h http.Header) error {
	var te *transport.Error
	if !errors.As(err, &te) {
		return err
	}
	s := &status{code: te.StatusCode}
	s.retryAfter, _ = retryAfter(h)
	var words []string
	for _, d := range te.Errors {
		words = append(words, strings.TrimSpace(string(d.Code)+" "+d.Message))
		s.unknownName = s.unknownName || d.Code == transport.NameUnknownErrorCode
	}
	s.message = printable(strings.Join(words, "; "))
	return s
}

// printable makes a registry's text fit for a log line or a terminal.
func printable(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '.'
		}
		return r
	}, s)
	const most = 200
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return s
}

// problem is an [Error] without its subject.
type problem struct {
	reason Reason
	text   string
}

func (p *problem) Error() string { return p.text }

// Errors of this package's transports, for explain.
var (
	errSilent = errors.New("silent for too long")
	errSlow   = errors.New("sends too little")
	errScheme = errors.New("not with this scheme")
)

// explain turns the error of a request about subject into an [Error], unless it is one. It
// does not use the texts of net/http and the libraries, which may contain signed
// addresses or tokens.
func (c *Client) explain(subject, repository string, err error) error {
	var known *Error
	var mismatch *MismatchError
	if errors.As(err, &known) || errors.As(err, &mismatch) {
		return err
	}
	host := registryOf(repository)
	e := &Error{Subject: subject}
	say := e.say

	var (
		unknownCA x509.UnknownAuthorityError
		certErr   *tls.CertificateVerificationError
		notTLS    tls.RecordHeaderError
		dns       *net.DNSError
		st        *status
		own       *problem
		old       *roots.Error
	)
	switch {
	case errors.As(err, &own):
		return say(own.reason, "%s", own.text)
	case errors.Is(err, context.Canceled):
		e.Err = context.Canceled
		return say(Canceled, "canceled while waiting for %s", host)
	case errors.As(err, &old):
		return say(Untrusted, "%s has a TLS certificate that is not trusted here: %s; the file of --registry-ca-file has changed, and cannot be used: %v", host, printable(old.Err.Error()), old.File)
	case errors.As(err, &unknownCA):
		return say(Untrusted, "%s has a TLS certificate signed by an authority that is not trusted here; "+
			"if the registry is the right one, name a PEM file with that authority's certificate (--registry-ca-file)", host)
	case errors.As(err, &certErr):
		return say(Untrusted, "%s has a TLS certificate that is not valid: %s", host, printable(certErr.Err.Error()))
	case errors.As(err, &notTLS), isPlainHTTPAnswer(err):
		return say(Untrusted, "%s does not speak TLS, without which gitopsd asks only registries on this machine (localhost); give it a certificate (--registry-ca-file names an authority of your own), or a mirror that has one (--registry-mirror)", host)
	case errors.As(fromTransport(err, nil), &st):
		e.RetryAfter = st.retryAfter
		return c.explainStatus(e, host, repository, st)
	case errors.Is(err, errSilent):
		return say(TimedOut, "%s was silent for %v; it, or the network to it, is overloaded or hanging", host, c.timeout)
	case errors.Is(err, errSlow):
		return say(TimedOut, "%s sends less than %d bytes a second; it, or the network to it, is overloaded or hanging", host, minRate)
	case errors.Is(err, context.DeadlineExceeded):
		e.Err = context.DeadlineExceeded
		return say(TimedOut, "%s did not answer before the deadline", host)
	case errors.As(err, &dns):
		return say(Unreachable, "%s cannot be found in DNS; is the registry's name right?", host)
	case errors.Is(err, syscall.ECONNREFUSED):
		return say(Unreachable, "%s refuses connections; is the registry running, and the port right?", host)
	case isBroken(err):
		return say(Unreachable, "%s broke the connection off, again and again", host)
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return say(Unreachable, "no connection to %s: %s", host, printable(op.Err.Error()))
	}
	return say(Malformed, "%s answers in a way that is not understood: %s", host, printable(innermost(err).Error()))
}

func (c *Client) explainStatus(e *Error, host, repository string, st *status) error {
	words := ""
	if st.message != "" {
		words = fmt.Sprintf(" (%s)", st.message)
	}
	switch {
	case st.code == http.StatusNotFound && st.unknownName:
		return e.say(NotFound, "%s has no such repository%s; is its name right, and may these credentials see it?", host, words)
	case st.code == http.StatusNotFound && st.message == "": // as HEAD answers
		return e.say(NotFound, "%s has no such tag or no such repository; are both names right, and may these credentials see it?", host)
	case st.code == http.StatusNotFound:
		return e.say(NotFound, "%s has no such tag or digest in this repository%s; list its tags to see what it has", host, words)
	case st.code == http.StatusUnauthorized, st.code == http.StatusForbidden:
		return e.say(Unauthorized, "%s refuses access%s; looked for credentials in %s", host, words, c.lookedIn(repository))
	case st.code == http.StatusTooManyRequests:
		if e.RetryAfter > 0 {
			words += " and asks to come back later" // without the time, the error is the same until then
		}
		return e.say(RateLimited, "%s limits the rate of requests%s; credentials usually raise the limit", host, words)
	case st.code >= 500:
		return e.say(Failing, "%s fails with %d %s%s; try again later", host, st.code, http.StatusText(st.code), words)
	}
	return e.say(Malformed, "%s answers %d %s%s", host, st.code, http.StatusText(st.code), words)
}

// isPlainHTTPAnswer recognizes net/http's own error, which has no type.
func isPlainHTTPAnswer(err error) bool {
	return strings.Contains(err.Error(), "server gave HTTP response to HTTPS client")
}

// http2Reset has the fields of net/http's error for a stream that the other side reset,
// which is not exported. errors.As converts that to it (net/http/h2_error.go).
type http2Reset struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (r http2Reset) Error() string { return fmt.Sprintf("HTTP/2 stream reset with code %d", r.Code) }

// endedHTTP2 recognizes net/http's own errors for an HTTP/2 connection that the other side gave up
// in good order, as when it is replaced, and for one on which a ping got no answer. They have no
// types that are exported.
func endedHTTP2(err error) bool {
	text := err.Error()
	return strings.Contains(text, "http2: client connection lost") ||
		strings.Contains(text, "http2: server sent GOAWAY and closed the connection") && strings.Contains(text, "ErrCode=NO_ERROR")
}

// isBroken reports whether err means that a connection broke.
func isBroken(err error) bool {
	if reset := (http2Reset{}); errors.As(err, &reset) || endedHTTP2(err) {
		return true
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed)
}

// innermost unwraps err, since net/url's errors quote the address.
func innermost(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}
