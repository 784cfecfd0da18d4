package proof

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
)

// schema is a decoded structural schema, or a part of one. It must not be changed.
type schema map[string]any

// shape is the kind of values of a schema.
type shape int

const (
	scalar shape = iota
	object
	mapping
	list
)

// omitted is a keyword of this package: fields that a branch of a union excludes.
const omitted = "\x00omitted"

func (s schema) text(keyword string) string    { return manifest.Text(s, keyword) }
func (s schema) texts(keyword string) []string { return manifest.Texts(s, keyword) }
func (s schema) truth(keyword string) bool     { return manifest.Truth(s, keyword) }

func (s schema) shape() shape {
	switch {
	case s["enum"] != nil:
		return scalar
	case s["items"] != nil:
		return list
	case len(manifest.Mapping(s, "properties")) > 0:
		return object
	case manifest.Mapping(s, "additionalProperties") != nil:
		return mapping
	}
	return scalar
}

// fields returns the names of the properties that a value may have, sorted.
func (s schema) fields() []string {
	names := slices.Sorted(maps.Keys(manifest.Mapping(s, "properties")))
	if out := s.texts(omitted); len(out) > 0 {
		names = slices.DeleteFunc(names, func(n string) bool { return slices.Contains(out, n) })
	}
	return names
}

func (s schema) field(name string) schema { return schema(manifest.Mapping(s, "properties", name)) }
func (s schema) additional() schema       { return schema(manifest.Mapping(s, "additionalProperties")) }
func (s schema) items() schema            { return schema(manifest.Mapping(s, "items")) }

func (s schema) requires(name string) bool { return slices.Contains(s.texts("required"), name) }

// count returns want, limited by minItems and maxItems, or by minProperties and
// maxProperties.
func (s schema) count(what string, want int) int {
	if most, ok := s["max"+what].(int64); ok {
		want = min(want, int(min(most, 8)))
	}
	if least, ok := s["min"+what].(int64); ok {
		want = max(want, int(min(least, 8)))
	}
	return want
}

// branches returns the schema once for each way to satisfy its unions (oneOf, anyOf),
// with the constraints of that way and of allOf merged in: at most mostChoices.
func (s schema) branches() []schema {
	if s["oneOf"] == nil && s["anyOf"] == nil && s["allOf"] == nil && s["not"] == nil {
		return []schema{s}
	}
	base := maps.Clone(s)
	for _, keyword := range []string{"oneOf", "anyOf", "allOf", "not"} {
		delete(base, keyword)
	}
	base = without(base, manifest.Mapping(s, "not"))
	for _, part := range s.parts("allOf") {
		base = merge(base, part)
	}
	all := []schema{base}
	for _, union := range []string{"oneOf", "anyOf"} {
		parts := s.parts(union)
		if len(parts) == 0 || s.truth("x-kubernetes-int-or-string") {
			continue
		}
		var next []schema
		for _, b := range all {
			for i, part := range parts {
				merged := merge(b, part)
				if union == "oneOf" {
					merged = merged.excluding(parts, i, s)
				}
				if len(next) < mostChoices {
					next = append(next, merged)
				}
			}
		}
		all = next
	}
	// A branch may have unions of its own.
	var flat []schema
	for _, b := range all {
		if flat = append(flat, b.branches()...); len(flat) >= mostChoices {
			return flat[:mostChoices]
		}
	}
	return flat
}

func (s schema) parts(keyword string) []schema {
	var parts []schema
	for _, item := range manifest.List(s, keyword) {
		if m, ok := item.(map[string]any); ok {
			parts = append(parts, m)
		}
	}
	return parts
}

// excluding returns a branch without the fields that only other branches require.
func (s schema) excluding(parts []schema, chosen int, around schema) schema {
	var out []any
	for i, other := range parts {
		if i == chosen {
			continue
		}
		for _, name := range other.texts("required") {
			if !parts[chosen].requires(name) && !around.requires(name) {
				out = append(out, name)
			}
		}
	}
	if out == nil {
		return s
	}
	s = maps.Clone(s)
	s[omitted] = append(slices.Clip(manifest.List(s, omitted)), out...)
	return s
}

// without returns a schema without the fields and values that not excludes.
func without(s, not schema) schema {
	if not == nil {
		return s
	}
	s = maps.Clone(s)
	out := slices.Clip(manifest.List(s, omitted))
	for _, name := range append(not.texts("required"), requiredIn(not.parts("anyOf"))...) {
		if !s.requires(name) {
			out = append(out, name)
		}
	}
	if out != nil {
		s[omitted] = out
	}
	if values := manifest.List(s, "enum"); values != nil {
		s["enum"] = slices.DeleteFunc(slices.Clone(values), func(v any) bool {
			return slices.ContainsFunc(manifest.List(not, "enum"), func(n any) bool { return fmt.Sprint(n) == fmt.Sprint(v) })
		})
	}
	return s
}

func requiredIn(parts []schema) []string {
	var all []string
	for _, p := range parts {
		all = append(all, p.texts("required")...)
	}
	return all
}

// merge adds the constraints of a branch to a schema. Branches of structural schemas have
// no types.
func merge(s, part schema) schema {
	s = maps.Clone(s)
	for keyword, v := range part {
		switch keyword {
		case "required":
			s["required"] = append(slices.Clip(manifest.List(s, "required")), manifest.List(part, "required")...)
		case "properties":
			properties := maps.Clone(manifest.Mapping(s, "properties"))
			for name, p := range manifest.Mapping(part, "properties") {
				if inner, ok := p.(map[string]any); ok && properties[name] != nil {
					properties[name] = map[string]any(merge(manifest.Mapping(properties, name), inner))
				}
			}
			s["properties"] = properties
		case "items", "additionalProperties":
			if inner, ok := v.(map[string]any); ok && manifest.Mapping(s, keyword) != nil {
				s[keyword] = map[string]any(merge(manifest.Mapping(s, keyword), inner))
			}
		case "not":
			if inner, ok := v.(map[string]any); ok {
				s = without(s, inner)
			}
		case "oneOf", "anyOf", "allOf":
			s[keyword] = append(slices.Clip(manifest.List(s, keyword)), manifest.List(part, keyword)...)
		default:
			if !strings.HasPrefix(keyword, "x-") {
				s[keyword] = v
			}
		}
	}
	return s
}

// merges reports whether server-side apply can merge a value: the items of lists that are
// maps or sets must have different identities.
func (s schema) merges(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for name, inner := range v {
			next := s.additional()
			if manifest.Mapping(s, "properties")[name] != nil {
				next = s.field(name)
			}
			if !next.merges(inner) {
				return false
			}
		}
	case []any:
		seen := make(map[string]bool)
		for _, item := range v {
			if text, ok := s.identity(item); !ok || seen[text] {
				return false
			} else if text != "" {
				seen[text] = true
			}
			if !s.items().merges(item) {
				return false
			}
		}
	}
	return true
}

// identity returns the identity of an item of a list as text; empty if its index
// identifies it. It reports false if the item lacks a key.
func (s schema) identity(item any) (string, bool) {
	switch s.text("x-kubernetes-list-type") {
	case "set":
		return string(manifest.AppendJSON(nil, item)), true
	case "map":
		m, _ := item.(map[string]any)
		var key []any
		for _, name := range s.texts("x-kubernetes-list-map-keys") {
			v, ok := m[name]
			if !ok {
				v, ok = s.items().field(name)["default"]
			}
			if !ok {
				return "", false
			}
			key = append(key, v)
		}
		return string(manifest.AppendJSON(nil, key)), true
	}
	return "", true
}
