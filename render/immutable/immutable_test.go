package immutable_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8stypes "k8s.io/apimachinery/pkg/types"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"gitopsd.dev/render/field"
	"gitopsd.dev/render/immutable"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/validate"
	"gitopsd.dev/sources"
	"gitopsd.dev/testscripts/devcluster"
)

func TestMain(m *testing.M) { os.Exit(devcluster.Main(m)) }

// crd returns a definition with one version that has this schema for spec.
func crd(t testing.TB, plural, spec string) map[string]any {
	return manifesttest.Tree(t, fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.acme.example}
spec:
  group: acme.example
  names: {kind: Widget, plural: %[1]s, singular: %[1]s, listKind: WidgetList}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, properties: {spec: %[2]s, status: {type: object, properties: {id: {type: string}}}}}}
`, plural, spec))
}

// change is an object's old spec, its new one, and the field that the API server reports as
// immutable; "" for an accepted change.
type change struct{ before, after, refused string }

// cases are schemas of spec, their immutable paths, and changes.
var cases = []struct {
	name, schema, paths string
	changes             []change
}{
	{"a-field", `{type: object, properties: {size: {type: integer}, colour: {type: string}}}`, "spec.size", []change{
		{`{size: 1}`, `{size: 1, colour: red}`, ""},
		{`{size: 1, colour: red}`, `{size: 1}`, ""},
		{`{size: 1}`, `{size: 2}`, "spec.size"},
		{`{size: 1}`, `{colour: red}`, "spec.size"},
		{`{colour: red}`, `{size: 3}`, ""},
		{`{size: 0}`, `{size: 1}`, "spec.size"},
		{`{size: 1}`, ``, "spec.size"}, // the parent goes
		{``, `{size: 1}`, ""},
	}},
	{"two-fields", `{type: object, properties: {a: {type: string}, b: {type: string}}}`, "spec.a, spec.b", []change{
		{`{a: x}`, `{a: x, b: u}`, ""},
		{`{a: x, b: u}`, `{a: x, b: v}`, "spec.b"},
		{`{a: x, b: u}`, `{b: u}`, "spec.a"},
	}},
	{"deep", `{type: object, properties: {a: {type: object, properties: {b: {type: object, properties: {c: {type: string}, d: {type: string}}}}}}}`, "spec.a.b.c", []change{
		{`{a: {b: {c: x, d: u}}}`, `{a: {b: {c: x}}}`, ""},
		{`{a: {b: {c: x}}}`, `{a: {b: {}}}`, "spec.a.b.c"},
		{`{a: {b: {c: x}}}`, `{a: {}}`, "spec.a.b.c"},
		{`{a: {b: {c: x}}}`, `{}`, "spec.a.b.c"},
		{`{a: {b: {d: u}}}`, `{}`, ""}, // it was not set
		{`{a: {b: {d: u}}}`, `{a: {b: {c: x}}}`, ""},
	}},
	{"nullable", `{type: object, properties: {p: {type: object, nullable: true, properties: {x: {type: string, nullable: true}}}}}`, "spec.p.x", []change{
		{`{p: null}`, `{p: {x: a}}`, ""},
		{`{p: {x: null}}`, `{p: {x: a}}`, ""},
		{`{p: {x: a}}`, `{p: {x: null}}`, "spec.p.x"},
		{`{p: {x: a}}`, `{p: null}`, "spec.p.x"},
		{`{p: {x: null}}`, `{p: null}`, ""},
	}},
	{"default", `{type: object, properties: {class: {type: string, default: standard}, count: {type: integer}}}`, "spec.class", []change{
		{`{count: 1}`, `{class: standard, count: 2}`, ""},
		{`{count: 1}`, `{class: premium}`, "spec.class"},
		{`{class: premium}`, `{count: 1}`, "spec.class"}, // back to the default
	}},
	{"int-or-string", `{type: object, properties: {port: {x-kubernetes-int-or-string: true}}}`, "spec.port", []change{
		{`{port: 80}`, `{port: 80}`, ""},
		{`{port: 80}`, `{port: "80"}`, "spec.port"},
		{`{port: http}`, `{port: https}`, "spec.port"},
	}},
	{"names", `{type: object, properties: {a-b.c: {type: object, properties: {namespace: {type: string}, d__e: {type: string}, e__dot__f: {type: string}}}}}`,
		`spec["a-b.c"].namespace, spec["a-b.c"].d__e, spec["a-b.c"].e__dot__f`, []change{
			{`{a-b.c: {namespace: x}}`, `{a-b.c: {namespace: x, d__e: u}}`, ""},
			{`{a-b.c: {namespace: x}}`, `{a-b.c: {namespace: u}}`, "spec.a-b.c.namespace"},
			{`{a-b.c: {d__e: x}}`, `{a-b.c: {}}`, "spec.a-b.c.d__e"},
			{`{a-b.c: {e__dot__f: x}}`, `{a-b.c: {e__dot__f: u}}`, "spec.a-b.c.e__dot__f"},
		}},
	{"whole-object", `{type: object, properties: {a: {type: object, properties: {b: {type: string}, c: {type: array, items: {type: string}}}}}}`, "spec.a", []change{
		{`{a: {b: x, c: [u]}}`, `{a: {b: x, c: [u]}}`, ""},
		{`{a: {b: x, c: [u]}}`, `{a: {b: x, c: [v]}}`, "spec.a"},
		{`{a: {b: x}}`, `{a: {b: x, c: []}}`, "spec.a"},
	}},
	{"whole-list", `{type: object, properties: {l: {type: array, items: {type: object, properties: {k: {type: string}}}}}}`, "spec.l", []change{
		{`{l: [{k: a}]}`, `{l: [{k: a}]}`, ""},
		{`{l: [{k: a}]}`, `{l: [{k: a}, {k: b}]}`, "spec.l"},
		{`{l: [{k: a}]}`, `{}`, "spec.l"},
	}},
	{"list-map", `{type: object, properties: {l: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k],
			items: {type: object, required: [k], properties: {k: {type: string}, port: {type: integer}, note: {type: string}}}}}}`, "spec.l[*].port", []change{
		{`{l: [{k: a, port: 1}, {k: b, port: 2}]}`, `{l: [{k: b, port: 2, note: x}, {k: a, port: 1}]}`, ""}, // by key, not by place
		{`{l: [{k: a, port: 1}, {k: b, port: 2}]}`, `{l: [{k: a, port: 1}, {k: b, port: 3}]}`, "spec.l[1].port"},
		{`{l: [{k: a, port: 1}]}`, `{l: [{k: a}]}`, "spec.l[0].port"},
		{`{l: [{k: a}]}`, `{l: [{k: a, port: 1}]}`, ""},
		{`{l: [{k: a, port: 1}]}`, `{l: [{k: b, port: 2}]}`, ""}, // an element goes as a whole
	}},
	{"list-map-elements", `{type: object, properties: {l: {type: array, maxItems: 10, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k],
			items: {type: object, required: [k], properties: {k: {type: string}, port: {type: integer}}}}}}`, "spec.l[*]", []change{
		{`{l: [{k: a, port: 1}]}`, `{l: [{k: a, port: 1}, {k: b}]}`, ""},
		{`{l: [{k: a, port: 1}]}`, `{l: [{k: a}]}`, "spec.l[0]"},
	}},
	{"key-of-a-mapping", `{type: object, properties: {tags: {type: object, additionalProperties: {type: string}}}}`, `spec.tags.env, spec.tags["it's %s"]`, []change{
		{`{tags: {env: prod}}`, `{tags: {env: prod, team: a}}`, ""},
		{`{tags: {env: prod}}`, `{tags: {env: dev}}`, "spec.tags[env]"},
		{`{tags: {env: prod}}`, `{tags: {}}`, "spec.tags[env]"},
		{`{tags: {"it's %s": prod}}`, `{tags: {}}`, "spec.tags"},
		{`{tags: {team: a}}`, `{tags: {team: b, env: prod}}`, ""},
	}},
	{"values-of-a-mapping", `{type: object, properties: {m: {type: object, additionalProperties: {type: object, properties: {id: {type: integer}, count: {type: integer}}}}}}`, "spec.m{*}.id", []change{
		{`{m: {a: {id: 1}}}`, `{m: {a: {id: 1, count: 1}, b: {id: 2}}}`, ""},
		{`{m: {a: {id: 1}}}`, `{m: {a: {id: 2}}}`, "spec.m[a].id"},
		{`{m: {a: {id: 1}}}`, `{m: {a: {count: 1}}}`, "spec.m[a].id"},
		{`{m: {a: {id: 1}}}`, `{m: {}}`, ""},
	}},
	{"what-is-preserved", `{type: object, properties: {free: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: string}}}}}`, "spec.free", []change{
		{`{free: {a: x, other: {b: 1}}}`, `{free: {a: x, other: {b: 1}}}`, ""},
		{`{free: {a: x, other: {b: 1}}}`, `{free: {a: x, other: {b: 2}}}`, "spec.free"},
		{`{free: {a: x}}`, `{free: {a: x, more: 1}}`, "spec.free"},
	}},
	{"long-texts", `{type: object, properties: {a: {type: string}, b: {type: object, additionalProperties: {type: array, items: {type: string}}}}}`, "spec.a, spec.b", []change{
		{`{a: x, b: {k: [v]}}`, `{a: x, b: {k: [v]}}`, ""},
		{`{b: {k: [v]}}`, `{b: {k: [w]}}`, "spec.b"},
	}},
	// Null is another field of the mapping for CEL, unless it is asked from both sides.
	{"null-in-its-place", `{type: object, properties: {o: {type: object, properties: {a: {type: string, nullable: true}, c: {type: string}}}}}`, "spec.o", []change{
		{`{o: {c: x}}`, `{o: {a: null}}`, "spec.o"},
		{`{o: {a: null}}`, `{o: {c: x}}`, "spec.o"},
		{`{o: {a: null, c: x}}`, `{o: {a: null, c: x}}`, ""},
	}},
	{"whole-set", `{type: object, properties: {l: {type: array, x-kubernetes-list-type: set, items: {type: string}}}}`, "spec.l", []change{
		{`{l: [a, b]}`, `{l: [b, a]}`, ""},
		{`{l: [a, b]}`, `{l: [b, c]}`, "spec.l"},
	}},
	{"whole-list-map", `{type: object, properties: {l: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], items: {type: object, required: [k], properties: {k: {type: string}, namespace: {type: string}}}}}}`, "spec.l", []change{
		{`{l: [{k: a}, {k: b}]}`, `{l: [{k: b}, {k: a}]}`, ""},
		{`{l: [{k: a}]}`, `{l: [{k: b}]}`, "spec.l"},
		{`{l: [{k: a, namespace: x}]}`, `{l: [{k: a, namespace: z}]}`, "spec.l"},
	}},
	{"no-type-inside", `{type: object, properties: {o: {type: object, properties: {v: {x-kubernetes-preserve-unknown-fields: true}, a-b: {type: string}, "1a": {type: string}}}}}`, "spec.o", []change{
		{`{o: {v: null}}`, `{o: {v: null}}`, ""},
		{`{o: {v: {a: 1}}}`, `{o: {v: {b: 1}}}`, "spec.o"},
		{`{o: {v: [null, a]}}`, `{o: {v: [null, b]}}`, "spec.o"},
		{`{o: {a-b: x}}`, `{o: {a-b: z}}`, "spec.o"},
		{`{o: {1a: x}}`, `{o: {1a: z}}`, "spec.o"},
	}},
}

func object(t testing.TB, name, spec string) map[string]any {
	o := map[string]any{"apiVersion": "acme.example/v1", "kind": "Widget", "metadata": map[string]any{"name": name, "namespace": "default"}}
	if spec != "" {
		o["spec"] = manifesttest.Tree(t, "{spec: "+spec+"}")["spec"]
	}
	return o
}

func apply(t testing.TB, definition map[string]any, paths string) (map[string]any, []string) {
	t.Helper()
	changed, notes, err := immutable.Apply(definition, parse(t, paths))
	if err != nil {
		t.Fatal(err)
	}
	return changed, notes
}

func parse(t testing.TB, text string) []field.Path {
	t.Helper()
	fields, err := immutable.ParseOwn("widgets.acme.example", text)
	if err != nil {
		t.Fatal(err)
	}
	var paths []field.Path
	for _, f := range fields {
		paths = append(paths, f.Path)
	}
	return paths
}

// The API server's own code refuses to change or unset an immutable field, lets it be set
// once, and accepts all other changes.
func TestChanges(t *testing.T) {
	t.Parallel()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			definition := crd(t, "widgets", c.schema)
			before := manifest.AppendJSON(nil, definition)
			changed, _ := apply(t, definition, c.paths)
			if string(manifest.AppendJSON(nil, definition)) != string(before) {
				t.Error("the definition was changed in place")
			}
			typ, err := validate.Compile(changed, "Widget", "v1")
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range c.changes {
				old, now := object(t, "w", s.before), object(t, "w", s.after)
				for _, o := range []map[string]any{old, now} {
					if err := typ.Create(t.Context(), o); err != nil {
						t.Errorf("creating %v: %v", o["spec"], err)
					}
				}
				judge(t, s, violations(t, changed, old, now))
			}
			again, _ := apply(t, changed, c.paths)
			if !reflect.DeepEqual(again, changed) {
				t.Error("the rules are added twice")
			}
		})
	}
}

// violations returns the errors of the rules for a changed object, from the API server's
// code.
func violations(t *testing.T, definition, old, now map[string]any) []string {
	t.Helper()
	text := manifest.AppendJSON(nil, types.Read(definition).Versions()[0].Schema)
	var external apiextensionsv1.JSONSchemaProps
	internal := new(apiextensions.JSONSchemaProps)
	if err := errors.Join(json.Unmarshal(text, &external), apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&external, internal, nil)); err != nil {
		t.Fatal(err)
	}
	structure, err := structural.NewStructural(internal)
	if err != nil {
		t.Fatal(err)
	}
	old, now = runtime.DeepCopyJSON(old), runtime.DeepCopyJSON(now)
	defaulting.Default(old, structure)
	defaulting.Default(now, structure)
	errs, _ := cel.NewValidator(structure, true, celconfig.PerCallLimit).Validate(t.Context(), nil, structure, now, old, celconfig.RuntimeCELCostBudget)
	var all []string
	for _, e := range errs {
		all = append(all, e.Error())
	}
	return all
}

func judge(t *testing.T, c change, have []string) {
	t.Helper()
	var want []string
	if c.refused != "" {
		want = []string{c.refused + ": Forbidden: " + immutable.Message}
	}
	if !slices.Equal(have, want) {
		t.Errorf("%s -> %s: %q, want %q", c.before, c.after, have, want)
	}
}

// For a field that cannot be immutable, the error has the reason and advice.
func TestRefused(t *testing.T) {
	t.Parallel()
	const list = `{type: object, properties: {l: {type: array, %s items: {type: object, required: [k], properties: {k: {type: string}, v: {type: string}}}}}}`
	for _, tt := range []struct{ name, schema, path, want string }{
		{"no such field", `{type: object, properties: {size: {type: integer}}}`, "spec.sise", "spec.sise: there is no such field; did you mean spec.size?"},
		{"nothing like it", `{type: object, properties: {size: {type: integer}, b: {type: string}}}`, "spec.region", "spec.region: there is no such field; spec has b, size"},
		{"below a text", `{type: object, properties: {size: {type: integer}}}`, "spec.size.x", "spec.size.x: there is no such field; spec.size has none"},
		{"not in spec", `{type: object, properties: {size: {type: integer}}}`, "size", "size: there is no such field; the object has spec, status"},
		{"a list without a star", fmt.Sprintf(list, ""), "spec.l.v", "spec.l.v: spec.l is a list; write spec.l[*].v for a field of its elements"},
		{"a star and no list", `{type: object, properties: {size: {type: integer}}}`, "spec.size[*]", "spec.size[*]: spec.size is not a list"},
		{"a star and no mapping", `{type: object, properties: {size: {type: integer}}}`, "spec{*}.size", "spec{*}.size: spec is not a mapping with arbitrary keys"},
		{"an atomic list", fmt.Sprintf(list, ""), "spec.l[*].v",
			"spec.l[*].v: version v1: spec.l is an atomic list (it has no x-kubernetes-list-type: map), and an API server cannot tell which element was which before; make all of spec.l immutable instead"},
		{"a set", `{type: object, properties: {l: {type: array, x-kubernetes-list-type: set, items: {type: string}}}}`, "spec.l[*]",
			"spec.l[*]: version v1: spec.l is a set, and an API server cannot tell which element was which before; make all of spec.l immutable instead"},
		{"in a list inside an atomic list", `{type: object, properties: {o: {type: array, items: {type: object, properties: {l: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], items: {type: object, required: [k], properties: {k: {type: string}}}}}}}}}`,
			"spec.o[*].l[*].k", "spec.o[*].l[*].k: version v1: spec.o is an atomic list (it has no x-kubernetes-list-type: map), and an API server cannot tell which element was which before; make all of spec.o immutable instead"},
		{"unbounded", fmt.Sprintf(list, "x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k],"), "spec.l[*].v",
			"spec.l[*].v: version v1: the API server would refuse the rule as too expensive, since lists, mappings or texts have no maxItems, maxProperties or maxLength; make all of the list or mapping immutable instead"},
		{"preserved", `{type: object, x-kubernetes-preserve-unknown-fields: true}`, "spec.a",
			"spec.a: version v1: spec keeps fields that its schema does not have, and a rule cannot name these; make all of spec immutable instead"},
		{"of no type", `{type: object, properties: {any: {x-kubernetes-preserve-unknown-fields: true}}}`, "spec.any",
			"spec.any: version v1: CEL does not see it, since its schema has no type; make all of spec immutable instead"},
		{"a list of no type", `{type: object, properties: {l: {type: array, items: {x-kubernetes-preserve-unknown-fields: true}}}}`, "spec.l",
			"spec.l: version v1: CEL cannot compare spec.l[*], whose schema has no type; name another field"},
		// CEL takes equal values of these for different ones, and nobody could update such an object.
		{"elements of no type inside", `{type: object, properties: {o: {type: object, properties: {m: {type: object, additionalProperties: {x-kubernetes-preserve-unknown-fields: true}}}}}}`, "spec.o",
			"spec.o: version v1: CEL cannot compare spec.o.m{*}, whose schema has no type; name another field"},
		{"a key with another name in CEL", `{type: object, properties: {l: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name, namespace], items: {type: object, required: [name, namespace], properties: {name: {type: string}, namespace: {type: string}}}}}}`, "spec.l",
			`spec.l: version v1: CEL cannot tell the elements of spec.l apart by their key "namespace", which has another name there; name another field`},
		{"a set of mappings", `{type: object, properties: {l: {type: array, x-kubernetes-list-type: set, items: {type: object, x-kubernetes-map-type: atomic, properties: {a: {type: string}}}}}}`, "spec.l",
			"spec.l: version v1: CEL cannot compare the set spec.l, whose elements are lists or mappings; name another field"},
		{"a list's key", fmt.Sprintf(list, "maxItems: 9, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k],"), "spec.l[*].k",
			"spec.l[*].k: version v1: k is a key by which an API server tells the elements of spec.l apart, so it never sees it change; make all of spec.l immutable instead"},
		{"below one key", `{type: object, properties: {m: {type: object, maxProperties: 9, additionalProperties: {type: object, maxProperties: 9, additionalProperties: {type: string, maxLength: 9}}}}}`, "spec.m.env{*}",
			"spec.m.env{*}: version v1: an API server has one rule for what is below all keys of a mapping, and spec.m.env is below one; make all of spec.m.env immutable instead, or write {*} for all keys"},
		{"no name in CEL", `{type: object, properties: {"1a": {type: string}}}`, `spec["1a"]`, `spec["1a"]: version v1: CEL has no way to name the field "1a"; make all of spec immutable instead`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := immutable.Apply(crd(t, "widgets", tt.schema), parse(t, tt.path))
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("have %v\nwant %s", err, tt.want)
			}
		})
	}
}

// All errors are reported together, and the cost of one field does not affect another.
func TestAllErrors(t *testing.T) {
	definition := crd(t, "widgets", `{type: object, properties: {a: {type: string}, l: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], items: {type: object, required: [k], properties: {k: {type: string}, v: {type: string}}}}}}`)
	_, _, err := immutable.Apply(definition, parse(t, "spec.b, spec.c"))
	if err == nil || strings.Count(err.Error(), "there is no such field") != 2 {
		t.Errorf("have %v", err)
	}
	_, _, err = immutable.Apply(definition, parse(t, "spec.a, spec.l[*].v"))
	if err == nil || !strings.HasPrefix(err.Error(), "spec.l[*].v: ") || strings.Contains(err.Error(), "spec.a") {
		t.Errorf("have %v", err)
	}
}

// Each served version that has the field gets the rule. A note names the other versions.
func TestVersions(t *testing.T) {
	definition := manifesttest.Tree(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.acme.example}
spec:
  group: acme.example
  names: {kind: Widget, plural: widgets}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer, default: 1}}}}}}}
  - {name: v1beta1, served: true, storage: false, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {count: {type: integer}}}}}}}
  - {name: v1alpha1, served: false, storage: false, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}, old: {type: integer}}}}}}}
`)
	changed, notes := apply(t, definition, "spec.size, spec.count")
	var ruled []string
	for _, v := range types.Read(changed).Versions() {
		for _, r := range manifest.List(v.Schema, "x-kubernetes-validations") {
			path, ok := immutable.FieldOf(r.(map[string]any))
			if !ok {
				t.Errorf("%v is not recognised", r)
			}
			ruled = append(ruled, v.Name+path)
		}
	}
	if want := []string{"v1.spec.size", "v1beta1.spec.count"}; !slices.Equal(ruled, want) {
		t.Errorf("have rules %v, want %v", ruled, want)
	}
	if want := []string{
		"spec.size: version v1beta1 has no such field, and writes in that version are not checked",
		"spec.size: has a default in version v1, so it is set as soon as an object exists",
		"spec.count: version v1 has no such field, and writes in that version are not checked",
	}; !slices.Equal(notes, want) {
		t.Errorf("have notes %q", notes)
	}
	if _, _, err := immutable.Apply(definition, parse(t, "spec.old")); err == nil {
		t.Error("a field is immutable that only a version has which is not served")
	}
	before, err := types.Of(definition)
	if err != nil {
		t.Fatal(err)
	}
	after, err := types.Of(changed)
	if err != nil {
		t.Fatal(err)
	}
	if types.Sum(before) == types.Sum(after) {
		t.Error("the type has the same digest as without the rules")
	}
}

