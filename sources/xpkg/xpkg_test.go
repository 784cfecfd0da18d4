package xpkg

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"gitopsd.dev/sources"
)

const (
	testMeta = `apiVersion: meta.pkg.crossplane.io/v1
kind: Provider
metadata:
  name: provider-example
`
	testCRD = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: buckets.s3.example.org
`
	testYAML  = "---\n" + testMeta + "---\n" + testCRD
	otherYAML = testYAML + "spec: {group: s3.example.org}\n"
)

// entry is a file in a layer.
type entry struct {
	name    string
	content string
	kind    byte // of archive/tar; 0 is a regular file
}

func tarOf(entries ...entry) []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{Typeflag: e.kind, Name: e.name, Size: int64(len(e.content)), Mode: 0o644}
		if e.kind != 0 && e.kind != tar.TypeReg {
			h.Size, h.Linkname = 0, e.content
		}
		if err := w.WriteHeader(h); err != nil {
			panic(err)
		}
		if h.Size > 0 {
			io.WriteString(w, e.content)
		}
	}
	w.Close()
	return buf.Bytes()
}

func gzipped(p []byte) []byte {
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	w.Write(p)
	w.Close()
	return buf.Bytes()
}

func zstandard(p []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		panic(err)
	}
	defer w.Close()
	return w.EncodeAll(p, nil)
}

// maker makes images, good and bad ones.
type maker struct{ img *Image }

func newMaker() *maker {
	return &maker{&Image{contents: make(map[sources.Digest]*io.SectionReader)}}
}

func (m *maker) add(mediaType string, content []byte) descriptor {
	d := sources.DigestOf(content)
	m.img.contents[d] = io.NewSectionReader(bytes.NewReader(content), 0, int64(len(content)))
	return descriptor{MediaType: mediaType, Digest: d, Size: int64(len(content))}
}

func (m *maker) layer(entries ...entry) descriptor {
	return m.add(mediaOCILayerGzip, gzipped(tarOf(entries...)))
}

func annotated(d descriptor, value string) descriptor {
	d.Annotations = map[string]string{annotation: value}
	return d
}

// image makes an image manifest of layers, with labels in its configuration.
func (m *maker) image(labels map[string]string, layers ...descriptor) descriptor {
	c := config{platform: platform{OS: "linux", Architecture: "riscv64"}}
	c.Config.Labels = labels
	return m.imageOf(m.add(mediaOCIConfig, asJSON(c)), layers...)
}

func (m *maker) imageOf(configuration descriptor, layers ...descriptor) descriptor {
	return m.add(mediaOCIManifest, asJSON(manifest{SchemaVersion: 2, MediaType: mediaOCIManifest, Config: &configuration, Layers: layers}))
}

func (m *maker) index(children ...descriptor) descriptor {
	return m.add(mediaOCIIndex, asJSON(manifest{SchemaVersion: 2, MediaType: mediaOCIIndex, Manifests: &children}))
}

func on(d descriptor, os, arch, variant string) descriptor {
	d.Platform = &platform{OS: os, Architecture: arch, Variant: variant}
	return d
}

func asJSON(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

var (
	packageEntry = entry{name: "package.yaml", content: testYAML}
	otherEntry   = entry{name: "package.yaml", content: otherYAML}
	noiseEntry   = entry{name: "usr/bin/controller", content: strings.Repeat("noise", 1000)}
)

// TestRunnable: whether a package's own image has a controller to run.
func TestRunnable(t *testing.T) {
	t.Parallel()
	program := func(text string) func(m *maker) descriptor {
		return func(m *maker) descriptor {
			return m.imageOf(m.add(mediaOCIConfig, []byte(text)), annotated(m.layer(packageEntry), "base"))
		}
	}
	own := `{"os": "linux", "architecture": "amd64", "config": {"Entrypoint": ["/c"]}}`
	for name, tt := range map[string]struct {
		make func(m *maker) descriptor
		want bool
		err  string
	}{
		"entrypoint": {make: program(own), want: true},
		"command":    {make: program(`{"config": {"Entrypoint": null, "Cmd": ["/c"]}}`), want: true},
		"neither":    {make: program(`{"config": {"Entrypoint": [], "Cmd": null, "Labels": {"a": "b"}}}`)},
		"nothing":    {make: program(`{}`)},
		"not for nodes": {make: func(m *maker) descriptor {
			return m.imageOf(m.add("application/vnd.example", []byte(own)), annotated(m.layer(packageEntry), "base"))
		}},
		"on one platform": {make: func(m *maker) descriptor {
			return m.index(on(program("{}")(m), "linux", "amd64", ""), on(program(own)(m), "linux", "arm64", ""))
		}, want: true},
		"on none": {make: func(m *maker) descriptor {
			return m.index(on(program("{}")(m), "linux", "amd64", ""), on(program(`{"config": {}}`)(m), "linux", "arm64", ""))
		}},
		"broken": {make: program(`{"config": {"Cmd": "/c"}}`), err: "its configuration is not valid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMaker()
			p, err := Read(t.Context(), m.img, "r", tt.make(m).Digest)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("have %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if p.Runnable != tt.want {
				t.Errorf("have %v, want %v", p.Runnable, tt.want)
			}
		})
	}
}

// TestRead is the specification's ways to be a package.
func TestRead(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		make     func(m *maker) descriptor
		children string
		other    bool // otherYAML rather than testYAML is the content
	}{
		"annotated base layer": {make: func(m *maker) descriptor {
			return m.image(nil, m.layer(otherEntry), annotated(m.layer(packageEntry), "base"), annotated(m.layer(otherEntry), "upbound"))
		}},
		"labelled base layer": {make: func(m *maker) descriptor {
			base := m.layer(packageEntry)
			return m.image(map[string]string{annotation + ":" + string(base.Digest): "base", annotation + ":sha256:1": "base"}, base, m.layer(otherEntry))
		}},
		"annotation before label": {make: func(m *maker) descriptor {
			other := m.layer(otherEntry)
			return m.image(map[string]string{annotation + ":" + string(other.Digest): "base"}, annotated(m.layer(packageEntry), "base"), other)
		}},
		"labels, volumes and annotations of two cases": {make: func(m *maker) descriptor {
			configuration := m.add(mediaOCIConfig, []byte(`{"config":{"Labels":{"name":"a","Name":"b"},"Volumes":{"/data":{},"/Data":{}}}}`))
			base := annotated(m.layer(packageEntry), "base")
			base.Annotations["name"], base.Annotations["Name"] = "a", "b"
			return m.index(m.imageOf(configuration, base))
		}},
		"zstd": {make: func(m *maker) descriptor {
			return m.image(nil, m.add("application/vnd.oci.image.layer.v1.tar+zstd", zstandard(tarOf(packageEntry))))
		}},
		"plain": {make: func(m *maker) descriptor { return m.image(nil, m.add(mediaOCILayer, tarOf(packageEntry))) }},
		"gzip in two members": {make: func(m *maker) descriptor {
			raw := tarOf(noiseEntry, packageEntry)
			return m.image(nil, m.add(mediaOCILayerGzip, append(gzipped(raw[:700]), gzipped(raw[700:])...)))
		}},
		"Docker's media types": {make: func(m *maker) descriptor {
			configuration := m.add(mediaDockerConfig, []byte(`{}`))
			l := m.add("application/vnd.docker.image.rootfs.diff.tar.gzip", gzipped(tarOf(packageEntry)))
			image := m.add(mediaDockerManifest, asJSON(manifest{SchemaVersion: 2, MediaType: mediaDockerManifest, Config: &configuration, Layers: []descriptor{annotated(l, "base")}}))
			return m.add(mediaDockerIndex, asJSON(manifest{SchemaVersion: 2, MediaType: mediaDockerIndex, Manifests: &[]descriptor{on(image, "linux", "amd64", "")}}))
		}, children: "linux/amd64"},
		"flattened, in a lower layer":  {make: func(m *maker) descriptor { return m.image(nil, m.layer(packageEntry), m.layer(noiseEntry)) }},
		"flattened, overwritten above": {make: func(m *maker) descriptor { return m.image(nil, m.layer(packageEntry), m.layer(noiseEntry, otherEntry)) }, other: true},
		"flattened, removed and written": {make: func(m *maker) descriptor {
			return m.image(nil, m.layer(packageEntry), m.layer(entry{name: ".wh.package.yaml"}), m.layer(otherEntry))
		}, other: true},
		"whiteout beside the new file": {make: func(m *maker) descriptor {
			return m.image(nil, m.layer(packageEntry), m.layer(otherEntry, entry{name: ".wh..wh..opq"}))
		}, other: true},
		"whiteout of another": {make: func(m *maker) descriptor {
			return m.image(nil, m.layer(packageEntry), m.layer(entry{name: "usr/.wh.package.yaml"}, entry{name: "usr/.wh..wh..opq"}, entry{name: "usr/package.yaml", content: otherYAML}))
		}},
		"dot slash": {make: func(m *maker) descriptor {
			return m.image(nil, m.layer(entry{name: "./", kind: tar.TypeDir}, entry{name: "/", kind: tar.TypeDir}, entry{name: "./package.yaml", content: testYAML}))
		}},
		"index": {make: func(m *maker) descriptor {
			base := annotated(m.layer(packageEntry), "base")
			arm := m.image(nil, m.layer(entry{name: "arm", content: "x"}), base)
			amd := m.image(nil, m.layer(entry{name: "amd", content: "x"}), base)
			extensions := annotated(m.image(nil, m.layer(otherEntry)), "xpkg-extensions")
			attestation := on(m.image(nil, m.layer(noiseEntry)), "unknown", "unknown", "")
			bare := m.image(nil, m.layer(otherEntry))
			return m.index(extensions, on(arm, "linux", "arm64", "v8"), on(amd, "linux", "amd64", ""), attestation, bare)
		}, children: "linux/amd64 linux/arm64/v8"},
		"index of one, platform in its configuration": {make: func(m *maker) descriptor {
			return m.index(m.image(nil, annotated(m.layer(packageEntry), "base")))
		}, children: "linux/riscv64"},
		"index, flattened alike": {make: func(m *maker) descriptor {
			arm := m.image(nil, m.layer(packageEntry), m.layer(entry{name: "arm", content: "x"}))
			amd := m.image(nil, m.layer(packageEntry, entry{name: "amd", content: "x"}))
			return m.index(on(arm, "linux", "arm64", ""), on(amd, "linux", "amd64", ""))
		}, children: "linux/amd64 linux/arm64"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMaker()
			root := test.make(m)
			p, err := Read(t.Context(), m.img, "example.org/acme/types", root.Digest)
			if err != nil {
				t.Fatal(err)
			}
			want := sources.DigestOf([]byte(testYAML))
			if test.other {
				want = sources.DigestOf([]byte(otherYAML))
			}
			if p.Content != want || len(p.Documents) != 1 || p.Documents[0].Line != 7 || p.Meta.Name != "provider-example" || p.Meta.Document.Line != 2 {
				t.Errorf("package %+v, want content %s", p, want)
			}
			var children []string
			for _, c := range p.Children {
				children = append(children, c.Platform)
			}
			if got := strings.Join(children, " "); got != test.children {
				t.Errorf("children %s, want %s", got, test.children)
			}
		})
	}
}

// TestRefused is what is not a package, and what its publisher reads.
func TestRefused(t *testing.T) {
	t.Parallel()
	raw := func(text string) func(*maker) descriptor {
		return func(m *maker) descriptor { return m.add("", []byte(text)) }
	}
	layer := func(entries ...entry) func(*maker) descriptor {
		return func(m *maker) descriptor { return m.image(nil, m.layer(entries...)) }
	}
	yaml := func(text string) func(*maker) descriptor {
		return func(m *maker) descriptor {
			return m.image(nil, annotated(m.layer(entry{name: "package.yaml", content: text}), "base"))
		}
	}
	many := func(n int, d descriptor) []descriptor {
		list := make([]descriptor, n)
		for i := range list {
			list[i] = d
		}
		return list
	}
	tests := map[string]struct {
		make  func(*maker) descriptor
		want  string
		limit bool
	}{
		"not JSON":              {raw("manifest"), "not valid: invalid character", false},
		"two values":            {raw("{}{}"), "not valid", false},
		"schema 1":              {raw(`{"schemaVersion":1}`), "schema 1", false},
		"no schema":             {raw(`{}`), "schemaVersion 0", false},
		"neither":               {raw(`{"schemaVersion":2}`), "neither a config nor manifests", false},
		"both":                  {raw(`{"schemaVersion":2,"manifests":[],"config":{}}`), "both layers and manifests", false},
		"duplicate key":         {raw(`{"schemaVersion":2,"layers":[],"Layers":[]}`), "duplicate key Layers", false},
		"duplicate with long s": {raw(`{"schemaVersion":2,"layers":[],"layerſ":[]}`), "duplicate key layerſ", false},
		"duplicate annotation":  {raw(`{"schemaVersion":2,"layers":[{"annotations":{"a":"b","a":"c"}}]}`), "duplicate key a", false},
		"nested too deeply":     {raw(strings.Repeat("[", 1<<20)), "exceeded max depth", false},
		"duplicate in a list":   {raw(`{"schemaVersion":2,"layers":[{"digest":"a","digest":"b"}]}`), "duplicate key digest", false},
		"other type":            {raw(`{"schemaVersion":2,"mediaType":"application/vnd.acme"}`), "not an image", false},
		"index type":            {raw(`{"schemaVersion":2,"mediaType":"` + mediaOCIIndex + `","config":{}}`), "has no manifests", false},
		"bad digest":            {raw(`{"schemaVersion":2,"config":{"digest":"sha256:../../etc"}}`), "its config 1: digest", false},
		"negative size":         {raw(`{"schemaVersion":2,"config":{"digest":"` + string(sources.DigestOf(nil)) + `","size":-1}}`), "a size of -1", false},
		"empty index":           {raw(`{"schemaVersion":2,"manifests":[]}`), "has no image", false},
		"only extensions": {func(m *maker) descriptor {
			return m.index(annotated(m.image(nil, m.layer(packageEntry)), "xpkg-extensions"))
		}, "has no image", false},
		"two without platform": {func(m *maker) descriptor {
			return m.index(m.image(nil, m.layer(packageEntry)), m.image(nil, m.layer(otherEntry)))
		}, "none says for which platform", false},
		"twice a platform": {func(m *maker) descriptor {
			return m.index(on(m.image(nil, m.layer(packageEntry)), "linux", "amd64", ""), on(m.image(nil, m.layer(packageEntry), m.layer(noiseEntry)), "linux", "amd64", ""))
		}, "two images for linux/amd64", false},
		"platform with a line break": {func(m *maker) descriptor {
			return m.index(on(m.image(nil, m.layer(packageEntry)), "linux", "amd64\nx", ""))
		}, "not a name", false},
		"platform with a slash": {func(m *maker) descriptor {
			return m.index(on(m.image(nil, m.layer(packageEntry)), "linux/amd64", "v1", ""))
		}, "not a name", false},
		"platform that is an item of the lock": {func(m *maker) descriptor {
			return m.index(on(m.image(nil, m.layer(packageEntry)), "runtime", "amd64", ""))
		}, "stands for something else", false},
		"index in an index": {func(m *maker) descriptor {
			return m.index(on(m.index(on(m.image(nil, m.layer(packageEntry)), "linux", "amd64", "")), "linux", "amd64", ""))
		}, "another index in it", false},
		"index with 10,000": {func(m *maker) descriptor { return m.index(many(10_000, m.image(nil, m.layer(packageEntry)))...) }, "10000 manifests, more than 256", true},
		"10,000 layers":     {func(m *maker) descriptor { return m.image(nil, many(10_000, m.layer(packageEntry))...) }, "10000 layers, more than 512", true},
		"no layers":         {func(m *maker) descriptor { return m.image(nil) }, "has no layers", false},
		"two base layers": {func(m *maker) descriptor {
			return m.image(nil, annotated(m.layer(packageEntry), "base"), annotated(m.layer(otherEntry), "base"))
		}, "has two layers marked io.crossplane.xpkg: base", false},
		"two labels": {func(m *maker) descriptor {
			a, b := m.layer(packageEntry), m.layer(otherEntry)
			return m.image(map[string]string{annotation + ":" + string(a.Digest): "base", annotation + ":" + string(b.Digest): "base"}, a, b)
		}, "has two layers marked", false},
		"labels of two cases": {func(m *maker) descriptor {
			return m.imageOf(m.add(mediaOCIConfig, []byte(`{"config":{"Labels":{},"labels":{}}}`)), m.layer(packageEntry))
		}, "configuration is not valid: duplicate key labels", false},
		"labels twice": {func(m *maker) descriptor {
			return m.imageOf(m.add(mediaOCIConfig, []byte(`{"config":{"Labels":{"a":"b","a":"c"}}}`)), m.layer(packageEntry))
		}, "configuration is not valid: duplicate key a", false},
		"volumes twice": {func(m *maker) descriptor {
			return m.imageOf(m.add(mediaOCIConfig, []byte(`{"config":{"Volumes":{"/a":{},"/a":{}}}}`)), m.layer(packageEntry))
		}, "configuration is not valid: duplicate key /a", false},
		"platforms that differ": {func(m *maker) descriptor {
			return m.index(on(m.image(nil, annotated(m.layer(packageEntry), "base")), "linux", "amd64", ""),
				on(m.image(nil, annotated(m.layer(otherEntry), "base")), "linux", "arm64", ""))
		}, "differs between platforms: the base layer is sha256:", false},
		"platforms that differ, flattened": {func(m *maker) descriptor {
			return m.index(on(m.image(nil, m.layer(packageEntry)), "linux", "amd64", ""), on(m.image(nil, m.layer(otherEntry)), "linux", "arm64", ""))
		}, "differs between platforms: package.yaml is sha256:", false},
		"platforms that differ, one flattened": {func(m *maker) descriptor {
			return m.index(on(m.image(nil, annotated(m.layer(packageEntry), "base")), "linux", "amd64", ""), on(m.image(nil, m.layer(otherEntry)), "linux", "arm64", ""))
		}, "differs between platforms: package.yaml is sha256:", false},
		"a chart": {func(m *maker) descriptor {
			return m.image(nil, m.add("application/vnd.cncf.helm.chart.content.v1.tar+gzip", gzipped(tarOf(packageEntry))))
		}, "not a layer of an image", false},
		"huge layer": {func(m *maker) descriptor {
			l := m.layer(packageEntry)
			l.Size = maxFetchedBytes + 1
			return m.image(nil, l)
		}, "more than 1073741824 bytes", true},
		"layers huge together": {func(m *maker) descriptor {
			l := m.layer(packageEntry)
			l.Size = 1 << 62
			return m.image(nil, l, l, l, l)
		}, "more than 1073741824 bytes", true},
		"huge configuration": {func(m *maker) descriptor {
			return m.imageOf(m.add(mediaOCIConfig, []byte(`{"x":"`+strings.Repeat("x", maxConfigBytes)+`"}`)), m.layer(packageEntry))
		}, "its configuration has", true},

		"no package.yaml": {layer(noiseEntry), "there is no package.yaml in the root of its file system; is it", false},
		"not in the base layer": {func(m *maker) descriptor {
			return m.image(nil, m.layer(packageEntry), annotated(m.layer(noiseEntry), "base"))
		}, "in the root of its base layer sha256:", false},
		"in a directory": {layer(entry{name: "crds/package.yaml", content: testYAML}), `the one at "crds/package.yaml" does not count`, false},
		"removed": {func(m *maker) descriptor {
			return m.image(nil, m.layer(packageEntry), m.layer(entry{name: ".wh.package.yaml"}))
		}, "removes package.yaml", false},
		"removed with all": {func(m *maker) descriptor {
			return m.image(nil, m.layer(packageEntry), m.layer(entry{name: "./.wh..wh..opq"}))
		}, "removes package.yaml", false},
		"twice":                      {layer(packageEntry, otherEntry), "in one layer twice", false},
		"twice, spelled differently": {layer(packageEntry, entry{name: "./package.yaml", content: otherYAML}), "in one layer twice", false},
		"symbolic link":              {layer(entry{name: "package.yaml", content: "/etc/passwd", kind: tar.TypeSymlink}), `is a link, to "/etc/passwd"`, false},
		"hard link":                  {layer(entry{name: "package.yaml", content: "other", kind: tar.TypeLink}), "is a link", false},
		"directory":                  {layer(entry{name: "package.yaml/", kind: tar.TypeDir}), "not a regular file", false},
		"device":                     {layer(entry{name: "package.yaml", kind: tar.TypeChar}), "not a regular file", false},
		"absolute":                   {layer(entry{name: "/package.yaml", content: testYAML}), "absolute path", false},
		"parent":                     {layer(entry{name: "a/../package.yaml", content: testYAML}), "leaves the file system", false},
		"parent of another":          {layer(packageEntry, entry{name: "../../etc/passwd", content: "x"}), "leaves the file system", false},
		"not tar": {func(m *maker) descriptor {
			return m.image(nil, m.add(mediaOCILayer, bytes.Repeat([]byte("not tar "), 1000)))
		}, "cannot be read", false},
		"truncated gzip": {func(m *maker) descriptor {
			z := gzipped(tarOf(noiseEntry))
			return m.image(nil, m.add(mediaOCILayerGzip, z[:len(z)/2]))
		}, "cannot be read", false},
		"damaged zstd": {func(m *maker) descriptor {
			z := zstandard(tarOf(noiseEntry))
			z[20] ^= 0xff
			return m.image(nil, m.add(mediaOCILayerGzip, z))
		}, "cannot be read", false},

		"syntax":             {yaml("a: [\n"), "package.yaml line ", false},
		"syntax, later":      {yaml(testYAML + strings.Repeat("---\n"+testCRD, 20_000) + "---\na: b: c\n"), "package.yaml line 100012: ", false},
		"duplicate YAML key": {yaml("a: 1\na: 2\n"), `line 2: duplicate key "a"`, false},
		"invalid UTF-8":      {yaml(testMeta + "x: \xff\xfe\n"), "not valid UTF-8", false},
		"alias bomb":         {yaml("a: &a [1,1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f,*f,*f]\n"), "more than 500000 values", true},
		"alias bombs, many":  {yaml(strings.Repeat("--- {a: &a ["+strings.Repeat("1,", 1000)+"], b: &b ["+strings.Repeat("*a,", 300)+"]}\n", 100)), "more than", true},
		"deep":               {yaml("a: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + "\n"), "nested deeper", true},
		"values":             {yaml("a: [" + strings.Repeat("1,", 500_001) + "]\n"), "a document of more than 500000 values", true},
		"large document":     {yaml("a: \"" + strings.Repeat("x", maxDocumentBytes) + "\"\n"), "a document of more than 4194304 bytes", true},
		"a list":             {yaml("- a\n"), "a document must be a mapping", false},
		"empty":              {yaml("# nothing\n"), "there is no meta object among its documents", false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMaker()
			root := test.make(m)
			p, err := Read(t.Context(), m.img, "example.org/acme/types", root.Digest)
			var invalid *InvalidError
			if p != nil || !errors.As(err, &invalid) {
				t.Fatalf("package %v, error %v", p, err)
			}
			subject := fmt.Sprintf("example.org/acme/types@%s: ", root.Digest)
			if text := err.Error(); !strings.HasPrefix(text, subject) || strings.Count(text, "example.org/acme/types") != 1 || !strings.Contains(text, test.want) {
				t.Errorf("error %v; want %q", err, test.want)
			}
			if len(err.Error()) > 1000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			if errors.Is(err, sources.ErrLimit) != test.limit {
				t.Errorf("error %v wraps ErrLimit: %v, want %v", err, !test.limit, test.limit)
			}
		})
	}
}

// TestBombs: layers that expand without end are left as soon as the bound is
// reached.
func TestBombs(t *testing.T) {
	t.Parallel()
	const bound = 1 << 20
	zeros := bytes.Repeat([]byte{0}, 1<<24)
	header := tarOf(entry{name: "zeros", content: "x"})[:512]
	copy(header[124:136], "77777777777\x00") // 8 GiB
	copy(header[148:156], "        ")
	sum := 0
	for _, b := range header {
		sum += int(b)
	}
	copy(header[148:156], fmt.Sprintf("%06o\x00 ", sum))
	endless := append(header, zeros...)
	for name, blob := range map[string][]byte{"gzip": gzipped(endless), "zstd": zstandard(endless), "plain": endless} {
		w := &walk{reader: &reader{entries: 10, expand: bound}, consume: func(io.Reader) error { return nil }}
		err := w.layer(bytes.NewReader(blob))
		if err == nil || !strings.Contains(err.Error(), "expand to more than") {
			t.Errorf("%s: %v", name, err)
		}
	}
	w := &walk{reader: &reader{entries: 10, expand: bound}, consume: func(io.Reader) error { return nil }}
	if err := w.layer(bytes.NewReader(tarOf(make([]entry, 11)...))); err == nil || !strings.Contains(err.Error(), "more than 500000 files") {
		t.Errorf("files: %v", err)
	}
	// A window of 128 MiB, which the decoder would have to hold.
	var wide bytes.Buffer
	z, err := zstd.NewWriter(&wide, zstd.WithWindowSize(128<<20))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(endless); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	w = &walk{reader: &reader{entries: 10, expand: 1 << 40}, consume: func(io.Reader) error { return nil }}
	if err := w.layer(&wide); !errors.Is(err, zstd.ErrWindowSizeExceeded) {
		t.Errorf("window: %v", err)
	}
	// A package.yaml that says how large it is.
	w = &walk{reader: &reader{entries: 10, expand: bound}, consume: func(io.Reader) error { return errors.New("was read") }}
	copy(header, "package.yaml\x00")
	copy(header[148:156], "        ")
	sum = 0
	for _, b := range header[:512] {
		sum += int(b)
	}
	copy(header[148:156], fmt.Sprintf("%06o\x00 ", sum))
	if err := w.layer(bytes.NewReader(header)); err == nil || !strings.Contains(err.Error(), "its package.yaml has 8589934591 bytes, more than 268435456") {
		t.Errorf("huge package.yaml: %v", err)
	}
}

// TestBudget: what a package may cost is for all its platforms together. Each of
// these images is within the limits; all of them are not.
func TestBudget(t *testing.T) {
	t.Parallel()
	m := newMaker()
	var children []descriptor
	for i := range 4 {
		arch := fmt.Sprintf("arch%d", i)
		noise := entry{name: arch, content: strings.Repeat(arch, 1000)}
		children = append(children, on(m.image(nil, m.layer(packageEntry, noise)), "linux", arch, ""))
	}
	root := m.index(children...)
	for name, test := range map[string]struct {
		limit func(*reader)
		want  string
	}{
		"enough":   {func(*reader) {}, ""},
		"fetched":  {func(r *reader) { r.fetch.Store(3500) }, "bytes to fetch, for all platforms together"},
		"expanded": {func(r *reader) { r.expand = 20_000 }, "layers expand to more than"},
		"files":    {func(r *reader) { r.entries = 5 }, "more than 500000 files"},
	} {
		r := newReader(m.img, "example.org/acme/types")
		test.limit(r)
		_, _, err := r.read(t.Context(), root.Digest)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v; %d bytes, %d expanded and %d files were left", name, err, r.fetch.Load(), r.expand, r.entries)
		}
	}
}

// TestMissing: an image that names what is not there.
func TestMissing(t *testing.T) {
	t.Parallel()
	m := newMaker()
	base := annotated(m.layer(packageEntry), "base")
	root := m.image(nil, base)
	contents := maps.Clone(m.img.contents)
	for _, gone := range []sources.Digest{root.Digest, base.Digest} {
		m.img.contents = maps.Clone(contents)
		delete(m.img.contents, gone)
		if _, err := Read(t.Context(), m.img, "example.org/a", root.Digest); err == nil || !strings.Contains(err.Error(), string(gone)+" is not in it") {
			t.Errorf("without %s: %v", gone, err)
		}
	}
}
