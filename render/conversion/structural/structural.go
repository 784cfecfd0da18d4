// Package structural reads structural schemas, the OpenAPI v3 schemas of
// CustomResourceDefinitions: the kind of a schema, the schemas of its fields and elements,
// and whether values fit.
package structural

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Kinds of schemas. An Object has properties, a Map has values of one schema, and Any
// accepts other fields or any JSON.
const (
	String      = "string"
	Integer     = "integer"
	Number      = "number"
	Boolean     = "boolean"
	Object      = "object"
	Map         = "map"
	List        = "list"
	IntOrString = "integer or string"
	Any         = "any value"
)

// Anything is the schema of any JSON.
var Anything = map[string]any{"x-kubernetes-preserve-unknown-fields": true}

// Kind returns the kind of a schema.
func Kind(schema map[string]any) string {
	if schema["x-kubernetes-int-or-string"] == true {
		return IntOrString
	}
	switch manifest.Text(schema, "type") {
	case "string":
		return String
	case "integer":
		return Integer
	case "number":
		return Number
	case "boolean":
		return Boolean
	case "array":
		return List
	case "object":
		switch {
		case manifest.Mapping(schema, "additionalProperties") != nil:
			return Map
		case len(manifest.Mapping(schema, "properties")) > 0 && !Open(schema):
			return Object
		}
	}
	return Any
}

// Open reports whether objects may have fields that the schema does not name.
func Open(schema map[string]any) bool {
	return schema["x-kubernetes-preserve-unknown-fields"] == true || schema["x-kubernetes-embedded-resource"] == true
}

// Element returns the schema of a list's elements or a map's values; nil if there is
// none.
func Element(schema map[string]any) map[string]any {
	if Kind(schema) == Map {
		return manifest.Mapping(schema, "additionalProperties")
	}
	return manifest.Mapping(schema, "items")
}

// Nullable reports whether the schema allows null.
func Nullable(schema map[string]any) bool {
	return schema["nullable"] == true || Kind(schema) == Any && schema["type"] == nil
}

// Visible returns the schema of the fields that conversions may change: all but
// apiVersion, kind, and metadata other than labels and annotations.
func Visible(schema map[string]any) map[string]any {
	texts := map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "string"}}
	fields := map[string]any{}
	maps.Copy(fields, manifest.Mapping(schema, "properties"))
	delete(fields, "apiVersion")
	delete(fields, "kind")
	fields["metadata"] = map[string]any{"type": "object", "properties": map[string]any{"labels": texts, "annotations": texts}}
	seen := map[string]any{"type": "object", "properties": fields}
	if Open(schema) {
		seen["x-kubernetes-preserve-unknown-fields"] = true
	}
	return seen
}

// Child returns the schema of a field, or of the value of a key; nil if there is none.
// Fields of values that may be anything may be anything too.
func Child(schema map[string]any, name string) map[string]any {
	switch Kind(schema) {
	case Map:
		return Element(schema)
	case Object, Any:
		if s := manifest.Mapping(schema, "properties", name); s != nil {
			return s
		}
		if Kind(schema) == Any && (Open(schema) || schema["type"] == nil || len(manifest.Mapping(schema, "properties")) == 0) {
			return Anything
		}
	}
	return nil
}

// In follows a rule's path in a version's schema. The error names the field that is
// missing.
func In(schema map[string]any, path rules.Path, version string) (map[string]any, error) {
	for i, s := range path {
		var next map[string]any
		switch kind := Kind(schema); {
		case s.Element && kind == List, s.Each && (kind == List || kind == Map):
			next = Element(schema)
		case s.Element || s.Each:
			return nil, fmt.Errorf("%s is %s in %s, and has no elements", path[:i], Article(kind), version)
		default:
			next = Child(schema, s.Key)
			if next == nil {
				return nil, fmt.Errorf("%s is no field of %s%s", path[:i+1], version, suggested(schema, path, i))
			}
		}
		if next == nil {
			next = Anything
		}
		schema = next
	}
	return schema, nil
}

