package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"gitopsd.dev/sources"
	"gitopsd.dev/testscripts/await"
	"gitopsd.dev/testscripts/registry"
)

const (
	password     = "correct-horse"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
)

func newRegistry(t *testing.T, cfg registry.Config) *registry.Registry {
	t.Helper()
	if cfg.Auth != registry.NoAuth {
		cfg.Username, cfg.Password = "alice", password
	}
	return registry.Start(t, cfg)
}

// newClient returns a client that trusts reg and has its credentials.
func newClient(t *testing.T, reg *registry.Registry, cfg Config) *Client {
	t.Helper()
	if reg.CA() != nil && cfg.CAFile == "" {
		cfg.CAFile = filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(cfg.CAFile, reg.CA(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	creds, err := ParseCredentials("Secret test/pull", reg.DockerConfig())
	if err != nil {
		t.Fatal(err)
	}
	return c.With(with(creds))
}

// pushed is something in a registry.
type pushed struct {
	repository string
	manifest   sources.Digest
	raw        []byte
	blob       sources.Digest
	content    []byte
}

// push stores a manifest with one blob as repository:tag.
func push(t *testing.T, c *Client, repository, tag string, content []byte) pushed {
	t.Helper()
	p := pushed{repository: repository, blob: sources.DigestOf(content), content: content}
	err := c.PushBlob(t.Context(), repository, p.blob, int64(len(content)), func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	p.raw = fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.empty.v1+json","digest":%q,"size":%d},"layers":[]}`,
		manifestType, p.blob, len(content))
	p.manifest = sources.DigestOf(p.raw)
	if err := c.PushManifest(t.Context(), sources.Ref{Repository: repository, Tag: tag}, manifestType, p.raw); err != nil {
		t.Fatal(err)
	}
	return p
}

func readBlob(ctx context.Context, c *Client, p pushed) ([]byte, error) {
	r, err := c.Blob(ctx, p.repository, p.blob, int64(len(p.content)))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// TestRoundTrip pushes and fetches with every way to authenticate.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, auth := range []registry.Auth{registry.NoAuth, registry.BasicAuth, registry.TokenAuth} {
		for _, tls := range []bool{false, true} {
			t.Run(fmt.Sprintf("auth=%s,tls=%v", auth, tls), func(t *testing.T) {
				t.Parallel()
				reg := newRegistry(t, registry.Config{Auth: auth, TLS: tls})
				c := newClient(t, reg, Config{})
				p := push(t, c, reg.Host()+"/acme/types", "v1", bytes.Repeat([]byte("content "), 100_000))

				d, err := c.Resolve(t.Context(), sources.Ref{Repository: p.repository, Tag: "v1"})
				if err != nil || d != p.manifest {
					t.Errorf("resolved %v, %v; want %v", d, err, p.manifest)
				}
				raw, err := c.Manifest(t.Context(), p.repository, p.manifest)
				if err != nil || !bytes.Equal(raw, p.raw) {
					t.Errorf("manifest %s, %v", raw, err)
				}
				content, err := readBlob(t.Context(), c, p)
				if err != nil || !bytes.Equal(content, p.content) {
					t.Errorf("blob of %d bytes, %v", len(content), err)
				}
				if err := reg.Tag("acme/types", "v1", "v1.0.1"); err != nil {
					t.Fatal(err)
				}
				tags, err := c.Tags(t.Context(), p.repository)
				if err != nil || strings.Join(tags, " ") != "v1 v1.0.1" {
					t.Errorf("tags %v, %v", tags, err)
				}
			})
		}
	}
}

// TestResolveCost: an unchanged reference costs one HEAD and nothing else, and
// one with a digest costs nothing.
func TestResolveCost(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t, registry.Config{TLS: true, Auth: registry.BasicAuth})
	c := newClient(t, reg, Config{})
	const references = 100
	for i := range references {
		push(t, c, fmt.Sprintf("%s/acme/types-%d", reg.Host(), i), "v1", fmt.Append(nil, i))
	}
	c = newClient(t, reg, Config{})
	for _, pass := range []struct{ requests, pings int }{{references, 1}, {references, 0}} {
		reg.ResetCounts()
		var group errgroup.Group
		for i := range references {
			group.Go(func() error {
				_, err := c.Resolve(t.Context(), sources.Ref{Repository: fmt.Sprintf("%s/acme/types-%d", reg.Host(), i), Tag: "v1"})
				return err
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		if heads, all := reg.Count("HEAD", "/v2/acme/"), reg.Count("", "/"); heads != pass.requests || all != pass.requests+pass.pings {
			t.Errorf("%d HEADs of %d requests, want %d and %d more", heads, all, pass.requests, pass.pings)
		}
	}
	reg.ResetCounts()
	ref := sources.Ref{Repository: reg.Host() + "/acme/types-1", Tag: "v1", Digest: sources.DigestOf(nil)}
	if d, err := c.Resolve(t.Context(), ref); err != nil || d != ref.Digest || reg.Count("", "/") != 0 {
		t.Errorf("a reference with a digest: %v, %v, %v", d, err, reg.Requests())
	}
}

// TestResolveWithoutDigest: registries that do not answer HEAD with a digest.
func TestResolveWithoutDigest(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]registry.Fault{
		"no header":      {Method: "HEAD", Path: "/v2/**", Digest: "none"},
		"garbled header": {Method: "HEAD", Path: "/v2/**", Digest: "sha256:short"},
		"no HEAD":        {Method: "HEAD", Path: "/v2/**", Status: 405},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reg := newRegistry(t, registry.Config{})
			c := newClient(t, reg, Config{})
			p := push(t, c, reg.Host()+"/acme/types", "v1", []byte("content"))
			reg.Break(fault)
			reg.ResetCounts()
			d, err := c.Resolve(t.Context(), sources.Ref{Repository: p.repository, Tag: "v1"})
			if err != nil || d != p.manifest {
				t.Errorf("resolved %v, %v; want %v", d, err, p.manifest)
			}
			if heads, gets := reg.Count("HEAD", "/"), reg.Count("GET", "/v2/acme"); heads != 1 || gets != 1 {
				t.Errorf("%d HEADs and %d GETs, want one each", heads, gets)
			}
		})
	}
}

// TestFaults is what a person reads when a registry misbehaves, and what it
// costs.
func TestFaults(t *testing.T) {
	t.Parallel()
	resolve := func(ctx context.Context, c *Client, p pushed) error {
		_, err := c.Resolve(ctx, sources.Ref{Repository: p.repository, Tag: "v1"})
		return err
	}
	manifest := func(ctx context.Context, c *Client, p pushed) error {
		_, err := c.Manifest(ctx, p.repository, p.manifest)
		return err
	}
	blob := func(ctx context.Context, c *Client, p pushed) error {
		content, err := readBlob(ctx, c, p)
		if err == nil && !bytes.Equal(content, p.content) {
			return errors.New("other content, and no error")
		}
		return err
	}
	tests := map[string]struct {
		fault    registry.Fault
		do       func(context.Context, *Client, pushed) error
		want     string // in the error; empty if the fault is overcome
		reason   Reason
		requests int // with the path of the fault; 0: not checked
		timeout  time.Duration
		deadline time.Duration
	}{
		"no such tag":            {fault: registry.Fault{Path: "/v2/acme/types/manifests/v1", Status: 404}, do: resolve, want: "/acme/types:v1: 127.0.0.1", reason: NotFound, requests: 1},
		"forbidden":              {fault: registry.Fault{Path: "/v2/acme/types/manifests/*", Status: 403}, do: manifest, want: "looked for credentials in Secret test/pull, which has some", reason: Unauthorized, requests: 1},
		"500 at first":           {fault: registry.Fault{Path: "/v2/acme/types/manifests/*", Status: 500, Times: 2}, do: manifest, requests: 3},
		"500 always":             {fault: registry.Fault{Path: "/v2/acme/types/manifests/*", Status: 500}, do: manifest, want: "fails with 500 Internal Server Error", reason: Failing, requests: 3},
		"rate limit, soon over":  {fault: registry.Fault{Path: "/v2/acme/types/manifests/*", Status: 429, RetryAfter: "0", Times: 1}, do: resolve, requests: 2},
		"rate limit, long":       {fault: registry.Fault{Path: "/v2/acme/types/manifests/*", Status: 429, RetryAfter: "3600"}, do: resolve, want: "come back later", reason: RateLimited, requests: 1},
		"rate limit, unreadable": {fault: registry.Fault{Path: "/v2/acme/types/manifests/*", Status: 429, RetryAfter: "soon"}, do: resolve, want: "limits the rate", reason: RateLimited, requests: 3},
		"hanging":                {fault: registry.Fault{Path: "/v2/acme/types/manifests/*", Hang: true}, do: manifest, want: "did not answer before the deadline", reason: TimedOut, deadline: 50 * time.Millisecond},
		"silent":                 {fault: registry.Fault{Path: "/v2/acme/types/manifests/*", Hang: true}, do: manifest, want: "was silent for 50ms", reason: TimedOut, timeout: 50 * time.Millisecond},
		"silent in a blob":       {fault: registry.Fault{Path: "/v2/acme/types/blobs/*", HangAfter: 10}, do: blob, want: "was silent for 50ms", reason: TimedOut, timeout: 50 * time.Millisecond},
		"dripping blob":          {fault: registry.Fault{Path: "/v2/acme/types/blobs/*", Drip: 10 * time.Millisecond}, do: blob, want: "sends less than 16384 bytes a second", reason: TimedOut, timeout: 3 * time.Second, requests: 1},
		"dripping manifest":      {fault: registry.Fault{Method: "GET", Path: "/v2/acme/types/manifests/*", Drip: 100 * time.Millisecond}, do: manifest, want: "sends less than 16384 bytes a second", reason: TimedOut, timeout: 3 * time.Second, requests: 1},
		"ping hangs":             {fault: registry.Fault{Path: "/v2/", Hang: true}, do: manifest, want: "before the deadline", reason: TimedOut, deadline: 50 * time.Millisecond},
		"ping fails":             {fault: registry.Fault{Path: "/v2/", Status: 503}, do: manifest, want: "fails with 503", reason: Failing},
		"dropped manifest":       {fault: registry.Fault{Method: "GET", Path: "/v2/acme/types/manifests/*", DropAfter: 10, Times: 2}, do: manifest, requests: 3},
		"dropped again":          {fault: registry.Fault{Method: "GET", Path: "/v2/acme/types/manifests/*", DropAfter: 10}, do: manifest, want: "broke the connection off", reason: Unreachable, requests: 3},
		"dropped blob":           {fault: registry.Fault{Path: "/v2/acme/types/blobs/*", DropAfter: 100_000, Times: 2}, do: blob, requests: 3},
		"dropped, no ranges":     {fault: registry.Fault{Path: "/v2/acme/types/blobs/*", DropAfter: 100_000, NoRange: true, Times: 2}, do: blob, requests: 3},
		"ranges refused":         {fault: registry.Fault{Path: "/v2/acme/types/blobs/*", DropAfter: 100_000, RefuseRange: true, Times: 2}, do: blob, requests: 3},
		"dropped blob again":     {fault: registry.Fault{Path: "/v2/acme/types/blobs/*", DropAfter: 100_000}, do: blob, want: "broke the connection off", reason: Unreachable, requests: 3},
		"redirect in circles":    {fault: registry.Fault{Path: "/v2/acme/types/blobs/*", Redirect: "/v2/acme/types/blobs/again"}, do: blob, want: "redirects in circles", reason: Malformed},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reg := newRegistry(t, registry.Config{TLS: true, Auth: registry.TokenAuth})
			c := newClient(t, reg, Config{Timeout: test.timeout})
			p := push(t, newClient(t, reg, Config{}), reg.Host()+"/acme/types", "v1", bytes.Repeat([]byte("content "), 100_000))
			if err := reg.Tag("acme/types", "v1", "v1.0.1"); err != nil {
				t.Fatal(err)
			}
			reg.Break(test.fault)
			reg.ResetCounts()
			ctx := t.Context()
			if test.deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, test.deadline)
				defer cancel()
			}
			err := test.do(ctx, c, p)
			prefix, _, _ := strings.Cut(test.fault.Path, "*")
			if n := reg.Count(test.fault.Method, prefix); test.requests > 0 && n != test.requests {
				t.Errorf("%d requests, want %d: %v", n, test.requests, reg.Requests())
			}
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), test.want) || e.Reason != test.reason {
				t.Fatalf("error %v; want one with %q and reason %d", err, test.want, test.reason)
			}
			if strings.Count(err.Error(), p.repository) != 1 || strings.Contains(err.Error(), password) {
				t.Errorf("the error names its subject not once, or credentials: %v", err)
			}
			if deadline := test.deadline > 0; errors.Is(err, context.DeadlineExceeded) != deadline {
				t.Errorf("deadline exceeded: %v, want %v", !deadline, deadline)
			}
		})
	}
}

