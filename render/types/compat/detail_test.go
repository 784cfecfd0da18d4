package compat

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"gitopsd.dev/render/immutable"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
)

// The text and the JSON of a finding.
func TestFindings(t *testing.T) {
	long := strings.Repeat("ü", 200)
	for _, tt := range []struct{ name, old, new, text, advice string }{
		{"a limit", `{type: object, properties: {a: {type: string, maxLength: 9}}}`, `{type: object, properties: {a: {type: string, maxLength: 8}}}`,
			"breaking max-length-tightened v1 .spec.a: 9 -> 8 (stored objects, writers)", "check existing objects: those that do not comply cannot be changed"},
		{"an exclusive limit", `{type: object, properties: {a: {type: number, maximum: 5}}}`, `{type: object, properties: {a: {type: number, maximum: 5, exclusiveMaximum: true}}}`,
			"breaking maximum-tightened v1 .spec.a: 5 -> 5 (exclusive) (stored objects, writers)", "check existing objects: those that do not comply cannot be changed"},
		{"a value", `{type: object, properties: {a: {enum: [b]}}}`, `{type: object, properties: {a: {enum: [b, {c: 1}]}}}`,
			`compatible enum-value-added v1 .spec.a: none -> {"c":1} (readers, controllers)`, "expect values that were refused before"},
		{"a long value", `{type: object, properties: {a: {type: string}}}`, `{type: object, properties: {a: {type: string, default: ` + long + `}}}`,
			"breaking default-added v1 .spec.a: none -> " + strings.Repeat("ü", maxShown/2) + "… (writers, readers, controllers)", "expect the value in every object that does not set the field, existing ones too, and check that they are valid with it"},
		{"a rule for changes", `{type: object}`, `{type: object, x-kubernetes-validations: [{rule: self == oldSelf}]}`,
			"breaking rule-added v1 .spec: none -> self == oldSelf (writers)", "check existing objects against the rule: those that break it cannot be changed"},
		{"a rule that refuses every change", `{type: object, properties: {a: {type: boolean}}}`, `{type: object, properties: {a: {type: boolean}}, x-kubernetes-validations: [{rule: "!has(oldSelf.a)"}]}`,
			"breaking rule-added v1 .spec: none -> !has(oldSelf.a) (stored objects, writers)", "check existing objects against the rule: those that break it cannot be changed"},
		{"an immutable field", `{type: object, properties: {a: {type: string}}}`, `{type: object, properties: {a: {type: string}}, x-kubernetes-validations: [{rule: "!has(oldSelf.a) || has(self.a) && self.a == oldSelf.a", fieldPath: .a, message: "` + immutable.Message + `"}]}`,
			"breaking immutable-added v1 .spec.a: none -> cannot be changed or unset once it is set (writers)", "check that no client changes or unsets the field: where it has a value, that value stays"},
		{"a plain field", `{type: object}`, `{type: object, properties: {a: {type: string}}}`,
			"compatible field-added v1 .spec.a: none -> string", "nothing to do"},
		{"what conventions warn of", `{type: object}`, `{type: object, properties: {a: {type: object, properties: {conditions: {type: array, items: {type: object, properties: {b: {type: boolean}, c: {type: boolean}, d: {type: number}, e: {type: integer, format: uint32}}}}, f: {type: object, additionalProperties: {type: array, items: {type: string}}}}}}}`,
			"compatible field-added v1 .spec.a: none -> object",
			"before others use it: 2 booleans (no third value later), a float (not the same on all platforms), an unsigned integer (some languages have none), a map (a list with keys can grow), a list without x-kubernetes-list-type, conditions that are not a map list by type"},
		{"conditions as they should be", `{type: object}`, `{type: object, properties: {conditions: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [type], items: {type: object}}}}`,
			"compatible field-added v1 .spec.conditions: none -> array", "nothing to do"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := Compare(t.Context(), crd(t, tt.old), crd(t, tt.new), Options{})
			if err != nil || len(r.Findings) != 1 {
				t.Fatalf("%v, %v", r, err)
			}
			f := r.Findings[0]
			if f.String() != tt.text || !utf8.ValidString(f.Detail) {
				t.Errorf("have %s\nwant %s", f, tt.text)
			}
			if f.Advice != tt.advice {
				t.Errorf("have %s\nwant %s", f.Advice, tt.advice)
			}
		})
	}
}

// Only controllers write the status if it is a subresource.
func TestStatusIsTheControllers(t *testing.T) {
	const schema = "{type: object, properties: {status: {type: object, properties: {a: {type: string}}}}}"
	for _, tt := range []struct {
		subresources string
		want         Parties
	}{{"", StoredObjects | Writers}, {"subresources: {status: {}}, ", StoredObjects | Controllers}} {
		old := strings.Replace(strings.Replace(v1, "{type: object}", schema, 1), "served", tt.subresources+"served", 1)
		new := strings.Replace(old, "{type: string}", "{type: string, maxLength: 3}", 1)
		r, err := Compare(t.Context(), versioned(t, head+"  versions:\n"+old), versioned(t, head+"  versions:\n"+new), Options{})
		if err != nil || len(r.Findings) != 1 || r.Findings[0].Breaks != tt.want {
			t.Errorf("%q: %v, %v; want %s", tt.subresources, r.Findings, err, tt.want)
		}
	}
}