// suggested returns a hint with the closest name of a field, if there is one.
func suggested(schema map[string]any, path rules.Path, i int) string {
	c := sources.Closest(path[i].Key, slices.Sorted(maps.Keys(manifest.Mapping(schema, "properties"))))
	if c == "" {
		return ""
	}
	meant := slices.Clone(path)
	meant[i].Key = c
	return "; did you mean " + meant.String() + "?"
}

// Article returns a kind with its article: "an object".
func Article(kind string) string {
	if kind == Integer || kind == Object || kind == IntOrString {
		return "an " + kind
	}
	if kind == Any {
		return kind
	}
	return "a " + kind
}

// Holds reports whether a scalar value is of a kind.
func Holds(kind string, v any) bool {
	switch v.(type) {
	case string:
		return kind == String || kind == IntOrString || kind == Any
	case bool:
		return kind == Boolean || kind == Any
	case int64:
		return kind == Integer || kind == Number || kind == IntOrString || kind == Any
	case float64, json.Number:
		return kind == Number || kind == Any
	}
	return false
}

// Fits returns an error if a value, or one in it, has another type than the schema or a
// field that the schema lacks. Formats and limits are left to the API server.
func Fits(schema map[string]any, v any, path string) error {
	kind := Kind(schema)
	if kind == Any && schema["type"] == nil && len(manifest.Mapping(schema, "properties")) == 0 && Element(schema) == nil {
		return nil // any value, however deep
	}
	at := func() string {
		if path == "" {
			return "the value"
		}
		return path
	}
	switch v := v.(type) {
	case nil:
		if Nullable(schema) {
			return nil
		}
		return fmt.Errorf("%s is null; want %s", at(), Article(kind))
	case map[string]any:
		if kind != Object && kind != Map && (kind != Any || schema["type"] != nil && schema["type"] != "object") {
			return fmt.Errorf("%s is a mapping; want %s", at(), Article(kind))
		}
		for _, k := range slices.Sorted(maps.Keys(v)) {
			s := Child(schema, k)
			if s == nil {
				return fmt.Errorf("%s is no field", field.Join(path, field.Key(k)))
			}
			if err := Fits(s, v[k], field.Join(path, field.Key(k))); err != nil {
				return err
			}
		}
	case []any:
		if kind != List && (kind != Any || schema["type"] != nil) {
			return fmt.Errorf("%s is a list; want %s", at(), Article(kind))
		}
		for i, item := range v {
			if s := Element(schema); s != nil {
				if err := Fits(s, item, field.Join(path, field.Index(i))); err != nil {
					return err
				}
			}
		}
	default:
		if !Holds(kind, v) || kind == Any && schema["type"] != nil {
			return fmt.Errorf("%s is a %s; want %s", at(), typeName(v), Article(kind))
		}
	}
	return nil
}

func typeName(v any) string {
	switch v.(type) {
	case string:
		return String
	case bool:
		return Boolean
	case int64:
		return Integer
	}
	return Number
}

// Unbounded returns the path of a field in a schema that has no limit of size; empty if
// all are limited.
func Unbounded(schema map[string]any, path string) string {
	switch Kind(schema) {
	case String:
		if schema["maxLength"] == nil && schema["enum"] == nil && schema["format"] == nil {
			return path
		}
	case List, Map:
		limit := "maxItems"
		if Kind(schema) == Map {
			limit = "maxProperties"
		}
		if schema[limit] == nil {
			return path
		}
		return Unbounded(Element(schema), path+"[]")
	case Object:
		fields := manifest.Mapping(schema, "properties")
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if at := Unbounded(manifest.Mapping(fields, name), field.Join(path, field.Key(name))); at != "" {
				return at
			}
		}
	case Any:
		return path
	}
	return ""
}

// Known returns a value without fields that its schema lacks.
func Known(schema map[string]any, v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, value := range v {
			if s := Child(schema, k); s != nil && (value != nil || Nullable(s)) {
				out[k] = Known(s, value)
			}
		}
		return out
	case []any:
		s := Element(schema)
		if s == nil {
			return v
		}
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = Known(s, item)
		}
		return out
	}
	return v
}
