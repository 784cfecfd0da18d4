package compat

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gitopsd.dev/render/immutable"
	"gitopsd.dev/render/manifest/manifesttest"
)

// crd returns a definition with v1, stored and served, with a schema for .spec.
func crd(t testing.TB, spec string) map[string]any {
	return manifesttest.Tree(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: buckets.example.org}
spec:
  group: example.org
  names: {kind: Bucket, plural: buckets}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: `+spec+`}}}
`)
}

// brief returns a finding as in the tables: "severity name version path", without "v1" and
// empty parts.
func brief(f Finding) string {
	s := f.Severity.String() + " " + f.Name
	if f.Version != "v1" && f.Version != "" {
		s += " " + f.Version
	}
	if f.Path != "" {
		s += " " + f.Path
	}
	return s
}

// seen are the names of all findings in the tables below.
var seen = map[string]bool{}

func check(t *testing.T, old, new map[string]any, opts Options, want string) Report {
	t.Helper()
	r, err := Compare(t.Context(), old, new, opts)
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, f := range r.Findings {
		have = append(have, brief(f))
		seen[f.Name] = true
		if f.Advice == "" || f.Detail == "" || strings.ContainsAny(f.Advice, "\n") {
			t.Errorf("%+v", f)
		}
		if f.Severity == Breaking && f.Breaks == 0 {
			t.Errorf("%s breaks nobody", f)
		}
	}
	var wanted []string
	for _, w := range strings.Split(want, ";") {
		if w = strings.TrimSpace(w); w != "" {
			wanted = append(wanted, w)
		}
	}
	slices.Sort(have)
	slices.Sort(wanted)
	if !slices.Equal(have, wanted) {
		t.Errorf("have %q\nwant %q", have, wanted)
		for _, f := range r.Findings {
			t.Log(f)
		}
	}
	return r
}

// timed is the schema of a list of objects with a field a, a text with these keywords.
func timed(keywords string) string {
	return `{type: array, maxItems: 3, items: {type: object, required: [a], properties: {a: {type: string` + keywords + `}}}}`
}

// Every case is compared in both directions.
var schemaCases = []struct{ name, old, new, forth, back string }{
	{"no change", `{type: object, description: a}`, `{description: b, type: object}`, ``, ``},
	{"a field", `{type: object}`, `{type: object, properties: {a: {type: string}}}`,
		"compatible field-added .spec.a", "breaking field-removed .spec.a"},
	{"a field with a name of its own", `{type: object}`, `{type: object, properties: {"a.b/c": {type: string}}}`,
		`compatible field-added .spec["a.b/c"]`, `breaking field-removed .spec["a.b/c"]`},
	{"a required field", `{type: object}`, `{type: object, required: [a], properties: {a: {type: string}}}`,
		"compatible field-added .spec.a; breaking required-added .spec.a", "breaking field-removed .spec.a; compatible required-removed .spec.a"},
	{"a required field with a default", `{type: object}`, `{type: object, required: [a], properties: {a: {type: string, default: b}}}`,
		"compatible field-added .spec.a; compatible required-added .spec.a", "breaking field-removed .spec.a; compatible required-removed .spec.a"},
	{"another type", `{type: object, properties: {a: {type: string}}}`, `{type: object, properties: {a: {type: boolean}}}`,
		"breaking type-changed .spec.a", "breaking type-changed .spec.a"},
	{"another type with a default", `{type: object, properties: {a: {type: integer, nullable: true}}}`, `{type: object, properties: {a: {type: string, default: x}}}`,
		"breaking default-added .spec.a; breaking nullable-removed .spec.a; breaking type-changed .spec.a", "breaking default-removed .spec.a; compatible nullable-added .spec.a; breaking type-changed .spec.a"},
	{"a wider type", `{type: object, properties: {a: {type: integer}}}`, `{type: object, properties: {a: {type: number}}}`,
		"breaking type-widened .spec.a", "breaking type-narrowed .spec.a"},
	{"integer or string", `{type: object, properties: {a: {type: string}}}`, `{type: object, properties: {a: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}}}`,
		"breaking type-widened .spec.a", "breaking type-narrowed .spec.a"},
	{"two ways to say integer or string", `{type: object, properties: {a: {x-kubernetes-int-or-string: true}}}`, `{type: object, properties: {a: {x-kubernetes-int-or-string: true, allOf: [{anyOf: [{type: integer}, {type: string}]}]}}}`,
		"compatible spelling-changed .spec.a", "compatible spelling-changed .spec.a"},
	{"an unchecked field gets a type", `{type: object, properties: {a: {x-kubernetes-preserve-unknown-fields: true}}}`, `{type: object, properties: {a: {type: object, properties: {b: {type: string}}}}}`,
		"breaking type-narrowed .spec.a", "breaking type-widened .spec.a; breaking type-widened .spec.a.b; compatible pruning-off .spec.a"},
	{"a format that is checked", `{type: object, properties: {a: {type: string}}}`, `{type: object, properties: {a: {type: string, format: date-time}}}`,
		"breaking format-added .spec.a", "compatible format-removed .spec.a"},
	{"a format that a rule reads", `{type: object, x-kubernetes-validations: [{rule: self.a <= self.b}], required: [a, b], properties: {a: {type: string}, b: {type: string}}}`,
		`{type: object, x-kubernetes-validations: [{rule: self.a <= self.b}], required: [a, b], properties: {a: {type: string, format: duration}, b: {type: string, format: duration}}}`,
		"breaking format-added .spec.a; breaking format-added .spec.b", "breaking format-removed .spec.a; breaking format-removed .spec.b"},
	{"a format that a rule around it reads", `{type: object, x-kubernetes-validations: [{rule: "self.o.all(x, self.p.exists(y, x.a == y.a))"}], required: [o, p], properties: {o: ` + timed("") + `, p: ` + timed("") + `}}`,
		`{type: object, x-kubernetes-validations: [{rule: "self.o.all(x, self.p.exists(y, x.a == y.a))"}], required: [o, p], properties: {o: ` + timed(", format: date-time") + `, p: ` + timed(", format: date-time") + `}}`,
		"breaking format-added .spec.o[*].a; breaking format-added .spec.p[*].a", "breaking format-removed .spec.o[*].a; breaking format-removed .spec.p[*].a"},
	{"a format of values that a rule reads", `{type: object, properties: {m: {type: object, maxProperties: 3, additionalProperties: {type: string}, x-kubernetes-validations: [{rule: "self.all(k, self[k] == self['a'])"}]}}}`,
		`{type: object, properties: {m: {type: object, maxProperties: 3, additionalProperties: {type: string, format: byte}, x-kubernetes-validations: [{rule: "self.all(k, self[k] == self['a'])"}]}}}`,
		"breaking format-added .spec.m{*}", "breaking format-removed .spec.m{*}"},
	{"a format that a rule of the field reads", `{type: object, properties: {a: {type: string, format: date, x-kubernetes-validations: [{rule: self == self}]}}}`, `{type: object, properties: {a: {type: string, x-kubernetes-validations: [{rule: self == self}]}}}`,
		"breaking format-removed .spec.a", "breaking format-added .spec.a"},
	{"a format that is text in rules", `{type: object, properties: {a: {type: string, format: ipv4, x-kubernetes-validations: [{rule: self == self}]}}}`, `{type: object, properties: {a: {type: string, x-kubernetes-validations: [{rule: self == self}]}}}`,
		"compatible format-removed .spec.a", "breaking format-added .spec.a"},
	{"a format that no rule reads", `{type: object, x-kubernetes-validations: [{rule: has(self.b)}], properties: {a: {type: string, format: duration}, b: {type: string}}}`, `{type: object, x-kubernetes-validations: [{rule: has(self.b)}], properties: {a: {type: string}, b: {type: string}}}`,
		"compatible format-removed .spec.a", "breaking format-added .spec.a"},
	{"a format that is not", `{type: object, properties: {a: {type: string}}}`, `{type: object, properties: {a: {type: string, format: color}}}`,
		"compatible format-added .spec.a", "compatible format-removed .spec.a"},
	{"a wider format", `{type: object, properties: {a: {type: integer, format: int32}}}`, `{type: object, properties: {a: {type: integer, format: int64}}}`,
		"compatible format-changed .spec.a", "breaking format-changed .spec.a"},
	{"another format", `{type: object, properties: {a: {type: string, format: ipv4}}}`, `{type: object, properties: {a: {type: string, format: ipv6}}}`,
		"breaking format-changed .spec.a", "breaking format-changed .spec.a"},
	{"an enum", `{type: object, properties: {a: {type: string}}}`, `{type: object, properties: {a: {type: string, enum: [x]}}}`,
		"breaking enum-added .spec.a", "compatible enum-removed .spec.a"},
	{"an enum's value", `{type: object, properties: {a: {type: integer, enum: [1, 2]}}}`, `{type: object, properties: {a: {type: integer, enum: [3, 2.0, 1]}}}`,
		"compatible enum-value-added .spec.a", "breaking enum-value-removed .spec.a"},
	{"required", `{type: object, properties: {a: {type: string}}}`, `{type: object, required: [a], properties: {a: {type: string}}}`,
		"breaking required-added .spec.a", "compatible required-removed .spec.a"},
	{"nullable", `{type: object, properties: {a: {type: string}}}`, `{type: object, properties: {a: {type: string, nullable: true}}}`,
		"compatible nullable-added .spec.a", "breaking nullable-removed .spec.a"},
	{"an immutable field", `{type: object, properties: {a: {type: string}}}`, `{type: object, properties: {a: {type: string}}, x-kubernetes-validations: [{rule: "!has(oldSelf.a) || has(self.a) && self.a == oldSelf.a", fieldPath: .a, message: "` + immutable.Message + `"}]}`,
		"breaking immutable-added .spec.a", "compatible immutable-removed .spec.a"},
	{"an immutable element", `{type: object, properties: {l: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], items: {type: object, required: [k], properties: {k: {type: string}}}}}}`,
		`{type: object, properties: {l: {type: array, maxItems: 5, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], items: {type: object, required: [k], properties: {k: {type: string}}, x-kubernetes-validations: [{rule: self == oldSelf, message: "` + immutable.Message + `"}]}}}}`,
		"breaking immutable-added .spec.l[*]; breaking max-items-added .spec.l", "compatible immutable-removed .spec.l[*]; compatible max-items-removed .spec.l"},
	{"a default", `{type: object, properties: {a: {type: string}}}`, `{type: object, properties: {a: {type: string, default: x}}}`,
		"breaking default-added .spec.a", "breaking default-removed .spec.a"},
	{"another default", `{type: object, properties: {a: {type: object, default: {b: 1, c: [2]}}}}`, `{type: object, properties: {a: {type: object, default: {c: [3], b: 1.0}}}}`,
		"breaking default-changed .spec.a", "breaking default-changed .spec.a"},
	{"the same default", `{type: object, properties: {a: {type: object, default: {b: 1, c: [2]}}}}`, `{type: object, properties: {a: {type: object, default: {c: [2], b: 1.0}}}}`, "", ""},
	{"maximum", `{type: object, properties: {a: {type: number}}}`, `{type: object, properties: {a: {type: number, maximum: 5}}}`,
		"breaking maximum-added .spec.a", "compatible maximum-removed .spec.a"},
	{"a lower maximum", `{type: object, properties: {a: {type: number, maximum: 5}}}`, `{type: object, properties: {a: {type: number, maximum: 4.5}}}`,
		"breaking maximum-tightened .spec.a", "compatible maximum-loosened .spec.a"},
	{"an exclusive maximum", `{type: object, properties: {a: {type: number, maximum: 5}}}`, `{type: object, properties: {a: {type: number, maximum: 5, exclusiveMaximum: true}}}`,
		"breaking maximum-tightened .spec.a", "compatible maximum-loosened .spec.a"},
	{"an exclusive maximum of integers", `{type: object, properties: {a: {type: integer, maximum: 4}}}`, `{type: object, properties: {a: {type: integer, maximum: 5, exclusiveMaximum: true}}}`, "compatible spelling-changed .spec.a", "compatible spelling-changed .spec.a"},
	{"minimum", `{type: object, properties: {a: {type: integer}}}`, `{type: object, properties: {a: {type: integer, minimum: 0}}}`,
		"breaking minimum-added .spec.a", "compatible minimum-removed .spec.a"},
	{"a higher minimum", `{type: object, properties: {a: {type: integer, minimum: 0}}}`, `{type: object, properties: {a: {type: integer, minimum: 0, exclusiveMinimum: true}}}`,
		"breaking minimum-tightened .spec.a", "compatible minimum-loosened .spec.a"},
	{"multipleOf", `{type: object, properties: {a: {type: integer}, b: {type: integer, multipleOf: 2}, c: {type: integer, multipleOf: 4}}}`, `{type: object, properties: {a: {type: integer, multipleOf: 2}, b: {type: integer, multipleOf: 4}, c: {type: integer, multipleOf: 6}}}`,
		"breaking multiple-of-added .spec.a; breaking multiple-of-tightened .spec.b; breaking multiple-of-changed .spec.c", "compatible multiple-of-removed .spec.a; compatible multiple-of-loosened .spec.b; breaking multiple-of-changed .spec.c"},
	{"length", `{type: object, properties: {a: {type: string}, b: {type: string, minLength: 0, maxLength: 9}}}`, `{type: object, properties: {a: {type: string, minLength: 1, maxLength: 8}, b: {type: string, minLength: 1, maxLength: 8}}}`,
		"breaking min-length-added .spec.a; breaking max-length-added .spec.a; breaking min-length-added .spec.b; breaking max-length-tightened .spec.b", "compatible min-length-removed .spec.a; compatible max-length-removed .spec.a; compatible min-length-removed .spec.b; compatible max-length-loosened .spec.b"},
	{"no length", `{type: object, properties: {a: {type: string, minLength: 0}}}`, `{type: object, properties: {a: {type: string}}}`, "compatible spelling-changed .spec.a", "compatible spelling-changed .spec.a"},
	{"items", `{type: object, properties: {a: {type: array, items: {type: string}, minItems: 1, maxItems: 3}, b: {type: array, items: {type: string}}}}`, `{type: object, properties: {a: {type: array, items: {type: string}, minItems: 2, maxItems: 2}, b: {type: array, items: {type: string}, minItems: 1, maxItems: 3}}}`,
		"breaking min-items-tightened .spec.a; breaking max-items-tightened .spec.a; breaking min-items-added .spec.b; breaking max-items-added .spec.b", "compatible min-items-loosened .spec.a; compatible max-items-loosened .spec.a; compatible min-items-removed .spec.b; compatible max-items-removed .spec.b"},
	{"properties", `{type: object, minProperties: 1, maxProperties: 3, properties: {b: {type: object}}}`, `{type: object, minProperties: 2, maxProperties: 2, properties: {b: {type: object, minProperties: 1, maxProperties: 1}}}`,
		"breaking min-properties-tightened .spec; breaking max-properties-tightened .spec; breaking min-properties-added .spec.b; breaking max-properties-added .spec.b", "compatible min-properties-loosened .spec; compatible max-properties-loosened .spec; compatible min-properties-removed .spec.b; compatible max-properties-removed .spec.b"},
	{"a longer minimum", `{type: object, properties: {a: {type: string, minLength: 1}}}`, `{type: object, properties: {a: {type: string, minLength: 2}}}`,
		"breaking min-length-tightened .spec.a", "compatible min-length-loosened .spec.a"},
	{"pattern", `{type: object, properties: {a: {type: string}}}`, `{type: object, properties: {a: {type: string, pattern: "^a$"}}}`,
		"breaking pattern-added .spec.a", "compatible pattern-removed .spec.a"},
	{"another pattern", `{type: object, properties: {a: {type: string, pattern: "^b$"}}}`, `{type: object, properties: {a: {type: string, pattern: "^a$"}}}`,
		"breaking pattern-changed .spec.a", "breaking pattern-changed .spec.a"},
	{"unique items", `{type: object, properties: {a: {type: array, items: {type: string}}}}`, `{type: object, properties: {a: {type: array, uniqueItems: true, items: {type: string}}}}`,
		"breaking unique-items-added .spec.a", "compatible unique-items-removed .spec.a"},
	{"what is in a list", `{type: object, properties: {a: {type: array, items: {type: object, properties: {b: {type: string}}}}}}`, `{type: object, properties: {a: {type: array, items: {type: object, required: [b], properties: {b: {type: string}}}}}}`,
		"breaking required-added .spec.a[*].b", "compatible required-removed .spec.a[*].b"},
	{"what is in a map", `{type: object, properties: {a: {type: object, additionalProperties: {type: string}}}}`, `{type: object, properties: {a: {type: object, additionalProperties: {type: string, maxLength: 3}}}}`,
		"breaking max-length-added .spec.a{*}", "compatible max-length-removed .spec.a{*}"},
	{"a map", `{type: object, properties: {a: {type: object}}}`, `{type: object, properties: {a: {type: object, additionalProperties: {type: string}}}}`,
		"compatible additional-properties-added .spec.a", "breaking additional-properties-removed .spec.a"},
	{"a map that becomes a struct", `{type: object, properties: {a: {type: object, additionalProperties: {type: string}}}}`, `{type: object, properties: {a: {type: object, properties: {b: {type: string, maxLength: 3}}}}}`,
		"breaking additional-properties-removed .spec.a; breaking max-length-added .spec.a.b", "compatible additional-properties-added .spec.a; compatible max-length-removed .spec.a.b"},
	{"a closed map", `{type: object, properties: {a: {type: object}}}`, `{type: object, properties: {a: {type: object, additionalProperties: false}}}`,
		"breaking additional-properties-refused .spec.a", "compatible additional-properties-tolerated .spec.a"},
	{"a map of anything", `{type: object, properties: {a: {type: object, additionalProperties: {type: string}}}}`, `{type: object, properties: {a: {type: object, additionalProperties: true}}}`,
		"breaking type-widened .spec.a{*}", "breaking type-narrowed .spec.a{*}"},
	{"unknown fields", `{type: object, properties: {a: {type: object, x-kubernetes-preserve-unknown-fields: true}}}`, `{type: object, properties: {a: {type: object}}}`,
		"breaking pruning-on .spec.a", "compatible pruning-off .spec.a"},
	{"unknown fields get a schema", `{type: object, x-kubernetes-preserve-unknown-fields: true}`, `{type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: string}}}`,
		"breaking type-narrowed .spec.a", "breaking type-widened .spec.a"},
	{"unknown fields in a map", `{type: object, x-kubernetes-preserve-unknown-fields: true}`, `{type: object, additionalProperties: {type: string}}`,
		"breaking type-narrowed .spec{*}", "breaking type-widened .spec{*}"},
	{"an embedded resource", `{type: object, properties: {a: {type: object, x-kubernetes-preserve-unknown-fields: true}}}`, `{type: object, properties: {a: {type: object, x-kubernetes-preserve-unknown-fields: true, x-kubernetes-embedded-resource: true}}}`,
		"breaking embedded-resource-added .spec.a", "compatible embedded-resource-removed .spec.a"},
	{"a list's type", `{type: object, properties: {a: {type: array, items: {type: string}}}}`, `{type: object, properties: {a: {type: array, x-kubernetes-list-type: set, items: {type: string}}}}`,
		"breaking list-type-changed .spec.a", "breaking list-type-changed .spec.a"},
	{"the list type that is the default", `{type: object, properties: {a: {type: array, items: {type: string}}}}`, `{type: object, properties: {a: {type: array, x-kubernetes-list-type: atomic, items: {type: string}}}}`, "compatible spelling-changed .spec.a", "compatible spelling-changed .spec.a"},
	{"a list's keys", `{type: object, properties: {a: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [b], items: {type: object}}}}`, `{type: object, properties: {a: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [b, c], items: {type: object}}}}`,
		"breaking list-map-keys-changed .spec.a", "breaking list-map-keys-changed .spec.a"},
	{"a map's type", `{type: object, properties: {a: {type: object}}}`, `{type: object, properties: {a: {type: object, x-kubernetes-map-type: atomic}}}`,
		"breaking map-type-changed .spec.a", "breaking map-type-changed .spec.a"},
	{"tighter inside allOf", `{type: object, allOf: [{properties: {a: {maxLength: 5}}}, {required: [b]}], properties: {a: {type: string}, b: {type: string}}}`, `{type: object, allOf: [{required: [b]}, {properties: {a: {maxLength: 3}}}], properties: {a: {type: string}, b: {type: string}}}`,
		"breaking max-length-tightened .spec(allOf 1).a", "compatible max-length-loosened .spec(allOf 0).a"},
	{"a branch of allOf", `{type: object, properties: {a: {type: string}}}`, `{type: object, allOf: [{properties: {a: {maxLength: 3, pattern: b}}}], properties: {a: {type: string}}}`,
		"breaking max-length-added .spec(allOf 0).a; breaking pattern-added .spec(allOf 0).a", "compatible max-length-removed .spec(allOf 0).a; compatible pattern-removed .spec(allOf 0).a"},
	{"anyOf", `{type: object}`, `{type: object, anyOf: [{required: [a]}]}`, "breaking any-of-added .spec", "compatible any-of-removed .spec"},
	{"a branch of anyOf", `{type: object, anyOf: [{required: [a]}]}`, `{type: object, anyOf: [{required: [b]}, {required: [a]}]}`,
		"compatible any-of-branch-added .spec(anyOf 0)", "breaking any-of-branch-removed .spec(anyOf 0)"},
	{"tighter inside anyOf", `{type: object, anyOf: [{required: [a]}, {required: [b]}]}`, `{type: object, anyOf: [{required: [b]}, {required: [a, c]}]}`,
		"breaking required-added .spec(anyOf 1).c", "compatible required-removed .spec(anyOf 0).c"},
	{"oneOf", `{type: object}`, `{type: object, oneOf: [{required: [a]}]}`, "breaking one-of-added .spec", "compatible one-of-removed .spec"},
	{"a branch of oneOf", `{type: object, oneOf: [{required: [a]}]}`, `{type: object, oneOf: [{required: [b]}, {required: [a]}]}`,
		"breaking one-of-branch-added .spec(oneOf 0)", "breaking one-of-branch-removed .spec(oneOf 0)"},
	{"inside oneOf nothing is safe", `{type: object, oneOf: [{required: [a]}, {required: [b]}]}`, `{type: object, oneOf: [{required: [b]}, {required: [a, c]}]}`,
		"breaking required-added .spec(oneOf 1).c", "breaking required-removed .spec(oneOf 0).c"},
	{"not", `{type: object}`, `{type: object, not: {required: [a]}}`, "breaking not-added .spec", "compatible not-removed .spec"},
	{"inside not all is reversed", `{type: object, not: {required: [a]}}`, `{type: object, not: {required: [a, b]}}`,
		"compatible required-added .spec(not).b", "breaking required-removed .spec(not).b"},
	{"not inside not", `{type: object, not: {not: {required: [a]}}}`, `{type: object, not: {not: {required: [a, b]}}}`,
		"breaking required-added .spec(not)(not).b", "compatible required-removed .spec(not)(not).b"},
	{"a closed check", `{type: object, anyOf: [{properties: {a: {minLength: 1}}}]}`, `{type: object, anyOf: [{properties: {a: {minLength: 1}}, additionalProperties: false}]}`,
		"breaking additional-properties-refused .spec(anyOf 0)", "compatible additional-properties-tolerated .spec(anyOf 0)"},
	{"a rule", `{type: object, properties: {a: {type: integer}}}`, `{type: object, x-kubernetes-validations: [{rule: self.a > 1}], properties: {a: {type: integer}}}`,
		"breaking rule-added .spec", "compatible rule-removed .spec"},
	{"another rule with the same message", `{type: object, x-kubernetes-validations: [{rule: self.a > 1, message: m}], properties: {a: {type: integer}}}`, `{type: object, x-kubernetes-validations: [{rule: self.a > 2, message: m}], properties: {a: {type: integer}}}`,
		"breaking rule-changed .spec", "breaking rule-changed .spec"},
	{"another rule", `{type: object, x-kubernetes-validations: [{rule: self.a > 1}], properties: {a: {type: integer}}}`, `{type: object, x-kubernetes-validations: [{rule: self.a > 2}], properties: {a: {type: integer}}}`,
		"breaking rule-added .spec; compatible rule-removed .spec", "breaking rule-added .spec; compatible rule-removed .spec"},
	{"what a rule says", `{type: object, x-kubernetes-validations: [{rule: self.a > 1, message: m}], properties: {a: {type: integer}}}`, `{type: object, x-kubernetes-validations: [{rule: self.a > 1, reason: FieldValueForbidden, message: other}], properties: {a: {type: integer}}}`,
		"documentation rule-message-changed .spec; compatible rule-reason-changed .spec", "documentation rule-message-changed .spec; compatible rule-reason-changed .spec"},
	{"a rule for new objects too", `{type: object, x-kubernetes-validations: [{rule: "oldSelf == self"}], properties: {a: {type: integer}}}`, `{type: object, x-kubernetes-validations: [{rule: "oldSelf == self", optionalOldSelf: true}], properties: {a: {type: integer}}}`,
		"breaking rule-changed .spec; breaking rule-refused .spec", "compatible rule-changed .spec"},
	{"rules in another order", `{type: object, x-kubernetes-validations: [{rule: self.a > 1}, {rule: self.a < 9}], properties: {a: {type: integer}}}`, `{type: object, x-kubernetes-validations: [{rule: self.a < 9}, {rule: self.a > 1}], properties: {a: {type: integer}}}`, "", ""},
	{"a rule that does not compile", `{type: object, properties: {a: {type: integer}}}`, `{type: object, x-kubernetes-validations: [{rule: self.b > 1}], properties: {a: {type: integer}}}`,
		"breaking rule-added .spec; breaking rule-refused .spec", "compatible rule-removed .spec"},
	{"a rule that costs too much", `{type: object, properties: {a: {type: array, items: {type: string}}}}`, `{type: object, properties: {a: {type: array, items: {type: string, x-kubernetes-validations: [{rule: "self.matches('^a+$')"}]}}}}`,
		"breaking rule-added .spec.a[*]; breaking rule-refused .spec.a[*]; breaking rule-refused", "compatible rule-removed .spec.a[*]"},
}

func TestSchemas(t *testing.T) {
	for _, tt := range schemaCases {
		t.Run(tt.name, func(t *testing.T) {
			old, new := crd(t, tt.old), crd(t, tt.new)
			check(t, old, new, Options{}, tt.forth)
			check(t, new, old, Options{}, tt.back)
			check(t, old, old, Options{}, "")
		})
	}
}

// versioned returns a definition; text follows the fixed fields of spec.
func versioned(t testing.TB, spec string) map[string]any {
	return manifesttest.Tree(t, "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: buckets.example.org}\nspec:\n"+spec)
}

const (
	head  = "  group: example.org\n  names: {kind: Bucket, plural: buckets}\n  scope: Namespaced\n"
	v1    = "  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}\n"
	alpha = "  - {name: v1alpha1, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}\n"
)

// converting adds a webhook for the rules with a digest; another webhook if it is empty.
func converting(digest string) string {
	path := "/convert"
	if digest != "" {
		path = "/convert/dev/buckets.example.org/" + digest
	}
	return "  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {service: {path: " + path + "}}}}\n  versions:\n"
}

var definitionCases = []struct{ name, old, new, forth, back string }{
	{"a scope", head + "  versions:\n" + v1, strings.Replace(head, "Namespaced", "Cluster", 1) + "  versions:\n" + v1, "breaking scope-changed", "breaking scope-changed"},
	{"a group", head + "  versions:\n" + v1, strings.Replace(head, "example.org", "example.com", 1) + "  versions:\n" + v1, "breaking group-changed", "breaking group-changed"},
	{"names", head + "  versions:\n" + v1, strings.Replace(head, "{kind: Bucket, plural: buckets}", "{kind: Pail, plural: pails, shortNames: [p], categories: [all]}", 1) + "  versions:\n" + v1,
		"breaking kind-changed; breaking plural-changed; breaking list-kind-changed; breaking singular-changed; compatible short-name-added; compatible category-added",
		"breaking kind-changed; breaking plural-changed; breaking list-kind-changed; breaking singular-changed; breaking short-name-removed; compatible category-removed"},
	{"preserveUnknownFields", head + "  preserveUnknownFields: true\n  versions:\n" + v1, head + "  versions:\n" + v1, "breaking pruning-on", "compatible pruning-off"},
	{"a version", head + "  versions:\n" + v1, head + "  versions:\n" + v1 + alpha, "compatible version-added v1alpha1", "breaking version-removed v1alpha1"},
	{"a version that is not served", head + "  versions:\n" + v1, head + "  versions:\n" + v1 + strings.Replace(alpha, "served: true", "served: false", 1), "compatible version-added v1alpha1", "breaking version-removed v1alpha1"},
	{"serving", head + "  versions:\n" + v1 + alpha, head + "  versions:\n" + v1 + strings.Replace(alpha, "served: true", "served: false", 1), "breaking version-unserved v1alpha1", "compatible version-served v1alpha1"},
	{"deprecation", head + "  versions:\n" + v1 + alpha, head + "  versions:\n" + v1 + strings.Replace(alpha, "served: true", "served: true, deprecated: true", 1), "compatible version-deprecated v1alpha1", "compatible version-undeprecated v1alpha1"},
	{"a warning", head + "  versions:\n" + strings.Replace(v1, "served: true", "served: true, deprecated: true, deprecationWarning: a", 1), head + "  versions:\n" + strings.Replace(v1, "served: true", "served: true, deprecated: true, deprecationWarning: b", 1), "documentation deprecation-warning-changed", "documentation deprecation-warning-changed"},
	{"storage", head + "  versions:\n" + v1 + alpha, head + "  versions:\n" + strings.Replace(v1, "storage: true", "storage: false", 1) + strings.Replace(alpha, "storage: false", "storage: true", 1), "compatible storage-version-changed", "compatible storage-version-changed"},
	{"the stored version", head + "  versions:\n" + v1 + strings.Replace(alpha, "served: true", "served: false", 1), head + "  versions:\n" + strings.Replace(alpha, "served: true, storage: false", "served: true, storage: true", 1),
		"breaking stored-version-removed; breaking version-removed; compatible storage-version-changed; compatible version-served v1alpha1",
		"breaking version-unserved v1alpha1; compatible version-added; compatible storage-version-changed"},
	{"conversion", head + "  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1]}}\n  versions:\n" + v1 + alpha, head + "  versions:\n" + v1 + alpha, "breaking conversion-removed", "compatible conversion-added"},
	{"conversion of one version", head + "  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1]}}\n  versions:\n" + v1, head + "  versions:\n" + v1, "compatible conversion-removed", "compatible conversion-added"},
	{"review versions", head + "  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1]}}\n  versions:\n" + v1 + alpha, head + "  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1beta1, v1]}}\n  versions:\n" + v1 + alpha, "compatible conversion-review-versions-changed", "compatible conversion-review-versions-changed"},
	{"conversion rules", head + converting("") + v1 + alpha, head + converting("00") + v1 + alpha, "compatible conversion-rules-added", "breaking conversion-rules-removed"},
	{"other conversion rules", head + converting("00") + v1 + alpha, head + converting("01") + v1 + alpha, "compatible conversion-rules-changed", "compatible conversion-rules-changed"},
	{"conversion rules and a field", head + converting("00") + v1 + alpha, head + converting("01") + v1 + strings.Replace(alpha, "{type: object}", "{type: object, properties: {a: {type: string}}}", 1),
		"compatible conversion-rules-changed; compatible field-added v1alpha1 .a", "compatible conversion-rules-changed; breaking field-removed v1alpha1 .a"},
	{"the same conversion rules elsewhere", head + converting("00") + v1 + alpha, head + strings.Replace(converting("00"), "/dev/", "/prod/", 1) + v1 + alpha, "", ""},
	{"conversion rules in place of nothing", head + "  versions:\n" + v1 + alpha, head + converting("00") + v1 + alpha, "compatible conversion-added", "breaking conversion-removed"},
	{"subresources", head + "  versions:\n" + v1, head + "  versions:\n" + strings.Replace(v1, "served", "subresources: {status: {}, scale: {specReplicasPath: .spec.a, statusReplicasPath: .status.a}}, served", 1),
		"breaking status-subresource-added; compatible scale-subresource-added", "breaking status-subresource-removed; breaking scale-subresource-removed"},
	{"a scale path", head + "  versions:\n" + strings.Replace(v1, "served", "subresources: {scale: {specReplicasPath: .spec.b, statusReplicasPath: .status.a}}, served", 1), head + "  versions:\n" + strings.Replace(v1, "served", "subresources: {scale: {specReplicasPath: .spec.a, statusReplicasPath: .status.a}}, served", 1),
		"breaking scale-subresource-changed .spec.a", "breaking scale-subresource-changed .spec.b"},
	{"columns", head + "  versions:\n" + strings.Replace(v1, "served", "additionalPrinterColumns: [{name: A, type: string, jsonPath: .a}, {name: B, type: string, jsonPath: .b}, {name: C, type: string, jsonPath: .c}], served", 1), head + "  versions:\n" + strings.Replace(v1, "served", "additionalPrinterColumns: [{name: B, type: string, jsonPath: .b, priority: 0, description: d}, {name: A, type: integer, jsonPath: .a}, {name: D, type: string, jsonPath: .c}], served", 1),
		"compatible printer-column-added; compatible printer-column-changed; compatible printer-column-removed; compatible printer-columns-reordered", "compatible printer-column-added; compatible printer-column-changed; compatible printer-column-removed; compatible printer-columns-reordered"},
	{"the column that is always there", head + "  versions:\n" + v1, head + "  versions:\n" + strings.Replace(v1, "served", "additionalPrinterColumns: [{name: Age, type: date, jsonPath: .metadata.creationTimestamp, description: d}], served", 1), "", ""},
	{"selectable fields", head + "  versions:\n" + v1, head + "  versions:\n" + strings.Replace(v1, "served", "selectableFields: [{jsonPath: .spec.a}], served", 1), "compatible selectable-field-added", "breaking selectable-field-removed"},
	{"versions without conversion", head + "  versions:\n" + v1 + alpha, head + "  versions:\n" + v1 + strings.Replace(alpha, "{type: object}", "{type: object, properties: {a: {type: string}}}", 1),
		"compatible field-added v1alpha1 .a; breaking versions-disagree v1alpha1 -> v1 .a", "breaking field-removed v1alpha1 .a"},
	{"versions without conversion, on the way to etcd", head + "  versions:\n" + v1 + alpha, head + "  versions:\n" + strings.Replace(v1, "{type: object}", "{type: object, properties: {a: {type: string}}}", 1) + alpha,
		"compatible field-added .a", "breaking field-removed .a"},
	{"an older version stored that lacks a field", head + "  versions:\n" + strings.Replace(v1, "storage: true", "storage: false", 1) + strings.Replace(strings.Replace(alpha, "storage: false", "storage: true", 1), "{type: object}", "{type: object, properties: {a: {type: string}}}", 1), head + "  versions:\n" + v1 + strings.Replace(alpha, "{type: object}", "{type: object, properties: {a: {type: string}}}", 1),
		"compatible storage-version-changed; breaking storage-version-drops v1alpha1 -> v1 .a", "compatible storage-version-changed"},
	{"a stored version is no longer served, and the new one lacks a field", head + "  versions:\n" + strings.Replace(v1, "{type: object}", "{type: object, properties: {a: {type: string}}}", 1), head + "  versions:\n" + strings.Replace(strings.Replace(v1, "served: true, storage: true", "served: false, storage: false", 1), "{type: object}", "{type: object, properties: {a: {type: string}}}", 1) + strings.Replace(strings.Replace(v1, "name: v1", "name: v2", 1), "{type: object}", "{type: object, properties: {b: {type: string}}}", 1),
		"compatible storage-version-changed; breaking storage-version-drops v1 -> v2 .a; breaking version-unserved; compatible version-added v2; breaking versions-disagree v1 -> v2 .a", "compatible storage-version-changed; breaking version-removed v2; breaking stored-version-removed v2; compatible version-served"},
	{"newer versions stored in an older one", head + "  versions:\n" + strings.Replace(v1, "storage: true", "storage: false", 1) + strings.Replace(alpha, "storage: false", "storage: true", 1), head + "  versions:\n" + strings.Replace(strings.Replace(v1, "storage: true", "storage: false", 1), "{type: object}", "{type: object, properties: {a: {type: string}}}", 1) + strings.Replace(alpha, "storage: false", "storage: true", 1),
		"compatible field-added .a; breaking versions-disagree v1 -> v1alpha1 .a", "breaking field-removed .a"},
	{"metadata", head + "  versions:\n" + v1, head + "  versions:\n" + strings.Replace(v1, "{type: object}", "{type: object, properties: {apiVersion: {type: string}, kind: {type: string}, metadata: {type: object, properties: {name: {maxLength: 5}}}}}", 1),
		"breaking max-length-added .metadata.name", "compatible max-length-removed .metadata.name"},
}

func TestDefinitions(t *testing.T) {
	for _, tt := range definitionCases {
		t.Run(tt.name, func(t *testing.T) {
			old, new := versioned(t, tt.old), versioned(t, tt.new)
			check(t, old, new, Options{}, tt.forth)
			check(t, new, old, Options{}, tt.back)
		})
	}
	t.Run("a default that the stored version lacks", func(t *testing.T) {
		schema := func(version, fields string) string {
			return strings.Replace(version, "{type: object}", "{type: object, "+fields+"}", 1)
		}
		const red = "required: [a], properties: {a: {type: string, default: red}}"
		before := strings.Replace(v1, "storage: true", "storage: false", 1)
		v2 := strings.Replace(v1, "name: v1", "name: v2", 1)
		served := strings.Replace(before, "name: v1", "name: v2", 1)
		unserved := strings.Replace(v2, "served: true", "served: false", 1)
		old := versioned(t, head+"  versions:\n"+v1)
		moved := "compatible storage-version-changed; compatible version-added v2"
		report := check(t, old, versioned(t, head+"  versions:\n"+before+schema(v2, red)), Options{}, moved+"; breaking versions-disagree v1 -> v2 .a")
		if i := slices.IndexFunc(report.Findings, func(f Finding) bool { return f.Name == VersionsDisagree }); i < 0 || report.Findings[i].Advice != unfilledAdvice {
			t.Errorf("findings %v, want one with advice on the default", report.Findings)
		}
		check(t, old, versioned(t, head+"  versions:\n"+v1+schema(served, red)), Options{}, "compatible version-added v2; breaking versions-disagree v1 -> v2 .a; breaking versions-disagree v2 -> v1 .a")
		// The version that objects are stored in has the default, too.
		check(t, versioned(t, head+"  versions:\n"+schema(v1, red)), versioned(t, head+"  versions:\n"+schema(before, red)+schema(v2, red)), Options{}, moved)
		// First the objects are stored in the new version, and then it is served.
		stored := versioned(t, head+"  versions:\n"+before+schema(unserved, red))
		check(t, old, stored, Options{}, moved)
		check(t, stored, versioned(t, head+"  versions:\n"+before+schema(v2, red)), Options{StoredVersions: []string{"v2"}}, "compatible version-served v2")
		check(t, stored, versioned(t, head+"  versions:\n"+before+schema(v2, red)), Options{StoredVersions: []string{"v1", "v2"}}, "compatible version-served v2; breaking versions-disagree v1 -> v2 .a")
	})
	t.Run("what is stored", func(t *testing.T) {
		unserved := strings.Replace(alpha, "served: true", "served: false", 1)
		converted := "  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1]}}\n"
		old := versioned(t, head+converted+"  versions:\n"+v1+unserved)
		new := versioned(t, head+"  versions:\n"+v1)
		only, both := Options{StoredVersions: []string{"v1"}}, Options{StoredVersions: []string{"v1alpha1", "v1"}}
		check(t, old, new, Options{}, "breaking conversion-removed; breaking version-removed v1alpha1")
		check(t, old, new, only, "compatible conversion-removed; compatible version-removed v1alpha1")
		refused := check(t, old, new, both, "breaking conversion-removed; breaking stored-version-removed v1alpha1; compatible version-removed v1alpha1")
		if i := slices.IndexFunc(refused.Findings, func(f Finding) bool { return f.Name == "stored-version-removed" }); i < 0 ||
			refused.Findings[i].Detail != "status.storedVersions has v1alpha1: run `gitopsd migrate --yes`" {
			t.Errorf("findings %v, want one that names the command", refused.Findings)
		}
		// The status of the old definition counts if there are no Options.StoredVersions.
		old = maps.Clone(old)
		old["status"] = map[string]any{"storedVersions": []any{"v1alpha1", "v1"}}
		check(t, old, new, Options{}, "breaking conversion-removed; breaking stored-version-removed v1alpha1; compatible version-removed v1alpha1")
		check(t, old, new, only, "compatible conversion-removed; compatible version-removed v1alpha1")
		// A version that is not served matters if objects are stored in it.
		tighter := versioned(t, head+converted+"  versions:\n"+v1+strings.Replace(unserved, "{type: object}", "{type: object, maxProperties: 9}", 1))
		check(t, old, tighter, only, "compatible max-properties-added v1alpha1")
		check(t, old, tighter, both, "breaking max-properties-added v1alpha1")
		delete(old, "status")
		check(t, old, tighter, Options{}, "breaking max-properties-added v1alpha1")
	})
	t.Run("the storage version moves away from fields that are stored", func(t *testing.T) {
		// v1alpha1 has a field that v1 lacks.
		with := func(storage string, served bool) map[string]any {
			wide := strings.Replace(alpha, "{type: object}", "{type: object, properties: {a: {type: string}}}", 1)
			wide = strings.Replace(wide, "served: true", "served: "+strconv.FormatBool(served), 1)
			all := v1 + wide
			if storage == "v1alpha1" {
				all = strings.NewReplacer("storage: true", "storage: false", "storage: false", "storage: true").Replace(all)
			}
			return versioned(t, head+"  versions:\n"+all)
		}
		const drops = "compatible storage-version-changed; breaking storage-version-drops v1alpha1 -> v1 .a"
		stored, elsewhere := Options{StoredVersions: []string{"v1alpha1"}}, Options{StoredVersions: []string{"v1"}}
		old, hidden := with("v1alpha1", true), with("v1alpha1", false)
		check(t, old, with("v1", true), stored, drops)
		check(t, old, with("v1", false), stored, drops+"; breaking version-unserved v1alpha1")
		check(t, hidden, with("v1", false), stored, drops)
		check(t, hidden, with("v1", false), Options{}, drops)
		check(t, hidden, with("v1", false), elsewhere, "compatible storage-version-changed")
		// Only stored objects have the fields of a version that is not served.
		for _, f := range check(t, hidden, with("v1", false), stored, drops).Findings {
			if f.Name == "storage-version-drops" && f.Breaks != StoredObjects {
				t.Errorf("%s", f)
			}
		}
	})
	t.Run("the whole definition", func(t *testing.T) {
		only := versioned(t, head+"  versions:\n"+v1)
		check(t, nil, only, Options{}, "compatible definition-added")
		check(t, only, nil, Options{}, "breaking definition-removed")
		check(t, nil, nil, Options{}, "")
	})
}

// A new subresource scale breaks objects with values that it refuses.
func TestScale(t *testing.T) {
	definition := func(replicas, scale string) map[string]any {
		version := strings.Replace(v1, "{type: object}", "{type: object, properties: {spec: {type: object, properties: {a: "+replicas+"}}, status: {type: object, properties: {a: {type: integer}, s: {type: string}, l: {type: array, items: {type: string}}}}}}", 1)
		return versioned(t, head+"  versions:\n"+strings.Replace(version, "served", "subresources: {"+scale+"}, served", 1))
	}
	const scale, breaking, compatible = "scale: {specReplicasPath: .spec.a, statusReplicasPath: .status.a}", "breaking scale-subresource-added .spec.a", "compatible scale-subresource-added"
	for _, tt := range []struct{ replicas, scale, want string }{
		{"{type: integer}", scale, breaking},
		{"{type: integer, minimum: 0}", scale, breaking},
		{"{type: integer, maximum: 5}", scale, breaking},
		{"{type: integer, minimum: -1, maximum: 5}", scale, breaking},
		{"{type: integer, minimum: 0, format: int64}", scale, breaking},
		{"{type: integer, minimum: 0, maximum: 2147483648}", scale, breaking},
		{"{type: number, minimum: 0, maximum: 5}", scale, breaking},
		{"{type: integer, minimum: 0, maximum: 5, nullable: true}", scale, breaking},
		{"{x-kubernetes-preserve-unknown-fields: true}", scale, breaking},
		{"{type: integer, minimum: 0, format: int32}", scale, compatible},
		{"{type: integer, minimum: 0, maximum: 2147483647}", scale, compatible},
		{"{type: integer, minimum: -1, exclusiveMinimum: true, maximum: 5}", scale, compatible},
		{"{type: string}", "scale: {specReplicasPath: .spec.aew, statusReplicasPath: .status.a}", compatible},
		{"{type: string}", "scale: {specReplicasPath: .spec.a.in, statusReplicasPath: .status.a}", "breaking scale-subresource-added .spec.a.in"},
		{"{type: object, additionalProperties: {type: integer}}", "scale: {specReplicasPath: .spec.a.in, statusReplicasPath: .status.a}", "breaking scale-subresource-added .spec.a.in"},
		{"{type: string}", "scale: {specReplicasPath: .spec.aew, statusReplicasPath: .status.a, labelSelectorPath: .status.s}", compatible},
		{"{type: string}", "scale: {specReplicasPath: .spec.a, statusReplicasPath: .status.s, labelSelectorPath: .status.l}",
			"breaking scale-subresource-added .spec.a; breaking scale-subresource-added .status.s; breaking scale-subresource-added .status.l"},
	} {
		t.Run(tt.replicas+" "+tt.scale, func(t *testing.T) {
			check(t, definition(tt.replicas, ""), definition(tt.replicas, tt.scale), Options{}, tt.want)
		})
	}
}

const xrd = `
apiVersion: apiextensions.crossplane.io/v1
kind: CompositeResourceDefinition
metadata: {name: xnetworks.example.org}
spec:
  group: example.org
  names: {kind: XNetwork, plural: xnetworks}
  versions:
  - {name: v1, served: true, referenceable: true, schema: {openAPIV3Schema: {type: object}}}
