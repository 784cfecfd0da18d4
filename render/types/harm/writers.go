package harm

import (
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/json" // whole numbers are int64, as in objects

	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// manager is an entry of metadata.managedFields: a field manager, the version that it
// wrote in, and the fields that it owns, as FieldsV1 has them.
type manager struct {
	name, version string
	fields        map[string]any
}

func managersOf(entries []any) []manager {
	var all []manager
	for _, item := range entries {
		entry, _ := item.(map[string]any)
		_, version := manifest.GroupVersion(manifest.Text(entry, "apiVersion"))
		m := manager{name: manifest.Text(entry, "manager"), version: version, fields: manifest.Mapping(entry, "fieldsV1")}
		if m.name != "" && m.fields != nil {
			all = append(all, m)
		}
	}
	return all
}

// names returns the names of all managers, sorted.
func names(managers []manager) []string {
	var all []string
	for _, m := range managers {
		if !slices.Contains(all, m.name) {
			all = append(all, m.name)
		}
	}
	slices.Sort(all)
	return all
}

// owners returns the names of the managers that own a field of an object, something in
// it or something around it, sorted.
func owners(managers []manager, tree any, path field.Path) []string {
	var names []string
	for _, m := range managers {
		if owns(m.fields, tree, path, true) && !slices.Contains(names, m.name) {
			names = append(names, m.name)
		}
	}
	slices.Sort(names)
	return names
}

// owns reports whether a set of fields has a path. tree is the value at the set's root, to
// tell the elements of lists apart; without it, as for a path of a schema, any element is
// meant. With whole, a list that is owned as a whole has everything in it, also what
// defaults have filled in.
func owns(set map[string]any, tree any, path field.Path, whole bool) bool {
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
				if !isElement(kind, value, step.Index, child) {
					continue
				}
			}
		case value != step.Key:
			continue
		default:
			if m, ok := tree.(map[string]any); ok {
				child = m[step.Key]
			}
		}
		// A field with nothing in it is a value, or a list that is owned as a whole, or a
		// mapping in which others own everything.
		if whole && len(inner) == 0 && len(rest) > 0 && rest[0].List || owns(inner, child, rest, whole) {
			return true
		}
	}
	return false
}

// isElement reports whether a path element of FieldsV1 is an element of a list: "k:" has
// the values of its keys, "v:" its value, "i:" its index.
func isElement(kind, value string, index int, element any) bool {
	switch kind {
	case "i":
		return value == strconv.Itoa(index)
	case "v":
		var is any
		return json.Unmarshal([]byte(value), &is) == nil && reflect.DeepEqual(is, element)
	case "k":
		var keys map[string]any
		m, ok := element.(map[string]any)
		if !ok || json.Unmarshal([]byte(value), &keys) != nil {
			return false
		}
		for k, v := range keys {
			if !reflect.DeepEqual(v, m[k]) {
				return false
			}
		}
		return true
	}
	return false
}
