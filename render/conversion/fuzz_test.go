package conversion

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"gitopsd.dev/render/conversion/stash"
	"gitopsd.dev/render/conversion/structural"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
)

// FuzzConvert converts any object by the rules of all archives. Nothing panics or changes
// the object, and an object that fits its schema comes back unchanged.
func FuzzConvert(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	sets := []*Set{compile(f, txtar.Parse([]byte(both)))}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		archive := txtar.Parse(data)
		sets = append(sets, compile(f, archive))
		for _, a := range archive.Files {
			if version, ok := strings.CutSuffix(a.Name, ".in"); ok && version != "" {
				f.Add(uint(len(sets)-1), text(f, manifesttest.Tree(f, string(a.Data))))
			}
		}
	}
	f.Add(uint(0), `{"metadata":{"annotations":{"gitopsd.dev/conversion-stash":"{\"v2\":[{\"path\":\"spec.young\",\"value\":\"z\"}]}"}},"spec":{"title":null,"ports":[{"id":1},{"id":1},null,3],"free":[[]]}}`)
	f.Fuzz(func(t *testing.T, n uint, data string) {
		s := sets[n%uint(len(sets))]
		object, err := Decode([]byte(data))
		if err != nil {
			return
		}
		for _, from := range s.Versions() {
			thereAndBack(t, s, object, from)
		}
	})
}

// thereAndBack converts an object to each version and back. An object that fits its schema
// loses nothing, except for garbage in metadata and fields too large for the stash.
func thereAndBack(t *testing.T, s *Set, object map[string]any, from string) {
	t.Helper()
	object["apiVersion"], object["kind"] = "example.io/"+from, "Widget"
	seen := structural.Visible(s.Schema(from))
	metadata, ok := object["metadata"].(map[string]any)
	_, stashed := manifest.Mapping(metadata, "annotations")[manifest.ConversionStashAnnotation]
	ok = ok && !stashed && structural.Fits(seen, structural.Known(seen, object), "") == nil
	for _, to := range s.Versions() {
		out, there := convert(t, s, object, to)
		back, again := convert(t, s, out, from)
		p := s.pairs[[2]string{from, to}]
		if !ok || p == nil || len(there.Dropped) > 0 {
			continue
		}
		if d := stash.Differences(seen, object, back, p.ignored, nil); len(d) > 0 {
			t.Fatalf("%s to %s and back loses %s (%v):\n%s\n%s\n%s\n%+v", from, to, d[0].Path, d[0].Value, text(t, object), text(t, out), text(t, back), again)
		}
		if _, stashed := manifest.Mapping(back, "metadata", "annotations")[manifest.ConversionStashAnnotation]; stashed {
			t.Fatalf("%s to %s and back leaves a stash:\n%s\n%s\n%s", from, to, text(t, object), text(t, out), text(t, back))
		}
	}
}

// FuzzCompile checks that no schema, rules or object cause a panic.
func FuzzCompile(f *testing.F) {
	archive := txtar.Parse([]byte(both))
	f.Add(file(archive, "v1"), file(archive, "v2"), file(archive, "rules"), `{"spec":{"title":"x"}}`)
	f.Add("spec: {properties: {a: {type: array}}, x-kubernetes-preserve-unknown-fields: true}", "spec: {x-kubernetes-preserve-unknown-fields: true}",
		"conversions: [{from: v1, to: v2, rules: [{from: 'self.spec.a[0]', to: 'spec.b.c'}]}]", `{"spec":{"a":[3]}}`)
	f.Fuzz(func(t *testing.T, v1, v2, rules, data string) {
		tree := func(text string) map[string]any {
			docs, _ := sources.DecodeYAML(strings.NewReader(text), sources.Limits{Bytes: 1 << 14})
			if len(docs) == 0 {
				return map[string]any{}
			}
			return docs[0].Tree
		}
		version := func(name, text string) any {
			return map[string]any{"name": name, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": tree(text)}}}
		}
		crd := map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "w"},
			"spec": map[string]any{"group": "example.io", "versions": []any{version("v1", v1), version("v2", v2)}, "names": map[string]any{"kind": "Widget"}}}
		s, err := Compile(crd, []Document{{Tree: map[string]any{"apiVersion": "apis.kcp.dev/v1alpha1", "kind": "APIConversionRules",
			"metadata": map[string]any{"name": "w"}, "spec": tree(rules)}}})
		object, bad := Decode([]byte(data))
		if err != nil || bad != nil {
			return
		}
		object["apiVersion"], object["kind"] = "example.io/v1", "Widget"
		out, _ := convert(t, s, object, "v2")
		_, _ = convert(t, s, out, "v1")
	})
}