// The notes have the changes that CEL does not see.
func TestNotes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, schema, path, want string }{
		{"unknown fields", `{type: object, properties: {f: {type: object, properties: {g: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}}`, "spec.f",
			"spec.f: an API server does not see when one field of spec.f.g that is not in its schema takes the place of another"},
		{"an object inside", `{type: object, properties: {l: {type: array, items: {type: object, x-kubernetes-embedded-resource: true}}}}`, "spec.l",
			"spec.l: an API server does not see when one field of spec.l[*] that is not in its schema takes the place of another"},
		{"a name with a meaning", `{type: object, properties: {o: {type: object, properties: {x__dot__z: {type: string}}}}}`, "spec.o",
			"spec.o: an API server does not see changes of spec.o.x__dot__z, since CEL reads its name as another"},
		{"the same field alone", `{type: object, properties: {o: {type: object, properties: {x__dot__z: {type: string}}}}}`, "spec.o.x__dot__z", ""},
		{"a parent's default", `{type: object, default: {o: {a: x}}, properties: {o: {type: object, properties: {a: {type: string}}}}}`, "spec.o.a",
			"spec.o.a: has a default in version v1, so it is set as soon as an object exists"},
		{"a parent's default without it", `{type: object, default: {o: {}}, properties: {o: {type: object, properties: {a: {type: string}}}}}`, "spec.o.a", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, notes := apply(t, crd(t, "widgets", tt.schema), tt.path)
			if have := strings.Join(notes, "; "); have != tt.want {
				t.Errorf("have %s\nwant %s", have, tt.want)
			}
		})
	}
}