// TestPushFaults is the same for pushes.
func TestPushFaults(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("content "), 4<<20) // more than sockets hold
	for name, test := range map[string]struct {
		fault   registry.Fault
		timeout time.Duration
		want    string
		reason  Reason
	}{
		"forbidden":        {registry.Fault{Method: "POST", Path: "/v2/acme/types/**", Status: 403}, 0, "refuses access", Unauthorized},
		"does not answer":  {registry.Fault{Method: "PUT", Path: "/v2/acme/types/**", Hang: true}, time.Second, "was silent for 1s", TimedOut},
		"does not read":    {registry.Fault{Method: "PATCH", Path: "/v2/acme/types/**", Hang: true}, time.Second, "was silent for 1s", TimedOut},
		"not found at all": {registry.Fault{Path: "/v2/acme/types/**", Status: 404}, 0, "has no such", NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reg := newRegistry(t, registry.Config{})
			c := newClient(t, reg, Config{Timeout: test.timeout})
			reg.Break(test.fault)
			repository, d := reg.Host()+"/acme/types", sources.DigestOf(content)
			err := c.PushBlob(t.Context(), repository, d, int64(len(content)), func() (io.ReadCloser, error) {
				return io.NopCloser(bytes.NewReader(content)), nil
			})
			var e *Error
			if !errors.As(err, &e) || e.Reason != test.reason || !strings.Contains(err.Error(), test.want) || strings.Count(err.Error(), repository) != 1 {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

// TestMismatch: a registry that lies gets nowhere.
func TestMismatch(t *testing.T) {
	t.Parallel()
	for _, tls := range []bool{false, true} {
		reg := newRegistry(t, registry.Config{TLS: tls})
		dir := t.TempDir()
		c := newClient(t, reg, Config{CacheDir: dir})
		p := push(t, c, reg.Host()+"/acme/types", "v1", bytes.Repeat([]byte("content "), 1000))
		heal := reg.Break(registry.Fault{Method: "GET", Path: "/v2/acme/**", Corrupt: true})

		check := func(what string, err error) {
			t.Helper()
			var mismatch *MismatchError
			if !errors.As(err, &mismatch) {
				t.Fatalf("%s: %v, want a mismatch", what, err)
			}
			for _, want := range []string{"SECURITY ERROR", "wanted: sha256:", "seen:   ", reg.Host()} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s: no %q in %v", what, want, err)
				}
			}
		}
		_, err := c.Manifest(t.Context(), p.repository, p.manifest)
		check("manifest", err)
		_, err = readBlob(t.Context(), c, p)
		check("blob", err)
		heal()
		longer := p
		longer.content = append(longer.content, 'x')
		_, err = readBlob(t.Context(), c, longer)
		check("size", err)
		if files := cacheFiles(t, dir); len(files) != 0 {
			t.Errorf("the cache has %v", files)
		}
		if content, err := readBlob(t.Context(), c, p); err != nil || !bytes.Equal(content, p.content) {
			t.Errorf("after all that: %d bytes, %v", len(content), err)
		}
	}
}

// TestAuthentication: what a person reads, and what happens when credentials
// and tokens change under a client that runs on.
func TestAuthentication(t *testing.T) {
	t.Parallel()
	for _, auth := range []registry.Auth{registry.BasicAuth, registry.TokenAuth} {
		t.Run(string(auth), func(t *testing.T) {
			t.Parallel()
			reg := newRegistry(t, registry.Config{Auth: auth})
			c := newClient(t, reg, Config{})
			p := push(t, c, reg.Host()+"/acme/types", "v1", []byte("content"))
			resolve := func(c *Client) error {
				_, err := c.Resolve(t.Context(), sources.Ref{Repository: p.repository, Tag: "v1"})
				return err
			}
			reg.RevokeTokens()
			if err := resolve(c); err != nil {
				t.Errorf("after the token expired: %v", err)
			}

			anonymous, err := New(Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer anonymous.Close()
			err = resolve(anonymous)
			if e := (*Error)(nil); !errors.As(err, &e) || e.Reason != Unauthorized || !strings.Contains(err.Error(), "Docker's configuration") {
				t.Errorf("without credentials: %v", err)
			}

			reg.SetPassword("another")
			err = resolve(c)
			if e := (*Error)(nil); !errors.As(err, &e) || e.Reason != Unauthorized || !strings.Contains(err.Error(), "Secret test/pull") || strings.Contains(err.Error(), password) {
				t.Errorf("with the old password: %v", err)
			}
			creds, err := ParseCredentials("Secret test/new", reg.DockerConfig())
			if err != nil {
				t.Fatal(err)
			}
			if err := resolve(c.With(with(creds))); err != nil {
				t.Errorf("with the new password: %v", err)
			}
			if err := resolve(anonymous); err == nil {
				t.Error("credentials of one client were used for another")
			}
		})
	}
}

// TestExpiredToken: registries answer an expired token differently. There is one new
// login, and only if the refused one is from an earlier request. If that does not help,
// the next one is some minutes later.
func TestExpiredToken(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 401, 403} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			reg := newRegistry(t, registry.Config{Auth: registry.TokenAuth})
			p := push(t, newClient(t, reg, Config{}), reg.Host()+"/acme/types", "v1", []byte("content"))
			c := newClient(t, reg, Config{})
			for _, test := range []struct {
				name             string
				older            time.Duration
				refused          int // requests
				requests, logins int
				fails            bool
			}{
				{name: "first login", requests: 1, logins: 1},
				{name: "same login", requests: 1},
				{name: "expired", refused: 1, requests: 2, logins: 1},
				{name: "no access", refused: 2, requests: 2, logins: 1, fails: true},
				{name: "still no access", refused: 1, requests: 1, fails: true},
				{name: "access", requests: 1},
				{name: "no access again", refused: 1, requests: 1, fails: true},
				{name: "no access later", older: vainAge, refused: 2, requests: 2, logins: 1, fails: true},
				{name: "expired later", older: vainAge, refused: 1, requests: 2, logins: 1},
				{name: "expired again", refused: 1, requests: 2, logins: 1},
			} {
				c.mu.Lock()
				for _, s := range c.sessions {
					s.made = s.made.Add(-test.older)
				}
				c.mu.Unlock()
				reg.ResetCounts()
				if test.refused > 0 {
					reg.Break(registry.Fault{Path: "/v2/acme/types/manifests/*", Status: status, Times: test.refused})
				}
				_, err := c.Manifest(t.Context(), p.repository, p.manifest)
				requests, logins := reg.Count("", "/v2/acme/types/manifests/"), reg.Count("", "/token")
				if (err != nil) != test.fails || requests != test.requests || logins != test.logins {
					t.Errorf("%s: %d requests and %d logins, want %d and %d; %v", test.name, requests, logins, test.requests, test.logins, err)
				}
			}
		})
	}
}

