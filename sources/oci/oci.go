// Package oci talks to OCI registries: it resolves tags to digests, fetches
// manifests and blobs by digest, lists tags, and pushes.
//
// It owns connections, authentication, retries, the verification of content
// against the requested digest, and the content-addressed cache on disk. It
// does not know packages (sources/xpkg), the digest that a reference should
// have (sources/lockfile), or the references of a fleet (sources/resolve).
//
// A [Layout] has contents in a directory instead. A [Recorder] makes it of the contents
// that were read.
//
// Only Resolve and Tags look at tags. Everything else is requested by digest,
// and content with another digest is never returned.
//
// session.go logs in to repositories, with the credentials of credentials.go or else those
// of docker.go, and transport.go limits and retries requests. tags.go, referrers.go, blob.go and push.go
// are the operations besides Resolve and Manifest, which are here. cache.go is the
// cache, and errors.go explains errors.
//
// It is the only package that imports go-containerregistry, and Docker's packages for its
// configuration. It uses the library's
// authentication (pings, challenges, bearer tokens, Docker's credentials) and upload
// protocol. Downloads are plain requests on top of that: the library's Puller pings once
// a repository, remembers a failed ping for ever, and does not read tags from registries
// that leave out Docker-Content-Digest.
package oci

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/roots"
)

// Limits of a registry's answers.
const (
	// maxManifestBytes bounds a manifest or index. The distribution
	// specification asks registries to accept at least 4 MiB, and few accept
	// more.
	maxManifestBytes = 4 << 20
	// maxTags bounds the tags of a repository.
	maxTags = 100_000
	// maxTagsPageBytes bounds one page of a tag list.
	maxTagsPageBytes = 16 << 20
)

// minRate is the rate at which a registry must send, in bytes a second. It may fall
// behind by Config.Timeout. Time in which the caller does not read does not count.
const minRate = 16 << 10

// The defaults of [Config].
const (
	DefaultTimeout       = 30 * time.Second
	defaultMaxCacheBytes = 2 << 30
	defaultUserAgent     = "gitopsd"
)

// Config configures a [Client]. The zero value works: the system's certificate
// authorities, Docker's credentials, no cache.
type Config struct {
	// UserAgent is sent with every request; by default "gitopsd".
	UserAgent string
	// CAFile holds PEM certificates of authorities that are trusted beside the
	// system's. It may be replaced at any time.
	CAFile string
	// Mirrors maps a registry, by any of its names, to the one (host[:port]) that is
	// read instead. If the mirror fails, the registry is not used.
	// Pushes ignore mirrors.
	Mirrors map[string]string
	// Timeout is how long a registry may stay silent, before an answer and
	// within it; by default [DefaultTimeout]. The context limits a call as a
	// whole.
	Timeout time.Duration
	// CacheDir is the directory for manifests and blobs by digest; empty for no
	// cache. Any number of processes may share it.
	CacheDir string
	// maxCacheBytes bounds CacheDir; by default defaultMaxCacheBytes. The least
	// recently used content is removed first.
	maxCacheBytes int64
	// Log gets a warning when the cache, or CAFile any more, cannot be used, and retries
	// at debug level. It may be nil.
	Log *slog.Logger
}

// Client is a client for any number of registries, which must speak TLS unless
// they are on a loopback address. It is safe for concurrent use. Keep it:
// connections, challenges and tokens are reused, so that looking up a tag again takes
// one request.
type Client struct {
	*shared
	// find returns credentials to try before Docker's; may be nil.
	find func(context.Context) ([]*Credentials, error)
	// found are the last credentials that find returned, for errors.
	found *atomic.Pointer[keyring]
	// offline reports whether no registry may be asked.
	offline bool
}

// shared is shared by a Client and those that With and Offline return.
type shared struct {
	log         *slog.Logger
	timeout     time.Duration
	mirrors     map[string]string
	connections *roots.Transport
	base        http.RoundTripper // over connections
	cache       *cache
	flights     singleflight.Group // pings and logins under way
	mu          sync.Mutex
	pings       map[string]ping         // by registry
	sessions    map[sessionKey]*session // by repository, action and credentials
	docker      map[string]bool         // by registry: whether Docker's configuration has credentials
	// helpers has the credential helpers that run, by registry: those that hang must not
	// pile up.
	helpers map[string]chan struct{}
}

