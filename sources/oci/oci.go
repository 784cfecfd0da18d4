// Package oci talks to OCI registries: it resolves tags to digests, fetches
// manifests and blobs by digest, lists tags, and pushes.
//
// It owns the wire: connections, authentication, retries, verification of what
// came against the digest that was asked for, and the content-addressed cache on
// disk. It does not know what a package is (sources/xpkg reads those through
// it), which digest a reference ought to have (sources/lockfile), or which
// references a fleet needs (sources/resolve).
//
// A tag is looked at by Resolve and Tags alone. Everything else is asked for by
// digest, and what does not have that digest is never handed out.
//
// It is the only package that imports go-containerregistry, of which it uses
// the authentication (pings, challenges, bearer tokens, Docker's credentials)
// and the upload protocol. Downloads are plain requests on top of that: the
// library's own Puller pings once a repository, remembers a failed ping for
// ever, and does not read tags from registries that leave out
// Docker-Content-Digest.
package oci

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"gitopsd.dev/sources"
)

// Limits of what is read from a registry.
const (
	// MaxManifestBytes bounds a manifest or index; the distribution
	// specification asks registries to take 4 MiB at least, and few take more.
	MaxManifestBytes = 4 << 20
	// MaxTags bounds what Tags lists for a repository.
	MaxTags = 100_000
	// maxTagsPageBytes bounds one page of a tag list.
	maxTagsPageBytes = 16 << 20
)

// The defaults of Config.
const (
	DefaultTimeout       = 30 * time.Second
	DefaultMinRate       = 16 << 10
	DefaultMaxCacheBytes = 2 << 30
	defaultUserAgent     = "gitopsd"
)

// Config is what a Client needs. The zero value works: the system's certificate
// authorities, Docker's credentials, no cache.
type Config struct {
	// UserAgent is sent with every request. Default "gitopsd".
	UserAgent string
	// CAFile holds PEM certificates of authorities that are trusted beside the
	// system's.
	CAFile string
	// Mirrors maps a registry, as references name it, to the one (host[:port])
	// that is asked in its place. It is not asked itself, should the mirror
	// fail. Pushes go to no mirror.
	Mirrors map[string]string
	// PlainHTTP lists registries, as "host[:port]", that may be spoken to
	// without TLS. Those on a loopback address always may; all others are
	// refused when they do not speak TLS.
	PlainHTTP []string
	// Timeout is how long a registry may stay silent: before it answers, and
	// between two pieces of an answer. How long a call may last altogether is
	// its context's affair. Default DefaultTimeout.
	Timeout time.Duration
	// MinRate is how much a registry must send of an answer, in bytes a second.
	// One that sends less may fall behind by Timeout altogether: a byte now and
	// then is no better than silence. Time in which nothing is asked for does
	// not count. Default DefaultMinRate.
	MinRate int64
	// CacheDir is where manifests and blobs are kept, by their digests. Any
	// number of processes may share it. Empty means no cache.
	CacheDir string
	// MaxCacheBytes bounds CacheDir; what was used least recently goes first.
	// Default DefaultMaxCacheBytes.
	MaxCacheBytes int64
	// Log gets a warning when the cache cannot be used, and retries at debug
	// level. Default: none.
	Log *slog.Logger
}

// Client talks to any number of registries. It is safe for concurrent use, and
// made to be kept: connections, challenges and tokens are reused, so that an
// unchanged reference costs one HEAD.
type Client struct {
	*shared
	// find finds credentials that come before Docker's own; nil finds none.
	find func(context.Context) ([]*Credentials, error)
	// found are those that were found last, for errors.
	found *atomic.Pointer[keyring]
}

// shared is what a Client and those made by With have in common.
type shared struct {
	log         *slog.Logger
	timeout     time.Duration
	minRate     int64
	plainHTTP   map[string]bool
	mirrors     map[string]string
	connections *http.Transport
	base        http.RoundTripper // over connections
	cache       *cache
	// dockerSlot lets one lookup in Docker's configuration run at a time: it
	// may start a credential helper, and one that hangs must not gather others.
	dockerSlot chan struct{}

	flights  singleflight.Group // pings and logins under way
	mu       sync.Mutex
	pings    map[string]ping         // by registry
	sessions map[sessionKey]*session // by repository, action and credentials
}