func TestSeverities(t *testing.T) {
	for _, tt := range []struct {
		name, old, new string
		want           Severity
	}{
		{"identical", `{type: object}`, `{type: object}`, Identical},
		{"a description", `{type: object}`, `{type: object, description: a}`, Documentation},
		{"a message", `{type: object, x-kubernetes-validations: [{rule: "true"}]}`, `{type: object, x-kubernetes-validations: [{rule: "true", message: a}]}`, Documentation},
		{"a limit of nothing", `{type: object}`, `{type: object, minProperties: 0}`, Compatible},
		{"a field", `{type: object}`, `{type: object, properties: {a: {type: string}}}`, Compatible},
		{"a limit", `{type: object}`, `{type: object, minProperties: 1}`, Breaking},
	} {
		r, err := Compare(t.Context(), crd(t, tt.old), crd(t, tt.new), Options{})
		if err != nil || r.Severity != tt.want {
			t.Errorf("%s: %s, %v; want %s", tt.name, r.Severity, err, tt.want)
		}
	}
}

func TestJSON(t *testing.T) {
	r, err := Compare(t.Context(), crd(t, `{type: object}`), crd(t, `{type: object, minProperties: 1}`), Options{})
	if err != nil {
		t.Fatal(err)
	}
	have, err := json.Marshal(r.Findings)
	const want = `[{"name":"min-properties-added","severity":"breaking","version":"v1","path":".spec","breaks":["stored objects","writers"],"detail":"none -\u003e 1","advice":"check existing objects: those that do not comply cannot be changed"}]`
	if err != nil || string(have) != want {
		t.Errorf("%s, %v\nwant %s", have, err, want)
	}
}

func TestErrors(t *testing.T) {
	good := crd(t, `{type: object}`)
	for _, tt := range []struct {
		name, want string
		old, new   map[string]any
	}{
		{"malformed", "the new definition: CustomResourceDefinition buckets.example.org: spec.versions[0].schema.openAPIV3Schema.properties.spec.required: want a list, have a string", good, crd(t, `{type: object, required: a}`)},
		{"no definition", "ConfigMap defines no type: want a CustomResourceDefinition or CompositeResourceDefinition with versions", map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}, good},
		{"two kinds", "a CustomResourceDefinition cannot be compared with a CompositeResourceDefinition", good, manifesttest.Tree(t, xrd)},
	} {
		if _, err := Compare(t.Context(), tt.old, tt.new, Options{}); err == nil || err.Error() != tt.want {
			t.Errorf("%s: %v\nwant %s", tt.name, err, tt.want)
		}
	}
}

// The catalogue in the package comment has every finding, in full or as the suffix of an
// earlier name in its line.
func TestCatalogue(t *testing.T) {
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	catalogue := strings.NewReplacer("//", " ", "\n", " ", "\t", " ", ",", " ").Replace(string(text))
	words := map[string]bool{}
	for _, w := range strings.Fields(catalogue) {
		words[w] = true
	}
	for _, name := range Names() {
		end := strings.LastIndexByte(name, '-')
		if !words[name] && !words[name[:end+1]] && !(words["-"+name[end+1:]] && strings.Contains(catalogue, " "+name[:end+1])) {
			t.Errorf("%s is not in the package comment", name)
		}
	}
}

// Comparing any two definitions ends, and a definition is identical to itself.
func FuzzCompare(f *testing.F) {
	for _, tt := range schemaCases {
		f.Add(tt.old, tt.new)
	}
	f.Fuzz(func(t *testing.T, old, new string) {
		var definitions []map[string]any
		for _, text := range []string{old, new} {
			docs, err := sources.DecodeYAML(strings.NewReader(text), sources.Limits{Bytes: 1 << 14, Nodes: 1 << 11, Depth: 100})
			if err != nil || len(docs) != 1 {
				return
			}
			definitions = append(definitions, definitionOf(docs[0].Tree))
		}
		r, err := Compare(t.Context(), definitions[0], definitions[1], Options{})
		if err != nil {
			return
		}
		for _, f := range r.Findings {
			if f.Advice == "" || len(f.Detail) > 8*maxShown {
				t.Errorf("%+v", f)
			}
		}
		same, err := Compare(t.Context(), definitions[1], definitions[1], Options{})
		if err != nil || same.Severity != Identical {
			t.Errorf("%v, %v", same, err)
		}
	})
}