// New returns a Client. It sends no request. It fails if CAFile cannot be read,
// or a setting is invalid.
func New(cfg Config) (*Client, error) {
	if cfg.UserAgent == "" {
		cfg.UserAgent = defaultUserAgent
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.maxCacheBytes <= 0 {
		cfg.maxCacheBytes = defaultMaxCacheBytes
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	connections, err := roots.New(cfg.CAFile, &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: cfg.Timeout, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   cfg.Timeout,
		ResponseHeaderTimeout: cfg.Timeout,
		ForceAttemptHTTP2:     true,
		// A cancelled request leaves its connection open, even a dead one.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
		// All references of a fleet are checked at once, and again after a
		// polling interval: keep their connections.
		MaxIdleConnsPerHost: 128,
		IdleConnTimeout:     90 * time.Second,
	}, cfg.Log)
	if err != nil {
		return nil, fmt.Errorf("authorities for registries: %w", err)
	}
	s := &shared{
		log:         cfg.Log,
		timeout:     cfg.Timeout,
		mirrors:     make(map[string]string),
		pings:       make(map[string]ping),
		sessions:    make(map[sessionKey]*session),
		docker:      make(map[string]bool),
		helpers:     make(map[string]chan struct{}),
		connections: connections,
	}
	for _, registry := range slices.Sorted(maps.Keys(cfg.Mirrors)) {
		usual := sources.UsualRegistry(registry)
		if other, twice := s.mirrors[usual]; twice && other != cfg.Mirrors[registry] {
			return nil, fmt.Errorf("registry %s has two mirrors, %s and %s", usual, other, cfg.Mirrors[registry])
		}
		s.mirrors[usual] = cfg.Mirrors[registry]
	}
	s.base = &baseTransport{next: s.connections, userAgent: cfg.UserAgent, timeout: cfg.Timeout, log: cfg.Log}
	if cfg.CacheDir != "" {
		s.cache = &cache{dir: cfg.CacheDir, max: cfg.maxCacheBytes, log: cfg.Log}
	}
	return &Client{shared: s, found: new(atomic.Pointer[keyring])}, nil
}

// With returns a Client that tries the credentials of find before those in
// Docker's configuration. It shares everything else with c.
//
// Find is called for each request that the cache cannot answer, so that credentials may
// be rotated at any time. Its errors are the request's, and must not contain
// credentials.
func (c *Client) With(find func(context.Context) ([]*Credentials, error)) *Client {
	return &Client{shared: c.shared, find: find, found: new(atomic.Pointer[keyring]), offline: c.offline}
}

// Offline returns a Client that only reads the cache. The error for other contents, and
// for a push, is [sources.ErrUnasked]. It shares everything with c.
func (c *Client) Offline() *Client {
	return &Client{shared: c.shared, find: c.find, found: new(atomic.Pointer[keyring]), offline: true}
}

// Resolve returns the digest of the index or manifest that a reference's tag
// names now. A digest in the reference is returned without a request. The error
// is an [*Error].
//
// It sends one HEAD request. If the answer has no digest (Docker-Content-Digest is
// optional), it sends a GET request too, and hashes the content.
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
	raw, err := c.get(ctx, r, maxManifestBytes)
	if err != nil {
		return "", err
	}
	d := sources.DigestOf(raw)
	c.cache.put(d, raw)
	return d, nil
}

// headIsFinal reports whether a GET would have the same status as a HEAD. Other errors,
// such as 405, may only be about the method.
func headIsFinal(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

// Manifest returns the index or manifest with digest d, of at most
// maxManifestBytes bytes. Its media type is in the bytes; the digest does not cover the
// registry's Content-Type. The error is a [*MismatchError] if the registry sends other
// bytes, else an [*Error].
func (c *Client) Manifest(ctx context.Context, repository string, d sources.Digest) ([]byte, error) {
	subject := repository + "@" + string(d)
	if _, err := sources.ParseDigest(string(d)); err != nil {
		return nil, &Error{Subject: repository, Reason: Malformed, Text: err.Error()}
	}
	if raw, ok := c.cache.get(d, maxManifestBytes); ok {
		return raw, nil
	}
	located := c.locate(repository)
	raw, err := c.get(ctx, request{repository: located, path: "manifests/" + string(d), accept: acceptManifests}, maxManifestBytes)
	if err != nil {
		return nil, c.explain(subject, located, err)
	}
	if seen := sources.DigestOf(raw); seen != d {
		return nil, &MismatchError{Subject: subject, Registry: registryOf(located), Want: d, Seen: seen, WantSize: -1, SeenSize: int64(len(raw))}
	}
	c.cache.put(d, raw)
	return raw, nil
}

// locate returns the repository to read from: the given one, or the mirror's.
func (c *Client) locate(repository string) string {
	host, path, _ := strings.Cut(repository, "/")
	if mirror, ok := c.mirrors[sources.UsualRegistry(host)]; ok {
		return mirror + "/" + path
	}
	return repository
}

// Close closes idle connections. The Client can be used afterwards.
func (c *Client) Close() {
	c.connections.CloseIdleConnections()
}
