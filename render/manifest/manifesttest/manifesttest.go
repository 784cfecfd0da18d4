// Package manifesttest reads the YAML that tests are written with.
package manifesttest

import (
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Documents returns the documents of a YAML stream. A stream that has errors ends
// the test.
func Documents(t testing.TB, text string) []sources.Document {
	t.Helper()
	docs, err := sources.DecodeYAML(strings.NewReader(text), sources.Limits{})
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return docs
}

// Tree returns the content of a stream's only document.
func Tree(t testing.TB, text string) map[string]any {
	t.Helper()
	docs := Documents(t, text)
	if len(docs) != 1 {
		t.Fatalf("%d documents, want one, in\n%s", len(docs), text)
	}
	return docs[0].Tree
}

// Objects returns the objects of a stream, those in Lists too, as if they stood
// in a file test.yaml.
func Objects(t testing.TB, text string) []*manifest.Object {
	t.Helper()
	var all []*manifest.Object
	for _, d := range Documents(t, text) {
		some, err := manifest.FromDocument(d, manifest.Origin{File: "test.yaml"})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, some...)
	}
	return all
}

// Object returns the only object of a stream.
func Object(t testing.TB, text string) *manifest.Object {
	t.Helper()
	all := Objects(t, text)
	if len(all) != 1 {
		t.Fatalf("%d objects, want one, in\n%s", len(all), text)
	}
	return all[0]
}

// Set returns the objects of a stream, which must differ in their IDs.
func Set(t testing.TB, text string) *manifest.Set {
	t.Helper()
	set, duplicates := manifest.NewSet(Objects(t, text))
	if len(duplicates) > 0 {
		t.Fatal(duplicates[0])
	}
	return set
}
