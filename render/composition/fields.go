package composition

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// added are the fields that Crossplane adds to the schemas of composites and claims.
var added = map[string][]string{
	"spec": {
		"crossplane", "claimRef", "compositeDeletePolicy", "compositionRef", "compositionRevisionRef", "compositionRevisionSelector",
		"compositionSelector", "compositionUpdatePolicy", "environmentConfigRefs", "publishConnectionDetailsTo", "resourceRef",
		"resourceRefs", "writeConnectionSecretToRef",
	},
	"status": {"claimConditionTypes", "conditions", "connectionDetails", "crossplane"},
}

// shape is the schema of one version of a kind.
type shape struct {
	schema map[string]any
	// composite reports whether the kind has the added fields.
	composite bool
}

// shapeOf returns the shape of a version; nil if every field may exist.
func shapeOf(d types.Definition, v types.Version) *shape {
	if v.Schema == nil || d.PreservesUnknownFields {
		return nil
	}
	return &shape{v.Schema, d.XRD}
}

// step is one step of a field's path: a key of a mapping, or an element of a list.
type step struct {
	key     string
	element bool
}

// split parses a path in Crossplane's syntax: "spec.a[0].b", "spec.a[*]",
// "metadata.labels[a.b/c]".
func split(path string) ([]step, error) {
	var steps []step
	rest := path
	for rest != "" {
		if after, ok := strings.CutPrefix(rest, "["); ok {
			key, left, found := strings.Cut(after, "]")
			if quote := key; found && quote != "" && (quote[0] == '\'' || quote[0] == '"') {
				key, left, found = strings.Cut(after[1:], quote[:1]+"]")
				steps = append(steps, step{key: key})
			} else {
				steps = append(steps, step{key: key, element: key == "*" || strings.Trim(key, "0123456789") == ""})
			}
			if !found || key == "" {
				return nil, fmt.Errorf("%q is not a path of a field: a bracket is not closed, or is empty", path)
			}
			rest = left
			continue
		}
		if len(steps) > 0 {
			after, ok := strings.CutPrefix(rest, ".")
			if !ok {
				return nil, fmt.Errorf("%q is not a path of a field: want a dot or a bracket before %q", path, rest)
			}
			rest = after
		}
		end := strings.IndexAny(rest, ".[")
		if end < 0 {
			end = len(rest)
		}
		if end == 0 {
			return nil, fmt.Errorf("%q is not a path of a field: a name is empty", path)
		}
		steps = append(steps, step{key: rest[:end]})
		rest = rest[end:]
	}
	return steps, nil
}

// whole reports whether a field is not checked, since all objects have it or Crossplane adds
// it.
func (s *shape) whole(steps []step) bool {
	switch steps[0].key {
	case "apiVersion", "kind", "metadata":
		return true
	}
	return s.composite && (len(steps) == 1 && added[steps[0].key] != nil || len(steps) > 1 && slices.Contains(added[steps[0].key], steps[1].key))
}

// has reports whether objects may have a field.
func (s *shape) has(steps []step) bool {
	if len(steps) == 0 || s.whole(steps) {
		return true
	}
	schema := s.schema
	for _, st := range steps {
		next, anything := below(schema, st)
		if anything {
			return true
		}
		if next == nil {
			return false
		}
		schema = next
	}
	return true
}

// below returns the schema one step down; nil if the field cannot exist. anything reports
// whether it may have any value.
func below(schema map[string]any, st step) (next map[string]any, anything bool) {
	if manifest.Truth(schema, "x-kubernetes-preserve-unknown-fields") || manifest.Truth(schema, "x-kubernetes-embedded-resource") {
		if next := manifest.Mapping(schema, "properties", st.key); next != nil && !st.element {
			return next, false
		}
		return nil, true
	}
	if items := manifest.Mapping(schema, "items"); items != nil && (st.element || st.key == "*") {
		return items, false
	}
	if properties := manifest.Mapping(schema, "properties"); properties != nil {
		if st.key == "*" {
			return nil, true
		}
		if next, known := properties[st.key].(map[string]any); known {
			return next, false
		}
	}
	switch additional := schema["additionalProperties"].(type) {
	case map[string]any:
		return additional, len(additional) == 0
	case bool:
		return nil, additional
	}
	return nil, false
}

// lacking returns the fields of an object that the type lacks, without fields below these.
func (s *shape) lacking(object map[string]any) []string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(object)) {
		steps := []step{{key: key}}
		if inner, ok := object[key].(map[string]any); ok && s.composite && added[key] != nil {
			for _, k := range slices.Sorted(maps.Keys(inner)) {
				if steps := []step{{key: key}, {key: k}}; !s.whole(steps) {
					if next := manifest.Mapping(s.schema, "properties", key); next != nil {
						all = lacking(all, next, map[string]any{k: inner[k]}, key)
					} else if !s.has(steps) {
						all = append(all, key+"."+k)
					}
				}
			}
			continue
		}
		if !s.whole(steps) {
			all = lacking(all, s.schema, map[string]any{key: object[key]}, "")
		}
	}
	return all
}

func lacking(all []string, schema map[string]any, v any, at string) []string {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			name := key
			if strings.ContainsAny(key, ".[]") {
				name = "[" + key + "]"
			}
			if at != "" && name == key {
				name = "." + name
			}
			next, anything := below(schema, step{key: key})
			switch {
			case anything:
			case next == nil:
				all = append(all, at+name)
			default:
				all = lacking(all, next, v[key], at+name)
			}
		}
	case []any:
		items := manifest.Mapping(schema, "items")
		if items == nil {
			return all // a list where the schema has none is another mistake
		}
		for i, item := range v {
			all = lacking(all, items, item, fmt.Sprintf("%s[%d]", at, i))
		}
	}
	return all
}
