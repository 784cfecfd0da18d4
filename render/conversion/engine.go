package conversion

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/conversion/structural"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// run is one conversion of one object by one pair.
type run struct {
	pair   *pair
	root   map[string]any
	budget *cel.Budget
	failed []Note
	// written is the size of all values that rules wrote; see room.
	written int
}

// forward converts an object by a pair's rules, without the stash. The maps and lists of
// the result that rules or the stash may write into are not shared with the object.
func (p *pair) forward(object map[string]any, budget *cel.Budget) (map[string]any, []Note) {
	budget.Again()
	r := &run{pair: p, root: object, budget: budget}
	v, _, _ := r.scope(p.root, object, nil)
	out, _ := v.(map[string]any)
	if out == nil {
		out = map[string]any{}
	}
	written, _ := out["metadata"].(map[string]any)
	if metadata, ok := object["metadata"].(map[string]any); ok {
		copied := maps.Clone(metadata)
		for _, name := range []string{"labels", "annotations"} {
			texts, _ := written[name].(map[string]any)
			delete(texts, manifest.ConversionStashAnnotation)
			if name == "annotations" {
				r.fitAnnotations(texts)
			}
			if before, given := copied[name].(map[string]any); len(texts) > 0 || given && len(before) == 0 {
				copied[name] = texts
			} else {
				delete(copied, name)
			}
		}
		out["metadata"] = copied
	} else {
		delete(out, "metadata")
		if metadata, ok := object["metadata"]; ok {
			out["metadata"] = metadata
		}
	}
	out["apiVersion"] = p.apiVersion()
	out["kind"] = object["kind"]
	return out, r.failed
}

// apiVersion returns the apiVersion of converted objects.
func (p *pair) apiVersion() string {
	if p.group == "" {
		return p.to
	}
	return p.group + "/" + p.to
}

// convert converts a value by copying. It reports false for a value that the target
// cannot hold.
func (r *run) convert(m *mapping, v any) (any, bool) {
	if v == nil {
		return nil, structural.Nullable(m.schema)
	}
	switch m.kind {
	case leaf:
		switch v.(type) {
		case map[string]any, []any:
			return v, structural.Fits(m.schema, v, "") == nil
		}
		kind := structural.Kind(m.schema)
		return v, structural.Holds(kind, v) && (kind != structural.Any || m.schema["type"] == nil)
	case object:
		if _, ok := v.(map[string]any); !ok && !(m.rest && m.schema["type"] == nil) {
			return nil, false
		}
		out, _, ok := r.scope(m, v, nil)
		return out, ok
	case list, listToMap:
		items, ok := v.([]any)
		if !ok {
			return nil, false
		}
		if m.kind == listToMap {
			return r.keyed(m, items), true
		}
		out := make([]any, 0, len(items))
		for _, item := range items {
			if v, _, ok := r.element(m.item, item, nil); ok {
				out = append(out, v)
			}
		}
		return out, true
	}
	entries, ok := v.(map[string]any)
	if !ok {
		return nil, false
	}
	if m.kind == mapToList {
		out := make([]any, 0, len(entries))
		for _, key := range slices.Sorted(maps.Keys(entries)) {
			if v, _, ok := r.element(m.item, entries[key], key); ok {
				out = append(out, v)
			}
		}
		return out, true
	}
	out := make(map[string]any, len(entries))
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		if m.skip[key] {
			continue
		}
		v, name, ok := r.element(m.item, entries[key], key)
		if !ok {
			continue
		}
		if s, named := name.(string); named {
			key = s
		}
		r.put(m, out, key, v)
	}
	return out, true
}

// keyed makes a map of a list. If elements have the same key, the first counts.
func (r *run) keyed(m *mapping, items []any) map[string]any {
	out := make(map[string]any, len(items))
	for _, item := range items {
		v, name, ok := r.element(m.item, item, nil)
		key, named := name.(string)
		if ok && named {
			r.put(m, out, key, v)
		}
	}
	return out
}

// put adds the value of an element to a map. If the map has the key already, which only a
// rule can cause, it records a failure instead.
func (r *run) put(m *mapping, out map[string]any, key string, v any) {
	if _, twice := out[key]; !twice {
		out[key] = v
		return
	}
	for _, rule := range m.item.rules {
		if rule.toKey {
			r.fail(rule, fmt.Errorf("two elements have the key %q; the first is kept", key))
		}
	}
}

func (r *run) element(m *mapping, v, key any) (out, name any, ok bool) {
	if len(m.rules) > 0 {
		return r.scope(m, v, key)
	}
	out, ok = r.convert(m, v)
	return out, nil, ok
}

