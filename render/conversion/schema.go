package conversion

import (
	"encoding/json"
	"fmt"
	"slices"
	"sort"

	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// Kinds of schemas. An object is one with properties of its own, a map has values of
// one schema, and any is whatever JSON there is.
const (
	kindString      = "string"
	kindInteger     = "integer"
	kindNumber      = "number"
	kindBoolean     = "boolean"
	kindObject      = "object"
	kindMap         = "map"
	kindList        = "list"
	kindIntOrString = "integer or string"
	kindAny         = "any value"
)

func kindOf(schema map[string]any) string {
	if schema["x-kubernetes-int-or-string"] == true {
		return kindIntOrString
	}
	switch manifest.Text(schema, "type") {
	case "string":
		return kindString
	case "integer":
		return kindInteger
	case "number":
		return kindNumber
	case "boolean":
		return kindBoolean
	case "array":
		return kindList
	case "object":
		switch {
		case manifest.Mapping(schema, "additionalProperties") != nil:
			return kindMap
		case len(manifest.Mapping(schema, "properties")) > 0 && !open(schema):
			return kindObject
		}
	}
	return kindAny
}

// open reports whether an object may have fields that its schema does not have.
func open(schema map[string]any) bool {
	return schema["x-kubernetes-preserve-unknown-fields"] == true || schema["x-kubernetes-embedded-resource"] == true
}

// element is the schema of a list's elements or of a map's values.
func element(schema map[string]any) map[string]any {
	if kindOf(schema) == kindMap {
		return manifest.Mapping(schema, "additionalProperties")
	}
	return manifest.Mapping(schema, "items")
}

func nullable(schema map[string]any) bool {
	return schema["nullable"] == true || kindOf(schema) == kindAny && schema["type"] == nil
}

// visible is the schema of what conversions may change: all but apiVersion, kind, and
// metadata other than labels and annotations.
func visible(schema map[string]any) map[string]any {
	texts := map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "string"}}
	fields := map[string]any{}
	for name, s := range manifest.Mapping(schema, "properties") {
		fields[name] = s
	}
	delete(fields, "apiVersion")
	delete(fields, "kind")
	fields["metadata"] = map[string]any{"type": "object", "properties": map[string]any{"labels": texts, "annotations": texts}}
	seen := map[string]any{"type": "object", "properties": fields}
	if open(schema) {
		seen["x-kubernetes-preserve-unknown-fields"] = true
	}
	return seen
}

// child returns the schema of a field or key; nil if there is none. Below any value
// there may be any.
func child(schema map[string]any, name string) map[string]any {
	switch kindOf(schema) {
	case kindMap:
		return element(schema)
	case kindObject, kindAny:
		if s := manifest.Mapping(schema, "properties", name); s != nil {
			return s
		}
		if kindOf(schema) == kindAny && (open(schema) || schema["type"] == nil || len(manifest.Mapping(schema, "properties")) == 0) {
			return map[string]any{"x-kubernetes-preserve-unknown-fields": true}
		}
	}
	return nil
}

// in follows a rule's path in a version's schema. The error says which field there is
// not.
func in(schema map[string]any, path rules.Path, version string) (map[string]any, error) {
	for i, s := range path {
		var next map[string]any
		switch kind := kindOf(schema); {
		case s.Element && kind == kindList, s.Each && (kind == kindList || kind == kindMap):
			next = element(schema)
		case s.Element || s.Each:
			return nil, fmt.Errorf("%s is %s in %s, and has no elements", path[:i], article(kind), version)
		default:
			next = child(schema, s.Key)
			if next == nil {
				return nil, fmt.Errorf("%s is no field of %s%s", path[:i+1], version, suggested(schema, path, i))
			}
		}
		if next == nil {
			next = map[string]any{"x-kubernetes-preserve-unknown-fields": true}
		}
		schema = next
	}
	return schema, nil
}

func suggested(schema map[string]any, path rules.Path, i int) string {
	c := rules.Closest(path[i].Key, keys(manifest.Mapping(schema, "properties")))
	if c == "" {
		return ""
	}
	meant := slices.Clone(path)
	meant[i].Key = c
	return "; did you mean " + meant.String() + "?"
}

func article(kind string) string {
	if kind == kindInteger || kind == kindObject || kind == kindIntOrString {
		return "an " + kind
	}
	if kind == kindAny {
		return kind
	}
	return "a " + kind
}

func keys[V any](m map[string]V) []string {
	all := make([]string, 0, len(m))
	for k := range m {
		all = append(all, k)
	}
	sort.Strings(all)
	return all
}

// holds reports whether a value that is not a list or mapping is of a kind.
func holds(kind string, v any) bool {
	switch v.(type) {
	case string:
		return kind == kindString || kind == kindIntOrString || kind == kindAny
	case bool:
		return kind == kindBoolean || kind == kindAny
	case int64:
		return kind == kindInteger || kind == kindNumber || kind == kindIntOrString || kind == kindAny
	case float64, json.Number:
		return kind == kindNumber || kind == kindAny
	}
	return false
}

// fits returns why a value is none of the schema's: another type, or a field that it
// does not have. Formats and limits are the API server's to check.
func fits(schema map[string]any, v any, path string) error {
	kind := kindOf(schema)
	at := func() string {
		if path == "" {
			return "the value"
		}
		return path
	}
	switch v := v.(type) {
	case nil:
		if nullable(schema) {
			return nil
		}
		return fmt.Errorf("%s is null; want %s", at(), article(kind))
	case map[string]any:
		if kind != kindObject && kind != kindMap && (kind != kindAny || schema["type"] != nil && schema["type"] != "object") {
			return fmt.Errorf("%s is a mapping; want %s", at(), article(kind))
		}
		for _, k := range keys(v) {
			s := child(schema, k)
			if s == nil {
				return fmt.Errorf("%s is no field", field.Join(path, field.Key(k)))
			}
			if err := fits(s, v[k], field.Join(path, field.Key(k))); err != nil {
				return err
			}
		}
	case []any:
		if kind != kindList && (kind != kindAny || schema["type"] != nil) {
			return fmt.Errorf("%s is a list; want %s", at(), article(kind))
		}
		for i, item := range v {
			if s := element(schema); s != nil {
				if err := fits(s, item, field.Join(path, field.Index(i))); err != nil {
					return err
				}
			}
		}
	default:
		if !holds(kind, v) || kind == kindAny && schema["type"] != nil {
			return fmt.Errorf("%s is a %s; want %s", at(), typeName(v), article(kind))
		}
	}
	return nil
}

func typeName(v any) string {
	switch v.(type) {
	case string:
		return kindString
	case bool:
		return kindBoolean
	case int64:
		return kindInteger
	}
	return kindNumber
}

// unbounded returns a place in a schema where values have no limit of size, empty if
// all are limited.
func unbounded(schema map[string]any, path string) string {
	switch kindOf(schema) {
	case kindString:
		if schema["maxLength"] == nil && schema["enum"] == nil && schema["format"] == nil {
			return path
		}
	case kindList, kindMap:
		limit := "maxItems"
		if kindOf(schema) == kindMap {
			limit = "maxProperties"
		}
		if schema[limit] == nil {
			return path
		}
		return unbounded(element(schema), path+"[]")
	case kindObject:
		fields := manifest.Mapping(schema, "properties")
		for _, name := range keys(fields) {
			if at := unbounded(manifest.Mapping(fields, name), field.Join(path, field.Key(name))); at != "" {
				return at
			}
		}
	case kindAny:
		return path
	}
	return ""
}