func TestParse(t *testing.T) {
	for _, tt := range []struct{ value, want string }{
		{"widgets.acme.example:spec.size", "widgets.acme.example spec.size"},
		{"widgets.acme.example:spec.size,\n  gadgets.acme.example: .spec.l[*].port ,", "widgets.acme.example spec.size; gadgets.acme.example spec.l[*].port"},
		{`w.a:spec.tags["a,b:c"], w.a:spec.tags{*}`, `w.a spec.tags["a,b:c"]; w.a spec.tags{*}`},
		{`w.a:status.id`, `w.a status.id`},
		{"", "error: names no field"},
		{" , ", "error: names no field"},
		{"spec.size", `error: "spec.size": want <name of a CustomResourceDefinition>:<path>, such as buckets.acme.example:spec.region`},
		{"w.a:", `error: "" names no field`},
		{"w.a:spec.size, w.a: spec.size", `error: "w.a: spec.size": is there twice`},
		{"w.a:metadata.labels", "error: metadata.labels: metadata is Kubernetes' own; only the fields of a definition's schema can be made immutable"},
		{"w.a:spec.l[0]", "error: spec.l[0]: [0] picks one element; write [*] for every element"},
		{"w.a:spec.l[name=a].b", "error: spec.l[name=a].b: [name=a] picks one element; write [*] for every element"},
		{"w.a:[*].b", "error: [*].b: does not start with the name of a field"},
		{`w.a:spec["a`, `error: "spec[\"a": want ["key"] at "[\"a"`},
	} {
		fields, err := immutable.Parse(tt.value)
		var all []string
		for _, f := range fields {
			all = append(all, f.Definition+" "+f.Path.String())
		}
		have := strings.Join(all, "; ")
		if err != nil {
			have = "error: " + err.Error()
		}
		if have != tt.want {
			t.Errorf("%q:\nhave %s\nwant %s", tt.value, have, tt.want)
		}
	}
}

