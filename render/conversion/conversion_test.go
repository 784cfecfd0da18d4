package conversion

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// definition returns a CRD for widgets with the versions of an archive: the files v1, v2,
// … have their properties.
func definition(t testing.TB, archive *txtar.Archive) map[string]any {
	t.Helper()
	var versions []any
	for _, f := range archive.Files {
		if !strings.HasPrefix(f.Name, "v") || strings.Contains(f.Name, ".") {
			continue
		}
		properties := manifesttest.Tree(t, string(f.Data))
		for name, s := range map[string]string{"apiVersion": "string", "kind": "string", "metadata": "object"} {
			properties[name] = map[string]any{"type": s}
		}
		versions = append(versions, map[string]any{"name": f.Name, "served": true, "storage": len(versions) == 0,
			"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": properties}}})
	}
	return map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "widgets.example.io"},
		"spec": map[string]any{"group": "example.io", "scope": "Namespaced", "versions": versions,
			"names": map[string]any{"kind": "Widget", "plural": "widgets"}},
	}
}

func file(archive *txtar.Archive, name string) string {
	i := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return f.Name == name })
	if i < 0 {
		return ""
	}
	return string(archive.Files[i].Data)
}

func document(t testing.TB, spec string) Document {
	t.Helper()
	return Document{Origin: manifest.Origin{File: "rules.yaml", Line: 1}, Tree: map[string]any{
		"apiVersion": "apis.kcp.dev/v1alpha1", "kind": "APIConversionRules",
		"metadata": map[string]any{"name": "widgets.example.io"}, "spec": manifesttest.Tree(t, spec)}}
}

// compile compiles the rules of an archive.
func compile(t testing.TB, archive *txtar.Archive) *Set {
	t.Helper()
	s, err := Compile(definition(t, archive), []Document{document(t, file(archive, "rules"))})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// widget returns an object of an archive; the apiVersion of the text is only a version.
func widget(t testing.TB, text string) map[string]any {
	t.Helper()
	object := manifesttest.Tree(t, text)
	object["apiVersion"] = "example.io/" + fmt.Sprint(object["apiVersion"])
	object["kind"] = "Widget"
	if object["metadata"] == nil {
		object["metadata"] = map[string]any{}
	}
	object["metadata"].(map[string]any)["name"] = "a"
	return object
}

func text(t testing.TB, v any) string {
	t.Helper()
	b, err := exact.Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// bare returns an object without its stash.
func bare(object map[string]any) map[string]any {
	object = exact.Clone(object)
	metadata := manifest.Mapping(object, "metadata")
	annotations := manifest.Mapping(metadata, "annotations")
	delete(annotations, manifest.ConversionStashAnnotation)
	if annotations != nil && len(annotations) == 0 {
		delete(metadata, "annotations")
	}
	return object
}

func convert(t testing.TB, s *Set, object map[string]any, to string) (map[string]any, Report) {
	t.Helper()
	before := text(t, object)
	out, report, err := s.Convert(object, to)
	if err != nil {
		t.Fatal(err)
	}
	if after := text(t, object); after != before {
		t.Fatalf("the object was changed from\n%s\nto\n%s", before, after)
	}
	routed(t, s, before, to, out, report)
	return out, report
}

// routed checks that an object converted by its route is the same as one converted
// decoded.
func routed(t testing.TB, s *Set, object, to string, want map[string]any, report Report) {
	t.Helper()
	converted, ok := s.byRoute(new(cel.Budget), []byte(object), to)
	if !ok {
		return
	}
	have, err := Decode(converted)
	if err != nil || !exact.Equal(have, want) || !reflect.DeepEqual(report, Report{}) {
		t.Fatalf("%s\nis by its route\n%s (%v)\nwant\n%s\n%+v", object, converted, err, text(t, want), report)
	}
}

func paths(notes []Note) string {
	all := []string{}
	for _, n := range notes {
		all = append(all, n.Path)
	}
	return strings.Join(all, " ")
}

// TestExamples converts each object of the archives in testdata, and back. An archive has
// v1, v2, …, the properties of the versions' schemas; rules, the spec of a document; and
// NAME.in and NAME.out, an object before and after. NAME.report lists the stashed fields
// and the failed rules. The way back always gives NAME.in, since the stash has the rest.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			archive := txtar.Parse(data)
			s := compile(t, archive)
			cases := 0
			for _, f := range archive.Files {
				name, isCase := strings.CutSuffix(f.Name, ".in")
				if !isCase {
					continue
				}
				cases++
				in, want := widget(t, string(f.Data)), widget(t, file(archive, name+".out"))
				_, to := manifest.GroupVersion(fmt.Sprint(want["apiVersion"]))
				_, from := manifest.GroupVersion(fmt.Sprint(in["apiVersion"]))
				out, report := convert(t, s, in, to)
				if have := text(t, bare(out)); have != text(t, want) {
					t.Errorf("%s gives\n%s\nwant\n%s", name, have, text(t, want))
				}
				said := ""
				if len(report.Stashed) > 0 {
					said += "stashed " + paths(report.Stashed) + "\n"
				}
				if len(report.Failed) > 0 {
					said += "failed " + paths(report.Failed) + "\n"
				}
				if want := file(archive, name+".report"); said != want {
					t.Errorf("%s: report\n%s\nwant\n%s(%+v)", name, said, want, report)
				}
				again, report := convert(t, s, out, from)
				if have := text(t, again); have != text(t, in) {
					t.Errorf("%s there and back gives\n%s\nwant\n%s\n%+v", name, have, text(t, in), report)
				}
			}
			if cases == 0 {
				t.Error("no objects are converted")
			}
		})
	}
}
