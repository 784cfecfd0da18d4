package oci_test

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/oci"
	"gitopsd.dev/sources/xpkg"
	"gitopsd.dev/testscripts/registry"
)

// Crossplane's own tools are made of go-containerregistry. These tests do with
// it what they do: what it builds can be read here, and what is built here it
// can read.

const packageYAML = `apiVersion: meta.pkg.crossplane.io/v1
kind: Configuration
metadata:
  name: platform
`

// crossplaneLayer is a layer as "crossplane xpkg build" makes it, with the label
// that says what it is.
func crossplaneLayer(t *testing.T, labels map[string]string, what, file, content string) v1.Layer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.WriteHeader(&tar.Header{Name: file, Mode: 0o644, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	d, err := layer.Digest()
	if err != nil {
		t.Fatal(err)
	}
	labels["io.crossplane.xpkg:"+d.String()] = what
	return layer
}

func start(t *testing.T) (*registry.Registry, *oci.Client) {
	t.Helper()
	reg := registry.Start(t, registry.Config{})
	c, err := oci.New(oci.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return reg, c
}

// TestCrossplaneFile pushes a file of the Crossplane CLI's.
func TestCrossplaneFile(t *testing.T) {
	t.Parallel()
	labels := make(map[string]string)
	base := crossplaneLayer(t, labels, "base", "package.yaml", packageYAML)
	examples := crossplaneLayer(t, labels, "upbound", ".up/examples.yaml", "kind: Example\n")
	img, err := mutate.AppendLayers(empty.Image, base, examples)
	if err == nil {
		img, err = mutate.Config(img, v1.Config{Labels: labels})
	}
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "platform.xpkg")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.Write(nil, img, f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	reg, c := start(t)
	ref := sources.Ref{Repository: reg.Host() + "/acme/platform", Tag: "v1"}
	d, err := xpkg.Push(t.Context(), c, []string{file}, ref)
	if err != nil {
		t.Fatal(err)
	}
	p, err := xpkg.Read(t.Context(), c, ref.Repository, d)
	if err != nil || p.Meta.Name != "platform" || p.Meta.Kind != sources.Configuration || p.Content != sources.DigestOf([]byte(packageYAML)) {
		t.Errorf("package %+v, %v", p, err)
	}
	// The annotation, which the file format cannot hold, is there again: only
	// the base layer is fetched.
	want, err := base.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if all, one := reg.Count("GET", "/v2/acme/platform/blobs/"), reg.Count("GET", "/v2/acme/platform/blobs/"+want.String()); all != 1 || one != 1 {
		t.Errorf("fetched %v", reg.Requests())
	}
}

// TestCrossplaneReads reads a package with the library of Crossplane's tools,
// from a file and from a registry.
func TestCrossplaneReads(t *testing.T) {
	t.Parallel()
	built, err := xpkg.Build(fstest.MapFS{"crossplane.yaml": {Data: []byte(packageYAML)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "platform.xpkg")
	if err := built.WriteFile(file); err != nil {
		t.Fatal(err)
	}
	fromFile, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	reg, c := start(t)
	repository := reg.Host() + "/acme/platform"
	if err := built.Push(t.Context(), c, sources.Ref{Repository: repository, Tag: "v1"}); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(repository + ":v1")
	if err != nil {
		t.Fatal(err)
	}
	fromRegistry, err := remote.Image(tag, remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	for what, img := range map[string]v1.Image{"file": fromFile, "registry": fromRegistry} {
		layers, err := img.Layers()
		if err != nil || len(layers) != 1 {
			t.Fatalf("%s: %d layers, %v", what, len(layers), err)
		}
		d, err := layers[0].Digest()
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil || config.Config.Labels["io.crossplane.xpkg:"+d.String()] != "base" {
			t.Errorf("%s: labels %v, %v", what, config.Config.Labels, err)
		}
		r, err := layers[0].Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		archive := tar.NewReader(r)
		header, err := archive.Next()
		if err != nil || header.Name != "package.yaml" {
			t.Fatalf("%s: %v, %v", what, header, err)
		}
		if content, err := io.ReadAll(archive); err != nil || string(content) != "---\n"+packageYAML {
			t.Errorf("%s: %s, %v", what, content, err)
		}
		r.Close()
	}
	m, err := fromRegistry.Manifest()
	if err != nil || m.Layers[0].Annotations["io.crossplane.xpkg"] != "base" {
		t.Errorf("annotations %v, %v", m.Layers[0].Annotations, err)
	}
	if d, err := fromRegistry.Digest(); err != nil || d.String() != string(built.Digest()) {
		t.Errorf("digest %v, %v; want %v", d, err, built.Digest())
	}
}

// TestIndexFromRegistry reads a package of several platforms, as "docker buildx"
// pushes it, and sees nothing of the platforms but their base layers.
func TestIndexFromRegistry(t *testing.T) {
	t.Parallel()
	reg, c := start(t)
	labels := make(map[string]string)
	base := mutate.Addendum{Layer: crossplaneLayer(t, labels, "base", "package.yaml", packageYAML), Annotations: map[string]string{"io.crossplane.xpkg": "base"}}
	index := v1.ImageIndex(empty.Index)
	for _, arch := range []string{"amd64", "arm64"} {
		binary := crossplaneLayer(t, make(map[string]string), "", "controller", "binary for "+arch)
		img, err := mutate.Append(empty.Image, mutate.Addendum{Layer: binary}, base)
		if err != nil {
			t.Fatal(err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	tag, err := name.NewTag(reg.Host() + "/acme/platform:v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(tag, index, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	reg.ResetCounts()
	ref := sources.Ref{Repository: reg.Host() + "/acme/platform", Tag: "v1"}
	d, err := c.Resolve(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	p, err := xpkg.Read(t.Context(), c, ref.Repository, d)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Children) != 2 || p.Children[0].Platform != "linux/amd64" || p.Children[1].Platform != "linux/arm64" {
		t.Errorf("children %+v", p.Children)
	}
	if blobs := reg.Count("GET", "/v2/acme/platform/blobs/"); blobs != 1 {
		t.Errorf("%d blobs fetched, want the base layer once", blobs)
	}
}

var _ xpkg.Source = (*oci.Client)(nil)
var _ xpkg.Destination = (*oci.Client)(nil)