// An annotation of the maximum size is parsed quickly.
func TestParseMany(t *testing.T) {
	t.Parallel()
	var paths []string
	for i := range 20000 {
		paths = append(paths, fmt.Sprintf("spec.a%d.b", i))
	}
	if have := len(parse(t, strings.Join(paths, ","))); have != len(paths) {
		t.Errorf("have %d paths, want %d", have, len(paths))
	}
}

// A CompositeResourceDefinition is refused, since Crossplane makes the definition for the
// API server.
func TestComposite(t *testing.T) {
	xrd := manifesttest.Tree(t, `{apiVersion: apiextensions.crossplane.io/v2, kind: CompositeResourceDefinition, metadata: {name: xs.acme.example}, spec: {}}`)
	if _, _, err := immutable.Apply(xrd, parse(t, "spec.a")); err == nil || !strings.Contains(err.Error(), "x-kubernetes-validations of spec") {
		t.Errorf("have %v", err)
	}
}

// Any annotation and schema give a result or an error, and the API server's code compiles
// the resulting definition.
func FuzzApply(f *testing.F) {
	for _, c := range cases {
		f.Add(c.schema, c.paths)
	}
	f.Add(`{type: array, items: {}}`, "spec[*]")
	f.Fuzz(func(t *testing.T, schema, paths string) {
		fields, err := immutable.ParseOwn("widgets.acme.example", paths)
		if err != nil || len(schema) > 4000 || len(fields) > 5 {
			return
		}
		docs, err := sources.DecodeYAML(strings.NewReader(schema), sources.Limits{})
		if err != nil || len(docs) != 1 {
			return
		}
		definition := crd(t, "widgets", "{type: object}")
		version := manifest.List(definition, "spec", "versions")[0].(map[string]any)
		manifest.Mapping(version, "schema", "openAPIV3Schema", "properties")["spec"] = docs[0].Tree
		var all []field.Path
		for _, p := range fields {
			all = append(all, p.Path)
		}
		_, before := validate.Compile(definition, "Widget", "v1")
		changed, _, err := immutable.Apply(definition, all)
		if err != nil || before != nil {
			return
		}
		if _, err := validate.Compile(changed, "Widget", "v1"); err != nil {
			t.Errorf("%s with %s: %v", schema, paths, err)
		}
	})
}

