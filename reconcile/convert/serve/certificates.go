package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"gitopsd.dev/reconcile/certs"
	"gitopsd.dev/reconcile/certs/rotation"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/render/manifest"
)

// reloadPause is the interval at which the files are read. A kubelet takes about a minute to
// replace them.
const reloadPause = 5 * time.Second

// Certificates are the certificate of a server and the CA that clients must trust. They are
// files in a directory, as Kubernetes mounts a Secret of the type kubernetes.io/tls: tls.crt,
// tls.key, and ca.crt unless clients trust the CA anyway.
type Certificates struct {
	dir string
	log *slog.Logger
	now atomic.Pointer[loaded]
}

// loaded are the files as they were read.
type loaded struct {
	certificate tls.Certificate
	authority   []byte // the certificates in ca.crt
	files       [3]string
	// replaced is closed when other files were loaded.
	replaced chan struct{}
}

// LoadCertificates reads the files of a directory. The error names it.
func LoadCertificates(dir string, log *slog.Logger) (*Certificates, error) {
	c := &Certificates{dir: dir, log: log}
	now, err := c.read()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	c.now.Store(now)
	c.warn()
	return c, nil
}

// Follow loads changed files until ctx ends. While the files have errors, the earlier ones are
// used.
func (c *Certificates) Follow(ctx context.Context) {
	told := ""
	for kube.Sleep(ctx, reloadPause) == nil {
		text := ""
		changed, err := c.reload()
		if err != nil {
			text = err.Error()
		}
		switch {
		case changed:
			c.log.Info("another certificate is used", "directory", c.dir, "expires", c.Expires())
			c.warn()
		case text != "" && text != told:
			c.log.Warn("the certificate cannot be read again; the one before is used", "directory", c.dir, "error", err)
		}
		told = text
	}
}

// reload loads the files, and reports whether they have changed.
func (c *Certificates) reload() (changed bool, err error) {
	next, err := c.read()
	before := c.now.Load()
	switch {
	case err != nil || before.files == next.files:
		return false, err
	case before.authority != nil && next.authority == nil && before.files[0] == next.files[0]:
		// Perhaps it is replaced at this moment. Without it API servers would not trust the certificate.
		return false, errors.New("ca.crt is gone, and tls.crt is the same; restart the process if it is not needed any more")
	}
	close(c.now.Swap(next).replaced)
	return true, nil
}

// read reads the files. A kubelet replaces all of them at once, by the link ..data.
func (c *Certificates) read() (*loaded, error) {
	dir := c.dir
	if data, err := filepath.EvalSymlinks(filepath.Join(dir, "..data")); err == nil {
		dir = data
	}
	l := &loaded{replaced: make(chan struct{})}
	var texts [3][]byte
	for i, name := range []string{"tls.crt", "tls.key", "ca.crt"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) && name == "ca.crt" {
			continue
		}
		if err != nil {
			return nil, err
		}
		texts[i], l.files[i] = text, string(text)
	}
	var err error
	if l.certificate, err = tls.X509KeyPair(texts[0], texts[1]); err != nil {
		return nil, fmt.Errorf("tls.crt and tls.key: %w", err)
	}
	if texts[2] == nil {
		return l, nil
	}
	cas, err := rotation.Parse(texts[2])
	if err != nil {
		return nil, fmt.Errorf("ca.crt %w", err)
	}
	l.authority = rotation.Encode(cas...) // it is published: nothing else in the file may be
	return l, nil
}

// warn warns about a private key beside the CA.
func (c *Certificates) warn() {
	if strings.Contains(c.now.Load().files[2], "PRIVATE KEY-----") {
		c.log.Warn("ca.crt has a private key beside the CA; it is published nowhere, and no server needs it: remove it", "directory", c.dir)
	}
}

// Config returns the TLS configuration of a server that uses the current certificate.
func (c *Certificates) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &c.now.Load().certificate, nil },
	}
}

// Authority returns the CA that clients must trust, in PEM; nil if they trust it anyway.
func (c *Certificates) Authority() []byte { return c.now.Load().authority }

// Expires returns when the certificate expires.
func (c *Certificates) Expires() time.Time { return c.now.Load().certificate.Leaf.NotAfter }

// Serves returns an error unless clients that trust Authority accept the certificate for a
// host. Without an Authority, only the dates and the host are checked.
func (c *Certificates) Serves(host string, now time.Time) error {
	l := c.now.Load()
	opts := x509.VerifyOptions{DNSName: host, CurrentTime: now, Intermediates: x509.NewCertPool()}
	for _, der := range l.certificate.Certificate[1:] {
		if cert, err := x509.ParseCertificate(der); err == nil {
			opts.Intermediates.AddCert(cert)
		}
	}
	if l.authority != nil {
		opts.Roots = x509.NewCertPool()
		opts.Roots.AppendCertsFromPEM(l.authority)
		_, err := l.certificate.Leaf.Verify(opts)
		return err
	}
	cert := l.certificate.Leaf
	switch {
	case now.Before(cert.NotBefore):
		return fmt.Errorf("it is valid only from %s", cert.NotBefore.UTC().Format(time.RFC3339))
	case now.After(cert.NotAfter):
		return fmt.Errorf("it expired on %s", cert.NotAfter.UTC().Format(time.RFC3339))
	}
	return cert.VerifyHostname(host)
}

// Complete implements [unit.Completer]. It adds nothing to a unit, and tells those whose
// objects the daemon converts when the certificate expires.
func (c *Certificates) Complete(_ context.Context, r unit.Request) (unit.Completion, error) {
	done := unit.Completion{Relied: make(map[manifest.ID]string)}
	if spec := r.Unit.Spec.Conversion; spec == nil || spec.URL == "" || len(r.Unit.Conversions) == 0 {
		return done, nil
	}
	c.Tell(&done, "--conversion-tls-dir")
	return done, nil
}

// Tell tells a unit when the certificate expires. flag names the directory.
func (c *Certificates) Tell(done *unit.Completion, flag string) {
	certs.Tell(done, flag, status.Serving, c.now.Load().certificate.Leaf)
}
