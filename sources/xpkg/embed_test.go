package xpkg

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"gitopsd.dev/sources"
)

const runtimeConfig = `{"architecture": "riscv64", "os": "linux", "variant": "v1", "created": "2026-01-01T00:00:00Z",
 "config": {"Entrypoint": ["/usr/bin/controller"], "User": "2000", "Labels": {"a": "b"}, "Healthcheck": {"Interval": 9007199254740993}},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:0000000000000000000000000000000000000000000000000000000000000001"]},
 "history": [{"created_by": "build"}]}`

// runtimeImage is what a controller was built as, in Docker's format.
func (m *maker) runtimeImage(layers ...descriptor) descriptor {
	c := m.add(mediaDockerConfig, []byte(runtimeConfig))
	return m.add(mediaDockerManifest, asJSON(manifest{SchemaVersion: 2, MediaType: mediaDockerManifest, Config: &c, Layers: layers}))
}

func raw(t *testing.T, img *Image, d sources.Digest) []byte {
	t.Helper()
	content, err := img.open(d)
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(content)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A package on top of its controller's image is a package, and still runs.
func TestBuildWithRuntime(t *testing.T) {
	t.Parallel()
	m := newMaker()
	plain, zst, gz := tarOf(noiseEntry), zstandard(tarOf(noiseEntry)), gzipped(tarOf(noiseEntry))
	runtime := m.runtimeImage(m.add("application/vnd.docker.image.rootfs.diff.tar", plain), m.add("application/vnd.docker.image.rootfs.diff.tar.zstd", zst), m.add("application/vnd.docker.image.rootfs.diff.tar.gzip", gz))
	dir := mapFS("a.yaml", testMeta, "b.yaml", testCRD)
	img, err := BuildWithRuntime(t.Context(), dir, Runtime{Source: m.img, Digest: runtime.Digest}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	var built manifest
	if err := json.Unmarshal(raw(t, img, img.root), &built); err != nil {
		t.Fatal(err)
	}
	if len(built.Layers) != 4 || built.MediaType != mediaOCIManifest || built.Config.MediaType != mediaOCIConfig {
		t.Fatalf("have %+v", built)
	}
	for i, want := range []struct {
		mediaType string
		content   []byte
	}{{mediaOCILayerGzip, gzipped(plain)}, {mediaOCILayerZstd, zst}, {mediaOCILayerGzip, gz}} {
		if l := built.Layers[i]; l.MediaType != want.mediaType || !bytes.Equal(raw(t, img, l.Digest), want.content) {
			t.Errorf("layer %d is %+v", i, l)
		}
	}
	bare, err := Build(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	var types manifest
	if err := json.Unmarshal(raw(t, bare, bare.root), &types); err != nil {
		t.Fatal(err)
	}
	base := built.Layers[3]
	if !reflect.DeepEqual(base, types.Layers[0]) {
		t.Errorf("base layer %+v, without a controller %+v", base, types.Layers[0])
	}
	want := strings.NewReplacer(
		`"a": "b"`, `"a": "b", "io.crossplane.xpkg:`+string(base.Digest)+`": "base"`,
		`0001"]`, `0001", "`+string(sources.DigestOf(tarOfPackage(t, img, base)))+`"]`,
		`{"created_by": "build"}`, `{"created_by": "build"}, {"created_by": "gitopsd package build"}`,
	).Replace(runtimeConfig)
	var haveConfig, wantConfig map[string]any
	have := raw(t, img, built.Config.Digest)
	if json.Unmarshal(have, &haveConfig) != nil || json.Unmarshal([]byte(want), &wantConfig) != nil || !reflect.DeepEqual(haveConfig, wantConfig) || !bytes.Contains(have, []byte("9007199254740993")) {
		t.Errorf("configuration %s\nwant %s", have, want)
	}
	again, err := BuildWithRuntime(t.Context(), dir, Runtime{Source: m.img, Digest: runtime.Digest}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if again.root != img.root {
		t.Error("built again, it is another package")
	}
	// The file is the package, and the package is gone from the disk with it.
	name := filepath.Join(t.TempDir(), "a.xpkg")
	if err := img.WriteFile(name); err != nil {
		t.Fatal(err)
	}
	opened, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	if p, err := Read(t.Context(), opened, "r", opened.root); err != nil || opened.root != img.root || len(p.Documents) != 1 {
		t.Errorf("read back: %+v, %v", p, err)
	}
	spool := img.file.(*embedder).spool
	if err := img.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(spool); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", spool, err)
	}
}

// tarOfPackage is what a base layer decompresses to.
func tarOfPackage(t *testing.T, img *Image, base descriptor) []byte {
	t.Helper()
	r, err := img.Blob(t.Context(), "", base.Digest, base.Size)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	unzipped, err := gzip.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	tarred, err := io.ReadAll(unzipped)
	if err != nil {
		t.Fatal(err)
	}
	return tarred
}

// An image for several platforms makes a package for each of them, with one
// content.
func TestBuildWithRuntimes(t *testing.T) {
	t.Parallel()
	m := newMaker()
	runtime := m.index(on(m.runtimeImage(m.layer(noiseEntry)), "linux", "amd64", ""), on(m.runtimeImage(m.layer(otherEntry)), "linux", "arm64", "v8"), on(m.layer(noiseEntry), "unknown", "unknown", ""))
	img, err := BuildWithRuntime(t.Context(), mapFS("a.yaml", testMeta), Runtime{Source: m.img, Digest: runtime.Digest}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	p, err := Read(t.Context(), img, "r", img.root)
	if err != nil || len(p.Children) != 2 || p.Children[0].Platform != "linux/amd64" || p.Children[1].Platform != "linux/arm64/v8" {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestBuildWithRuntimeErrors(t *testing.T) {
	t.Parallel()
	m := newMaker()
	good := m.runtimeImage(m.layer(noiseEntry))
	packaged := m.image(nil, annotated(m.layer(packageEntry), baseLayer))
	layer := m.layer(packageEntry)
	labelled := m.image(map[string]string{annotation + ":" + string(layer.Digest): baseLayer}, layer)
	chart := m.imageOf(m.add("application/vnd.cncf.helm.config.v1+json", []byte("{}")), m.layer(noiseEntry))
	odd := m.runtimeImage(m.add("application/octet-stream", []byte("x")))
	idle := m.image(nil, m.layer(noiseEntry))
	lying := m.runtimeImage(descriptor{MediaType: mediaOCILayerGzip, Digest: sources.DigestOf(nil), Size: 1})
	tests := map[string]struct {
		meta    string
		runtime descriptor
		want    string
	}{
		"configuration":    {strings.Replace(testMeta, "Provider", "Configuration", 1), good, "a Configuration has no controller, and so no runtime image"},
		"another image":    {testMeta + "spec: {controller: {image: r.example.org/c:v1}}\n", good, "its metadata names the image r.example.org/c:v1"},
		"a package":        {testMeta, packaged, "is a package already"},
		"a package's tool": {testMeta, labelled, "it is a package already"},
		"a chart":          {testMeta, chart, "is not a container image"},
		"an odd layer":     {testMeta, odd, `is "application/octet-stream", not a file system`},
		"no program":       {testMeta, idle, "it has neither an entrypoint nor a command, so that no node could start it"},
		"a missing layer":  {testMeta, lying, "is not in it"},
		"no image":         {testMeta, m.layer(noiseEntry), "its manifest is not valid"},
		"broken files":     {"a: [", good, "a.yaml: line 1"},
	}
	for name, test := range tests {
		img, err := BuildWithRuntime(t.Context(), mapFS("a.yaml", test.meta), Runtime{Source: m.img, Digest: test.runtime.Digest}, nil)
		if img != nil || err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// Several files are one package, if they are for different platforms and hold
// the same.
func TestBundle(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, yaml, arch string) string {
		m := newMaker()
		runtime := m.imageOf(m.add(mediaOCIConfig, asJSON(map[string]any{"os": "linux", "architecture": arch, "config": map[string]any{"Cmd": []string{arch}}})), m.layer(entry{name: arch, content: arch}))
		img, err := BuildWithRuntime(t.Context(), mapFS("a.yaml", yaml), Runtime{Source: m.img, Digest: runtime.Digest}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		file := filepath.Join(dir, name)
		if err := img.WriteFile(file); err != nil {
			t.Fatal(err)
		}
		return file
	}
	amd, arm, twice, other := write("amd.xpkg", testMeta, "amd64"), write("arm.xpkg", testMeta, "arm64"), write("twice.xpkg", testMeta, "arm64"), write("other.xpkg", testYAML, "riscv64")
	nowhere := write("nowhere.xpkg", testMeta, "")
	ref := sources.Ref{Repository: "r.example.org/a", Tag: "v1"}
	for _, tt := range []struct {
		files []string
		want  string
	}{
		{[]string{arm, twice}, twice + ": it is for linux/arm64, as " + arm + " is"},
		{[]string{amd, other}, amd + ", " + other + ": its content differs between platforms"},
		{[]string{amd, filepath.Join(dir, "none")}, "no such file"},
		{[]string{amd, nowhere}, "does not say for which platform it is"},
	} {
		if _, err := Push(t.Context(), nil, tt.files, ref); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("have %v, want %s", err, tt.want)
		}
	}
	store := &storage{}
	d, err := Push(t.Context(), store, []string{arm, amd}, ref)
	if err != nil || store.tags["v1"] != d {
		t.Fatalf("%v, %v", store.tags, err)
	}
	p, err := Read(t.Context(), &store.img, "r", d)
	if err != nil || len(p.Children) != 2 || p.Children[0].Platform != "linux/amd64" || p.Children[1].Platform != "linux/arm64" {
		t.Errorf("%+v, %v", p, err)
	}
	if same, err := Push(t.Context(), store, []string{amd, arm}, ref); err != nil || same != d {
		t.Errorf("in another order it is %s, %v", same, err)
	}
}

// storage is a Destination in memory.
type storage struct {
	img  Image
	tags map[string]sources.Digest
}

func (s *storage) PushBlob(_ context.Context, _ string, _ sources.Digest, _ int64, open func() (io.ReadCloser, error)) error {
	r, err := open()
	if err != nil {
		return err
	}
	defer r.Close()
	content, err := io.ReadAll(r)
	s.add(content)
	return err
}

func (s *storage) PushManifest(_ context.Context, ref sources.Ref, _ string, raw []byte) error {
	if d := s.add(raw); ref.Tag != "" {
		s.tags[ref.Tag] = d
	}
	return nil
}

func (s *storage) add(content []byte) sources.Digest {
	if s.img.contents == nil {
		s.img.contents, s.tags = make(map[sources.Digest]*io.SectionReader), make(map[string]sources.Digest)
	}
	return s.img.add(content)
}
