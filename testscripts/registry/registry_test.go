package registry_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/oci"
	"gitopsd.dev/sources/xpkg"
	"gitopsd.dev/testscripts/registry"
)

func build(t *testing.T, name string) *xpkg.Image {
	t.Helper()
	img, err := xpkg.Build(fstest.MapFS{"crossplane.yaml": {Data: []byte("apiVersion: meta.pkg.crossplane.io/v1\nkind: Provider\nmetadata: {name: " + name + "}\n")}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// TestRestart: a registry with a directory is the same after a restart, on the
// same port, and its tags stay moved.
func TestRestart(t *testing.T) {
	t.Parallel()
	client, err := oci.New(oci.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	cfg := registry.Config{Dir: t.TempDir()}
	reg, err := registry.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	repository := reg.Host() + "/acme/types"
	one, two := build(t, "one"), build(t, "two")
	for tag, img := range map[string]*xpkg.Image{"v1": one, "v2": two} {
		if err := img.Push(t.Context(), client, sources.Ref{Repository: repository, Tag: tag}); err != nil {
			t.Fatal(err)
		}
	}
	if err := reg.Tag("acme/types", "v2", "latest"); err != nil {
		t.Fatal(err)
	}
	if err := reg.Tag("acme/types", string(one.Digest()), "v2"); err != nil {
		t.Fatal(err)
	}
	if err := reg.Tag("acme/types", "v9", "v2"); err == nil {
		t.Error("a tag was made of one that is not there")
	}
	reg.Close()
	cfg.Addr = reg.Host()
	registry.Start(t, cfg)
	for tag, img := range map[string]*xpkg.Image{"v1": one, "v2": one, "latest": two} {
		d, err := client.Resolve(t.Context(), sources.Ref{Repository: repository, Tag: tag})
		if err != nil || d != img.Digest() {
			t.Errorf("%s is %v, %v; want %v", tag, d, err, img.Digest())
		}
		if _, err := xpkg.Read(t.Context(), client, repository, d); err != nil {
			t.Error(err)
		}
	}
	if err := os.WriteFile(filepath.Join(cfg.Dir, "manifests", "damaged"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := registry.New(registry.Config{Dir: cfg.Dir}); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a damaged directory: %v", err)
	}
}

// TestFault: a fault hits the requests that it names, as often as it says, and
// the requests are counted.
func TestFault(t *testing.T) {
	t.Parallel()
	reg := registry.Start(t, registry.Config{})
	get := func(method, path string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+reg.Host()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return "broken"
		}
		defer resp.Body.Close()
		if _, err := io.ReadAll(resp.Body); err != nil {
			return "cut"
		}
		return resp.Status[:3] + resp.Header.Get("Retry-After")
	}
	check := func(want, method, path string) {
		t.Helper()
		if got := get(method, path); got != want {
			t.Errorf("%s %s: %s, want %s", method, path, got, want)
		}
	}
	check("200", "GET", "/v2/")
	heal := reg.Break(registry.Fault{Method: "GET", Path: "/v2/", Status: 429, RetryAfter: "7"})
	check("4297", "GET", "/v2/")
	check("200", "HEAD", "/v2/")
	heal()
	check("200", "GET", "/v2/")
	reg.Break(registry.Fault{Path: "/v2/acme/**", Status: 500, Times: 1})
	check("404", "GET", "/v2/acme")
	check("500", "GET", "/v2/acme/types/tags/list")
	check("404", "GET", "/v2/acme/types/tags/list")
	heal = reg.Break(registry.Fault{Path: "/v2/acme/*/tags/list", DropAfter: 5})
	check("cut", "GET", "/v2/acme/types/tags/list")
	heal()
	until := make(chan struct{})
	reg.Break(registry.Fault{Path: "/v2/slow", Until: until})
	time.AfterFunc(time.Millisecond, func() { close(until) })
	check("404", "GET", "/v2/slow")
	if n := reg.Count("GET", "/v2/acme"); n != 4 {
		t.Errorf("%d requests, want 4: %v", n, reg.Requests())
	}
	reg.ResetCounts()
	if n := reg.Count("", ""); n != 0 {
		t.Errorf("%d requests after a reset", n)
	}
}

// TestTokens: a token is valid for its repository, and for pushing only if the
// client asked for that.
func TestTokens(t *testing.T) {
	t.Parallel()
	reg := registry.Start(t, registry.Config{Auth: registry.TokenAuth, Username: "alice", Password: "secret"})
	client, err := oci.New(oci.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	creds, err := oci.ParseCredentials("test", reg.DockerConfig())
	if err != nil {
		t.Fatal(err)
	}
	img := build(t, "one")
	ref := sources.Ref{Repository: reg.Host() + "/acme/types", Tag: "v1"}
	if err := img.Push(t.Context(), client.With(with(creds)), ref); err != nil {
		t.Fatal(err)
	}
	if reg.Count("GET", "/token") != 1 {
		t.Errorf("%d tokens for one repository to push to", reg.Count("GET", "/token"))
	}
	var e *oci.Error
	if err := img.Push(t.Context(), client, ref); !errors.As(err, &e) || e.Reason != oci.Unauthorized {
		t.Errorf("pushed without credentials: %v", err)
	}
	if err := img.Push(t.Context(), client.With(with(creds)), sources.Ref{Repository: reg.Host() + "/other/types", Tag: "v1"}); err != nil {
		t.Error(err)
	}
	if reg.Count("GET", "/token") != 3 {
		t.Errorf("%d tokens, want one more for the other repository and one refused", reg.Count("GET", "/token"))
	}
}

// with returns a function that finds these credentials.
func with(creds ...*oci.Credentials) func(context.Context) ([]*oci.Credentials, error) {
	return func(context.Context) ([]*oci.Credentials, error) { return creds, nil }
}
