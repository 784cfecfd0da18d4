package xpkg_test

import (
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

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
	reg, err := registry.New(registry.Config{TLS: true, Auth: registry.TokenAuth, Username: "alice", Password: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer reg.Close()
	client := newClient(t, reg)

	dir := fstest.MapFS{
		"crossplane.yaml":       {Data: []byte(meta)},
		"crds/buckets.yaml":     {Data: []byte("---\n" + crd)},
		"examples/ignored.yaml": {Data: []byte("kind: Secret\n")},
		"README.md":             {Data: []byte("not YAML\n")},
	}
	img, err := xpkg.Build(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := xpkg.Build(dir)
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
	if d, err := xpkg.Push(t.Context(), client, name, ref); err != nil || d != img.Digest() {
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
	return c.With(creds)
}
