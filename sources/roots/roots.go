// Package roots is an HTTP transport that trusts the authorities in a file beside the
// system's. The file may be replaced at any time, as the kubelet does with those of a mounted
// Secret or ConfigMap.
//
// The file is read for each request, as files with passwords are: it is small, and a change
// of a mounted directory is not always a change of the file that could be watched. New
// authorities get new connections.
package roots

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
)

// Transport is an http.RoundTripper. It is safe for concurrent use.
type Transport struct {
	file string
	log  *slog.Logger
	base *http.Transport // without authorities and connections

	mu      sync.Mutex
	pem     []byte // that current trusts
	current *http.Transport
	err     error // why the file cannot be used now
}

// New returns a Transport like base, which is not used itself. Without a file it trusts
// the system's authorities only. It fails if the file cannot be read or has no certificate.
// If that happens later, the authorities that were read before stay trusted. Log, which may
// be nil, gets a warning, and the error of a certificate that is not trusted is an [*Error].
func New(file string, base *http.Transport, log *slog.Logger) (*Transport, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	t := &Transport{file: file, log: log, base: base, current: base.Clone()}
	if file == "" {
		return t, nil
	}
	pem, err := os.ReadFile(file)
	if err == nil {
		err = t.trust(pem)
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// trust replaces the authorities.
func (t *Transport) trust(pem []byte) error {
	if !x509.NewCertPool().AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s holds no PEM certificate", t.file)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	roots.AppendCertsFromPEM(pem)
	before := t.current
	t.current = t.base.Clone()
	if t.current.TLSClientConfig == nil {
		t.current.TLSClientConfig = new(tls.Config)
	}
	t.current.TLSClientConfig.RootCAs = roots
	t.pem = pem
	before.CloseIdleConnections() // those in use are closed later, as idle ones
	return nil
}

// follow returns the transport for a request, and why it may have old authorities.
func (t *Transport) follow() (*http.Transport, error) {
	if t.file == "" {
		return t.current, nil
	}
	t.mu.Lock() // also while reading, so that no older content comes last
	defer t.mu.Unlock()
	pem, err := os.ReadFile(t.file)
	if err == nil && !bytes.Equal(pem, t.pem) {
		err = t.trust(pem)
		if err == nil {
			t.log.Info("other authorities are trusted", "file", t.file)
		}
	}
	if err != nil && (t.err == nil || t.err.Error() != err.Error()) {
		t.log.Warn("the file with authorities has changed, and cannot be used; those before stay trusted until gitopsd restarts", "file", t.file, "err", err)
	}
	t.err = err
	return t.current, err
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	current, unusable := t.follow()
	resp, err := current.RoundTrip(req)
	if invalid := (*tls.CertificateVerificationError)(nil); unusable != nil && errors.As(err, &invalid) {
		err = &Error{err, unusable}
	}
	return resp, err
}

// CloseIdleConnections closes connections that are not in use. http.Client calls it.
func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.current.CloseIdleConnections()
}

// Error is the error for a server's certificate while the file cannot be used.
type Error struct {
	// Err is about the certificate, File about the file.
	Err, File error
}

func (e *Error) Error() string {
	return fmt.Sprintf("%v; the file with authorities has changed, and cannot be used: %v", e.Err, e.File)
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }
