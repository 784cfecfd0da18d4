package conversion

import (
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// TestCompileErrors checks that errors have the place, the expected and actual types, and
// a rule that fixes the fault.
func TestCompileErrors(t *testing.T) {
	const schemas = `
-- v1 --
spec: {type: object, properties: {name: {type: string}, size: {type: integer}, ratio: {type: number}, tags: {type: array, items: {type: string}}, colors: {type: object, additionalProperties: {type: object, properties: {feeling: {type: string}}}}}}
-- v2 --
spec: {type: object, properties: {title: {type: string}, size: {type: integer}, ratio: {type: number}, tags: {type: array, items: {type: string}}, colors: {type: array, items: {type: object, properties: {name: {type: string}, feeling: {type: string}}}}}}
-- rules --
`
	rules := func(list string) string {
		return "conversions:\n- {from: v1, to: v2, preserve: [spec.name, spec.colors], rules: [" + list + "]}\n- {from: v2, to: v1, preserve: [spec.title, spec.colors]}"
	}
	for _, tt := range []struct{ name, rules, want string }{
		{"a field is forgotten one way", "conversions:\n- {from: v1, to: v2, preserve: [spec.colors]}\n- {from: v2, to: v1, preserve: [spec.title, spec.colors]}",
			"rules.yaml:1: v1 to v2: spec.name of v1 is lost: nothing reads it; add a rule {from: v1.spec.name, to: <field of v2>}, or preserve: [spec.name]"},
		{"a field is forgotten the other way", rules("{from: v1.spec.name, to: spec.title}") + "\n",
			""},
		{"the way back is missing", "conversions:\n- {from: v1, to: v2, preserve: [spec.colors], rules: [{from: v1.spec.name, to: spec.title}]}",
			"rules.yaml:1: v2 to v1: spec.title of v2 is lost: nothing reads it; add the rule {from: v2.spec.title, to: spec.name}"},
		{"one name and two types", "conversions:\n- {from: v1, to: v2, preserve: [spec.name]}\n- {from: v2, to: v1, preserve: [spec.title]}",
			"v1 to v2: spec.colors: it is a map in v1 and a list in v2; write a rule that converts it"},
		{"a target that does not exist", rules("{from: v1.spec.name, to: spec.titel}"),
			"rules.yaml:1: conversions[0].rules[0]: v1 to v2: to: spec.titel is no field of v2; did you mean spec.title?"},
		{"a source that does not exist", rules("{from: v1.spec.nam, to: spec.title}"),
			"conversions[0].rules[0]: v1 to v2: from: spec.nam is no field of v1; did you mean spec.name?"},
		{"a path of another type", rules("{from: v1.spec.size, to: spec.title}"),
			"from v1.spec.size to spec.title: it is an integer in v1 and a string in v2; write a rule that converts it"},
		{"an expression of another type", rules("{from: v1.spec.size + 1, to: spec.title}"),
			"to: spec.title: want a string, and the expression gives int; string(…) makes one"},
		{"elements of another type", rules("{from: 'self.spec.tags.map(t, t.size())', to: spec.tags}"),
			"in each element, want a string, and the expression gives int"},
		{"a duration", rules("{from: 'duration(self.spec.name)', to: spec.title}"), "want a string, and the expression gives google.protobuf.Duration; string(…) makes one"},
		{"a transformation of another type", rules("{field: spec.name, to: spec.size, transformation: self}"), "to: spec.size: want an integer, and the expression gives string; int(…) makes one"},
		{"an expression with a misspelt field", rules("{from: 'self.spec.nmae + \"x\"', to: spec.title}"),
			"1:10: undefined field 'nmae'"},
		{"a literal without quotes", rules("{field: 'spec.colors[key]', destination: 'spec.colors[]', transformation: '{name: key, feeling: self.feeling}'}"),
			`keys are quoted: write '{"name": key, "feeling": self.feeling}'`},
		{"a key where there is none", rules("{from: key + 'x', to: spec.title}"), "key is there for the values of a map: read spec.colors[key], for example"},
		{"items of no list", rules("{from: v1.spec.name, to: spec.colors, itemRules: [{from: self, to: item.name}]}"),
			"itemRules: v1.spec.name is a string in v1, and spec.colors is a list in v2; both must be lists or maps"},
		{"an item field that does not exist", rules("{from: v1.spec.colors, to: spec.colors, itemRules: [{from: self.feling, to: item.feeling}]}"),
			"conversions[0].rules[0].itemRules[0]: v1 to v2: from: feling is no field of v1; did you mean feeling?"},
		{"an item field that is lost", "conversions:\n- {from: v1, to: v2, rules: [{from: v1.spec.colors, to: spec.colors, itemRules: [{from: key, to: item.feeling}]}]}",
			"spec.colors[].feeling of v1 is lost"},
		{"item fields of which one is all that is read", "conversions:\n- {from: v1, to: v2}\n- {from: v2, to: v1, rules: [{from: v2.spec.colors, to: spec.tags, itemRules: [{from: self.name, to: item}]}]}",
			"spec.colors[].feeling of v2 is lost"},
		{"no key for a map", "conversions:\n- {from: v2, to: v1, rules: [{from: v2.spec.colors, to: spec.colors, itemRules: [{from: self.feeling, to: item.feeling}]}]}",
			"spec.colors is a map, and no rule says what the key is: add {from: self.<field>, to: key}"},
		{"another kind than said", rules("{from: v1.spec.colors, kind: list, to: spec.colors, itemRules: [{from: key, to: item.name}]}"),
			"kind: v1.spec.colors is a map in v1, not a list"},
		{"two rules for a field", rules("{from: v1.spec.name, to: spec.title}, {from: \"'x'\", to: spec.title}"),
			"conversions[0].rules[1]: v1 to v2: spec.title is written by rules.yaml:1: conversions[0].rules[0] too"},
		{"a rule for part of a computed field", rules("{from: 'self.spec.tags.filter(t, true)', to: spec.tags}, {from: v1.spec.name, to: 'spec.tags[0]'}"),
			"is part of spec.tags, which"},
		{"a field of metadata", rules("{from: v1.spec.name, to: metadata.name}"), "of metadata only labels and annotations can be written"},
		{"a preserved field that does not exist", "conversions:\n- {from: v1, to: v2, preserve: [spec.nam]}", "conversions[0].preserve[0]: v1 to v2: spec.nam is no field of v1; did you mean spec.name?"},
		{"elements that are not all read", "conversions:\n- {from: v1, to: v2, preserve: [spec.name, spec.colors], rules: [{from: 'v1.spec.tags[0]', to: spec.title}]}\n- {from: v2, to: v1, preserve: [spec.colors]}",
			"rules read only some of its elements: add preserve: [spec.tags]"},
		{"a field under preserve and drop", "conversions:\n- {from: v1, to: v2, preserve: [spec.name, spec.colors], drop: [spec.name]}",
			"conversions[0].preserve[0]: v1 to v2: spec.name is under preserve, and it or a field around it is under drop or derive"},
		{"a preserved field of one that is dropped", "conversions:\n- {from: v1, to: v2, preserve: ['spec.colors[red].feeling'], drop: [spec.colors]}",
			"spec.colors[red].feeling is under preserve, and it or a field around it is under drop or derive"},
		{"a dropped field of one that is preserved", "conversions:\n- {from: v1, to: v2, preserve: [spec.name, spec.colors], drop: ['spec.colors[].feeling']}\n- {from: v2, to: v1, preserve: [spec.title, spec.colors]}",
			""},
		{"a derived field that nothing computes", "conversions:\n- {from: v1, to: v2, preserve: [spec.name, spec.colors], derive: [spec.title]}\n- {from: v2, to: v1, preserve: [spec.colors]}",
			"conversions[0].derive[0]: v1 to v2: no rule writes spec.title of v2, and so nothing derives it; add a rule, or have {from: v2, to: v1} drop it"},
		{"a derived field of one that is computed", rules("{from: \"[{'name': 'a', 'feeling': 'b'}]\", to: spec.colors}") + "\n- {from: v1, to: v2, derive: ['spec.colors[].name']}",
			""},
		{"a version that does not exist", "conversions:\n- {from: v1, to: v22}", "widgets.example.io has no version v22; it has v1, v2; did you mean v2?"},
		{"a hub that does not exist", "hub: v3\nconversions: []", "hub: widgets.example.io has no version v3"},
		{"an expression that is long", rules("{from: 'self.spec.size" + strings.Repeat(" + self.spec.size", 30) + " + q', to: spec.title}"),
			"self.spec.siz…: 1:528: undeclared reference"},
		{"an expression that costs too much", rules("{from: '" + strings.Repeat("["+strings.Repeat("1,", 30)+"1].map(b, ", 5) + "self.spec.name" + strings.Repeat(")", 5) + "[0][0][0][0][0]', to: spec.title}"),
			"costs at least"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			archive := txtar.Parse([]byte(schemas + tt.rules + "\n"))
			_, err := Compile(definition(t, archive), []Document{document(t, file(archive, "rules"))})
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("gives\n%v\nwant\n%s", err, tt.want)
			}
		})
	}
}

