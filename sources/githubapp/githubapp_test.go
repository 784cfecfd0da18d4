package githubapp

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// github answers as the API of GitHub does for an app that is installed for acme/fleet.
type github struct {
	*httptest.Server
	*testing.T
	key *rsa.PublicKey

	mu     sync.Mutex
	asked  int
	wants  string // the rights that were asked for last
	status int    // of all answers; 0 for what is right
	body   string
	expire time.Duration
	clock  time.Duration // how far its clock is ahead
}

func (g *github) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now().Add(g.clock)
	w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
	if g.status != 0 {
		http.Error(w, g.body, g.status)
		return
	}
	var claims jwt.RegisteredClaims
	signed, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	_, err := jwt.ParseWithClaims(signed, &claims, func(*jwt.Token) (any, error) { return g.key, nil },
		jwt.WithValidMethods([]string{"RS256"}), jwt.WithIssuedAt(), jwt.WithExpirationRequired(), jwt.WithIssuer("Iv1.app"), jwt.WithTimeFunc(func() time.Time { return now }))
	if err != nil || claims.ExpiresAt.Sub(claims.IssuedAt.Time) > 10*time.Minute {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"message":"A JSON web token could not be decoded"}`)
		return
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /api/v3/repos/acme/fleet/installation":
		fmt.Fprint(w, `{"id": 42, "app_slug": "fleet"}`)
	case "POST /api/v3/app/installations/42/access_tokens":
		var body struct {
			Repositories []string
			Permissions  map[string]string
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || len(body.Repositories) != 1 || body.Repositories[0] != "fleet" || len(body.Permissions) != 1 {
			g.Errorf("asked for %+v, %v", body, err)
		}
		g.wants = body.Permissions["contents"]
		g.asked++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"token": "ghs_%d", "expires_at": %q}`, g.asked, now.Add(g.expire).UTC().Format(time.RFC3339))
	default:
		http.Error(w, `{"message": "Not Found"}`, http.StatusNotFound)
	}
}

// start starts a GitHub, and returns the configuration of its app.
func start(t *testing.T) (*github, Config) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	g := &github{T: t, key: &key.PublicKey, expire: time.Hour}
	g.Server = httptest.NewTLSServer(g)
	t.Cleanup(g.Close)
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	return g, Config{
		ID: "Iv1.app", KeyFile: write("key", "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key)), Repository: g.URL + "/acme/fleet.git",
		CAFile: write("ca", "CERTIFICATE", g.Certificate().Raw),
	}
}