// A real API server accepts the rules, and gives the same result for every change.
func TestLive(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a control plane")
	}
	planes := devcluster.Start(t, "immutable")
	cfg, err := clientcmd.BuildConfigFromFlags("", planes.Kubeconfig("immutable"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	crds := client.Resource(definitions)
	t.Run("every way to write", func(t *testing.T) {
		t.Parallel()
		everyWay(t, client)
	})
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			plural := strings.ReplaceAll(c.name, "-", "")
			changed, _ := apply(t, crd(t, plural, c.schema), c.paths)
			changed = runtime.DeepCopyJSON(changed)
			names := manifest.Mapping(changed, "spec", "names")
			names["kind"], names["listKind"] = "K"+plural, "K"+plural+"List"
			if _, err := crds.Create(t.Context(), &unstructured.Unstructured{Object: changed}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			objects := client.Resource(schema.GroupVersionResource{Group: "acme.example", Version: "v1", Resource: plural}).Namespace("default")
			for i, s := range c.changes {
				o := &unstructured.Unstructured{Object: object(t, fmt.Sprintf("w%d", i), s.before)}
				o.SetKind("K" + plural)
				now := create(t, objects, o)
				delete(now.Object, "spec")
				if spec, ok := object(t, "", s.after)["spec"]; ok {
					now.Object["spec"] = runtime.DeepCopyJSONValue(spec)
				}
				_, err := objects.Update(t.Context(), now, metav1.UpdateOptions{})
				judge(t, s, causes(t, err))
			}
		})
	}
}

