package harm

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/json" // whole numbers are int64, as in objects

	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// manager is an entry of metadata.managedFields: a field manager, the version that it
// wrote in, and the fields that it owns, as FieldsV1.
type manager struct {
	name, version string
	// at is when it last wrote the object; zero if that is not known.
	at     time.Time
	fields map[string]any
	// elements caches the parsed path elements of lists: long lists have many, and owns
	// compares each several times.
	elements map[string]any
}

func managersOf(entries []any) []*manager {
	var all []*manager
	for _, item := range entries {
		entry, _ := item.(map[string]any)
		_, version := manifest.GroupVersion(manifest.Text(entry, "apiVersion"))
		m := &manager{name: manifest.Text(entry, "manager"), version: version, fields: manifest.Mapping(entry, "fieldsV1"), elements: make(map[string]any)}
		m.at, _ = time.Parse(time.RFC3339, manifest.Text(entry, "time"))
		if m.name != "" && m.fields != nil {
			all = append(all, m)
		}
	}
	return all
}

// owners returns the names of the managers that own a field of an object, a field in it
// or one that it is in, sorted. For the empty path these are all managers.
func owners(managers []*manager, tree any, path field.Path) []string {
	var names []string
	for _, m := range managers {
		if m.owns(m.fields, tree, path, true) && !slices.Contains(names, m.name) {
			names = append(names, m.name)
		}
	}
	slices.Sort(names)
	return names
}

// owns reports whether a set of the manager's fields has a path. tree is the value at the
// set's root, which identifies elements of lists; nil, as for a path of a schema, matches
// any element. If whole is set, a list that is owned as a whole includes everything in
// it, also defaults.
func (m *manager) owns(set map[string]any, tree any, path field.Path, whole bool) bool {
	if len(path) == 0 {
		return true
	}
	step, rest := path[0], path[1:]
	for key, v := range set {
		inner, _ := v.(map[string]any)
		kind, value, _ := strings.Cut(key, ":")
		var child any
		switch {
		case key == ".":
			continue
		case step.List && kind == "f", !step.List && kind != "f":
			continue
		case step.Every:
		case step.List:
			list, _ := tree.([]any)
			if step.Index < len(list) {
				child = list[step.Index]
				if !m.isElement(key, step.Index, child) {
					continue
				}
			}
		case value != step.Key:
			continue
		default:
			if t, ok := tree.(map[string]any); ok {
				child = t[step.Key]
			}
		}
		// A field without fields is a value, a list that is owned as a whole, or a mapping
		// with fields that others own.
		if whole && len(inner) == 0 && len(rest) > 0 && rest[0].List || m.owns(inner, child, rest, whole) {
			return true
		}
	}
	return false
}

// isElement reports whether a path element of FieldsV1 is an element of a list: "k:" has
// the values of its keys, "v:" its value, and "i:" its index.
func (m *manager) isElement(key string, index int, element any) bool {
	kind, value, _ := strings.Cut(key, ":")
	if kind == "i" {
		return value == strconv.Itoa(index)
	}
	is, known := m.elements[key]
	if !known {
		is = parsed(value)
		m.elements[key] = is
	}
	switch kind {
	case "v":
		return same(is, element)
	case "k":
		keys, isKeys := is.(map[string]any)
		fields, isObject := element.(map[string]any)
		if !isKeys || !isObject {
			return false
		}
		for k, v := range keys {
			if !same(v, fields[k]) {
				return false
			}
		}
		return true
	}
	return false
}

// parsed returns the value of a path element; nil if it is not JSON.
func parsed(text string) any {
	var v any
	if json.Unmarshal([]byte(text), &v) != nil {
		return nil
	}
	return v
}

// same reports whether two values are the same; most are scalars.
func same(a, b any) bool {
	if scalar(a) && scalar(b) {
		return a == b
	}
	return reflect.DeepEqual(a, b)
}
