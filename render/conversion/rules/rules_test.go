package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
)

const head = "apiVersion: apis.kcp.dev/v1alpha1\nkind: APIConversionRules\nmetadata: {name: widgets.example.io}\nspec:\n"

// form returns a document as text for comparison.
func form(d Document) string {
	var b strings.Builder
	if d.Hub != "" {
		fmt.Fprintf(&b, "hub %s\n", d.Hub)
	}
	for _, p := range d.Pairs {
		fmt.Fprintf(&b, "%s to %s\n", p.From, p.To)
		formRules(&b, " ", p.Rules)
		for _, list := range []struct {
			name   string
			fields []Field
		}{{"preserve", p.Preserve}, {"drop", p.Drop}, {"derive", p.Derive}} {
			for _, f := range list.fields {
				fmt.Fprintf(&b, " %s %s\n", list.name, f.Path)
			}
		}
	}
	return b.String()
}

func formRules(b *strings.Builder, indent string, rules []Rule) {
	for _, r := range rules {
		transform := ""
		if r.Transform != "" {
			transform = " | " + r.Transform
		}
		fmt.Fprintf(b, "%s%s%s -> %s\n", indent, r.From, transform, r.To)
		formRules(b, indent+" ", r.Items)
	}
}

// TestSpellings reads each spelling of rules.
func TestSpellings(t *testing.T) {
	names := "v1 to v2\n self.spec.firstName -> spec.name.first\n self.spec.lastName -> spec.name.last\n"
	back := "v2 to v1\n self.spec.name.first -> spec.firstName\n self.spec.name.last -> spec.lastName\n"
	for _, tt := range []struct{ name, text, want string }{
		{"fromHub and toHub", `
  hub: v1
  conversions:
  - version: v2
    fromHub: # v1-to-v2
    - field: spec.name.first
      rule: self.spec.firstName
    - field: spec.name.last
      rule: self.spec.lastName
    toHub: # v2-to-v1
    - field: spec.firstName
      rule: self.spec.name.first
    - field: spec.lastName
      rule: self.spec.name.last
`, "hub v1\n" + names + back},
		{"one rule per entry", `
  conversions:
  - from: v1
    rule: self.spec.firstName
    to: v2
    field: spec.name.first
  - from: v1
    rule: self.spec.lastName
    to: v2
    field: spec.name.last
  - from: v2
    rule: self.spec.name.first
    to: v1
    field: spec.firstName
  - from: v2
    rule: self.spec.name.last
    to: v1
    field: spec.lastName
`, names + back},
		{"a list per pair, rule and field", `
  conversions:
  - from: v1
    to: v2
    rules:
    - rule: self.spec.firstName
      field: spec.name.first
    - rule: self.spec.lastName
      field: spec.name.last
`, names},
		{"the version's name and from and to", `
  conversions:
  - from: v1
    to: v2
    rules:
    - from: v1.spec.firstName
      to: spec.name.first
`, "v1 to v2\n v1.spec.firstName -> spec.name.first\n"},
		{"field with to, and preserve", `
  conversions:
  - from: v1
    to: v2
    rules:
    - field: .spec.name
      to: spec.names[0]
  - from: v2
    to: v1
    rules:
    - from: v2.spec.names[0]
      to: spec.name
    preserve:
    - spec.names
`, "v1 to v2\n self.spec.name -> spec.names[0]\nv2 to v1\n v2.spec.names[0] -> spec.name\n preserve spec.names\n"},
		{"kind and itemRules", `
  conversions:
  - from: v1
    to: v2
    rules:
    - from: v1.spec.colors
      kind: list # maybe not needed if itemRules is present?
      to: spec.some.nested.awesomeColors
      itemRules:
      - from: self.name
        to: item.realName
      - from: self.feeling
        to: item.realFeeling
`, "v1 to v2\n v1.spec.colors -> spec.some.nested.awesomeColors\n  self.name -> item.realName\n  self.feeling -> item.realFeeling\n"},
		{"paths that name elements", `
  conversions:
  - from: v1
    to: v2
    rules:
    - field: spec.colors[i].name
      destination: spec.nested.awesomeColors[].realName
    - field: spec.colors[i].shades[j].tone
      destination: spec.nested.awesomeColors[].shades[*].hue
    - field: spec.colors[i].shades[].x
      destination: spec.nested.awesomeColors[].shades[].y
`, `v1 to v2
 self.spec.colors -> spec.nested.awesomeColors
  self.name -> item.realName
  self.shades -> item.shades
   self.tone -> item.hue
   self.x -> item.y
`},
		{"map to list by an object's literal", `
  conversions:
  - from: v1
    to: v2
    rules:
    - field: spec.colors[key]
      destination: spec.colors[]
      transformation: '{"name": key, "feeling": self.feeling, "day": v1.spec.day}'
`, "v1 to v2\n self.spec.colors -> spec.colors\n  key -> item.name\n  self.feeling -> item.feeling\n  v1.spec.day -> item.day\n"},
		{"transformation of a field", `
  conversions:
  - from: v1
    to: v2
    rules:
    - field: .spec.size
      destination: .spec.text
      transformation: string(self)
    - field: spec.sizes[]
      destination: spec.texts[]
      transformation: string(self)
    derive: [v2.spec.count]
    drop: ["spec.'a.b'"]
`, "v1 to v2\n self.spec.size | string(self) -> spec.text\n self.spec.sizes -> spec.texts\n  string(self) -> item\n drop spec[\"a.b\"]\n derive spec.count\n"},
		{"an expression with brackets", `
  conversions:
  - from: v1
    to: v2
    rules:
    - {from: "{'a': 'b'}[self.spec.mode]", to: spec.kind}
    - {from: "v1.metadata.annotations['a.b/c']", to: "spec.` + "`x-y.z`" + `"}
`, "v1 to v2\n {'a': 'b'}[self.spec.mode] -> spec.kind\n v1.metadata.annotations['a.b/c'] -> spec[\"x-y.z\"]\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, err := Parse(manifesttest.Tree(t, head+tt.text))
			if err != nil {
				t.Fatal(err)
			}
			if have := form(d); have != tt.want {
				t.Errorf("have\n%s\nwant\n%s", have, tt.want)
			}
		})
	}
}