// scope converts the object or an element. It copies fields first, and then applies the
// rules. name is the key that a rule gives an element.
func (r *run) scope(m *mapping, self, key any) (out, name any, ok bool) {
	fields, isMap := self.(map[string]any)
	if kind := structural.Kind(m.schema); kind == structural.Object || isMap && (kind == structural.Any || m.rest) {
		out = r.fields(m, fields)
	} else if m.rest {
		return self, nil, true
	}
	type constant struct {
		rule  *rule
		value any
	}
	var later []constant
	for _, rule := range m.rules {
		v, found, present := r.eval(rule, self, key)
		switch {
		case !found:
		case rule.toKey:
			name = v
		case !present:
			later = append(later, constant{rule, v})
		default:
			out = set(out, rule.to, v)
		}
	}
	for _, c := range later {
		if n := len(c.rule.to); n == 0 {
			out = c.value
		} else if parent, ok := get(out, c.rule.to[:n-1]); ok && parent != nil {
			out = set(out, c.rule.to, c.value)
		}
	}
	return out, name, out != nil
}

func (r *run) fields(m *mapping, fields map[string]any) map[string]any {
	out := make(map[string]any, len(m.fields))
	for _, f := range m.fields {
		if v, ok := fields[f.name]; ok {
			if v, ok := r.convert(f.mapping, v); ok {
				out[f.name] = v
			}
		}
	}
	if m.rest {
		for k, v := range fields {
			if _, have := out[k]; !have && !m.skip[k] {
				out[k] = v
			}
		}
	}
	return out
}

// eval returns the value that a rule writes, unless an API server would refuse it. present
// reports whether any field that the rule reads is there; otherwise the value is only
// written if its parent exists.
func (r *run) eval(rule *rule, self, key any) (v any, found, present bool) {
	v, found, present = r.value(rule, self, key)
	var err error
	if found && (rule.fn != nil || rule.repeats) {
		err = r.room(v)
	}
	if found && err == nil {
		err = rule.labels(v)
	}
	if err != nil {
		r.fail(rule, err)
		return nil, false, false
	}
	return v, found, present
}

// value is eval without the limits of [run.room] and [rule.labels].
func (r *run) value(rule *rule, self, key any) (v any, found, present bool) {
	var err error
	from := [...]any{fromSelf: self, fromRoot: r.root, fromKey: key}
	if rule.origin != computed {
		if v, found = get(from[rule.origin], rule.path); !found {
			return nil, false, false
		}
		if !rule.transform {
			converted, ok := r.convert(rule.mapping, v)
			return converted, ok, true
		}
		if v == nil {
			return nil, false, false
		}
		v, err = rule.fn.Eval(r.budget, v, r.root, key)
		if errors.Is(err, cel.ErrAbsent) && rule.fn.Optional() {
			return nil, false, false
		}
		present = true
	} else {
		absent := false
		for _, read := range rule.reads {
			if _, ok := get(from[read.origin], read.path); ok {
				present = true
			} else {
				absent = true
			}
		}
		v, err = rule.fn.Eval(r.budget, self, r.root, key)
		if errors.Is(err, cel.ErrAbsent) && (absent || rule.fn.Optional()) {
			return nil, false, false
		}
		if err == nil && rule.mapping != nil {
			if converted, ok := r.convert(rule.mapping, v); ok {
				return converted, true, present
			}
			err = errors.New("the result does not fit the field")
		}
	}
	if err == nil && rule.mapping == nil {
		err = structural.Fits(rule.schema, v, "")
	}
	if err != nil {
		r.fail(rule, err)
		return nil, false, false
	}
	return v, true, present
}

func (r *run) fail(rule *rule, err error) {
	r.failed = append(r.failed, Note{From: r.pair.from, To: r.pair.to, Path: rule.label, Rule: rule.where, Err: err.Error()})
}

// get returns the value at a path.
func get(v any, path rules.Path) (any, bool) {
	for _, s := range path {
		step := field.Key(s.Key)
		if s.Element {
			step = field.Index(s.Index)
		}
		var ok bool
		if v, ok = step.In(v); !ok {
			return nil, false
		}
	}
	return v, true
}

// set writes a value into a tree that is not shared, adds missing parents, and returns
// the tree. An element behind the end of a list becomes its last.
func set(tree any, path rules.Path, v any) any {
	if len(path) == 0 {
		return v
	}
	if path[0].Element {
		items, _ := tree.([]any)
		if i := path[0].Index; i < len(items) {
			items[i] = set(items[i], path[1:], v)
			return items
		}
		return append(items, set(nil, path[1:], v))
	}
	m, ok := tree.(map[string]any)
	if !ok || m == nil {
		m = map[string]any{}
	}
	m[path[0].Key] = set(m[path[0].Key], path[1:], v)
	return m
}