// New makes a Client. It sends no request, and reads no file but CAFile.
func New(cfg Config) (*Client, error) {
	roots, err := authorities(cfg.CAFile)
	if err != nil {
		return nil, err
	}
	if cfg.UserAgent == "" {
		cfg.UserAgent = defaultUserAgent
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.MinRate <= 0 {
		cfg.MinRate = DefaultMinRate
	}
	if cfg.MaxCacheBytes <= 0 {
		cfg.MaxCacheBytes = DefaultMaxCacheBytes
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &shared{
		log:        cfg.Log,
		timeout:    cfg.Timeout,
		minRate:    cfg.MinRate,
		plainHTTP:  make(map[string]bool),
		mirrors:    maps.Clone(cfg.Mirrors),
		pings:      make(map[string]ping),
		sessions:   make(map[sessionKey]*session),
		dockerSlot: make(chan struct{}, 1),
		connections: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: cfg.Timeout, KeepAlive: 30 * time.Second}).DialContext,
			TLSClientConfig:       &tls.Config{RootCAs: roots},
			TLSHandshakeTimeout:   cfg.Timeout,
			ResponseHeaderTimeout: cfg.Timeout,
			ForceAttemptHTTP2:     true,
			// All references of a fleet are checked at once, and again a
			// polling interval later: keep their connections.
			MaxIdleConnsPerHost: 128,
			IdleConnTimeout:     90 * time.Second,
		},
	}
	s.base = &retrying{next: s.connections, userAgent: cfg.UserAgent, timeout: cfg.Timeout, minRate: cfg.MinRate, log: cfg.Log}
	for _, host := range cfg.PlainHTTP {
		s.plainHTTP[host] = true
	}
	if cfg.CacheDir != "" {
		s.cache = &cache{dir: cfg.CacheDir, max: cfg.MaxCacheBytes, log: cfg.Log}
	}
	return &Client{shared: s, found: new(atomic.Pointer[keyring])}, nil
}

// authorities returns the system's certificate authorities and those in a file;
// nil, the system's alone, without one.
func authorities(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("authorities for registries: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("authorities for registries: %s has no PEM certificate", file)
	}
	return roots, nil
}

// With returns a Client that looks for credentials in what find returns before
// it looks in Docker's configuration. It shares everything else with c.
//
// Find is called whenever something is to be sent, and what it returns is used
// for that alone: credentials that were rotated are taken up by the next
// request, and what the cache has needs none. An error of find's is the
// request's; it must say what is wrong and hold no credentials.
func (c *Client) With(find func(context.Context) ([]*Credentials, error)) *Client {
	return &Client{shared: c.shared, find: find, found: new(atomic.Pointer[keyring])}
}

// Resolve returns the digest that a reference stands for now: that of the index
// or manifest its tag points to. A reference that has a digest is not looked up.
//
// It costs one HEAD; where the registry answers that without a digest
// (Docker-Content-Digest is optional), one GET, whose bytes are hashed.
func (c *Client) Resolve(ctx context.Context, ref sources.Ref) (sources.Digest, error) {
	if ref.Digest != "" {
		return ref.Digest, nil
	}
	repository := c.locate(ref.Repository)
	d, err := c.resolve(ctx, repository, ref.Tag)
	if err != nil {
		return "", c.explain(ref.String(), repository, err)
	}
	return d, nil
}

func (c *Client) resolve(ctx context.Context, repository, tag string) (sources.Digest, error) {
	r := request{method: http.MethodHead, repository: repository, path: "manifests/" + tag, accept: acceptManifests}
	resp, err := c.do(ctx, r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusOK:
		if d, err := sources.ParseDigest(resp.Header.Get("Docker-Content-Digest")); err == nil {
			return d, nil
		}
	case headIsFinal(resp.StatusCode):
		return "", statusError(resp)
	}
	r.method = http.MethodGet
	raw, err := c.get(ctx, r, MaxManifestBytes)
	if err != nil {
		return "", err
	}
	d := sources.DigestOf(raw)
	c.cache.put(d, raw)
	return d, nil
}

// headIsFinal reports whether a GET would say the same as a HEAD answered with
// this status. Other refusals, 405 for instance, may concern the method alone.
func headIsFinal(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

// Manifest returns the bytes of an index or manifest, at most MaxManifestBytes
// of them, which have digest d. What kind it is stands in the bytes; the
// registry's Content-Type is not covered by the digest and not handed out.
func (c *Client) Manifest(ctx context.Context, repository string, d sources.Digest) ([]byte, error) {
	subject := repository + "@" + string(d)
	if _, err := sources.ParseDigest(string(d)); err != nil {
		return nil, &Error{Subject: repository, Reason: Malformed, Text: err.Error()}
	}
	if raw, ok := c.cache.get(d, MaxManifestBytes); ok {
		return raw, nil
	}
	located := c.locate(repository)
	raw, err := c.get(ctx, request{repository: located, path: "manifests/" + string(d), accept: acceptManifests}, MaxManifestBytes)
	if err != nil {
		return nil, c.explain(subject, located, err)
	}
	if seen := sources.DigestOf(raw); seen != d {
		return nil, &MismatchError{Subject: subject, Registry: registryOf(located), Want: d, Seen: seen, WantSize: -1, SeenSize: int64(len(raw))}
	}
	c.cache.put(d, raw)
	return raw, nil
}

// locate returns where a repository is fetched from: itself, or its registry's
// mirror.
func (c *Client) locate(repository string) string {
	host, path, _ := strings.Cut(repository, "/")
	if mirror, ok := c.mirrors[host]; ok {
		return mirror + "/" + path
	}
	return repository
}

// Close closes connections that are kept for the next request. The Client can be
// used afterwards.
func (c *Client) Close() {
	c.connections.CloseIdleConnections()
}