// TestPushLogin: a push logs in again too, and an offline client pushes nothing.
func TestPushLogin(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t, registry.Config{Auth: registry.TokenAuth})
	c := newClient(t, reg, Config{})
	p := push(t, c, reg.Host()+"/acme/types", "v1", []byte("content"))
	ref := sources.Ref{Repository: p.repository, Tag: "v2"}
	for _, status := range []int{400, 401, 403} {
		for _, test := range []struct {
			refused, logins int
			fails           bool
		}{{0, 0, false}, {1, 1, false}, {2, 1, true}, {0, 1, false}} {
			reg.ResetCounts()
			if test.refused > 0 {
				reg.Break(registry.Fault{Method: "PUT", Path: "/v2/acme/types/manifests/*", Status: status, Times: test.refused})
			}
			err := c.PushManifest(t.Context(), ref, manifestType, p.raw)
			if logins := reg.Count("", "/token"); (err != nil) != test.fails || logins != test.logins {
				t.Errorf("%d requests are answered with %d: %d logins, want %d; %v", test.refused, status, logins, test.logins, err)
			}
		}
	}
	reg.ResetCounts()
	err := c.Offline().PushManifest(t.Context(), ref, manifestType, p.raw)
	if !errors.Is(err, sources.ErrUnasked) || reg.Count("", "/") != 0 {
		t.Errorf("offline: %v, after %v", err, reg.Requests())
	}
}

