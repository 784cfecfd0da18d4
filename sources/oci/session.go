package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// acceptManifests are the media types asked for: OCI's and Docker's, indexes and
// single manifests.
var acceptManifests = strings.Join([]string{
	string(types.OCIImageIndex), string(types.OCIManifestSchema1),
	string(types.DockerManifestList), string(types.DockerManifestSchema2),
}, ",")

// maxSessions bounds the sessions. At more, which happens only if credentials are
// rotated, all are dropped.
const maxSessions = 10_000

// vainAge is the age from which a login is renewed although a request was refused when
// it was new. A registry may refuse some requests always.
const vainAge = 5 * time.Minute

// ping is a registry's answer to a request for /v2/.
type ping struct {
	challenge *transport.Challenge
	scheme    string // http or https
}

// session is a login to one repository.
type session struct {
	client *http.Client
	repo   name.Repository
	base   string // prefix of its URLs, up to /v2/<name>/
	made   time.Time
	// vain: a request was refused although the login was new.
	vain atomic.Bool
}

type sessionKey struct {
	repository  string // as requested
	action      string // transport.PullScope or PushScope
	credentials string
}

// request is one request about a repository.
type request struct {
	method     string // default GET
	repository string
	path       string // below /v2/<name>/
	query      string
	accept     string
	ranges     string // the Range header
}

// registryOf returns the host[:port] of a repository.
func registryOf(repository string) string {
	host, _, _ := strings.Cut(repository, "/")
	return host
}

// parseRepository checks a repository's name.
func parseRepository(repository string) (name.Repository, error) {
	repo, err := name.NewRepository(repository)
	if err != nil {
		return repo, &problem{Malformed, "not a repository: " + printable(err.Error())}
	}
	return repo, nil
}

// do sends a request with a login to its repository, and once more with a new
// login if the old one is refused: tokens expire and credentials are rotated.
// The caller closes the body.
func (c *Client) do(ctx context.Context, r request) (*http.Response, error) {
	if c.offline {
		return nil, &problem{Unasked, "the cache does not have it, and no registry is asked"}
	}
	start := time.Now()
	own, err := c.keyring(ctx)
	if err != nil {
		return nil, err
	}
	key := sessionKey{r.repository, transport.PullScope, own.key}
	for {
		s, err := c.session(ctx, key, own)
		if err != nil {
			return nil, err
		}
		url := s.base + r.path
		if r.query != "" {
			url += "?" + r.query
		}
		req, err := http.NewRequestWithContext(ctx, r.method, url, nil)
		if err != nil {
			return nil, err
		}
		if r.accept != "" {
			req.Header.Set("Accept", r.accept)
		}
		if r.ranges != "" {
			req.Header.Set("Range", r.ranges)
		}
		resp, err := s.client.Do(req)
		if err == nil && isRefusal(resp.StatusCode) && s.outdated(start) {
			resp.Body.Close()
			c.forget(key, s)
			continue
		}
		// The library renews an expired token by the password that it was given.
		if answer, ok := errors.AsType[*transport.Error](err); ok && isRefusal(answer.StatusCode) && s.outdated(start) {
			c.forget(key, s)
			continue
		}
		if err != nil && ctx.Err() == nil {
			// The registry may come back with another scheme or challenge.
			c.forget(key, s)
		}
		return resp, err
	}
}

// isRefusal reports whether an expired token may be the reason of a status. Amazon's
// registries answer one with 400 or 403.
func isRefusal(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusBadRequest || status == http.StatusForbidden
}

// outdated reports whether a new login may help a request that was refused. start is the
// time of the request. If the login was made for the request, it does not help, and later
// requests do not try it again until the login has vainAge.
func (s *session) outdated(start time.Time) bool {
	if !s.made.Before(start) {
		s.vain.Store(true)
		return false
	}
	return !s.vain.Load() || time.Since(s.made) >= vainAge
}