// Each error is reported once, and their number is limited.
func TestManyErrors(t *testing.T) {
	archive := txtar.Parse([]byte("-- v1 --\nspec: {type: object, properties: {a: {type: string}}}\n-- v2 --\nspec: {type: object, properties: {b: {type: string}}}\n"))
	const rule = "{from: v1.spec.a, to: spec.b},"
	text := "conversions:\n- {from: v1, to: v2, rules: [" + strings.Repeat(rule, 1000) + "]}\n- {from: v2, to: v1, rules: [{from: v2.spec.b, to: spec.a}]}\n"
	_, err := Compile(definition(t, archive), []Document{document(t, text)})
	if err == nil || strings.Count(err.Error(), "\n") != mostErrors || !strings.HasSuffix(err.Error(), "\nand 979 more errors in these rules") {
		t.Errorf("%.3000v", err)
	}
	text = "conversions:\n- {from: v1, to: v3}\n- {from: v3, to: v1}\n"
	_, err = Compile(definition(t, archive), []Document{document(t, text)})
	if err == nil || strings.Count(err.Error(), "has no version v3") != 1 {
		t.Errorf("%v", err)
	}
}

// TestSuggestedRules completes a document for one direction with the rules that the
// errors suggest.
func TestSuggestedRules(t *testing.T) {
	archive := txtar.Parse([]byte(both))
	text := "conversions:\n- {from: v1, to: v2, preserve: [spec.old, spec.free, spec.timeout, 'spec.ports'], rules: [{from: v1.spec.title, to: spec.name}]}\n" +
		"- {from: v2, to: v1, preserve: [spec.young, spec.deep, spec.free, spec.seconds, spec.ports], rules: ["
	_, err := Compile(definition(t, archive), []Document{document(t, text+"]}")})
	if err == nil {
		t.Fatal("compiled")
	}
	_, rule, ok := strings.Cut(err.Error(), "add the rule ")
	if !ok || strings.Contains(rule, "\n") {
		t.Fatal(err)
	}
	if _, err := Compile(definition(t, archive), []Document{document(t, text+rule+"]}")}); err != nil {
		t.Error(err)
	}
}

