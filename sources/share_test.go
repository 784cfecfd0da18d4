package sources

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
)

// same reports whether a and b are one mapping or list in memory.
func same(a, b any) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

func TestDecodeYAMLShares(t *testing.T) {
	var dec Decoder
	docs, err := dec.Decode(strings.NewReader(`
a: {type: object, required: [s, t]}
b: {type: object, required: [s, t]}
c: &c {type: object, required: [s, t]}
d: *c
e: [s, t]
f: {s: t}
---
a: {type: object, required: [s, t]}
`), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	next, err := dec.Decode(strings.NewReader("- ignored\n"), Limits{})
	if err == nil {
		t.Fatalf("decoded %v", next)
	}
	next, err = dec.Decode(strings.NewReader("g: {type: object, required: [s, t]}\n"), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	a := docs[0].Tree["a"]
	if want := map[string]any{"type": "object", "required": []any{"s", "t"}}; !reflect.DeepEqual(a, want) {
		t.Fatalf("have %v, want %v", a, want)
	}
	for what, other := range map[string]any{
		"mapping": docs[0].Tree["b"], "anchor": docs[0].Tree["c"], "alias": docs[0].Tree["d"],
		"document": docs[1].Tree["a"], "stream": next[0].Tree["g"],
	} {
		if !same(a, other) {
			t.Errorf("what is equal in another %s is there twice", what)
		}
	}
	if !same(docs[0].Tree["e"], a.(map[string]any)["required"]) {
		t.Error("equal lists are there twice")
	}
	if want := map[string]any{"s": "t"}; !reflect.DeepEqual(docs[0].Tree["f"], want) {
		t.Errorf("a mapping of what a list holds is %v, want %v", docs[0].Tree["f"], want)
	}
}

// Values that are written alike, or are equal by ==, may differ.
func TestDecodeYAMLKeepsApart(t *testing.T) {
	docs, err := DecodeYAML(strings.NewReader(`
ints: {v: 1}
floats: {v: 1.0}
strings: {v: "1"}
booleans: {v: true}
names: {v: "true"}
switches: {v: on}
nulls: {v: ~}
empty: {v: ""}
zero: {v: 0.0}
minus: {v: -0.0}
lists: {v: []}
mappings: {v: {}}
`), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	have := docs[0].Tree
	want := make(map[string]any)
	for k, v := range map[string]any{
		"ints": int64(1), "floats": 1.0, "strings": "1", "booleans": true, "names": "true", "switches": true, "nulls": nil,
		"empty": "", "zero": 0.0, "minus": math.Copysign(0, -1), "lists": []any{}, "mappings": map[string]any{},
	} {
		want[k] = map[string]any{"v": v}
	}
	if !reflect.DeepEqual(have, want) {
		t.Errorf("have %#v\nwant %#v", have, want)
	}
	if !math.Signbit(have["minus"].(map[string]any)["v"].(float64)) || math.Signbit(have["zero"].(map[string]any)["v"].(float64)) {
		t.Error("0 and -0 are the same")
	}
}

// Values are right whatever is forgotten, or too long to be remembered.
func TestDecodeYAMLForgets(t *testing.T) {
	const each, docs = 1000, 2 * maxShared / 1000
	var text strings.Builder
	for d := range docs {
		fmt.Fprintf(&text, "---\nname: again\nlong:\n")
		for i := range each {
			fmt.Fprintf(&text, "- {s: v%d-%d}\n", d, i)
		}
	}
	have, err := DecodeYAML(strings.NewReader(text.String()), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if len(have) != docs {
		t.Fatalf("%d documents, want %d", len(have), docs)
	}
	for d, doc := range have {
		long, _ := doc.Tree["long"].([]any)
		if len(doc.Tree) != 2 || doc.Tree["name"] != "again" || len(long) != each {
			t.Fatalf("document %d has %d keys, name %v and %d items", d, len(doc.Tree), doc.Tree["name"], len(long))
		}
		for i, item := range long {
			if want := map[string]any{"s": fmt.Sprintf("v%d-%d", d, i)}; !reflect.DeepEqual(item, want) {
				t.Fatalf("document %d, item %d: have %v, want %v", d, i, item, want)
			}
		}
	}
}