// get returns the answer to a request, at most limit bytes. If the connection
// breaks, the request is repeated, since the answer is small.
func (c *Client) get(ctx context.Context, r request, limit int64) ([]byte, error) {
	for attempt := 1; ; attempt++ {
		resp, err := c.do(ctx, r)
		if err != nil {
			return nil, err
		}
		body, err := readAll(resp, limit)
		if err != nil && isBroken(err) && attempt < maxAttempts && ctx.Err() == nil {
			continue
		}
		return body, err
	}
}

// readAll reads and closes the body of a successful answer.
func readAll(resp *http.Response, limit int64) ([]byte, error) {
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, statusError(resp)
	}
	var buf bytes.Buffer
	n, err := buf.ReadFrom(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, &problem{Malformed, fmt.Sprintf("%s sends more than %d bytes, which no manifest or list of tags needs", resp.Request.URL.Host, limit)}
	}
	return buf.Bytes(), nil
}

// forget makes the next request log in again.
func (c *Client) forget(key sessionKey, s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions[key] == s {
		delete(c.sessions, key)
		delete(c.pings, s.repo.RegistryStr())
	}
}

// session returns the login to a repository with the credentials own, and logs in if
// needed. Own's key is in key. Concurrent callers share one login and its error, which
// is not remembered.
func (c *Client) session(ctx context.Context, key sessionKey, own *keyring) (*session, error) {
	c.mu.Lock()
	s := c.sessions[key]
	c.mu.Unlock()
	if s != nil {
		return s, nil
	}
	repo, err := parseRepository(key.repository)
	if err != nil {
		return nil, err
	}
	v, err := c.flight(ctx, fmt.Sprintf("login %q", key), func(ctx context.Context) (any, error) {
		// A flight may have ended since.
		c.mu.Lock()
		s := c.sessions[key]
		c.mu.Unlock()
		if s != nil {
			return s, nil
		}
		s, err := c.login(ctx, repo, key.action, own)
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.sessions) >= maxSessions {
			clear(c.sessions)
		}
		c.sessions[key] = s
		return s, nil
	})
	if err != nil {
		return nil, err
	}
	return v.(*session), nil
}

