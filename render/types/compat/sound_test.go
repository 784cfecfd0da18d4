package compat

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	apiservercel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"gitopsd.dev/render/manifest"
)

// server treats objects of a type like the API server.
type server struct {
	structural *structural.Structural
	validator  validation.SchemaValidator
	rules      *apiservercel.Validator
	// keeps is set if the definition preserves unknown fields everywhere.
	keeps bool
}

// newServer returns nil for a schema that the API server refuses.
func newServer(t *testing.T, schema node) *server {
	t.Helper()
	return serverOf(t, node{"type": "object", "properties": node{"spec": schema}})
}

// serverOf returns a server of whole objects.
func serverOf(t *testing.T, root node) *server {
	t.Helper()
	internal, err := internalSchema(root)
	if err != nil {
		t.Fatal(err)
	}
	s, err := structural.NewStructural(internal)
	if err != nil || len(structural.ValidateStructural(nil, s)) > 0 {
		return nil
	}
	if errs, err := defaulting.ValidateDefaults(t.Context(), nil, s, true, true); err != nil || len(errs) > 0 {
		return nil
	}
	v, _, err := validation.NewSchemaValidator(internal)
	if err != nil {
		return nil
	}
	return &server{structural: s, validator: v, rules: apiservercel.NewValidator(s, true, celconfig.PerCallLimit)}
}

// reads returns an object as the API server returns it.
func (s *server) reads(object map[string]any) map[string]any {
	object = runtime.DeepCopyJSON(object)
	if !s.keeps {
		pruning.Prune(object, s.structural, true)
	}
	defaulting.PruneNonNullableNullsWithoutDefaults(object, s.structural)
	return object
}

func (s *server) defaulted(object map[string]any) map[string]any {
	object = runtime.DeepCopyJSON(object)
	defaulting.Default(object, s.structural)
	return object
}

func (s *server) accepts(object map[string]any) error {
	errs := validation.ValidateCustomResource(nil, object, s.validator)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, object)...)
	errs = append(errs, objectmeta.Validate(context.Background(), nil, object, s.structural, true)...)
	if s.rules != nil && len(errs) == 0 {
		broken, _ := s.rules.Validate(context.Background(), nil, s.structural, object, nil, celconfig.RuntimeCELCostBudget)
		errs = append(errs, broken...)
	}
	return errs.ToAggregate()
}

// generator makes random schemas and values. They are small, so that they often match.
type generator struct{ *rand.Rand }

func (g generator) often() bool  { return g.IntN(3) > 0 }
func (g generator) seldom() bool { return g.IntN(6) == 0 }

func pick[T any](g generator, values ...T) T { return values[g.IntN(len(values))] }

var someNames = []string{"x", "y", "z"}

// schema makes a structural schema.
func (g generator) schema(depth int) node {
	kinds := []string{"string", "integer", "number", "boolean", "int-or-string", "preserving"}
	if depth > 0 {
		kinds = append(kinds, "object", "object", "object", "array", "map")
	}
	s := node{}
	switch kind := pick(g, kinds...); kind {
	case "int-or-string":
		s["x-kubernetes-int-or-string"] = true
	case "preserving":
		s["x-kubernetes-preserve-unknown-fields"] = true
		if g.often() {
			s["type"] = "object"
		}
	case "map":
		s["type"] = "object"
		s["additionalProperties"] = pick[any](g, g.schema(depth-1), g.schema(depth-1), true, false)
	case "object":
		s["type"] = "object"
		properties := node{}
		for _, name := range someNames {
			if g.often() {
				properties[name] = g.schema(depth - 1)
			}
		}
		s["properties"] = properties
		if g.seldom() {
			s["x-kubernetes-preserve-unknown-fields"] = true
		}
		if g.seldom() && len(properties) > 0 {
			s["x-kubernetes-embedded-resource"] = true
			if g.often() {
				properties["kind"] = node{"type": "string"}
			}
		}
	case "array":
		s["type"], s["items"] = "array", g.schema(depth-1)
		if t := manifest.Text(s, "items", "type"); g.seldom() && t != "" && t != "array" && t != "object" {
			s["x-kubernetes-list-type"] = "set"
		}
	default:
		s["type"] = kind
	}
	for g.often() {
		g.constrain(s, depth)
	}
	return s
}

