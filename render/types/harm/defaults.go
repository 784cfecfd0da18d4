package harm

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// moved is a field whose default changes.
type moved struct {
	path     field.Path
	version  string
	old, new any // new is nil if the field loses its default
}

// movedDefaults finds the fields of both schemas that have another default in the new
// one, or none.
func movedDefaults(version string, old, new map[string]any, path field.Path) []moved {
	var all []moved
	if d, ok := old["default"]; ok && len(path) > 0 && !equal(d, new["default"]) {
		all = append(all, moved{path: path, version: version, old: filled(d, old), new: filled(new["default"], new)})
	}
	inner := func(o, n any, step field.Step) {
		from, _ := o.(map[string]any)
		to, _ := n.(map[string]any)
		if from != nil && to != nil {
			all = append(all, movedDefaults(version, from, to, append(slices.Clip(path), step))...)
		}
	}
	properties := manifest.Mapping(new, "properties")
	for name, o := range manifest.Mapping(old, "properties") {
		inner(o, properties[name], field.Key(name))
	}
	inner(old["items"], new["items"], field.Step{List: true, Every: true})
	inner(old["additionalProperties"], new["additionalProperties"], field.Step{Every: true})
	return all
}

// filled returns a default as objects show it, with the defaults of the fields in it.
func filled(v any, schema map[string]any) any {
	m, ok := v.(map[string]any)
	if !ok {
		return v
	}
	m = maps.Clone(m)
	for name, p := range manifest.Mapping(schema, "properties") {
		field, _ := p.(map[string]any)
		inner, is := m[name]
		if !is {
			inner = field["default"]
		}
		if inner != nil {
			m[name] = filled(inner, field)
		}
	}
	return m
}

// moved returns the fields that may hold a default that the new definition lacks.
func (j *Judge) moved(version string, was map[string]any) []located {
	var all []located
	for _, m := range j.defaults {
		if m.version != version {
			continue
		}
		each(was, m.path, nil, func(at field.Path, v any) {
			if !equal(v, m.old) {
				return
			}
			h := Harm{Kind: Defaulted, Version: version, Path: text(at), Why: shown(m.new), Perhaps: true}
			if m.new == nil {
				h.Kind, h.Why = Lost, ""
			}
			all = append(all, located{h, at})
		})
	}
	return all
}

// each calls yield for every field of v that a path of a schema matches.
func each(v any, path, at field.Path, yield func(field.Path, any)) {
	if len(path) == 0 {
		yield(at, v)
		return
	}
	step := path[0]
	below := func(s field.Step, child any) { each(child, path[1:], append(slices.Clip(at), s), yield) }
	switch v := v.(type) {
	case map[string]any:
		if step.List {
			return
		}
		for k, child := range v {
			if step.Every || k == step.Key {
				below(field.Key(k), child)
			}
		}
	case []any:
		for i, child := range v {
			if step.List && step.Every {
				below(field.Index(i), child)
			}
		}
	}
}

// equal reports whether two values are the same JSON.
func equal(a, b any) bool {
	return bytes.Equal(manifest.AppendJSON(nil, a), manifest.AppendJSON(nil, b))
}

// shown returns a default as text, shortened if it is long.
func shown(v any) string {
	const most = 80
	s := string(manifest.AppendJSON(nil, v))
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return cmp.Or(s, "nothing")
}