// A token is asked for once, and again before it expires; what GitHub says of time counts.
func TestToken(t *testing.T) {
	t.Parallel()
	g, cfg := start(t)
	for _, write := range []bool{false, true} {
		g.clock, cfg.Write = 30*time.Second, write // with a clock that is ahead
		a, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		first, err := a.Token(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]string{false: "read", true: "write"}[write]; g.wants != want {
			t.Errorf("asked for the right to %s, want %s", g.wants, want)
		}
		if left := time.Until(a.expires).Round(time.Minute); left != time.Hour {
			t.Errorf("the token is good for %s, want an hour", left)
		}
		if again, err := a.Token(t.Context()); again != first || err != nil {
			t.Errorf("the second is %s after %s, %v", again, first, err)
		}
		a.renew = time.Now()
		next, err := a.Token(t.Context())
		if next == first || err != nil {
			t.Errorf("the next is %s after %s, %v", next, first, err)
		}

		// GitHub does not answer: the token is used until it expires, and GitHub is not asked each time.
		g.status, g.body = http.StatusServiceUnavailable, "<html>"
		a.renew = time.Now()
		if again, err := a.Token(t.Context()); again != next || err != nil || !a.renew.After(time.Now()) {
			t.Errorf("while GitHub does not answer: %s after %s, %v", again, next, err)
		}
		a.renew, a.expires = time.Now(), time.Now()
		if token, err := a.Token(t.Context()); token != "" || err == nil || !strings.Contains(err.Error(), "503 Service Unavailable; it is asked again") {
			t.Errorf("after the token has expired: %q, %v", token, err)
		}
		g.status = 0
		if _, err := a.Token(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Who waits for a token that another one asks for does not wait longer than it may.
func TestTokenWaits(t *testing.T) {
	t.Parallel()
	_, cfg := start(t)
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	a.busy <- struct{}{}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(nil)
	if _, err := a.Token(ctx); err == nil {
		t.Error("it does not wait")
	}
	<-a.busy
}

// What GitHub refuses is told with advice, and without the app's token.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*github, *Config)
		want   string
	}{
		{"another app", func(_ *github, c *Config) { c.ID = "Iv1.other" }, `answers 401 Unauthorized: "A JSON web token could not be decoded"; check the app's ID, that the key is one of this app's, and the clock`},
		{"another clock", func(g *github, _ *Config) { g.clock = time.Hour }, "and the clock of this machine"},
		{"not installed", func(_ *github, c *Config) { c.Repository = strings.Replace(c.Repository, "fleet", "other", 1) }, `answers 404 Not Found: "Not Found"; install the app for acme/other`},
		{"no right", func(g *github, c *Config) {
			g.status, g.body, c.Write = http.StatusUnprocessableEntity, `{"message":"The permissions requested are not granted to this installation."}`, true
		}, `are not granted to this installation."; give the app the right to read and write the contents of repositories, and have the installation accept that; if the repository was renamed, use its new name in --repo`},
		{"a page", func(g *github, _ *Config) { g.status, g.body = http.StatusOK, "<html>" }, "installation: the answer is not that of GitHub's API"},
		{"no installation", func(g *github, _ *Config) { g.status, g.body = http.StatusOK, "{}" }, "gave no token that is good"},
		{"expired", func(g *github, _ *Config) { g.expire = -time.Second }, "gave no token that is good"},
		{"lines", func(g *github, _ *Config) { g.status, g.body = 500, `{"message":"a\nb\u001b[1m"}` }, `500 Internal Server Error: "a\nb\x1b[1m"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g, cfg := start(t)
			tt.change(g, &cfg)
			a, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			token, err := a.Token(t.Context())
			if token != "" || err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "GitHub App "+cfg.ID+": ") {
				t.Fatalf("%q, %v, want %s", token, err, tt.want)
			}
			signed, signErr := a.sign(time.Now())
			if header, _, _ := strings.Cut(signed, "."); signErr != nil || strings.Contains(err.Error(), header) {
				t.Error("the error has the app's token", signErr)
			}
		})
	}
}

// What cannot work is an error before anybody is asked.
func TestNew(t *testing.T) {
	t.Parallel()
	_, right := start(t)
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(ec)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "ec")
	if err := os.WriteFile(other, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Repository = "git@github.com:acme/fleet" }, "needs a repository by https"},
		{func(c *Config) { c.Repository = "http://github.com/acme/fleet" }, "needs a repository by https"},
		{func(c *Config) { c.Repository = "https://user:secret@github.com/acme" }, "https://user:xxxxx@github.com/acme is no repository of GitHub: want https://github.com/owner/name"},
		{func(c *Config) { c.Repository = "https://github.com/acme/fleet/tree" }, "is no repository of GitHub"},
		{func(c *Config) { c.KeyFile = "nowhere" }, "nowhere: no such file"},
		{func(c *Config) { c.KeyFile = c.CAFile }, "holds no RSA private key in PEM"},
		{func(c *Config) { c.KeyFile = other }, "holds no RSA private key in PEM"},
		{func(c *Config) { c.CAFile = "nowhere" }, "CA file: "},
	} {
		cfg := right
		tt.change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %s", err, tt.want)
		}
	}
	for repository, want := range map[string]string{
		"https://github.com/acme/fleet":                 "https://api.github.com",
		"https://GitHub.com/acme/fleet":                 "https://api.github.com",
		"https://acme.ghe.com/acme/fleet":               "https://api.acme.ghe.com",
		"https://github.example.org:8443/acme/fleet":    "https://github.example.org:8443/api/v3",
		"https://github.com.example.org/acme/fleet.git": "https://github.com.example.org/api/v3",
	} {
		u, err := url.Parse(repository)
		if err != nil {
			t.Fatal(err)
		}
		if have := api(u).String(); have != want {
			t.Errorf("the API of %s is %s, want %s", repository, have, want)
		}
	}
}