// constrain sets, changes or removes one keyword that checks values.
func (g generator) constrain(s node, depth int) {
	keywords := map[string]func() any{
		"nullable":  func() any { return true },
		"enum":      func() any { return g.values(s) },
		"maxLength": func() any { return int64(g.IntN(4)) },
		"minLength": func() any { return int64(g.IntN(3)) },
		"pattern":   func() any { return pick(g, "^a", "b$", "^[a-c]*$") },
		"format": func() any {
			return pick(g, "ipv4", "date", "color", "int32", "int64", "double", "float", "date-time", "datetime", "password")
		},
		"x-kubernetes-validations": func() any { return g.rules() },
		"maximum":                  func() any { return float64(g.IntN(8)) / 2 },
		"minimum":                  func() any { return float64(g.IntN(8))/2 - 2 },
		"multipleOf":               func() any { return pick[any](g, 0.5, int64(1), int64(2), int64(3)) },
		"maxItems":                 func() any { return int64(g.IntN(4)) },
		"minItems":                 func() any { return int64(g.IntN(3)) },
		"maxProperties":            func() any { return int64(g.IntN(4)) },
		"minProperties":            func() any { return int64(g.IntN(3)) },
		"exclusiveMaximum":         func() any { return true }, "exclusiveMinimum": func() any { return true },
		"required": func() any { return []any{pick(g, someNames...), pick(g, someNames...)} },
		"not":      func() any { return g.check(s, depth) },
		"anyOf":    func() any { return []any{g.check(s, depth), g.check(s, depth)} },
		"oneOf":    func() any { return []any{g.check(s, depth), g.check(s, depth)} },
		"allOf":    func() any { return []any{g.check(s, depth), g.check(s, depth)} },
		"default":  func() any { return g.value(s, 2) },
	}
	k := pick(g, slices.Sorted(maps.Keys(keywords))...)
	if (k == "default" || k == "nullable" || k == "x-kubernetes-validations") && s[inBranch] != nil {
		return
	}
	if k == "x-kubernetes-validations" && manifest.Mapping(s, "properties") == nil {
		return
	}
	if g.seldom() {
		delete(s, k)
		return
	}
	s[k] = keywords[k]()
}

// rules are about the fields of an object, or about all of it.
func (g generator) rules() []any {
	var rules []any
	for range 1 + g.IntN(2) {
		name, other := pick(g, someNames...), pick(g, someNames...)
		rules = append(rules, node{"rule": pick(g,
			"has(self."+name+")", "has( self."+name+" )", "!has(self."+name+")", "!has(self."+name+") || has(self."+other+")",
			"has(self."+name+") != has(self."+other+")")})
	}
	return rules
}

// inBranch marks an unfinished schema in allOf, anyOf, oneOf or not.
const inBranch = "x-in-branch"

// check makes a schema for allOf, anyOf, oneOf or not, that checks fields of s.
func (g generator) check(s node, depth int) node {
	b := node{inBranch: true}
	if depth > 0 && g.often() {
		checks := node{}
		for name, property := range manifest.Mapping(s, "properties") {
			if p, ok := property.(node); ok && g.often() {
				checks[name] = g.check(p, depth-1)
			}
		}
		if len(checks) > 0 {
			b["properties"] = checks
		}
		if items := manifest.Mapping(s, "items"); items != nil {
			b["items"] = g.check(items, depth-1)
		}
	}
	if len(b) == 1 || g.seldom() {
		g.constrain(b, min(depth, 1)-1)
	}
	delete(b, inBranch)
	return b
}

// changed returns a copy of s with one or two changes.
func (g generator) changed(s node, depth int) node {
	s = runtime.DeepCopyJSON(s)
	for again := true; again; again = g.seldom() {
		g.change(s, depth)
	}
	return s
}

func (g generator) change(s node, depth int) {
	properties := manifest.Mapping(s, "properties")
	switch choice := g.IntN(10); {
	case choice < 4 && len(properties) > 0:
		name := pick(g, names(properties, nil)...)
		if p, ok := properties[name].(node); ok {
			g.change(p, depth-1)
		}
	case choice < 4 && manifest.Mapping(s, "items") != nil:
		g.change(manifest.Mapping(s, "items"), depth-1)
	case choice < 4 && manifest.Mapping(s, "additionalProperties") != nil:
		g.change(manifest.Mapping(s, "additionalProperties"), depth-1)
	case choice == 4 && properties != nil:
		properties[pick(g, someNames...)] = g.schema(max(depth-1, 0))
	case choice == 5 && len(properties) > 0:
		delete(properties, pick(g, names(properties, nil)...))
	case choice == 6 && g.seldom():
		clear(s)
		for k, v := range g.schema(max(depth, 0)) {
			s[k] = v
		}
	default:
		for _, k := range []string{"anyOf", "oneOf", "allOf"} {
			if list, ok := s[k].([]any); ok && g.often() {
				b := list[g.IntN(len(list))].(node)
				switch g.IntN(3) {
				case 0:
					s[k] = append(list, g.check(s, depth))
				case 1:
					s[k] = list[1:]
				default:
					b[inBranch] = true
					g.constrain(b, 0)
					delete(b, inBranch)
				}
				if len(s[k].([]any)) == 0 {
					delete(s, k)
				}
				return
			}
		}
		g.constrain(s, depth)
	}
}

