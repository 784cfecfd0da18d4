package compat

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// api treats the objects of a definition without a webhook like the API server, with its
// own code.
type api struct {
	definition *definition
	versions   map[string]*server
}

func newAPI(t *testing.T, object map[string]any) *api {
	t.Helper()
	a := &api{definition: read(object), versions: map[string]*server{}}
	for _, v := range a.definition.versions {
		s := serverOf(t, v.Schema)
		if s == nil {
			t.Fatalf("the API server refuses the schema of %s: %s", v.Name, shown(v.Schema))
		}
		s.keeps = a.definition.PreservesUnknownFields
		a.versions[v.Name] = s
	}
	return a
}

// refuses returns an error if the API server does not accept new in place of old.
func refuses(t *testing.T, old, new map[string]any) error {
	t.Helper()
	var internal [2]apiextensions.CustomResourceDefinition
	for i, object := range []map[string]any{old, new} {
		text, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		var external apiextensionsv1.CustomResourceDefinition
		if err := json.Unmarshal(text, &external); err != nil {
			t.Fatal(err)
		}
		apiextensionsv1.SetDefaults_CustomResourceDefinition(&external)
		apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&external.Spec)
		external.ResourceVersion = "1"
		external.Status.StoredVersions = []string{read(old).storageVersion()}
		if s := read(object).storageVersion(); s != external.Status.StoredVersions[0] {
			external.Status.StoredVersions = append(external.Status.StoredVersions, s)
		}
		if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&external, &internal[i], nil); err != nil {
			t.Fatal(err)
		}
	}
	return crdvalidation.ValidateCustomResourceDefinitionUpdate(t.Context(), &internal[1], &internal[0]).ToAggregate()
}

// write returns the stored object, and the version that it is stored in.
func (a *api) write(object map[string]any, version string) (map[string]any, error) {
	s := a.versions[version]
	object = s.defaulted(s.reads(object))
	if err := s.accepts(object); err != nil {
		return nil, err
	}
	storage := a.definition.storageVersion()
	if storage != version {
		object = a.versions[storage].reads(object)
	}
	return object, nil
}

// get returns a stored object as it is read in a version.
func (a *api) get(object map[string]any, stored, version string) map[string]any {
	s := a.versions[stored]
	object = s.defaulted(s.reads(object))
	if stored != version {
		s := a.versions[version]
		object = s.defaulted(s.reads(object))
	}
	return object
}

// hurt describes the harm that a new definition does to an object that was written in a
// version of the old one.
func hurt(old, new *api, object map[string]any, version string) error {
	stored, err := old.write(object, version)
	if err != nil {
		return nil // it never was there
	}
	in := old.definition.storageVersion()
	before, after := old.get(stored, in, version), new.get(stored, in, version)
	if !reflect.DeepEqual(before, after) {
		return fmt.Errorf("read as %s, was %s", shown(after), shown(before))
	}
	again, err := new.write(after, version)
	if err != nil {
		return fmt.Errorf("refused when written again: %w", err)
	}
	storage := new.definition.storageVersion()
	if have := new.get(again, storage, version); !reflect.DeepEqual(have, after) {
		return fmt.Errorf("written again it is %s, was %s", shown(have), shown(after))
	}
	for v, s := range new.versions {
		if v == version || !new.definition.version(v).Served {
			continue
		}
		other := new.get(stored, in, v)
		if err := s.accepts(other); err != nil {
			return fmt.Errorf("refused in %s: %w", v, err)
		}
	}
	if _, err := new.write(object, version); err != nil {
		return fmt.Errorf("refused when it is written: %w", err)
	}
	return nil
}

