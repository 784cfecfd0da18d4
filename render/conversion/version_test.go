package conversion

import (
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// named returns the CRD of an archive with other names for the first two versions.
func named(t *testing.T, archive *txtar.Archive, names ...string) map[string]any {
	t.Helper()
	crd := definition(t, archive)
	versions := crd["spec"].(map[string]any)["versions"].([]any)
	for i, name := range names {
		versions[i].(map[string]any)["name"] = name
	}
	return crd
}

// If a field and the version have the same name, a path that begins with the name begins
// with the version. The error says so, and self.NAME is the field.
func TestVersionNamedLikeField(t *testing.T) {
	archive := txtar.Parse([]byte("-- v1 --\nspec: {type: object, properties: {a: {type: string}, c: {type: string}}}\n" +
		"-- v2 --\nspec: {type: object, properties: {b: {type: string}, c: {type: string}}}\n"))
	crd := named(t, archive, "spec", "v2")
	const hint = "; spec at the beginning is the version, and its field spec is self.spec"
	for _, tt := range []struct{ name, rules, want string }{
		{"a source", "- {from: spec, to: v2, rules: [{from: spec.a, to: spec.b}]}",
			"conversions[0].rules[0]: spec to v2: from: a is no field of spec" + hint},
		{"a source in the other spelling", "- {from: spec, to: v2, rules: [{field: spec.a, destination: spec.b}]}",
			"from: a is no field of spec" + hint},
		{"a target", "- {from: v2, to: spec, rules: [{from: v2.spec.b, to: spec.a}]}",
			"conversions[0].rules[0]: v2 to spec: to: a is no field of spec" + hint},
		{"a preserved field", "- {from: spec, to: v2, preserve: [spec.a]}",
			"conversions[0].preserve[0]: spec to v2: a is no field of spec" + hint},
		{"an expression", "- {from: spec, to: v2, rules: [{from: spec.a + 'x', to: spec.b}]}",
			"undefined field 'a'" + hint},
		{"another version", "- {from: v2, to: spec, rules: [{from: v2.spec.x, to: self.spec.a}]}",
			"from: spec.x is no field of v2\n"},
	} {
		_, err := Compile(crd, []Document{document(t, "conversions:\n"+tt.rules)})
		if err == nil || !strings.Contains(err.Error()+"\n", tt.want) {
			t.Errorf("%s gives\n%v\nwant\n%s", tt.name, err, tt.want)
		}
	}
	// The errors about forgotten fields name paths that rules can use.
	_, err := Compile(crd, []Document{document(t, "conversions:\n- {from: v2, to: spec, rules: [{from: v2.spec.b, to: self.spec.a}]}")})
	if err == nil || !strings.Contains(err.Error(), "add the rule {from: spec.spec.a, to: spec.b}") {
		t.Error(err)
	}
	_, err = Compile(crd, []Document{document(t, "conversions: []")})
	if err == nil || !strings.Contains(err.Error(), "preserve: [self.spec.a]") {
		t.Error(err)
	}
	s, err := Compile(crd, []Document{document(t, "conversions:\n- {from: spec, to: v2, preserve: [self.spec.a], rules: [{from: self.spec.a, to: spec.b}]}\n"+
		"- {from: v2, to: spec, rules: [{from: v2.spec.b, to: self.spec.a}]}")})
	if err != nil {
		t.Fatal(err)
	}
	out, _ := convert(t, s, widget(t, "apiVersion: spec\nspec: {a: x}"), "v2")
	if have := text(t, out["spec"]); have != `{"b":"x"}` {
		t.Error(have)
	}
}

// The name of a version may be a word or a type of CEL. In expressions its objects are
// self or source, and paths begin with the name as usual.
func TestVersionNamedLikeWord(t *testing.T) {
	archive := txtar.Parse([]byte("-- v1 --\nspec: {type: object, properties: {a: {type: string}, list: {type: array, items: {type: string}}}}\n" +
		"-- v2 --\nspec: {type: object, properties: {b: {type: string}, list: {type: array, items: {type: string}}}}\n"))
	for _, name := range []string{"in", "true", "int", "list", "type", "for", "key", "self", "v1-beta", "size", "json", "has"} {
		crd := named(t, archive, name, "v2")
		const back = "\n- {from: v2, to: NAME, rules: [{from: v2.spec.b, to: self.spec.a}]}"
		rules := func(there string) []Document {
			return []Document{document(t, strings.ReplaceAll("conversions:\n- {from: NAME, to: v2, rules: ["+there+"]}"+back, "NAME", `"`+name+`"`))}
		}
		variable := wholeObject
		if nameable(name) {
			variable = name
		}
		for _, rule := range []string{
			"{from: '" + name + ".spec.a', to: spec.b}",
			"{from: \"self.spec.a + ''\", to: spec.b}",
			"{from: \"" + variable + ".spec.a + ''\", to: spec.b}, {from: self.spec.list, to: spec.list, itemRules: [{from: \"self + " + variable + ".spec.a.substring(0, 0)\", to: item}]}",
		} {
			s, err := Compile(crd, rules(rule))
			if err != nil {
				t.Errorf("%s: %s: %v", name, rule, err)
				continue
			}
			out, report := convert(t, s, widget(t, `{apiVersion: "`+name+`", spec: {a: x, list: [l]}}`), "v2")
			if have := text(t, out["spec"]); have != `{"b":"x","list":["l"]}` {
				t.Errorf("%s: %s: gives %s %+v", name, rule, have, report)
			}
		}
		if variable == name {
			continue
		}
		_, err := Compile(crd, rules("{from: \""+name+".spec.a + ''\", to: spec.b}"))
		if name != "self" && (err == nil || !strings.Contains(err.Error(), "; CEL reads "+name+" as something else: write self, or source for the whole object")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
