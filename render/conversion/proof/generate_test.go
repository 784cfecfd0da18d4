package proof

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/validate"
)

// crd returns a definition with a version for each schema of spec.
func crd(t testing.TB, specs ...string) map[string]any {
	t.Helper()
	d := manifesttest.Tree(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.io}
spec: {group: example.io, scope: Namespaced, names: {kind: Widget, plural: widgets}, versions: []}`)
	var versions []any
	for i, spec := range specs {
		versions = append(versions, map[string]any{
			"name": "v" + string(rune('1'+i)), "served": true, "storage": i == 0,
			"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{"spec": manifesttest.Tree(t, spec)}}},
		})
	}
	d["spec"].(map[string]any)["versions"] = versions
	return d
}

// For every kind of schema the generator makes values that conversions may fail on, whole
// objects that the API server accepts, and parts of objects.
func TestObjects(t *testing.T) {
	for _, tt := range []struct {
		name, spec string
		// want are values of spec, as canonical JSON, among the generated ones.
		want []string
		// never are values that no valid object has.
		never []string
	}{
		{name: "a field alone, and none", spec: `{type: object, properties: {a: {type: string}, b: {type: object, properties: {c: {type: string}}}}}`,
			want: []string{`<absent>`, `{}`, `{"a":"bob"}`, `{"b":{}}`, `{"b":{"c":"bob"}}`, `{"a":"bob","b":{"c":""}}`}},
		{name: "integers", spec: `{type: object, properties: {num: {type: integer}}}`,
			want: []string{`{"num":0}`, `{"num":9007199254740993}`, `{"num":9223372036854775807}`, `{"num":-9223372036854775808}`}},
		{name: "bounds", spec: `{type: object, properties: {num: {type: integer, minimum: 2, maximum: 70000, exclusiveMaximum: true}}}`,
			want: []string{`{"num":2}`, `{"num":69999}`, `{"num":3}`}, never: []string{`{"num":1}`, `{"num":70000}`, `{"num":0}`}},
		{name: "int32", spec: `{type: object, properties: {num: {type: integer, format: int32}}}`,
			want: []string{`{"num":2147483647}`, `{"num":-2147483648}`}, never: []string{`{"num":9007199254740993}`}},
		{name: "numbers", spec: `{type: object, properties: {num: {type: number, multipleOf: 0.5}}}`, want: []string{`{"num":1.5}`, `{"num":2}`}, never: []string{`{"num":1e-7}`}},
		{name: "length", spec: `{type: object, properties: {s: {type: string, minLength: 2, maxLength: 5}}}`,
			want: []string{`{"s":"yy"}`, `{"s":"yyyyy"}`}, never: []string{`{"s":""}`}},
		{name: "text", spec: `{type: object, properties: {s: {type: string}}}`, want: []string{`{"s":""}`, `{"s":"Ωmega ☃"}`, `{"s":"true"}`}},
		{name: "pattern", spec: `{type: object, properties: {s: {type: string, pattern: '^[a-z]+-[0-9]{2,3}(kB|MB)$'}}}`, want: []string{`{"s":"a-000kB"}`}, never: []string{`{"s":"bob"}`}},
		{name: "formats", spec: `{type: object, properties: {t: {type: string, format: date-time}, d: {type: string, format: duration}, b: {type: string, format: byte}}}`,
			want: []string{`{"t":"2024-01-01T01:02:03.000000004+05:30"}`, `{"d":"90m"}`, `{"b":""}`}},
		{name: "int or string", spec: `{type: object, properties: {p: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}}}`,
			want: []string{`{"p":8080}`, `{"p":"50%"}`}},
		{name: "enum", spec: `{type: object, properties: {e: {type: string, enum: [A, B, C]}}}`, want: []string{`{"e":"A"}`, `{"e":"B"}`, `{"e":"C"}`}},
		{name: "nullable", spec: `{type: object, properties: {a: {type: string, nullable: true}, o: {type: object, nullable: true, properties: {b: {type: boolean}}}}}`,
			want: []string{`{"a":null}`, `{"o":null}`, `{"o":{"b":false}}`}},
		{name: "required", spec: `{type: object, required: [a], properties: {a: {type: string}, b: {type: string}}}`,
			want: []string{`{"a":"bob"}`, `{"b":"bob"}`}, never: []string{`{"b":"bob"}`}},
		{name: "oneOf", spec: `{type: object, oneOf: [{required: [a]}, {required: [b]}], properties: {a: {type: string}, b: {type: integer}, c: {type: boolean}}}`,
			want: []string{`{"a":"bob","c":true}`, `{"b":3,"c":true}`, `{"a":"","c":true}`}, never: []string{`{"c":true}`, `{"a":"bob","b":3,"c":true}`}},
		{name: "anyOf with values", spec: `{type: object, anyOf: [{properties: {k: {enum: [x]}}, required: [k, a]}, {properties: {k: {enum: [z]}}, required: [k]}], properties: {k: {type: string}, a: {type: string}}}`,
			want: []string{`{"a":"bob","k":"x"}`, `{"k":"z"}`}, never: []string{`{"k":"x"}`}},
		{name: "not", spec: `{type: object, not: {required: [b]}, properties: {a: {type: string}, b: {type: string}}}`, want: []string{`{"a":"bob"}`}, never: []string{`{"b":"bob"}`}},
		{name: "map", spec: `{type: object, properties: {m: {type: object, additionalProperties: {type: object, properties: {f: {type: string}}}}}}`,
			want: []string{`{"m":{}}`, `{"m":{"example.com/dotted-key":{"f":"bob"}}}`, `{"m":{"a":{"f":"bob"},"example.com/dotted-key":{"f":"Ada Lovelace"}}}`}},
		{name: "list", spec: `{type: object, properties: {l: {type: array, minItems: 1, maxItems: 2, items: {type: string}}}}`,
			want: []string{`{"l":["bob"]}`, `{"l":["bob","Ada Lovelace"]}`}, never: []string{`{"l":[]}`}},
		{name: "list map", spec: `{type: object, properties: {l: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name], items: {type: object, required: [name], properties: {name: {type: string}, f: {type: string}}}}}}`,
			want: []string{`{"l":[{"name":"bob"}]}`, `{"l":[{"f":"bob","name":"bob"}]}`, `{"l":[{"f":"bob","name":"bob"},{"f":"Ada Lovelace","name":"Ada Lovelace"}]}`}},
		{name: "list of lists", spec: `{type: object, properties: {l: {type: array, items: {type: array, items: {type: integer}}}}}`, want: []string{`{"l":[[3]]}`, `{"l":[[]]}`}},
		{name: "unknown fields", spec: `{type: object, properties: {x: {type: object, x-kubernetes-preserve-unknown-fields: true}}}`,
			want: []string{`{"x":{"dotted.key/and-dash":9007199254740993,"kept":"as it is"}}`}},
		{name: "dotted names", spec: `{type: object, properties: {a.b-c: {type: string}, __namespace__: {type: string}}}`,
			want: []string{`{"a.b-c":"bob"}`, `{"__namespace__":"bob"}`}},
		{name: "rules in CEL", spec: `{type: object, x-kubernetes-validations: [{rule: "!has(self.a) || has(self.b)"}], properties: {a: {type: string}, b: {type: string}}}`,
			want: []string{`{"a":"bob","b":"bob"}`, `{"a":"bob"}`}, never: []string{`{"a":"bob"}`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := crd(t, tt.spec)
			checks, err := validate.CompileSchema(d, "v1")
			if err != nil {
				t.Fatal(err)
			}
			root := schema(manifest.Mapping(d["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any), "schema", "openAPIV3Schema"))
			seen := make(map[string]bool)
			n, valid := 0, 0
			for tree := range objects(root, 1) {
				if n++; n > 600 {
					break
				}
				text := "<absent>"
				if spec, ok := tree["spec"]; ok {
					text = string(manifest.AppendJSON(nil, spec))
				}
				seen[text] = true
				whole := map[string]any{"apiVersion": "example.io/v1", "kind": "Widget", "metadata": map[string]any{"name": "a"}, "spec": tree["spec"]}
				if tree["spec"] == nil {
					delete(whole, "spec")
				}
				if unknown, err := checks.Unknown(whole); len(unknown) > 0 || err != nil {
					t.Errorf("%s has unknown fields %v, %v", text, unknown, err)
				}
				if checks.Check(t.Context(), whole) != nil {
					continue
				}
				valid++
				if slices.Contains(tt.never, text) {
					t.Errorf("%s is valid", text)
				}
			}
			for _, want := range tt.want {
				if !seen[want] {
					t.Errorf("%s is not generated", want)
				}
			}
			if valid < 100 {
				t.Errorf("%d of 600 objects are valid", valid)
			}
		})
	}
}

// Two runs see the same objects.
func TestDeterministic(t *testing.T) {
	root := schema(manifesttest.Tree(t, `{type: object, properties: {spec: {type: object, additionalProperties: {type: array, items: {type: string}}}, status: {type: object, properties: {a: {type: integer}, b: {type: boolean}}}}}`))
	run := func() string {
		var b strings.Builder
		n := 0
		for tree := range objects(root, 7) {
			if n++; n > 300 {
				return b.String()
			}
			b.Write(manifest.AppendJSON(nil, tree))
		}
		return b.String()
	}
	if first, second := run(), run(); first != second {
		t.Error("two runs differ")
	}
}

// No schema makes generating panic or hang, and no object is large.
func FuzzObjects(f *testing.F) {
	f.Add(`{"type":"object","properties":{"a":{"type":"array","items":{"oneOf":[{"required":["x"]},{"not":{"required":["x"]}}],"properties":{"x":{"type":"string","pattern":"(a|b{3,}){2}"}}}}}}`)
	f.Add(`{"properties":{"a":{"enum":[1,"a",null,{"b":[]}]},"b":{"minItems":-1,"items":{"type":"integer","minimum":1e300,"multipleOf":0}}}}`)
	f.Add(`{"additionalProperties":{"additionalProperties":{"items":{"items":{"nullable":true}}}},"anyOf":[{"anyOf":[{"allOf":[{"not":{}}]}]}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		var tree map[string]any
		if utiljson.Unmarshal([]byte(text), &tree) != nil {
			return
		}
		n := 0
		for o := range objects(schema(tree), 3) {
			if n++; n > 40 {
				break
			}
			if _, err := json.Marshal(o); err != nil {
				t.Fatal(err)
			}
		}
	})
}
