package validate

import (
	"errors"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// cases are definitions, each with objects to apply in order. The same cases are compared
// with a real API server.
var cases = []struct {
	name string
	// schema is of spec; root replaces everything below openAPIV3Schema's properties.
	schema, root string
	// version has more fields of the version.
	version string
	steps   []step
}{
	{name: "fields", schema: `{type: object, required: [size], properties: {size: {type: integer, minimum: 1, maximum: 5}, name: {type: string, pattern: "^a", maxLength: 3}, kind: {type: string, enum: [x, y]}}}`, steps: []step{
		{object: `spec: {size: 3, name: abc, kind: x}`},
		{object: `spec: {size: 6}`, want: "spec.size: Invalid value: 6: spec.size in body should be less than or equal to 5"},
		{object: `spec: {size: 0}`, want: "spec.size: Invalid value: 0"},
		{object: `spec: {name: abc}`, want: "spec.size: Required value"},
		{object: `spec: {size: 1, name: b}`, want: `should match '^a'`},
		{object: `spec: {size: 1, name: abcd}`, want: "Too long"},
		{object: `spec: {size: 1, kind: z}`, want: `Unsupported value: "z"`},
		{object: `spec: {size: 1, name: 5}`, want: "spec.name: expected string, got 5", early: true},
		{object: `spec: {size: 1, name: {a: b}}`, want: "spec.name: expected string, got a map", early: true},
		{object: `spec: {size: [1]}`, want: "spec.size: expected numeric (int or float), got a list", early: true},
		{object: `spec: text`, want: "spec: expected map, got text", early: true},
		{object: `spec: [1]`, want: "spec: expected map, got a list", early: true},
		{object: `spec: {size: two}`, want: "spec.size: expected numeric (int or float), got string", early: true},
		{object: `spec: {size: 1, colour: red}`, want: "spec.colour: field not declared in schema", early: true},
		{object: `spec: {size: null}`, want: "spec.size"},
		{object: `spec: []`, want: "spec: expected map", early: true},
		{object: `spec: {size: 1.0}`},
		{object: `spec: {size: 1.5}`, want: "spec.size: "},
		{object: `{}`},
		{object: `other: 1`, want: "other: field not declared in schema", early: true},
		{object: `spec: {siez: 1}`, want: "spec.siez: field not declared in schema; did you mean size?", early: true},
		{object: `sepc: {size: 1}`, want: "sepc: field not declared in schema; did you mean spec?", early: true},
	}},
	{name: "defaults", schema: `{type: object, default: {size: 4}, required: [size], properties: {size: {type: integer, default: 3}, mode: {type: string, nullable: true}}}`, steps: []step{
		{object: `{}`}, {object: `spec: {}`}, {object: `spec: {mode: null}`}, {object: `spec: {size: null}`},
	}},
	{name: "lists", schema: `{type: object, properties: {
		set: {type: array, x-kubernetes-list-type: set, items: {type: string}},
		map: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name], items: {type: object, required: [name], properties: {name: {type: string}, num: {type: integer}}}},
		few: {type: array, maxItems: 1, items: {type: integer}}}}`, steps: []step{
		{object: `spec: {set: [a, b], map: [{name: a}, {name: b}], few: [1]}`},
		{object: `spec: {set: [a, a]}`, want: "spec.set: duplicate entries", early: true},
		{object: `spec: {map: [{name: a}, {name: a}]}`, want: "spec.map: duplicate entries", early: true},
		{object: `spec: {map: [{num: 1}]}`, want: "spec.map", early: true},
		{object: `spec: {few: [1, 2]}`, want: "Too many"},
	}},
	{name: "rules", schema: `{type: object, x-kubernetes-validations: [{rule: "self.low <= self.high", message: low is above high}], required: [low, high], properties: {low: {type: integer}, high: {type: integer}}}`, steps: []step{
		{object: `spec: {low: 1, high: 2}`},
		{object: `spec: {low: 3, high: 2}`, want: "low is above high"},
		{object: `spec: {low: 3}`, want: "spec.high: Required value"},
	}},
	{name: "transition", schema: `{type: object, properties: {name: {type: string, x-kubernetes-validations: [{rule: "self == oldSelf", message: name cannot change}]}, size: {type: integer}}}`, steps: []step{
		{object: `spec: {name: a, size: 1}`, keep: true},
		{object: `spec: {name: a, size: 2}`, keep: true},
		{object: `spec: {name: b, size: 2}`, want: "name cannot change"},
		{object: `spec: {size: 2}`, keep: true},
		{object: `spec: {name: b}`, keep: true},
	}},
	{name: "optional", schema: `{type: object, properties: {num: {type: integer, x-kubernetes-validations: [{rule: "!oldSelf.hasValue() || self >= oldSelf.value()", optionalOldSelf: true, message: it must grow}]}}}`, steps: []step{
		{object: `spec: {num: 3}`, keep: true}, {object: `spec: {num: 2}`, want: "it must grow"}, {object: `spec: {num: 4}`, keep: true},
	}},
	{name: "preserving", schema: `{type: object, x-kubernetes-preserve-unknown-fields: true, properties: {num: {type: integer}}}`, steps: []step{
		{object: `spec: {num: 1, anything: {goes: [1, a]}}`}, {object: `spec: {num: a}`, want: "spec.num", early: true},
	}},
	{name: "embedded", schema: `{type: object, properties: {template: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}}}`, steps: []step{
		{object: `spec: {template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {a: b}}}`},
		{object: `spec: {template: {kind: ConfigMap}}`, want: "spec.template.apiVersion"},
		{object: `spec: {template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a/b}}}`, want: "spec.template.metadata.name"},
		{object: `spec: {template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "A b"}}}`}, // any kind may allow such names
		{object: `spec: {template: {apiVersion: v1, kind: ConfigMap, metadata: {nom: a}}}`, want: "nom", early: true},
	}},
	{name: "int-or-string", schema: `{type: object, properties: {port: {x-kubernetes-int-or-string: true}, when: {type: string, format: date-time}, ratio: {type: number, multipleOf: 0.5}}}`, steps: []step{
		{object: `spec: {port: 80}`}, {object: `spec: {port: http}`}, {object: `spec: {port: true}`, want: "spec.port"},
		{object: `spec: {when: "2024-01-02T03:04:05Z"}`}, {object: `spec: {when: today}`, want: "spec.when"},
		{object: `spec: {ratio: 1.5}`}, {object: `spec: {ratio: 1.3}`, want: "spec.ratio"}, {object: `spec: {ratio: 2}`, want: "must be positive"},
	}},
	{name: "branches", schema: `{type: object, properties: {a: {type: string}, b: {type: string}}, oneOf: [{required: [a]}, {required: [b]}]}`, steps: []step{
		{object: `spec: {a: x}`}, {object: `spec: {a: x, b: x}`, want: "one and only one"}, {object: `spec: {}`, want: "spec"},
	}},
	{name: "status", root: `{spec: {type: object}, status: {type: object, required: [ready], properties: {ready: {type: boolean}}}}`, version: `{subresources: {status: {}}}`, steps: []step{
		{object: `{}`}, {object: `status: {ready: true}`}, {object: `status: {}`}, {object: `status: {unknown: 1}`, want: "status.unknown", early: true},
	}},
	{name: "no status", root: `{status: {type: object, required: [ready], properties: {ready: {type: boolean}}}}`, steps: []step{
		{object: `status: {ready: true}`}, {object: `status: {}`, want: "status.ready: Required value"},
	}},
	{name: "scale", schema: `{type: object, properties: {replicas: {type: integer}}}`, version: `{subresources: {scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}}`, steps: []step{
		{object: `spec: {replicas: 1}`}, {object: `spec: {replicas: -1}`, want: "should be a non-negative integer"}, {object: `{}`},
	}},
	{name: "names", root: `{metadata: {type: object, properties: {name: {type: string, maxLength: 8}}}}`, steps: []step{
		{object: `{}`}, {object: `metadata: {name: much-too-long}`, want: "metadata.name"},
		{object: `metadata: {labels: {a: "b c"}}`, want: "metadata.labels"},
		{object: `metadata: {annotations: {"a b": c}}`, want: "metadata.annotations"},
		{object: `metadata: {colour: red}`, want: "metadata.colour: field not declared in schema", early: true},
		{object: `metadata: {finalizers: ["a b"]}`, want: "metadata.finalizers"},
	}},
	{name: "budget", schema: `{type: object, properties: {list: {type: array, maxItems: 100, items: {type: string, maxLength: 20}}}, x-kubernetes-validations: [{rule: "!has(self.list) || self.list.all(x, self.list.exists_one(y, x == y))", message: no duplicates}]}`, steps: []step{
		{object: `spec: {list: [a, b]}`}, {object: `spec: {list: [a, a]}`, want: "no duplicates"},
	}},
	{name: "maps", schema: `{type: object, additionalProperties: {type: object, required: [num], properties: {num: {type: integer}}}, maxProperties: 2}`, steps: []step{
		{object: `spec: {a: {num: 1}}`}, {object: `spec: {a: {}}`, want: "spec.a.num: Required value"},
		{object: `spec: {a: {num: 1}, b: {num: 1}, c: {num: 1}}`, want: "Too many"}, {object: `spec: {a: {m: 1}}`, want: "spec.a.m", early: true},
	}},
}

// step is an object, given by its spec and the like.
type step struct {
	object string
	// want is part of what is wrong, empty for nothing.
	want  string
	early bool
	// keep says that the object is applied over the last one that was kept; others
	// are new.
	keep bool
}

func definition(t testing.TB, name, schema, root, version string) map[string]any {
	t.Helper()
	properties := root
	if properties == "" {
		properties = "{spec: " + schema + "}"
	}
	d := manifesttest.Tree(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.`+group(name)+`}
spec:
  group: `+group(name)+`
  scope: Namespaced
  names: {kind: Widget, listKind: WidgetList, plural: widgets, singular: widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: `+strings.ReplaceAll(properties, "\t", " ")+`}}
`)
	if version != "" {
		v := d["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
		for k, value := range manifesttest.Tree(t, version) {
			v[k] = value
		}
	}
	return d
}

func group(name string) string { return strings.ReplaceAll(name, " ", "-") + ".example.org" }

func (s step) tree(t testing.TB, group string) map[string]any {
	t.Helper()
	o := manifesttest.Tree(t, s.object)
	o["apiVersion"], o["kind"] = group+"/v1", "Widget"
	meta, _ := o["metadata"].(map[string]any)
	if meta == nil {
		meta = make(map[string]any)
		o["metadata"] = meta
	}
	meta["namespace"] = "default"
	if meta["name"] == nil {
		meta["name"] = "w"
	}
	return o
}

func TestVerdicts(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			typ, err := Compile(definition(t, c.name, c.schema, c.root, c.version), "Widget", "v1")
			if err != nil {
				t.Fatal(err)
			}
			var before map[string]any
			for _, s := range c.steps {
				o := s.tree(t, group(c.name))
				if s.keep && before != nil || s.want != "" && before != nil {
					err = typ.Succeed(t.Context(), before, o)
				} else {
					err = typ.Create(t.Context(), o)
				}
				if s.keep {
					before = o
				}
				refusal, _ := errors.AsType[*Refusal](err)
				switch {
				case s.want == "" && err != nil:
					t.Errorf("%s: %v", s.object, err)
				case s.want != "" && (refusal == nil || !strings.Contains(err.Error(), s.want) || refusal.Early != s.early):
					t.Errorf("%s: have %v, want %q, early %v", s.object, err, s.want, s.early)
				}
			}
		})
	}
}

// An apply keeps the fields of other managers. It only changes them by force.
func TestApply(t *testing.T) {
	typ, err := Compile(definition(t, "apply", "{type: object, properties: {a: {type: integer}, b: {type: integer}, c: {type: integer, default: 7}}}", "", ""), "Widget", "v1")
	if err != nil {
		t.Fatal(err)
	}
	owned := func(manager, fields string) string {
		return "{manager: " + manager + ", operation: Apply, apiVersion: " + group("apply") + "/v1, fieldsType: FieldsV1, fieldsV1: {f:spec: " + fields + "}}"
	}
	live := step{object: "metadata: {name: w, managedFields: [" + owned("gitopsd", "{f:a: {}}") + ", " + owned("kubectl", "{f:b: {}}") + "]}\nspec: {a: 1, b: 1}"}.tree(t, group("apply"))
	before := text(t, live)
	for _, tt := range []struct {
		object, want string
		force        bool
	}{
		{"spec: {a: 2}", `{"a":2,"b":1,"c":7}`, false},
		{"spec: {c: 1}", `{"b":1,"c":1}`, false},
		{"spec: {b: 2}", "", false},
		{"spec: {b: 2}", `{"b":2,"c":7}`, true},
		{"spec: {d: 2}", "", true},
	} {
		applied, err := typ.Apply(live, step{object: tt.object}.tree(t, group("apply")), tt.force)
		if (err == nil) != (tt.want != "") {
			t.Errorf("%s: %v", tt.object, err)
		}
		if err == nil && string(manifest.AppendJSON(nil, applied["spec"])) != tt.want {
			t.Errorf("%s: have %v, want %s", tt.object, applied["spec"], tt.want)
		}
	}
	if text(t, live) != before {
		t.Error("the live object is changed")
	}
}
