package proof

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// tried compiles rules from v1 to v2, and tries them.
func tried(t *testing.T, v1, v2, rules, lost string) *Result {
	t.Helper()
	d := crd(t, v1, v2)
	documents := []conversion.Document{{Origin: manifest.Origin{File: "rules.yaml", Line: 1}, Tree: manifesttest.Tree(t, `
apiVersion: apis.kcp.dev/v1alpha1
kind: APIConversionRules
metadata: {name: widgets.example.io}
spec:
  conversions:
  - {from: v1, to: v2, rules: [`+rules+`], preserve: [spec]}
  - {from: v2, to: v1, rules: [], drop: [`+lost+`]}
`)}}
	set, err := conversion.Compile(d, documents)
	if err != nil {
		t.Fatal(err)
	}
	result, err := Run(t.Context(), Config{Rules: set, Documents: documents, Definition: d, Most: 100, Stash: manifest.ConversionStashAnnotation})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// refused fails the test unless the smallest object that v2 refuses has this spec.
func refused(t *testing.T, result *Result, smallest, reason string) {
	t.Helper()
	i := slices.IndexFunc(result.Findings, func(f Finding) bool { return f.Law == Admitted })
	if i < 0 {
		t.Fatalf("not found:\n%s", result)
	}
	f := result.Findings[i]
	if have := string(manifest.AppendJSON(nil, f.Object["spec"])); have != smallest || !strings.Contains(f.Reason, reason) {
		t.Errorf("%s: %s", have, f.Reason)
	}
}

// A value that the other version refuses is found although only a constant of a rule
// decides that it is written, and no other text or number comes near.
func TestConstantDecides(t *testing.T) {
	const wide = `a1: {type: string}, a2: {type: string}, a3: {type: string}, a4: {type: string}, a5: {type: string}, a6: {type: string}, a7: {type: string}, a8: {type: string}`
	for _, tt := range []struct{ name, mode, rule, smallest string }{
		{"a text", `{type: string}`, `{from: "self.spec.mode == 'legacy' ? 'C' : 'A'", to: spec.kind}`, `{"mode":"legacy"}`},
		{"a text among many fields", `{type: string}, ` + wide, `{from: "self.spec.mode == 'legacy' ? 'C' : 'A'", to: spec.kind}`, `{"mode":"legacy"}`},
		{"the version's name", `{type: string}`, `{from: "v1.spec.mode == 'legacy' ? 'C' : 'A'", to: spec.kind}`, `{"mode":"legacy"}`},
		{"one of several", `{type: string}`, `{from: "self.spec.mode in ['old', 'legacy'] ? (self.spec.mode == 'old' ? 'B' : 'C') : 'A'", to: spec.kind}`, `{"mode":"legacy"}`},
		{"two fields", `{type: string}, other: {type: integer}`, `{from: "self.spec.mode == 'legacy' && self.spec.other == 77 ? 'C' : 'A'", to: spec.kind}`, `{"mode":"legacy","other":77}`},
		{"a prefix", `{type: string}`, `{from: "self.spec.mode.startsWith('legacy-') && size(self.spec.mode) > 7 ? 'C' : 'A'", to: spec.kind}`, `{"mode":"legacy-a"}`},
		{"a pattern", `{type: string}`, `{from: "self.spec.mode.matches('^leg+acy$') ? 'C' : 'A'", to: spec.kind}`, `{"mode":"legacy"}`},
		{"a length", `{type: string}`, `{from: "size(self.spec.mode) == 23 ? 'C' : 'A'", to: spec.kind}`, `{"mode":"yyyyyyyyyyyyyyyyyyyyyyy"}`},
		{"a duration", `{type: string, format: duration}`, `{from: "duration(self.spec.mode) > duration('4217s') && duration(self.spec.mode) < duration('4219s') ? 'C' : 'A'", to: spec.kind}`, `{"mode":"1h10m18s"}`},
		{"seconds of a duration", `{type: string}`, `{from: "self.spec.mode.matches('^[0-9]+s$') && duration(self.spec.mode).getSeconds() == 4218 ? 'C' : 'A'", to: spec.kind}`, `{"mode":"4218s"}`},
		{"above a number", `{type: integer}`, `{from: "self.spec.mode > 770 && self.spec.mode < 772 ? 'C' : 'A'", to: spec.kind}`, `{"mode":771}`},
		{"below a number", `{type: number}`, `{from: "self.spec.mode < -770.5 && self.spec.mode > -772.0 ? 'C' : 'A'", to: spec.kind}`, `{"mode":-771.5}`},
		{"a number in a text", `{type: string}`, `{from: "self.spec.mode != '' && self.spec.mode.matches('^[0-9]+$') && int(self.spec.mode) == 771 ? 'C' : 'A'", to: spec.kind}`, `{"mode":"771"}`},
		{"an integer or a string", `{x-kubernetes-int-or-string: true}`, `{from: "self.spec.mode == 771 ? 'C' : 'A'", to: spec.kind}`, `{"mode":771}`},
		{"a transformation", `{type: string}`, `{field: spec.mode, to: spec.kind, transformation: "self == 'legacy' ? 'C' : 'A'"}`, `{"mode":"legacy"}`},
		{"an item", `{type: array, items: {type: object, properties: {name: {type: string}}}}`, `{from: "self.spec.mode.exists(m, m.name == 'legacy') ? 'C' : 'A'", to: spec.kind}`, `{"mode":[{"name":"legacy"}]}`},
		{"a key", `{type: object, additionalProperties: {type: string}}`, `{from: "self.spec.mode['tier'] == 'legacy' ? 'C' : 'A'", to: spec.kind}`, `{"mode":{"tier":"legacy"}}`},
		{"a key in a path", `{type: object, additionalProperties: {type: string}}`, `{from: 'self.spec.mode["tier"]', to: spec.kind}`, `{"mode":{"tier":""}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v2 := `{type: object, properties: {kind: {type: string, enum: [A, B]}}}`
			result := tried(t, `{type: object, properties: {mode: `+tt.mode+`}}`, v2, tt.rule, "spec.kind")
			refused(t, result, tt.smallest, "spec.kind: Unsupported value")
		})
	}
}

// Elements are found by the constants of their own rules, and by a key.
func TestConstantDecidesInItems(t *testing.T) {
	for _, tt := range []struct{ name, rules, v1, v2, smallest string }{
		{"a field of an element", `{from: self.spec.l, to: spec.l, itemRules: [{from: "self.mode == 'legacy' ? 'C' : 'A'", to: item.kind}]}`,
			`{type: array, items: {type: object, properties: {mode: {type: string}}}}`, `{type: array, items: {type: object, properties: {kind: {type: string, enum: [A, B]}}}}`, `{"l":[{"mode":"legacy"}]}`},
		{"the key of an element", `{from: self.spec.l, to: spec.l, itemRules: [{from: "key == 'legacy' ? 'C' : 'A'", to: item.kind}]}`,
			`{type: object, additionalProperties: {type: object, properties: {}}}`, `{type: object, additionalProperties: {type: object, properties: {kind: {type: string, enum: [A, B]}}}}`, `{"l":{"legacy":{}}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			result := tried(t, `{type: object, properties: {l: `+tt.v1+`}}`, `{type: object, properties: {l: `+tt.v2+`}}`, tt.rules, "'spec.l[].kind'")
			refused(t, result, tt.smallest, "kind: Unsupported value")
		})
	}
}

// A constant that a field's schema refuses is not generated for it.
func TestConstantsFit(t *testing.T) {
	for _, tt := range []struct {
		field, rule string
		want        []any
	}{
		{`{type: string}`, `self.spec.f == 'x'`, []any{"x"}},
		{`{type: string, enum: [y]}`, `self.spec.f == 'x'`, nil},
		{`{type: string, pattern: '^x-'}`, `self.spec.f == 'x' || self.spec.f == 'x-1'`, []any{"x-1"}},
		{`{type: string, maxLength: 2}`, `self.spec.f == 'xyz' || self.spec.f == 'xy'`, []any{"xy"}},
		{`{type: string, format: date-time}`, `self.spec.f == 'x' || self.spec.f == '2001-02-03T04:05:06Z'`, []any{"2001-02-03T04:05:06Z"}},
		{`{type: string, format: of-their-own}`, `self.spec.f == 'x'`, []any{"x"}},
		{`{type: integer, maximum: 5, minimum: 4}`, `self.spec.f > 5`, []any{int64(5), int64(4)}},
		{`{type: integer}`, `self.spec.f > 9223372036854775807`, []any{int64(9223372036854775807), int64(9223372036854775806)}},
		{`{type: integer, format: int32}`, `self.spec.f == 2147483647`, []any{int64(2147483647), int64(2147483646)}},
		{`{type: string}`, `self.spec.f > 5`, nil},
		{`{type: integer}`, `self.spec.f == 5.0`, []any{int64(5), int64(4), int64(6)}},
		{`{type: number}`, `self.spec.f == 1.5`, []any{1.5, 0.5, 2.5}},
		{`{type: boolean}`, `self.spec.f == (1 == 2)`, nil},
		{`{type: string}`, `self.spec.other == 'x'`, nil},
	} {
		d := manifesttest.Tree(t, `{apiVersion: apis.kcp.dev/v1alpha1, kind: APIConversionRules, metadata: {name: a}, spec: {conversions: [{from: v1, to: v2, rules: [{to: spec.f}]}]}}`)
		d["spec"].(map[string]any)["conversions"].([]any)[0].(map[string]any)["rules"].([]any)[0].(map[string]any)["from"] = tt.rule
		in := read([]conversion.Document{{Tree: d}})
		whole := schema(manifesttest.Tree(t, `{type: object, properties: {spec: {type: object, properties: {f: `+tt.field+`}}}}`))
		before := fmt.Sprint(whole)
		have := whole.with(in.sought["v1"]).field("spec").field("f").sought()
		if !slices.Equal(have, tt.want) {
			t.Errorf("%s has %#v of %s, want %#v", tt.field, have, tt.rule, tt.want)
		}
		if fmt.Sprint(whole) != before {
			t.Errorf("the schema of the definition has changed: %v", whole)
		}
	}
}

// Sets that use themselves end, and paths that lead nowhere seek nothing.
func TestConstantsOfAnyRules(t *testing.T) {
	document := conversion.Document{Tree: manifesttest.Tree(t, `
apiVersion: apis.kcp.dev/v1alpha1
kind: APIConversionRules
metadata: {name: a}
spec:
  ruleSets:
    a: [{from: self.x, to: item.x, use: a}, {from: self.y, to: item.y, use: a}, {from: "self.mode == 'legacy' ? 'C' : 'A'", to: item.kind}]
  conversions:
  - {from: v1, to: v2, rules: [{from: self.spec.l, to: spec.l, use: a}, {from: "self.none.here == 'x'", to: spec.a}, {from: "key == 'x'", to: spec.b}]}
`)}
	in := read([]conversion.Document{document})
	s := schema(manifesttest.Tree(t, `{type: object, properties: {spec: {type: object, properties: {l: {type: array, items: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {mode: {type: string}}}}}}}}`))
	if have := s.with(in.sought["v1"]).field("spec").field("l").items().field("mode").sought(); !slices.Equal(have, []any{"legacy"}) {
		t.Errorf("%v of %+v", have, in.sought)
	}

	// Rules may name all keys that are generated anyway.
	own := []any{}
	for _, k := range keys {
		own = append(own, k)
	}
	n := 0
	for range objects(schema{"properties": map[string]any{"m": map[string]any{"additionalProperties": map[string]any{"type": "string"}, namedKeys: own, decides: true}}, decides: true}, 1) {
		if n++; n > 100 {
			break
		}
	}
}