// TestKcp reads the kind that is under review in kcp.
func TestKcp(t *testing.T) {
	d, err := Parse(manifesttest.Tree(t, `
apiVersion: apis.kcp.io/v1alpha1
kind: APIConversion
metadata: {name: rev0002.widgets.example.io}
spec:
  conversions:
  - from: v1
    to: v2
    rules:
    - field: .spec.firstName
      destination: .spec.name.first
    - field: .spec.lastName
      destination: .spec.name.last
      transformation: self.lowerAscii()
    preserve: [.spec.someNewField]
`))
	if err != nil {
		t.Fatal(err)
	}
	want := "v1 to v2\n self.spec.firstName -> spec.name.first\n self.spec.lastName | self.lowerAscii() -> spec.name.last\n preserve spec.someNewField\n"
	if have := form(d); have != want {
		t.Errorf("have\n%s\nwant\n%s", have, want)
	}
}

// TestFaults checks that errors have their place and advice.
func TestFaults(t *testing.T) {
	rule := func(text string) string { return "  conversions:\n  - {from: v1, to: v2, rules: [" + text + "]}" }
	for _, tt := range []struct{ text, want string }{
		{"  hubb: v1\n  conversions: []", "hubb: is not a field here; did you mean hub?"},
		{"  hub: v1", "spec.conversions: is missing"},
		{"  conversions: {}", "spec.conversions: want a list, have a mapping"},
		{"  conversions: [3]", "conversions[0]: want a mapping, have 3"},
		{"  conversions: [{from: v1}]", "conversions[0].to: is missing; name a version"},
		{"  conversions: [{from: v1.spec.a, to: v2}]", `conversions[0].from: "v1.spec.a" is not a version`},
		{"  conversions: [{version: v2}]", "conversions[0]: fromHub and toHub need spec.hub"},
		{"  hub: v2\n  conversions: [{version: v2}]", `conversions[0].version: "v2" is the hub itself`},
		{rule("{from: self.a}"), "conversions[0].rules[0]: writes nothing: to is missing"},
		{rule("{to: spec.a}"), "conversions[0].rules[0]: reads nothing"},
		{rule("{form: self.a, to: spec.a}"), "conversions[0].rules[0].form: is not a field here; did you mean from?"},
		{rule("{from: self.a, rule: self.b, to: spec.a}"), "has both from and rule"},
		{rule("{from: self.a, to: spec.a, '100%d': 1}"), "conversions[0].rules[0].100%d: is not a field here"},
		{rule(`{from: self.a, to: spec.a, kind: "a\nb"}`), `"a\nb" is none of list, map and object`},
		{"  conversions: [\"a\\nb\"]", "conversions[0]: want a mapping, have a b"},
		{rule("{rule: self.b, field: spec.b, to: spec.a}"), "it cannot be both"},
		{rule("{from: self.a, to: 'spec..a'}"), `conversions[0].rules[0].to: "spec..a" is not a path`},
		{rule("{field: 'a" + strings.Repeat("[]", 3000) + "', to: 'a" + strings.Repeat("[]", 3000) + "'}"), "is a path of more than 64 steps"},
		{rule("{from: self.a, to: spec.a, kind: lst}"), `"lst" is none of list, map and object; did you mean list?`},
		{rule("{from: self.a, to: spec.a, itemRules: [{from: self.x, to: name}]}"), "did you mean item.name?"},
		{rule("{from: self.a, to: spec.a, itemRules: []}"), "itemRules: has no rules"},
		{rule("{from: self.a, to: spec.a, use: node}"), `conversions[0].rules[0].use: there is no "node" under ruleSets`},
		{"  ruleSets: {node: [{from: self.a, to: item.b, use: nod}]}\n  conversions: []", `ruleSets.node[0].use: there is no "nod" under ruleSets; did you mean node?`},
		{"  ruleSets: {node: [{from: self.a, to: item.b}]}\n  conversions: []", "ruleSets.node: no rule has use: node; remove the set, or use it"},
		{"  ruleSets: {node: [{from: self.a, to: b}]}\n  conversions: []", "did you mean item.b?"},
		{rule("{field: 'spec.a[i].x', to: spec.b}"), "spec.b has no []: add it, spec.b[] for example"},
		{rule("{field: spec, destination: 'spec.colors[]', transformation: '{\"name\": key}'}"), "self.spec reads none; write the field whose elements are read as spec.colors[] or, for a map, spec.colors[key]"},
		{rule("{field: 'spec.colors[key]', destination: 'spec.colors[]', transformation: {name: key, feeling: self.feeling}}"), `is a YAML mapping; CEL is a string: write '{"feeling": self.feeling, "name": key}'`},
	} {
		_, err := Parse(manifesttest.Tree(t, head+tt.text))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s\ngives %v\nwant %s", tt.text, err, tt.want)
		}
	}
}

