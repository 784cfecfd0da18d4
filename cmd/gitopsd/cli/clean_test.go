package cli

import (
	"strings"
	"testing"

	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/render/why"
	"gitopsd.dev/sources/git"
)

// Control characters in commits, names of files, values and packages do not reach a terminal.
func TestTextIsClean(t *testing.T) {
	t.Parallel()
	const hostile = "\x1b[2J\u202e\u009b31m"
	file := "a" + hostile + ".yaml"
	h := &history{dir: new(git.Directory), known: map[string]changed{file: {text: " (" + hostile + ")"}}}
	id := manifest.ConfigMap.ID("a", "b")
	place := &placeJSON{File: file, Line: 1}
	for name, write := range map[string]func(w *strings.Builder) error{
		"why": func(w *strings.Builder) error {
			value := why.Value{Set: true, Value: hostile}
			return writeWhy(w, []*answer{{clusters: []string{"dev"}, id: id, field: field.Path{field.Key(hostile)},
				Answer: &why.Answer{Written: manifest.Origin{File: file, Line: 1}, Field: value, Original: value}}}, h)
		},
		"why of a package": func(w *strings.Builder) error {
			return writePackageWhy(w, "text", []*packageWhy{{Package: "p", Declared: place, Chosen: hostile, Excluded: []string{hostile}}}, h)
		},
		"types": func(w *strings.Builder) error {
			return new(typesOptions).list(w, []listedType{{Kind: "A", Controller: &listedController{Digest: "h1:x", Config: []string{hostile}}}}, false)
		},
		"types diff": func(w *strings.Builder) error {
			return new(typesOptions).writeComparison(w, []comparedTypes{{
				Change:     compat.Change{Name: "a", Change: compat.Changed, Findings: []compat.Finding{{Name: "x", Path: hostile}}},
				Controller: []behaviour.Difference{{What: "arguments", Name: hostile}},
			}})
		},
	} {
		var w strings.Builder
		if err := write(&w); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !strings.Contains(w.String(), "[2J") || strings.ContainsAny(w.String(), "\x1b\u202e\u009b") {
			t.Errorf("%s: %q", name, w.String())
		}
	}
}
