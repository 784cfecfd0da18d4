package xpkg_test

import (
	"context"
	"errors"
	"fmt"
	"io"
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

const crd = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: buckets.s3.example.org
spec:
  group: s3.example.org
`

const meta = `apiVersion: meta.pkg.crossplane.io/v1
kind: Provider
metadata:
  name: provider-example
spec:
  crossplane:
    version: ">=v1.14.0"
  controller:
    image: registry.example.org/controller:v1
  dependsOn:
  - provider: xpkg.example.org/acme/provider-family
    version: ">=v1.0.0"
  - apiVersion: pkg.crossplane.io/v1
    kind: Function
    package: acme/function-auto
    version: v0.1.0
`

// TestPublish is the whole way of a package: a directory, a file, a registry
// with TLS and tokens, and back.
func TestPublish(t *testing.T) {
	t.Parallel()
	reg := registry.Start(t, registry.Config{TLS: true, Auth: registry.TokenAuth, Username: "alice", Password: "secret"})
	client := newClient(t, reg)

	dir := fstest.MapFS{
		"crossplane.yaml":       {Data: []byte(meta)},
		"crds/buckets.yaml":     {Data: []byte("---\n" + crd)},
		"examples/ignored.yaml": {Data: []byte("kind: Secret\n")},
		"README.md":             {Data: []byte("not YAML\n")},
	}
	img, err := xpkg.Build(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := xpkg.Build(dir, nil)
	if err != nil || again.Digest() != img.Digest() {
		t.Fatalf("built twice: %v and %v, %v", img.Digest(), again.Digest(), err)
	}

	name := filepath.Join(t.TempDir(), "example.xpkg")
	if err := img.WriteFile(name); err != nil {
		t.Fatal(err)
	}
	opened, err := xpkg.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	if opened.Digest() != img.Digest() {
		t.Fatalf("digest %v in the file, %v before", opened.Digest(), img.Digest())
	}

	ref, err := sources.ParseRef(reg.Host() + "/acme/provider-example:v1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	if d, err := xpkg.Push(t.Context(), client, []string{name}, ref); err != nil || d != img.Digest() {
		t.Fatalf("pushed %v, %v", d, err)
	}
	d, err := client.Resolve(t.Context(), ref)
	if err != nil || d != img.Digest() {
		t.Fatalf("resolved to %v, %v; want %v", d, err, img.Digest())
	}
	p, err := xpkg.Read(t.Context(), client, ref.Repository, d)
	if err != nil {
		t.Fatal(err)
	}
	if p.Meta.Name != "provider-example" || p.Meta.Kind != sources.Provider || p.Meta.Crossplane != ">=v1.14.0" || p.Meta.Image != "registry.example.org/controller:v1" {
		t.Errorf("meta %+v", p.Meta)
	}
	want := []sources.Dependency{
		{Kind: sources.Provider, Repository: "xpkg.example.org/acme/provider-family", Constraint: ">=v1.0.0"},
		{Kind: sources.Function, Repository: "xpkg.crossplane.io/acme/function-auto", Constraint: "v0.1.0"},
	}
	if len(p.Meta.DependsOn) != 2 || p.Meta.DependsOn[0] != want[0] || p.Meta.DependsOn[1] != want[1] {
		t.Errorf("dependencies %+v, want %+v", p.Meta.DependsOn, want)
	}
	if len(p.Documents) != 1 || p.Documents[0].Tree["kind"] != "CustomResourceDefinition" {
		t.Errorf("documents %+v", p.Documents)
	}
	if len(p.Children) != 0 || p.Content == "" || p.Digest != d {
		t.Errorf("package %+v", p)
	}
}

// TestRuntimeFromRegistry: a package is put on top of an image that a registry
// has.
func TestRuntimeFromRegistry(t *testing.T) {
	t.Parallel()
	reg := registry.Start(t, registry.Config{TLS: true, Auth: registry.TokenAuth, Username: "alice", Password: "secret"})
	client := newClient(t, reg)
	ref, err := sources.ParseRef(reg.Host() + "/acme/controller:v1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	push := func(content string) string {
		d := sources.DigestOf([]byte(content))
		open := func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(content)), nil }
		if err := client.PushBlob(t.Context(), ref.Repository, d, int64(len(content)), open); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`"digest": "%s", "size": %d`, d, len(content))
	}
	raw := fmt.Sprintf(`{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": {"mediaType": "application/vnd.oci.image.config.v1+json", %s}, "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", %s}]}`,
		push(`{"os": "linux", "architecture": "arm64", "config": {"Cmd": ["controller"]}, "rootfs": {"type": "layers", "diff_ids": []}}`), push(strings.Repeat("\x00", 1024)))
	if err := client.PushManifest(t.Context(), ref, "application/vnd.oci.image.manifest.v1+json", []byte(raw)); err != nil {
		t.Fatal(err)
	}
	dir := fstest.MapFS{"crossplane.yaml": {Data: []byte(strings.Replace(meta, "  controller:\n    image: registry.example.org/controller:v1\n", "", 1))}, "crd.yaml": {Data: []byte(crd)}}
	img, err := xpkg.BuildWithRuntime(t.Context(), dir, xpkg.Runtime{Source: client, Repository: ref.Repository, Digest: sources.DigestOf([]byte(raw))}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	ref.Tag = "packaged"
	if err := img.Push(t.Context(), client, ref); err != nil {
		t.Fatal(err)
	}
	if p, err := xpkg.Read(t.Context(), client, ref.Repository, img.Digest()); err != nil || len(p.Documents) != 1 {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestRegistryFaults: what a registry does wrong is said so, rather than taken
// for a broken package, and leaves the cache sound.
func TestRegistryFaults(t *testing.T) {
	t.Parallel()
	reg := registry.Start(t, registry.Config{TLS: true, Auth: registry.BasicAuth, Username: "alice", Password: "secret"})
	client := newClient(t, reg)
	img, err := xpkg.Build(fstest.MapFS{"crossplane.yaml": {Data: []byte(meta)}, "crd.yaml": {Data: []byte(crd)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ref := sources.Ref{Repository: reg.Host() + "/acme/provider-example", Tag: "v1.0.0"}
	if err := img.Push(t.Context(), client, ref); err != nil {
		t.Fatal(err)
	}
	// In this order: what was read and verified once comes from the cache.
	for _, name := range []string{"manifest", "blob"} {
		heal := reg.Break(registry.Fault{Path: "/v2/acme/provider-example/" + name + "s/*", Corrupt: true})
		_, err := xpkg.Read(t.Context(), client, ref.Repository, img.Digest())
		heal()
		var mismatch *oci.MismatchError
		if !errors.As(err, &mismatch) {
			t.Errorf("%s changed: %v, want a mismatch", name, err)
		}
	}
	heal := reg.Break(registry.Fault{Path: "/v2/acme/provider-example/blobs/*", DropAfter: 100})
	_, err = xpkg.Read(t.Context(), client, ref.Repository, img.Digest())
	heal()
	var e *oci.Error
	if !errors.As(err, &e) || e.Reason != oci.Unreachable {
		t.Errorf("layer cut: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	heal = reg.Break(registry.Fault{Path: "/v2/acme/provider-example/blobs/*", HangAfter: 100})
	_, err = xpkg.Read(ctx, client, ref.Repository, img.Digest())
	heal()
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("layer hangs: %v", err)
	}
	if _, err := xpkg.Read(t.Context(), client, ref.Repository, img.Digest()); err != nil {
		t.Errorf("after all that: %v", err)
	}
	reg.ResetCounts()
	if _, err := xpkg.Read(t.Context(), client, ref.Repository, img.Digest()); err != nil || reg.Count("", "") != 0 {
		t.Errorf("from the cache: %v, requests %v", err, reg.Requests())
	}
}

// newClient returns a client that trusts a registry and has its password.
func newClient(t *testing.T, reg *registry.Registry) *oci.Client {
	t.Helper()
	cfg := oci.Config{CacheDir: t.TempDir()}
	if reg.CA() != nil {
		cfg.CAFile = filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(cfg.CAFile, reg.CA(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := oci.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	creds, err := oci.ParseCredentials("test", reg.DockerConfig())
	if err != nil {
		t.Fatal(err)
	}
	return c.With(with(creds))
}

// with finds these credentials.
func with(creds ...*oci.Credentials) func(context.Context) ([]*oci.Credentials, error) {
	return func(context.Context) ([]*oci.Credentials, error) { return creds, nil }
}