`

func TestComposites(t *testing.T) {
	with := func(more string) string { return strings.Replace(xrd, "  group", more+"  group", 1) }
	for _, tt := range []struct{ name, old, new, forth, back string }{
		{"a claim", xrd, with("  claimNames: {kind: Network, plural: networks}\n"), "compatible claim-added", "breaking claim-removed"},
		{"a claim's name", with("  claimNames: {kind: Network, plural: networks}\n"), with("  claimNames: {kind: Network, plural: networks, shortNames: [net]}\n"), "compatible short-name-added", "breaking short-name-removed"},
		{"keys", xrd, with("  connectionSecretKeys: [a]\n"), "breaking connection-keys-narrowed", "compatible connection-keys-widened"},
		{"a composition", xrd, with("  defaultCompositionRef: {name: a}\n"), "compatible composition-changed", "compatible composition-changed"},
		{"Crossplane's defaults", xrd, with("  defaultCompositeDeletePolicy: Background\n  scope: LegacyCluster\n"), "", ""},
		{"a schema", xrd, strings.Replace(xrd, "{type: object}", "{type: object, properties: {spec: {type: object}}}", 1), "compatible field-added .spec", "breaking field-removed .spec"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			check(t, manifesttest.Tree(t, tt.old), manifesttest.Tree(t, tt.new), Options{}, tt.forth)
			check(t, manifesttest.Tree(t, tt.new), manifesttest.Tree(t, tt.old), Options{}, tt.back)
		})
	}
}

// The tables above have every finding.
func TestEveryFinding(t *testing.T) {
	t.Run("Schemas", TestSchemas)
	t.Run("Definitions", TestDefinitions)
	t.Run("Composites", TestComposites)
	for _, name := range Names() {
		if !seen[name] {
			t.Errorf("no case has %s", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		if !slices.Contains(Names(), name) {
			t.Errorf("%s is not among Names", name)
		}
	}
}