// value makes a value that may fit.
func (g generator) value(s node, depth int) any {
	if list, ok := s["enum"].([]any); ok && g.often() {
		return pick(g, list...)
	}
	kind := manifest.Text(s, "type")
	if manifest.Truth(s, "x-kubernetes-int-or-string") {
		kind = pick(g, "integer", "string")
	}
	if kind == "" || g.IntN(20) == 0 {
		kind = pick(g, "string", "integer", "number", "boolean", "object", "null", "array")
	}
	switch kind {
	case "string":
		return pick(g, "", "a", "ab", "abc", "b", "1.2.3.4", "2020-01-02")
	case "integer":
		return int64(g.IntN(9) - 3)
	case "number":
		return float64(g.IntN(17)-5) / 2
	case "boolean":
		return g.IntN(2) == 0
	case "array":
		list := []any{}
		for range g.IntN(4) {
			list = append(list, g.value(manifest.Mapping(s, "items"), depth-1))
		}
		return list
	case "object":
		m := map[string]any{}
		if manifest.Truth(s, "x-kubernetes-embedded-resource") || g.seldom() {
			m["apiVersion"], m["kind"], m["metadata"] = "v1", "A", map[string]any{"name": "a"}
		}
		for _, name := range someNames {
			if g.often() && depth > 0 {
				property := manifest.Mapping(manifest.Mapping(s, "properties"), name)
				if property == nil {
					property = manifest.Mapping(s, "additionalProperties")
				}
				m[name] = g.value(property, depth-1)
			}
		}
		return m
	}
	return nil
}

func (g generator) values(s node) []any {
	without := runtime.DeepCopyJSON(s)
	delete(without, "enum")
	delete(without, inBranch)
	list := []any{}
	for range 1 + g.IntN(3) {
		list = append(list, g.value(without, 1))
	}
	return list
}

// Changes that Compare does not call breaking break no object: the API server still
// accepts objects of the old definition by the new one, and keeps all fields.
func FuzzSound(f *testing.F) {
	for seed := range uint64(300) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		g := generator{rand.New(rand.NewPCG(seed, 0))}
		oldSchema := g.schema(3)
		newSchema := g.changed(oldSchema, 3)
		before, after := newServer(t, oldSchema), newServer(t, newSchema)
		if before == nil || after == nil {
			return
		}
		r, err := Compare(t.Context(), definitionOf(oldSchema), definitionOf(newSchema), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if r.Severity == Breaking {
			return
		}
		for range 50 {
			object := map[string]any{"apiVersion": "example.org/v1", "kind": "Bucket", "spec": g.value(pick(g, oldSchema, newSchema), 4)}
			object = before.reads(before.defaulted(before.reads(object)))
			if before.accepts(object) != nil {
				continue
			}
			read := after.reads(object)
			why := after.accepts(after.defaulted(read))
			if why == nil && !reflect.DeepEqual(read, object) {
				why = errLost
			}
			if why != nil {
				t.Fatalf("not called breaking:\nold %s\nnew %s\nobject %s\nis read as %s\n%v\n%v", shown(oldSchema), shown(newSchema), shown(object), shown(read), why, r.Findings)
			}
		}
	})
}

var errLost = errors.New("fields are lost")

func shown(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func definitionOf(spec node) map[string]any {
	return map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": node{"name": "buckets.example.org"},
		"spec": node{
			"group": "example.org", "names": node{"kind": "Bucket", "plural": "buckets"}, "scope": "Namespaced",
			"versions": []any{node{
				"name": "v1", "served": true, "storage": true,
				"schema": node{"openAPIV3Schema": node{"type": "object", "properties": node{"spec": spec}}},
			}},
		},
	}
}