var definitions = schema.GroupVersionResource{Group: manifest.CRD.Group, Version: "v1", Resource: "customresourcedefinitions"}

func create(t *testing.T, objects dynamic.ResourceInterface, o *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	made, err := objects.Create(t.Context(), o, metav1.CreateOptions{})
	for wait := time.Now(); apierrors.IsNotFound(err) && time.Since(wait) < 30*time.Second; time.Sleep(20 * time.Millisecond) {
		made, err = objects.Create(t.Context(), o, metav1.CreateOptions{}) // served a moment later
	}
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// Subresources and server-side apply cannot bypass the rules, and the rules do not block
// changes of other fields.
func everyWay(t *testing.T, client dynamic.Interface) {
	definition := manifesttest.Tree(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ways.acme.example}
spec:
  group: acme.example
  names: {kind: Way, plural: ways, singular: way, listKind: WayList}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
    schema: {openAPIV3Schema: {type: object, properties: {
      spec: {type: object, properties: {replicas: {type: integer}, colour: {type: string}}},
      status: {type: object, properties: {replicas: {type: integer}, id: {type: string}}}}}}
`)
	definition, _ = apply(t, definition, "spec.replicas, status.id")
	if _, err := client.Resource(definitions).Create(t.Context(), &unstructured.Unstructured{Object: definition}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	objects := client.Resource(schema.GroupVersionResource{Group: "acme.example", Version: "v1", Resource: "ways"}).Namespace("default")
	create(t, objects, &unstructured.Unstructured{Object: manifesttest.Tree(t, `{apiVersion: acme.example/v1, kind: Way, metadata: {name: w, namespace: default}, spec: {colour: red}}`)})
	const object = `{"apiVersion": "acme.example/v1", "kind": "Way", "metadata": {"name": "w", "namespace": "default"}`
	for _, s := range []struct {
		how         k8stypes.PatchType
		patch       string
		subresource string
		refused     string
	}{
		{how: k8stypes.ApplyPatchType, patch: object + `, "spec": {"replicas": 2}}`},
		{how: k8stypes.ApplyPatchType, patch: object + `, "spec": {"replicas": 3}}`, refused: "spec.replicas"},
		{how: k8stypes.ApplyPatchType, patch: object + `}`, refused: "spec.replicas"}, // the one owner lets go of it
		{how: k8stypes.MergePatchType, patch: `{"spec": {"replicas": 3}}`, subresource: "scale", refused: "spec.replicas"},
		{how: k8stypes.MergePatchType, patch: `{"spec": {"replicas": 2}}`, subresource: "scale"},
		{how: k8stypes.MergePatchType, patch: `{"status": {"id": "a"}}`, subresource: "status"},
		{how: k8stypes.MergePatchType, patch: `{"status": {"id": "b"}}`, subresource: "status", refused: "status.id"},
		{how: k8stypes.MergePatchType, patch: `{"status": null}`, subresource: "status", refused: "status.id"},
		{how: k8stypes.MergePatchType, patch: `{"status": {"id": "a", "replicas": 1}}`, subresource: "status"},
		{how: k8stypes.MergePatchType, patch: `{"metadata": {"finalizers": ["acme.example/wait"], "labels": {"a": "b"}}}`},
		{how: k8stypes.MergePatchType, patch: `{"metadata": {"finalizers": null}, "spec": {"colour": "blue"}}`},
	} {
		_, err := objects.Patch(t.Context(), "w", s.how, []byte(s.patch), metav1.PatchOptions{FieldManager: "test"}, strings.Fields(s.subresource)...)
		judge(t, change{s.patch, s.subresource, s.refused}, causes(t, err))
	}
}

// causes returns the causes in an API server's error, in the format of its validation.
func causes(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		t.Fatal(err)
	}
	var all []string
	for _, c := range status.Status().Details.Causes {
		all = append(all, c.Field+": "+c.Message)
	}
	return all
}