// twoVersions returns a definition with v1 and v2 with schemas for .spec.
func twoVersions(t *testing.T, v1, v2, storage string) map[string]any {
	t.Helper()
	served := func(v string) (string, string) {
		if s, ok := strings.CutPrefix(v, "unserved "); ok {
			return s, "false"
		}
		return v, "true"
	}
	s1, served1 := served(v1)
	s2, served2 := served(v2)
	return manifesttest.Tree(t, fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: buckets.example.org}
spec:
  group: example.org
  names: {kind: Bucket, plural: buckets, singular: bucket, listKind: BucketList}
  scope: Namespaced
  versions:
  - {name: v1, served: %s, storage: %t, schema: {openAPIV3Schema: {type: object, properties: {spec: %s}}}}
  - {name: v2, served: %s, storage: %t, schema: {openAPIV3Schema: {type: object, properties: {spec: %s}}}}
`, served1, storage == "v1", s1, served2, storage == "v2", s2))
}

const (
	with    = `{type: object, properties: {a: {type: string}}}`
	lacking = `{type: object}`
)

// Each case has the findings of Compare, and objects for the API server's own code: a
// finding is breaking if that refuses or changes one of them.
func TestJudged(t *testing.T) {
	one := func(schema string) map[string]any { return crd(t, schema) }
	two := func(v1, v2, storage string) map[string]any { return twoVersions(t, v1, v2, storage) }
	for _, tt := range []struct {
		name     string
		old, new map[string]any
		want     string
		// objects are values of .spec, written in v1.
		objects []string
	}{
		{"the storage version moves to one without a field", two(with, lacking, "v1"), two(with, lacking, "v2"),
			"compatible storage-version-changed; breaking storage-version-drops v1 -> v2 .spec.a", []string{`{a: x}`}},
		{"the storage version moves to one with all fields", two(with, with, "v1"), two(with, with, "v2"), "compatible storage-version-changed", []string{`{a: x}`}},
		{"the storage version moves to one with tighter limits", two(with, `{type: object, properties: {a: {type: string, maxLength: 1}}}`, "v2"),
			two(with, `{type: object, properties: {a: {type: string, maxLength: 1}}}`, "v1"), "compatible storage-version-changed", []string{`{a: x}`, `{}`}},

		{"an object that is none any more", one(`{type: object, properties: {o: {type: object, x-kubernetes-embedded-resource: true, properties: {spec: {type: object}}}}}`),
			one(`{type: object, properties: {o: {type: object, properties: {spec: {type: object}}}}}`), "breaking embedded-resource-removed .spec.o",
			[]string{`{o: {apiVersion: v1, kind: A, metadata: {name: a}, spec: {}}}`}},
		{"an object whose fields are all named", one(`{type: object, properties: {o: {type: object, x-kubernetes-embedded-resource: true, properties: {spec: {type: object}}}}}`),
			one(`{type: object, properties: {o: {type: object, properties: {spec: {type: object}, apiVersion: {type: string}, kind: {type: string}, metadata: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}}`),
			"compatible embedded-resource-removed .spec.o", []string{`{o: {apiVersion: v1, kind: A, metadata: {name: a, labels: {b: c}}, spec: {}}}`, `{}`}},
		{"an object whose metadata is named and not kept", one(`{type: object, properties: {o: {type: object, x-kubernetes-embedded-resource: true, properties: {spec: {type: object}}}}}`),
			one(`{type: object, properties: {o: {type: object, properties: {spec: {type: object}, apiVersion: {type: string}, kind: {type: string}, metadata: {type: object}}}}}`),
			"breaking embedded-resource-removed .spec.o", []string{`{o: {apiVersion: v1, kind: A, metadata: {name: a}}}`}},
		{"an object that is kept whole", one(`{type: object, properties: {o: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}}}`),
			one(`{type: object, properties: {o: {type: object, x-kubernetes-preserve-unknown-fields: true}}}`), "compatible embedded-resource-removed .spec.o",
			[]string{`{o: {apiVersion: v1, kind: A, metadata: {name: a}, spec: {b: c}}}`}},
		{"what becomes an object", one(`{type: object, properties: {o: {type: object, x-kubernetes-preserve-unknown-fields: true}}}`),
			one(`{type: object, properties: {o: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}}}`), "breaking embedded-resource-added .spec.o",
			[]string{`{o: {spec: {b: c}}}`}},
		{"the kind of an object gets an enum as the object goes", one(`{type: object, properties: {o: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}}}`),
			one(`{type: object, properties: {o: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {kind: {type: string, enum: [B]}}}}}`),
			"compatible embedded-resource-removed .spec.o; breaking enum-added .spec.o.kind", []string{`{o: {apiVersion: v1, kind: A}}`}},

		{"a new field's default, and too many fields", one(`{type: object, maxProperties: 1, properties: {b: {type: string}}}`), one(`{type: object, maxProperties: 1, properties: {b: {type: string}, a: {type: string, default: x}}}`),
			"compatible field-added .spec.a; breaking default-added .spec.a", []string{`{b: x}`}},
		{"a new field's default, and enough room", one(`{type: object, maxProperties: 2, properties: {b: {type: string}}}`), one(`{type: object, maxProperties: 2, properties: {b: {type: string}, a: {type: string, default: x}}}`),
			"compatible field-added .spec.a", nil},
		{"a new field's default that is refused", one(`{type: object, not: {required: [a]}}`), one(`{type: object, not: {required: [a]}, properties: {a: {type: string, default: x}}}`),
			"compatible field-added .spec.a; breaking default-added .spec.a", []string{`{}`}},
		{"a new field's default that an outer not refuses", one(`{type: object, properties: {b: {type: object}}, not: {properties: {b: {required: [a]}}, required: [b]}}`),
			one(`{type: object, properties: {b: {type: object, properties: {a: {type: string, default: x}}}}, not: {properties: {b: {required: [a]}}, required: [b]}}`),
			"compatible field-added .spec.b.a; breaking default-added .spec.b.a", []string{`{b: {}}`}},
		{"a new field's default that a rule refuses", one(`{type: object, properties: {a: {type: integer}, b: {type: integer}}, x-kubernetes-validations: [{rule: "!has(self.a) || self.b > 5"}]}`),
			one(`{type: object, properties: {a: {type: integer, default: 1}, b: {type: integer}}, x-kubernetes-validations: [{rule: "!has(self.a) || self.b > 5"}]}`),
			"breaking default-added .spec.a", []string{`{b: 1}`}},
		{"a default of a field that is required", one(`{type: object, required: [a], properties: {a: {type: string}}}`), one(`{type: object, required: [a], properties: {a: {type: string, default: x}}}`),
			"compatible default-added .spec.a", []string{`{a: y}`}},
		{"a default of a required field goes", one(`{type: object, required: [a], properties: {a: {type: string, default: x}}}`), one(`{type: object, required: [a], properties: {a: {type: string}}}`),
			"breaking default-removed .spec.a", []string{`{}`}},
		{"a default by which elements of a set are the same", one(`{type: object, properties: {l: {type: array, x-kubernetes-list-type: set, maxItems: 9, items: {type: object, x-kubernetes-map-type: atomic, properties: {b: {type: string}}}}}}`),
			one(`{type: object, properties: {l: {type: array, x-kubernetes-list-type: set, maxItems: 9, items: {type: object, x-kubernetes-map-type: atomic, properties: {b: {type: string, default: x}}}}}}`),
			"breaking default-added .spec.l[*].b", []string{`{l: [{}, {b: x}]}`}},

		{"a field of an unserved version", two(`{type: object}`, `unserved `+with, "v1"), two(`{type: object}`, `unserved {type: object}`, "v1"), "breaking field-removed v2 .spec.a", nil},

		{"the order of versions", two(with, with, "v1"), reordered(two(with, with, "v1")), "", []string{`{a: x}`}},
		{"two ways to write a rule", one(`{type: object, properties: {a: {type: string}}, x-kubernetes-validations: [{rule: "!has(self.a) || self.a == 'x'"}]}`),
			one(`{type: object, properties: {a: {type: string}}, x-kubernetes-validations: [{rule: "!has(self.a)||(self.a==\"x\")"}]}`), "compatible spelling-changed .spec", []string{`{a: x}`, `{a: y}`, `{}`}},
		{"two names of a format", one(`{type: object, properties: {a: {type: string, format: date-time}}}`), one(`{type: object, properties: {a: {type: string, format: datetime}}}`),
			"compatible format-changed .spec.a", []string{`{a: "2020-01-02T03:04:05Z"}`, `{a: x}`}},
		{"a format of any string", one(`{type: object, properties: {a: {type: string}}}`), one(`{type: object, properties: {a: {type: string, format: password}}}`),
			"compatible format-added .spec.a", []string{`{a: ""}`, `{a: x}`}},
		{"a format of any string, of anything", one(`{type: object, properties: {a: {x-kubernetes-preserve-unknown-fields: true}}}`), one(`{type: object, properties: {a: {x-kubernetes-preserve-unknown-fields: true, format: password}}}`),
			"breaking format-added .spec.a", []string{`{a: 1}`}},
		{"formats of any number", one(`{type: object, properties: {a: {type: integer}, b: {type: number}}}`), one(`{type: object, properties: {a: {type: integer, format: int64}, b: {type: number, format: double}}}`),
			"compatible format-added .spec.a; compatible format-added .spec.b", []string{`{a: 9223372036854775807, b: 1.0e+308}`, `{a: -9223372036854775808, b: -1.5}`}},
		{"a maximum that no integer has", one(`{type: object, properties: {a: {type: integer, maximum: 2}}}`), one(`{type: object, properties: {a: {type: integer, maximum: 3.5}}}`),
			"breaking maximum-tightened .spec.a", []string{`{a: 1}`}},
		{"a minimum that no integer has", one(`{type: object, properties: {a: {type: integer, minimum: 2, exclusiveMinimum: true}}}`), one(`{type: object, properties: {a: {type: integer, minimum: 0.5, exclusiveMinimum: true}}}`),
			"breaking minimum-tightened .spec.a", []string{`{a: 4}`}},
		{"a maximum that the format has not", one(`{type: object, properties: {a: {type: integer, format: int32, maximum: 2}}}`), one(`{type: object, properties: {a: {type: integer, format: int32, maximum: 2147483648}}}`),
			"breaking maximum-tightened .spec.a", []string{`{a: 1}`}},
		{"a maximum of a number", one(`{type: object, properties: {a: {type: number, maximum: 2}}}`), one(`{type: object, properties: {a: {type: number, maximum: 3.5}}}`),
			"compatible maximum-loosened .spec.a", []string{`{a: 1}`, `{a: 1.5}`}},
		{"an exclusive maximum of a number", one(`{type: object, properties: {a: {type: number, maximum: 3}}}`), one(`{type: object, properties: {a: {type: number, maximum: 3.5, exclusiveMaximum: true}}}`),
			"breaking maximum-tightened .spec.a", []string{`{a: 3}`}},
		{"an integral maximum of integers", one(`{type: object, properties: {a: {type: integer, maximum: 2}}}`), one(`{type: object, properties: {a: {type: integer, maximum: 3.0}}}`),
			"compatible maximum-loosened .spec.a", []string{`{a: 1}`}},
		{"a format of fewer numbers", one(`{type: object, properties: {a: {type: integer, format: int64}}}`), one(`{type: object, properties: {a: {type: integer, format: int32}}}`),
			"breaking format-changed .spec.a", []string{`{a: 4294967296}`}},
		{"an allOf branch twice", one(`{type: object, properties: {a: {type: string}}, allOf: [{required: [a]}]}`), one(`{type: object, properties: {a: {type: string}}, allOf: [{required: [a]}, {required: [a]}]}`),
			"compatible spelling-changed .spec", []string{`{a: x}`, `{}`}},
		{"an anyOf branch once", one(`{type: object, properties: {a: {type: string}}, anyOf: [{required: [a]}, {required: [a]}]}`), one(`{type: object, properties: {a: {type: string}}, anyOf: [{required: [a]}]}`),
			"compatible spelling-changed .spec", []string{`{a: x}`, `{}`}},
		{"oneOf becomes anyOf", one(oneOf), one(strings.Replace(oneOf, "oneOf", "anyOf", 1)), "compatible one-of-removed .spec", variants},
		{"anyOf becomes oneOf", one(strings.Replace(oneOf, "oneOf", "anyOf", 1)), one(oneOf), "compatible one-of-added .spec", variants},
		{"anyOf becomes oneOf, and branches overlap", one(`{type: object, properties: {a: {type: string}, b: {type: string}}, anyOf: [{required: [a]}, {required: [b]}]}`),
			one(`{type: object, properties: {a: {type: string}, b: {type: string}}, oneOf: [{required: [a]}, {required: [b]}]}`), "breaking one-of-added .spec; compatible any-of-removed .spec", []string{`{a: x, b: z}`}},
		{"oneOf of branches that overlap becomes anyOf", one(`{type: object, properties: {a: {type: string}, b: {type: string}}, oneOf: [{required: [a]}, {required: [b]}]}`),
			one(`{type: object, properties: {a: {type: string}, b: {type: string}}, anyOf: [{required: [a]}, {required: [b]}]}`), "compatible one-of-removed .spec", []string{`{a: x}`, `{b: y}`}},
		{"one branch of oneOf more", one(oneOf), one(strings.Replace(oneOf, "oneOf: [", "oneOf: [{required: [kind], properties: {kind: {enum: [C]}}}, ", 1)), "compatible one-of-branch-added .spec(oneOf 0)", variants},
		{"a branch of oneOf for a new field", one(`{type: object, properties: {a: {type: string}, b: {type: string}}, oneOf: [{required: [a]}, {required: [b]}]}`), one(`{type: object, properties: {a: {type: string}, b: {type: string}, c: {type: string}}, oneOf: [{required: [a]}, {required: [b]}, {required: [c]}]}`),
			"compatible field-added .spec.c; compatible one-of-branch-added .spec(oneOf 2)", []string{`{a: x}`, `{b: x}`}},
		{"a branch of oneOf for a field that the old schema keeps", one(`{type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: string}, b: {type: string}}, oneOf: [{required: [a]}, {required: [b]}]}`), one(`{type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: string}, b: {type: string}, c: {x-kubernetes-preserve-unknown-fields: true}}, oneOf: [{required: [a]}, {required: [b]}, {required: [c]}]}`),
			"breaking one-of-branch-added .spec(oneOf 2)", []string{`{a: x, c: x}`}},
		{"a branch of oneOf for a new field with a default", one(`{type: object, properties: {a: {type: string}, b: {type: string}}, oneOf: [{required: [a]}, {required: [b]}]}`), one(`{type: object, properties: {a: {type: string}, b: {type: string}, c: {type: string, default: x}}, oneOf: [{required: [a]}, {required: [b]}, {required: [c]}]}`),
			"compatible field-added .spec.c; breaking default-added .spec.c; breaking one-of-branch-added .spec(oneOf 2)", []string{`{a: x}`}},
		{"a branch of oneOf for a new field, of something that may be null", one(`{type: object, properties: {o: {type: object, nullable: true, properties: {a: {type: string}, b: {type: string}}, oneOf: [{enum: [null]}, {required: [b]}]}}}`), one(`{type: object, properties: {o: {type: object, nullable: true, properties: {a: {type: string}, b: {type: string}, c: {type: string}}, oneOf: [{enum: [null]}, {required: [b]}, {required: [c]}]}}}`),
			"compatible field-added .spec.o.c; breaking one-of-branch-added .spec.o(oneOf 2)", nil},
		{"a branch of anyOf for a new field, under not", one(`{type: object, properties: {a: {type: string}, b: {type: string}}, not: {anyOf: [{required: [a]}, {required: [b]}]}}`), one(`{type: object, properties: {a: {type: string}, b: {type: string}, c: {type: string}}, not: {anyOf: [{required: [a]}, {required: [b]}, {required: [c]}]}}`),
			"compatible field-added .spec.c; breaking any-of-branch-added .spec(not)(anyOf 2)", nil},
		{"a rule about new fields", one(`{type: object, properties: {a: {type: string, maxLength: 9}}}`), one(`{type: object, x-kubernetes-validations: [{rule: "!has(self.b) || !has(self.c)"}], properties: {a: {type: string, maxLength: 9}, b: {type: string, maxLength: 9}, c: {type: string, maxLength: 9}}}`),
			"compatible field-added .spec.b; compatible field-added .spec.c; compatible rule-added .spec", []string{`{a: x}`, `{}`}},
		{"a rule about new fields that are optional", one(`{type: object, properties: {a: {type: string, maxLength: 9}}}`), one(`{type: object, x-kubernetes-validations: [{rule: "self.?b.hasValue() == self.?c.hasValue()"}], properties: {a: {type: string, maxLength: 9}, b: {type: string, maxLength: 9}, c: {type: string, maxLength: 9}}}`),
			"compatible field-added .spec.b; compatible field-added .spec.c; compatible rule-added .spec", []string{`{a: x}`, `{}`}},
		{"a rule that requires a new field", one(`{type: object, properties: {a: {type: string, maxLength: 9}}}`), one(`{type: object, x-kubernetes-validations: [{rule: "has(self.b) || has(self.c)"}], properties: {a: {type: string, maxLength: 9}, b: {type: string, maxLength: 9}, c: {type: string, maxLength: 9}}}`),
			"compatible field-added .spec.b; compatible field-added .spec.c; breaking rule-added .spec", []string{`{a: x}`}},
		{"a rule about a new field that it does not look for", one(`{type: object, properties: {a: {type: string, maxLength: 9}}}`), one(`{type: object, x-kubernetes-validations: [{rule: "self.b != 'x'"}], properties: {a: {type: string, maxLength: 9}, b: {type: string, maxLength: 9}, c: {type: string, maxLength: 9}}}`),
			"compatible field-added .spec.b; compatible field-added .spec.c; breaking rule-added .spec", []string{`{a: x}`}},
		{"a rule about a new field and an old one", one(`{type: object, properties: {a: {type: string, maxLength: 9}}}`), one(`{type: object, x-kubernetes-validations: [{rule: "!has(self.a) || has(self.b)"}], properties: {a: {type: string, maxLength: 9}, b: {type: string, maxLength: 9}, c: {type: string, maxLength: 9}}}`),
			"compatible field-added .spec.b; compatible field-added .spec.c; breaking rule-added .spec", []string{`{a: x}`}},
		{"a rule about a new field of the whole object", one(`{type: object, properties: {a: {type: string, maxLength: 9}}}`), one(`{type: object, x-kubernetes-validations: [{rule: "[self].all(x, has(x.b) || !has(x.a))"}], properties: {a: {type: string, maxLength: 9}, b: {type: string, maxLength: 9}, c: {type: string, maxLength: 9}}}`),
			"compatible field-added .spec.b; compatible field-added .spec.c; breaking rule-added .spec", []string{`{a: x}`}},
		{"a rule about the whole object", one(`{type: object, properties: {a: {type: string, maxLength: 9}}}`), one(`{type: object, x-kubernetes-validations: [{rule: "self == self || has(self.b)"}], properties: {a: {type: string, maxLength: 9}, b: {type: string, maxLength: 9}, c: {type: string, maxLength: 9}}}`),
			"compatible field-added .spec.b; compatible field-added .spec.c; breaking rule-added .spec", nil},
		{"a rule about a new field of elements", one(`{type: object, properties: {l: {type: array, maxItems: 9, items: {type: object, properties: {a: {type: string}}}}}}`), one(`{type: object, properties: {l: {type: array, maxItems: 9, items: {type: object, x-kubernetes-validations: [{rule: "!has(self.__namespace__) || self.__namespace__ != 'x'"}], properties: {a: {type: string}, namespace: {type: string}}}}}}`),
			"compatible field-added .spec.l[*].namespace; compatible rule-added .spec.l[*]", []string{`{l: [{a: x}, {}]}`}},
		{"a rule about a new field with a default", one(`{type: object, properties: {a: {type: string}}}`), one(`{type: object, x-kubernetes-validations: [{rule: "!has(self.b)"}], properties: {a: {type: string}, b: {type: string, default: x}}}`),
			"compatible field-added .spec.b; breaking default-added .spec.b; breaking rule-added .spec", []string{`{a: x}`}},
		{"a rule about a field that the old schema keeps", one(`{type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: string}}}`), one(`{type: object, x-kubernetes-preserve-unknown-fields: true, x-kubernetes-validations: [{rule: "!has(self.b)"}], properties: {a: {type: string}, b: {type: string}}}`),
			"breaking type-narrowed .spec.b; breaking rule-added .spec", []string{`{a: x, b: z}`}},
		{"one branch of oneOf less", one(strings.Replace(oneOf, "oneOf: [", "oneOf: [{required: [kind], properties: {kind: {enum: [C]}}}, ", 1)), one(oneOf), "breaking one-of-branch-removed .spec(oneOf 0)", variants},
		{"a field among unknown ones", preserved(one(`{type: object}`)), preserved(one(with)), "breaking type-narrowed .spec.a", []string{`{a: 1}`}},
		{"a field among unknown ones of all", kept(one(`{type: object}`)), kept(one(with)), "breaking type-narrowed .spec.a", []string{`{a: 1}`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := check(t, tt.old, tt.new, Options{}, tt.want)
			breaking := r.Severity == Breaking
			if err := refuses(t, tt.old, tt.new); err != nil {
				t.Errorf("the API server refuses the definition: %v", err)
			}
			before, after := newAPI(t, tt.old), newAPI(t, tt.new)
			var why error
			for _, o := range tt.objects {
				object := map[string]any{"apiVersion": "example.org/v1", "kind": "Bucket", "spec": map[string]any(manifesttest.Tree(t, o))}
				if err := hurt(before, after, object, "v1"); err != nil {
					why = err
				}
			}
			if len(tt.objects) > 0 && breaking != (why != nil) {
				t.Errorf("breaking: %t; the API server: %v", breaking, why)
			}
		})
	}
}

const oneOf = `{type: object, required: [kind], properties: {kind: {type: string}, a: {type: string}}, oneOf: [{required: [kind], properties: {kind: {enum: [A]}}}, {required: [a], properties: {kind: {enum: [B]}}}]}`

var variants = []string{`{kind: A}`, `{kind: B, a: x}`, `{kind: B}`, `{kind: A, a: x}`, `{kind: C}`}

func reordered(definition map[string]any) map[string]any {
	list := manifest.Mapping(definition, "spec")["versions"].([]any)
	list[0], list[1] = list[1], list[0]
	return definition
}

// kept returns a definition with spec.preserveUnknownFields.
func kept(definition map[string]any) map[string]any {
	manifest.Mapping(definition, "spec")["preserveUnknownFields"] = true
	return definition
}

// preserved returns a definition that keeps unknown fields of .spec.
func preserved(definition map[string]any) map[string]any {
	v := manifest.Mapping(definition, "spec")["versions"].([]any)[0].(map[string]any)
	spec := manifest.Mapping(manifest.Mapping(manifest.Mapping(v, "schema", "openAPIV3Schema"), "properties"), "spec")
	spec["x-kubernetes-preserve-unknown-fields"] = true
	return definition
}

// A message that does not compile is a finding, as in the API server.
func TestMessages(t *testing.T) {
	const schema = `{type: object, properties: {a: {type: integer}}, x-kubernetes-validations: [{rule: "self.a > 1"MORE}]}`
	for _, tt := range []struct{ more, want string }{
		{`, messageExpression: "self.a > 0 ? 'small' : 'negative'"`, "documentation rule-message-changed .spec"},
		{`, messageExpression: "'not ' + self.b"`, "documentation rule-message-changed .spec; breaking rule-refused .spec"},
		{`, messageExpression: "self.a"`, "documentation rule-message-changed .spec; breaking rule-refused .spec"},
		{`, fieldPath: .a`, "documentation rule-message-changed .spec"},
		{`, fieldPath: .b`, "documentation rule-message-changed .spec; breaking rule-refused .spec"},
	} {
		old, new := crd(t, strings.Replace(schema, "MORE", "", 1)), crd(t, strings.Replace(schema, "MORE", tt.more, 1))
		r := check(t, old, new, Options{}, tt.want)
		if err := refuses(t, old, new); (err != nil) != (r.Severity == Breaking) {
			t.Errorf("%s: %s; the API server: %v", tt.more, r.Severity, err)
		}
		if !r.Retyped {
			t.Errorf("%s: the digest is the same", tt.more)
		}
	}
}

// Sets of definitions are compared by kind and name. Definitions with the same digests are
// the same.
func TestSets(t *testing.T) {
	set := func(all ...map[string]any) Set {
		s := make(Set)
		for _, d := range all {
			s.Add(d)
		}
		return s
	}
	twin := manifesttest.Tree(t, strings.Replace(xrd, "xnetworks.example.org", "buckets.example.org", 1))
	const rule = `{type: object, x-kubernetes-validations: [{rule: "true", message: M}]}`
	for _, tt := range []struct {
		name     string
		old, new Set
		want     string
	}{
		{"a message", set(crd(t, rule)), set(crd(t, strings.Replace(rule, "M", "other", 1))), "0 same, CustomResourceDefinition buckets.example.org changed documentation"},
		{"a description", set(crd(t, `{type: object}`)), set(crd(t, `{type: object, description: d}`)), "1 same"},
		{"a limit of zero", set(crd(t, `{type: object}`)), set(crd(t, `{type: object, minProperties: 0}`)), "0 same, CustomResourceDefinition buckets.example.org changed compatible"},
		{"an XRD instead of a CRD", set(crd(t, `{type: object}`)), set(twin), "0 same, CompositeResourceDefinition buckets.example.org added compatible, CustomResourceDefinition buckets.example.org removed breaking"},
		{"an XRD and a CRD", set(crd(t, `{type: object}`), twin), set(twin, crd(t, with)), "1 same, CustomResourceDefinition buckets.example.org changed compatible"},
	} {
		all, err := CompareAll(t.Context(), tt.old, tt.new)
		if err != nil {
			t.Fatal(err)
		}
		have := fmt.Sprint(Summarize(all).Same, " same")
		for _, c := range all {
			if c.Change != Same {
				have += fmt.Sprintf(", %s %s %s %s", c.Kind, c.Name, c.Change, c.Compatibility)
				if len(c.Findings) == 0 {
					t.Errorf("%s: nothing is said of %s", tt.name, c.Name)
				}
			}
		}
		if have != tt.want {
			t.Errorf("%s: %s\nwant %s", tt.name, have, tt.want)
		}
	}
}
