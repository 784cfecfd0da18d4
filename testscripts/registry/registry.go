// Package registry runs a real OCI registry on a loopback port, for tests and
// the demo: go-containerregistry's, behind a handler that adds TLS and
// authentication, keeps what was pushed on disk if asked to, moves tags, counts
// requests, and breaks things on demand.
//
// It is the counterpart that sources/oci is tested against, not a production
// registry: it checks nothing else.
package registry

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
)

// Auth is how a registry authenticates clients.
type Auth string

// The ways to authenticate.
const (
	// NoAuth requires no credentials.
	NoAuth Auth = ""
	// BasicAuth requires user and password with each request.
	BasicAuth Auth = "basic"
	// TokenAuth exchanges user and password at /token for tokens, each valid for
	// one repository and action, as Docker Hub does.
	TokenAuth Auth = "token"
)

// Config configures a registry.
type Config struct {
	// Dir keeps blobs and manifests for a later registry with the same Dir. Empty
	// means memory.
	Dir string
	// Addr is the address to listen on; the default is 127.0.0.1:0.
	Addr string
	// TLS serves HTTPS with a certificate of the authority that [Registry.CA]
	// returns.
	TLS bool
	// Auth is the way to authenticate, with user and password.
	Auth               Auth
	Username, Password string
}

// Registry is a running registry. Its methods are safe for concurrent use.
type Registry struct {
	cfg     Config
	backend http.Handler
	server  *http.Server
	addr    string
	caPEM   []byte
	tokens  tokens
	served  sync.WaitGroup

	mu     sync.Mutex
	faults []*activeFault
	counts map[string]int
}

// Start starts a registry that is closed when the test ends.
func Start(t testing.TB, cfg Config) *Registry {
	t.Helper()
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// New starts a registry.
func New(cfg Config) (*Registry, error) {
	if cfg.Addr == "" {
		cfg.Addr = "127.0.0.1:0"
	}
	options := []ggcr.Option{ggcr.Logger(log.New(io.Discard, "", 0)), ggcr.WithReferrersSupport(true)}
	if cfg.Dir != "" {
		blobs := path.Join(cfg.Dir, "blobs")
		if err := os.MkdirAll(blobs, 0o755); err != nil {
			return nil, fmt.Errorf("registry: %w", err)
		}
		options = append(options, ggcr.WithBlobHandler(ggcr.NewDiskBlobHandler(blobs)))
	}
	r := &Registry{
		cfg:     cfg,
		backend: ggcr.New(options...),
		counts:  make(map[string]int),
	}
	if cfg.Dir != "" {
		if err := r.restore(); err != nil {
			return nil, fmt.Errorf("registry: %w", err)
		}
	}
	listener, err := net.Listen("tcp", cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	r.addr = listener.Addr().String()
	r.server = &http.Server{Handler: r, ErrorLog: log.New(io.Discard, "", 0)}
	if cfg.TLS {
		cert, caPEM, err := certificate()
		if err != nil {
			listener.Close()
			return nil, fmt.Errorf("registry: %w", err)
		}
		r.caPEM = caPEM
		// net/http offers HTTP/2 only with ServeTLS.
		r.server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}}
		r.served.Go(func() { _ = r.server.ServeTLS(listener, "", "") })
		return r, nil
	}
	r.served.Go(func() { _ = r.server.Serve(listener) })
	return r, nil
}

// Host returns the registry's "host:port", with which references start.
func (r *Registry) Host() string { return r.addr }

// CA returns the PEM certificate of the registry's certificate authority; nil
// without TLS.
func (r *Registry) CA() []byte { return r.caPEM }

// Close ends the registry and every connection to it.
func (r *Registry) Close() {
	_ = r.server.Close()
	r.served.Wait()
}

// Count returns how many requests came with this method ("" for any) and a path
// with this prefix.
func (r *Registry) Count(method, prefix string) int {
	n := 0
	for request, count := range r.Requests() {
		m, p, _ := strings.Cut(request, " ")
		if (method == "" || m == method) && strings.HasPrefix(p, prefix) {
			n += count
		}
	}
	return n
}

// Requests returns how often each "METHOD path" came.
func (r *Registry) Requests() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.counts)
}

// ResetCounts forgets the requests so far.
func (r *Registry) ResetCounts() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.counts)
}

// Tag creates or moves a tag of a repository to the manifest that from, another
// tag or a digest, points to.
func (r *Registry) Tag(repository, from, tag string) error {
	get := httptest.NewRecorder()
	r.backend.ServeHTTP(get, httptest.NewRequest(http.MethodGet, manifestPath(repository, from), nil))
	if get.Code != http.StatusOK {
		return fmt.Errorf("registry: %s:%s cannot be tagged %s: status %d", repository, from, tag, get.Code)
	}
	m := savedManifest{repository, tag, get.Header().Get("Content-Type"), get.Body.Bytes()}
	if err := r.putBackend(m); err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	if err := r.save(m); err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	return nil
}

func manifestPath(repository, reference string) string {
	return "/v2/" + repository + "/manifests/" + reference
}

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.counts[req.Method+" "+req.URL.Path]++
	fault := r.match(req)
	r.mu.Unlock()
	if fault != nil {
		var done bool
		if w, done = fault.apply(w, req); done {
			return
		}
	}
	if !r.authenticated(w, req) {
		return
	}
	r.store(w, req)
}

// match returns the first fault for a request and counts it. The caller holds the
// lock.
func (r *Registry) match(req *http.Request) *activeFault {
	for _, f := range r.faults {
		if f.matches(req) {
			return f
		}
	}
	return nil
}

// Break makes requests fail as f describes, until heal is called or f.Times
// requests have failed.
func (r *Registry) Break(f Fault) (heal func()) {
	active := &activeFault{Fault: f}
	active.left.Store(int64(f.Times))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, active)
	return func() { active.healed.Store(true) }
}

// activeFault is a Fault that is in effect.
type activeFault struct {
	Fault
	left   atomic.Int64
	healed atomic.Bool
}