func TestBelongs(t *testing.T) {
	for text, want := range map[string]bool{
		"{apiVersion: apis.kcp.dev/v1alpha1, kind: APIConversionRules, metadata: {name: a}}":                                              true,
		"{apiVersion: apis.kcp.io/v1alpha1, kind: APIConversion, metadata: {name: a}}":                                                    true,
		"{apiVersion: apis.kcp.dev/v1alpha1, kind: APIConversionRules, metadata: {name: b}}":                                              false,
		"{apiVersion: apis.kcp.dev/v1alpha1, kind: APIConversionRules, metadata: {name: b, labels: {apis.kcp.dev/apiresourceschema: a}}}": true,
		"{apiVersion: apis.kcp.dev/v1alpha1, kind: APIConversionRules, metadata: {name: a, labels: {apis.kcp.dev/apiresourceschema: b}}}": false,
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}":                                                                          false,
	} {
		if have := Belongs(manifesttest.Tree(t, text), "a"); have != want {
			t.Errorf("%s: %t", text, have)
		}
	}
}

// FuzzParse checks that no document causes a panic, and that a path stays the same when it
// is written and parsed again.
func FuzzParse(f *testing.F) {
	f.Add("conversions: [{from: v1, to: v2, rules: [{from: self.a, to: 'b[0]'}]}]", "spec.a[i].\"b.c\"[0]")
	f.Add("{hub: v1, conversions: [{version: v2, fromHub: [{field: 'a[key]', destination: 'b[]', transformation: '{\"x\": key}'}]}]}", "[]")
	f.Fuzz(func(t *testing.T, spec, path string) {
		docs, _ := sources.DecodeYAML(strings.NewReader(spec), sources.Limits{Bytes: 1 << 16})
		for _, d := range docs {
			_, _ = Parse(map[string]any{"apiVersion": "apis.kcp.dev/v1alpha1", "kind": "APIConversionRules", "spec": d.Tree})
		}
		if p, err := ParsePath(path); err == nil {
			again, err := ParsePath(p.String())
			if err != nil || again.String() != p.String() {
				t.Errorf("%q is written %q, which is %q, %v", path, p, again, err)
			}
		}
	})
}

// A document with too many rules is refused before they are compiled.
func TestTooManyRules(t *testing.T) {
	rule := map[string]any{"from": "v1.a", "to": "b"}
	_, err := Parse(map[string]any{
		"apiVersion": "apis.kcp.dev/v1alpha1", "kind": "APIConversionRules", "metadata": map[string]any{"name": "a.example.io"},
		"spec": map[string]any{"conversions": []any{map[string]any{"from": "v1", "to": "v2", "rules": slices.Repeat([]any{rule}, 3000)}}},
	})
	if err == nil || err.Error() != "conversions[0].rules[2000]: is one rule more than the 2000 that a document may have" {
		t.Errorf("%.500v", err)
	}
}