// flight runs fn once for all concurrent callers with a key. It may outlive the caller
// that started it, by at most the timeout, so that one caller's short deadline does not
// fail others.
func (c *Client) flight(ctx context.Context, key string, fn func(context.Context) (any, error)) (any, error) {
	done := c.flights.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), c.timeout, errSilent)
		defer cancel()
		v, err := fn(ctx)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return v, err
	})
	select {
	case r := <-done:
		return r.Val, r.Err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// login answers the registry's challenge.
func (c *Client) login(ctx context.Context, repo name.Repository, action string, own *keyring) (*session, error) {
	p, err := c.ping(ctx, repo.Registry)
	if err != nil {
		return nil, err
	}
	auth, err := c.authenticator(ctx, repo, own)
	if err != nil {
		return nil, err
	}
	token := &transport.Token{}
	if strings.EqualFold(p.challenge.Scheme, "bearer") {
		if token, err = c.token(ctx, repo, action, auth, p.challenge); err != nil {
			return nil, err
		}
	}
	base := &fixedScheme{c.base, repo.RegistryStr(), p.scheme}
	rt, err := transport.FromToken(repo.Registry, auth, base, p.challenge, token)
	if err != nil {
		return nil, &problem{Malformed, fmt.Sprintf("%s asks for authentication in a way that is not understood: %s", repo.RegistryStr(), printable(err.Error()))}
	}
	return &session{
		client: &http.Client{Transport: rt, CheckRedirect: checkRedirect},
		repo:   repo,
		base:   fmt.Sprintf("%s://%s/v2/%s/", p.scheme, repo.RegistryStr(), repo.RepositoryStr()),
		made:   time.Now(),
	}, nil
}

// token exchanges credentials for a bearer token.
func (c *Client) token(ctx context.Context, repo name.Repository, action string, auth authn.Authenticator, challenge *transport.Challenge) (*transport.Token, error) {
	config, err := authn.Authorization(ctx, auth)
	if err != nil {
		return nil, &problem{Unauthorized, fmt.Sprintf("the credentials for %s cannot be read", repo.RegistryStr())}
	}
	if config.RegistryToken != "" {
		return &transport.Token{Token: config.RegistryToken}, nil
	}
	token, err := transport.Exchange(ctx, repo.Registry, auth, c.base, []string{repo.Scope(action)}, challenge)
	if err != nil {
		return nil, err
	}
	if token.Token == "" {
		token.Token = token.AccessToken
	}
	return token, nil
}

// ping determines a registry's scheme and challenge, once.
func (c *Client) ping(ctx context.Context, reg name.Registry) (ping, error) {
	host := reg.RegistryStr()
	c.mu.Lock()
	p, ok := c.pings[host]
	c.mu.Unlock()
	if ok {
		return p, nil
	}
	v, err := c.flight(ctx, "ping "+host, func(ctx context.Context) (any, error) {
		// A flight may have ended since.
		c.mu.Lock()
		p, ok := c.pings[host]
		c.mu.Unlock()
		if ok {
			return p, nil
		}
		p = ping{scheme: "https"}
		var err error
		p.challenge, err = transport.Ping(ctx, reg, oneScheme{c.base, p.scheme})
		if err != nil && isPlainHTTPAnswer(err) && isLoopback(host) {
			p.scheme = "http"
			if reg, err = name.NewRegistry(host, name.Insecure); err == nil {
				p.challenge, err = transport.Ping(ctx, reg, oneScheme{c.base, p.scheme})
			}
		}
		if err == nil {
			err = followRealm(&p, host)
		}
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.pings[host] = p
		return p, nil
	})
	if err != nil {
		return ping{}, err
	}
	return v.(ping), nil
}

// followRealm checks the token server that a registry names. A registry that uses TLS must
// not have credentials sent without it, and no registry may have them sent to a private
// address. Only a registry on this machine may name a token server on this machine. Its
// address is then replaced by the registry's own or localhost.
func followRealm(p *ping, host string) error {
	realm, err := url.Parse(p.challenge.Parameters["realm"])
	if err != nil || !strings.EqualFold(p.challenge.Scheme, "bearer") || realm.Host == host {
		return nil // if it is not valid, the exchange fails
	}
	ip := net.ParseIP(realm.Hostname())
	switch {
	case realm.Scheme == "http" && p.scheme == "https":
		return &problem{Untrusted, fmt.Sprintf("%s speaks TLS and has credentials sent to %s without it, for a token; they are not sent: have whoever runs the registry name its token server by https", host, realm.Host)}
	case ip == nil:
		return nil
	case ip.IsLoopback() && isLoopback(host):
		port := realm.Port()
		if _, own, _ := net.SplitHostPort(host); own == port {
			realm.Host = host
		} else {
			realm.Host = net.JoinHostPort("localhost", port)
		}
		challenge := *p.challenge
		challenge.Parameters = maps.Clone(challenge.Parameters)
		challenge.Parameters["realm"] = realm.String()
		p.challenge = &challenge
	case ip.IsLoopback(), ip.IsPrivate(), ip.IsLinkLocalUnicast(), ip.IsUnspecified():
		return &problem{Untrusted, fmt.Sprintf("%s has credentials sent to the private address %s, for a token; they are not sent: have whoever runs the registry name its token server by a DNS name", host, realm.Host)}
	}
	return nil
}

func isLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return ip != nil && ip.IsLoopback()
}

// oneScheme refuses requests with another scheme. The library's ping tries TLS first, and
// then plain HTTP for names and addresses that look private; here it is only for
// loopback addresses.
type oneScheme struct {
	next   http.RoundTripper
	scheme string
}

func (o oneScheme) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != o.scheme {
		return nil, errScheme
	}
	return o.next.RoundTrip(req)
}

// fixedScheme sends requests to a registry with the scheme that its ping determined,
// instead of the library's guess.
type fixedScheme struct {
	next         http.RoundTripper
	host, scheme string
}

func (f *fixedScheme) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Host == f.host && req.URL.Scheme != f.scheme {
		req = req.Clone(req.Context())
		req.URL.Scheme = f.scheme
	}
	return f.next.RoundTrip(req)
}
