package wire

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"gitopsd.dev/sources/roots"
)

// httpTransport speaks the smart HTTP protocol (gitprotocol-http(5)).
type httpTransport struct {
	client      *http.Client
	credentials func(context.Context) (string, string, error)
	origin      *url.URL // as configured

	mu   sync.Mutex
	base *url.URL // that discovery was redirected to
}

func newHTTPTransport(cfg Config) (*httpTransport, error) {
	connections, err := roots.New(cfg.CAFile, &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:   30 * time.Second,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   4,
		IdleConnTimeout:       5 * time.Minute,
		ExpectContinueTimeout: time.Second,
		// A cancelled request leaves its connection open, even a dead one.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}, cfg.Log)
	if err != nil {
		return nil, fmt.Errorf("CA file: %w", err)
	}
	origin := *cfg.URL
	origin.Path = strings.TrimSuffix(origin.Path, "/")
	return &httpTransport{
		credentials: cfg.Credentials,
		origin:      &origin,
		base:        &origin,
		client: &http.Client{
			Transport: connections,
			CheckRedirect: func(req *http.Request, via []*http.Request) error {
				if err := checkRedirect(req, via); err != nil || cfg.Redirect == nil {
					return err
				}
				return cfg.Redirect(repositoryOf(req.URL))
			},
		},
	}, nil
}

// repositoryOf returns the repository of a discovery URL.
func repositoryOf(discovery *url.URL) *url.URL {
	u := *discovery
	u.Path, u.RawPath, u.RawQuery, u.User = strings.TrimSuffix(u.Path, infoRefs), "", "", nil
	return &u
}

func (t *httpTransport) stateless() bool { return true }
func (t *httpTransport) close()          { t.client.CloseIdleConnections() }

// checkRedirect allows redirects of discovery to another path, and from http to https, but
// not to another host, since the credentials are for this one.
func checkRedirect(req *http.Request, via []*http.Request) error {
	first := via[0].URL
	switch {
	case len(via) >= 5:
		return errors.New("the server redirects in circles")
	case via[0].Method != http.MethodGet:
		return fmt.Errorf("the server redirects to %s: use that URL", req.URL.Redacted())
	case req.URL.Hostname() != first.Hostname(),
		req.URL.Scheme != first.Scheme && req.URL.Scheme != "https",
		req.URL.Scheme == first.Scheme && req.URL.Port() != first.Port():
		return fmt.Errorf("the server redirects to %s://%s: if that is right, use that URL", req.URL.Scheme, req.URL.Host)
	}
	return nil
}

func (t *httpTransport) open(_ context.Context, service string, alive func()) (session, error) {
	return &httpSession{t: t, service: service, alive: alive}, nil
}

type httpSession struct {
	t       *httpTransport
	service string
	alive   func()
	body    io.ReadCloser // of the last answer
}

func (s *httpSession) close() {
	if s.body == nil {
		return
	}
	// A connection is used again only if its answer was read to the end.
	io.CopyN(io.Discard, s.body, 64<<10)
	s.body.Close()
	s.body = nil
}

func (s *httpSession) explain(err error) error { return err }

const infoRefs = "/info/refs"

func (s *httpSession) greeting(ctx context.Context) (*pktReader, error) {
	// Start at the configured URL, since redirects may change.
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.t.origin.String()+infoRefs+"?service="+s.service, nil)
	if err != nil {
		return nil, err
	}
	res, err := s.do(req, "application/x-"+s.service+"-advertisement")
	if err != nil {
		return nil, err
	}
	found := res.Request.URL
	if !strings.HasSuffix(found.Path, infoRefs) {
		return nil, fmt.Errorf("the server redirects to %s, which is no Git repository", found.Redacted())
	}
	s.t.mu.Lock()
	s.t.base = repositoryOf(found)
	s.t.mu.Unlock()
	return newPktReader(res.Body, s.alive), nil
}

func (s *httpSession) request(ctx context.Context, body []byte) (*pktReader, error) {
	s.t.mu.Lock()
	base := s.t.base.String()
	s.t.mu.Unlock()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/"+s.service, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-"+s.service+"-request")
	req.Header.Set("Accept", "application/x-"+s.service+"-result")
	if s.service == uploadPack {
		// This lets net/http try again when an idle connection turns out to be
		// closed; the header itself is not sent.
		req.Header["X-Idempotency-Key"] = nil
	}
	res, err := s.do(req, "application/x-"+s.service+"-result")
	if err != nil {
		return nil, err
	}
	return newPktReader(res.Body, s.alive), nil
}

// do sends a request, and checks the status and type of the answer.
func (s *httpSession) do(req *http.Request, contentType string) (*http.Response, error) {
	s.close()
	req.Header.Set("User-Agent", "git/"+agent)
	if s.service == uploadPack {
		req.Header.Set("Git-Protocol", "version=2")
	}
	var username, password string
	if s.t.credentials != nil {
		var err error
		if username, password, err = s.t.credentials(req.Context()); err != nil {
			return nil, err
		}
	}
	if username != "" || password != "" {
		req.SetBasicAuth(username, password)
	}
	res, err := s.t.client.Do(req)
	if err != nil {
		return nil, explainHTTP(err)
	}
	s.alive()
	s.body = res.Body
	if res.StatusCode != http.StatusOK {
		return nil, s.status(res, cmp.Or(password, username)) // some forges take a token as username
	}
	have, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if have != contentType {
		return nil, fmt.Errorf("%w: the answer is not smart HTTP of a Git server (content type %q); check the URL", ErrNotFound, clean(have))
	}
	return res, nil
}

// status returns the error for an answer that is not 200 OK.
func (s *httpSession) status(res *http.Response, secret string) error {
	tried := secret != ""
	body, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	said := "HTTP " + res.Status
	if ct, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); ct == "text/plain" {
		text := string(body)
		if tried {
			text = strings.ReplaceAll(text, secret, "***")
		}
		if text = clean(text); text != "" {
			said += ": " + text
		}
	}
	may := "read"
	if s.service == receivePack {
		may = "push to"
	}
	switch res.StatusCode {
	case http.StatusUnauthorized:
		if tried {
			return fmt.Errorf("%w (%s): the user name and password or token are not accepted; they may be wrong or expired", ErrAuthentication, said)
		}
		return fmt.Errorf("%w (%s): give a user name and a password or token that may %s it", ErrAuthentication, said, may)
	case http.StatusForbidden:
		return fmt.Errorf("%w (%s): the user or token needs the right to %s it", ErrAuthentication, said, may)
	case http.StatusNotFound, http.StatusGone:
		hint := "check the URL; a private repository may also need credentials"
		if tried {
			hint = "check the URL, and that the user or token may " + may + " it"
		}
		return fmt.Errorf("%w (%s): %s", ErrNotFound, said, hint)
	}
	return fmt.Errorf("the server answers %s", said)
}

// explainHTTP removes the URL, which the caller adds, from an error of net/http, and says
// what to do about certificates.
func explainHTTP(err error) error {
	if outer, ok := errors.AsType[*url.Error](err); ok {
		err = outer.Err
	}
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &unknown):
		return fmt.Errorf("%w: if this server is the right one, name a PEM file with its CA's certificate (--git-ca-file)", err)
	case errors.As(err, &name), errors.As(err, &invalid):
		return fmt.Errorf("%w: the server needs another certificate, or the URL another host", err)
	}
	return err
}
