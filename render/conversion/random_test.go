package conversion

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"gitopsd.dev/render/conversion/structural"
)

// random returns a random value of a schema. Some values do not fit the schema.
func random(r *rand.Rand, schema map[string]any, depth int) any {
	kind := structural.Kind(schema)
	switch r.IntN(40) {
	case 0:
		return nil
	case 1:
		kind = []string{structural.String, structural.Integer, structural.List, structural.Map, structural.Any}[r.IntN(5)]
	}
	text := func() any {
		return []string{"", "a", "b:1", "90s", "1m30s", "Quick", "Rapid", "fast", "git", "Off", "x.y/z"}[r.IntN(11)]
	}
	number := func() any { return []int64{0, 1, -1, 9007199254740993, 7}[r.IntN(5)] }
	switch kind {
	case structural.String:
		return text()
	case structural.Integer:
		return number()
	case structural.Number:
		return json.Number("1.50")
	case structural.Boolean:
		return r.IntN(2) == 0
	case structural.List:
		out := []any{}
		for range r.IntN(4) {
			out = append(out, random(r, structural.Element(schema), depth+1))
		}
		return out
	case structural.Map:
		out := map[string]any{}
		for range r.IntN(4) {
			out[text().(string)] = random(r, structural.Element(schema), depth+1)
		}
		return out
	case structural.Object:
		out := map[string]any{}
		properties, _ := schema["properties"].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			if r.IntN(3) > 0 {
				out[name] = random(r, properties[name].(map[string]any), depth+1)
			}
		}
		return out
	}
	if depth > 5 {
		return text()
	}
	return []any{text(), number(), true, map[string]any{"a": text(), "b": []any{number()}}, []any{text()}}[r.IntN(5)]
}

// TestThereAndBack converts random objects of each archive to every version and back. An
// object that fits its schema always comes back unchanged.
func TestThereAndBack(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	archives := map[string]*txtar.Archive{"both": txtar.Parse([]byte(both))}
	for _, name := range files {
		if archives[name], err = txtar.ParseFile(name); err != nil {
			t.Fatal(err)
		}
	}
	for name, archive := range archives {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := compile(t, archive)
			r := rand.New(rand.NewPCG(1, 2))
			for range 100 {
				for _, from := range s.Versions() {
					object, _ := random(r, structural.Visible(s.Schema(from)), 0).(map[string]any)
					if object == nil {
						continue
					}
					thereAndBack(t, s, object, from)
				}
			}
		})
	}
}