// TestTrust: TLS that does not check out, and its absence.
func TestTrust(t *testing.T) {
	t.Parallel()
	secure := newRegistry(t, registry.Config{TLS: true})
	plain := newRegistry(t, registry.Config{})
	port := plain.Host()[strings.LastIndexByte(plain.Host(), ':'):]
	elsewhere := "0.0.0.0" + port // the same, by an address that is not known for loopback
	for name, test := range map[string]struct {
		repository string
		cfg        Config
		want       string
	}{
		"unknown authority":          {secure.Host() + "/a/b", Config{}, "signed by an authority that is not trusted here; if the registry is the right one, name a PEM file with that authority's certificate (--registry-ca-file)"},
		"no TLS":                     {elsewhere + "/a/b", Config{}, "does not speak TLS"},
		"no TLS on a loopback":       {plain.Host() + "/a/b", Config{}, "no such repository"},
		"nobody there":               {"127.0.0.1:1/a/b", Config{}, "refuses connections"},
		"not a repository":           {"127.0.0.1:1/A", Config{}, "not a repository"},
		"a mirror in its place":      {"registry.example.com/a/b", Config{Mirrors: map[string]string{"registry.example.com": plain.Host()}}, plain.Host() + " has no such repository"},
		"a mirror by another name":   {"registry.example.com:443/a/b", Config{Mirrors: map[string]string{"registry.example.com": plain.Host()}}, plain.Host() + " has no such repository"},
		"a mirror of another name":   {"docker.io/a/b", Config{Mirrors: map[string]string{"index.docker.io": plain.Host()}}, plain.Host() + " has no such repository"},
		"a mirror of something else": {plain.Host() + "/a/b", Config{Mirrors: map[string]string{"registry.example.com": secure.Host()}}, "no such repository"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := New(test.cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, err = c.Tags(t.Context(), test.repository)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), test.repository+": ") {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
	if _, err := New(Config{Mirrors: map[string]string{"docker.io": "a", "index.docker.io": "b"}}); err == nil || err.Error() != "registry docker.io has two mirrors, a and b" {
		t.Errorf("two mirrors: error %v", err)
	}
	if _, err := New(Config{CAFile: filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("a CA file that is not there is no error")
	}
}

// TestRotatedAuthorities: the CA file may be replaced at any time.
func TestRotatedAuthorities(t *testing.T) {
	t.Parallel()
	reg, other := newRegistry(t, registry.Config{TLS: true}), newRegistry(t, registry.Config{TLS: true})
	file := filepath.Join(t.TempDir(), "ca.pem")
	replace := func(content []byte) {
		t.Helper()
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace(other.CA())
	c := newClient(t, reg, Config{CAFile: file})
	if _, err := c.Tags(t.Context(), reg.Host()+"/a/b"); err == nil || !strings.Contains(err.Error(), "signed by an authority that is not trusted here; if") {
		t.Errorf("before: %v", err)
	}
	replace(reg.CA())
	if _, err := c.Tags(t.Context(), reg.Host()+"/a/b"); err == nil || !strings.Contains(err.Error(), "has no such repository") {
		t.Errorf("after: %v", err)
	}
	replace(nil)
	if _, err := c.Tags(t.Context(), reg.Host()+"/a/b"); err == nil || !strings.Contains(err.Error(), "has no such repository") {
		t.Errorf("with an empty file: %v", err)
	}
	if _, err := c.Tags(t.Context(), other.Host()+"/a/b"); err == nil || !strings.Contains(err.Error(), "the file of --registry-ca-file has changed, and cannot be used: "+file+" holds no PEM certificate") {
		t.Errorf("with an empty file, another registry: %v", err)
	}
}

// TestComesBack: nothing of a failure stays behind in the client.
func TestComesBack(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t, registry.Config{Auth: registry.TokenAuth, Dir: t.TempDir()})
	c := newClient(t, reg, Config{})
	p := push(t, c, reg.Host()+"/acme/types", "v1", []byte("content"))
	ref := sources.Ref{Repository: p.repository, Tag: "v1"}
	for _, fault := range []registry.Fault{
		{Path: "/v2/", Status: 503, Times: 3},
		{Path: "/token", Status: 503, Times: 3},
		{Path: "/v2/**", Status: 503, Times: 3},
	} {
		c := newClient(t, reg, Config{})
		reg.Break(fault)
		if _, err := c.Resolve(t.Context(), ref); err == nil {
			t.Errorf("%s: no error", fault.Path)
		}
		if _, err := c.Resolve(t.Context(), ref); err != nil {
			t.Errorf("%s: still %v", fault.Path, err)
		}
	}
}

// TestWaiters: many that want the same registry share one login, and one that
// gives up takes none of them along.
func TestWaiters(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t, registry.Config{})
	c := newClient(t, reg, Config{})
	p := push(t, c, reg.Host()+"/acme/types", "v1", []byte("content"))
	ref := sources.Ref{Repository: p.repository, Tag: "v1"}
	c = newClient(t, reg, Config{})
	until := make(chan struct{})
	reg.Break(registry.Fault{Path: "/v2/", Until: until})
	reg.ResetCounts()

	hasty, giveUp := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		await.True(t, "a ping", func() bool { return reg.Count("GET", "/v2/") > 0 })
		giveUp()
	})
	if _, err := c.Resolve(hasty, ref); !errors.Is(err, context.Canceled) {
		t.Errorf("the hasty one: %v", err)
	}
	time.AfterFunc(50*time.Millisecond, func() { close(until) })
	for range 10 {
		wg.Go(func() {
			if _, err := c.Resolve(t.Context(), ref); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := reg.Count("GET", "/v2/"); n != 1 {
		t.Errorf("%d pings, want one", n)
	}
}

// capture is a log that a test can read.
type capture struct{ await.Log }

func (c *capture) logger() *slog.Logger { return slog.New(slog.NewTextHandler(c, nil)) }

// with finds these credentials.
func with(creds ...*Credentials) func(context.Context) ([]*Credentials, error) {
	return func(context.Context) ([]*Credentials, error) { return creds, nil }
}
