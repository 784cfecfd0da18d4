package xpkg

import (
	"bytes"
	"crypto/sha256"
	"io"
	"strings"
	"testing"

	"gitopsd.dev/sources"
)

// FuzzManifest reads whatever comes as a manifest, and as the configuration of
// an image.
func FuzzManifest(f *testing.F) {
	m := newMaker()
	base := m.layer(packageEntry)
	img := m.image(map[string]string{annotation + ":" + string(base.Digest): "base"}, base)
	for _, d := range []descriptor{img, m.index(on(img, "linux", "amd64", "v1"), annotated(img, "xpkg-extensions"))} {
		raw, err := m.img.Manifest(f.Context(), "", d.Digest)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte(`{"os":"linux","architecture":"amd64","config":{"Labels":{"a":"b"}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m := newMaker()
		root := m.add("", raw)
		if p, err := Read(t.Context(), m.img, "r", root.Digest); err == nil {
			t.Errorf("a package without a layer: %v", p)
		}
		root = m.imageOf(m.add(mediaOCIConfig, raw), m.layer(packageEntry))
		if _, err := Read(t.Context(), m.img, "r", root.Digest); err != nil && len(err.Error()) > 2000 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	})
}

// FuzzLayer walks whatever comes as a layer.
func FuzzLayer(f *testing.F) {
	raw := tarOf(noiseEntry, packageEntry, entry{name: "a/.wh..wh..opq"})
	f.Add(raw)
	f.Add(gzipped(raw))
	f.Add(zstandard(raw))
	f.Fuzz(func(t *testing.T, blob []byte) {
		var got bytes.Buffer
		w := &walk{reader: &reader{entries: 1000, expand: 1 << 20}, hash: sha256.New(), consume: func(r io.Reader) error {
			_, err := got.ReadFrom(r)
			return err
		}}
		if err := w.layer(bytes.NewReader(blob)); err == nil && !w.found && got.Len() > 0 {
			t.Error("content without a package.yaml")
		}
		if got.Len() > 1<<20 {
			t.Errorf("%d bytes", got.Len())
		}
	})
}

// FuzzLint decodes and checks whatever comes as package.yaml.
func FuzzLint(f *testing.F) {
	f.Add(testYAML)
	f.Add(metaOf("Provider", "v1", `crossplane: {version: ">=v1"}, dependsOn: [{provider: a/b, version: v1}, {apiVersion: pkg.crossplane.io/v1, kind: Function, package: a/c, version: v2}]`))
	f.Add(metaOf("Configuration", "v1alpha1", `dependsOn: [1, {}, []]`) + object("v1", "List", "a"))
	f.Fuzz(func(t *testing.T, text string) {
		docs, err := decode(strings.NewReader(text), anyShare())
		if err != nil {
			return
		}
		meta, objects, err := lint(docs, func(int) string { return "" })
		if err != nil {
			return
		}
		if len(objects) != len(docs)-1 || meta.Name == "" {
			t.Errorf("%d objects of %d documents, meta %+v", len(objects), len(docs), meta)
		}
		for _, d := range meta.DependsOn {
			if _, err := sources.ParseRef(d.Repository + ":v1"); err != nil {
				t.Errorf("dependency %+v: %v", d, err)
			}
		}
	})
}