// TestDigest checks that the order and spelling of rules do not change the digest, and
// that other changes do.
func TestDigest(t *testing.T) {
	archive := txtar.Parse([]byte(both))
	digest := func(edit ...string) string {
		text := strings.NewReplacer(edit...).Replace(file(archive, "rules"))
		s, err := Compile(definition(t, archive), []Document{document(t, text)})
		if err != nil {
			t.Fatal(err)
		}
		return s.Digest()
	}
	same := digest()
	if !strings.HasPrefix(same, "h1:") {
		t.Error(same)
	}
	title, old := "{from: v1.spec.title, to: spec.name}", "{field: spec.title, destination: .spec.name}"
	if digest(title, old) != same || digest("spec.old, ", "", "spec.free[].one\"", "spec.free[].one\", spec.old") != same {
		t.Error("spelling or order makes another digest")
	}
	if digest("+ 's'", "+ 'm'") == same || digest("conversions:", "hub: v1\nconversions:") == same {
		t.Error("another rule or hub has the same digest")
	}
}

// A version that is neither served nor stored needs no rules and is not converted, unless
// a document names it.
func TestCompileUnusedVersion(t *testing.T) {
	archive := txtar.Parse([]byte(`
-- v1 --
spec: {type: object, properties: {old: {type: string}}}
-- v2 --
spec: {type: object, properties: {name: {type: string}}}
-- v3 --
spec: {type: object, properties: {title: {type: string}}}
`))
	crd := definition(t, archive)
	versions := crd["spec"].(map[string]any)["versions"].([]any)
	versions[0].(map[string]any)["served"], versions[0].(map[string]any)["storage"] = false, false
	versions[2].(map[string]any)["storage"] = true
	const used = "conversions:\n- {from: v2, to: v3, rules: [{from: v2.spec.name, to: spec.title}]}\n- {from: v3, to: v2, rules: [{from: v3.spec.title, to: spec.name}]}\n"
	s, err := Compile(crd, []Document{document(t, used)})
	if err != nil {
		t.Fatal(err)
	}
	if have := strings.Join(s.Versions(), " "); have != "v2 v3" {
		t.Errorf("the versions are %s", have)
	}
	if _, _, err := s.Convert(widget(t, "apiVersion: v1"), "v2"); err == nil || !strings.Contains(err.Error(), "has no version v1; it has v2, v3") {
		t.Errorf("converted an unused version: %v", err)
	}
	if _, err := Compile(crd, []Document{document(t, used+"- {from: v1, to: v2}\n")}); err == nil || !strings.Contains(err.Error(), "spec.old of v1 is lost") {
		t.Errorf("named, it is not checked: %v", err)
	}
}
