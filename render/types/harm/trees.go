package harm

import (
	"reflect"
	"slices"
	"strings"

	"gitopsd.dev/render/field"
)

// difference is a field that only one of two trees has, or that differs between them.
type difference struct {
	path     field.Path
	old, new any
	// inOld and inNew report whether the trees have the field.
	inOld, inNew bool
}

// fills reports whether the field is a default of the new reading: neither the old reading
// nor the object has it.
func (d difference) fills(object map[string]any) bool {
	if d.inOld || d.new == nil {
		return false
	}
	v, ok := d.path.In(object)
	return !ok || v == nil
}

// differences returns the differences between two readings of one object, in no order.
// Lists have the same length in both.
func differences(old, new any, path field.Path) []difference {
	switch o := old.(type) {
	case map[string]any:
		n, ok := new.(map[string]any)
		if !ok {
			break
		}
		var all []difference
		for k, v := range o {
			if w, both := n[k]; both {
				if scalar(v) && v == w {
					continue
				}
				all = append(all, differences(v, w, append(slices.Clip(path), field.Key(k)))...)
			} else {
				all = append(all, difference{path: append(slices.Clip(path), field.Key(k)), old: v, inOld: true})
			}
		}
		for k, w := range n {
			if _, both := o[k]; !both {
				all = append(all, difference{path: append(slices.Clip(path), field.Key(k)), new: w, inNew: true})
			}
		}
		return all
	case []any:
		n, ok := new.([]any)
		if !ok || len(o) != len(n) {
			break
		}
		var all []difference
		for i := range o {
			if scalar(o[i]) && o[i] == n[i] {
				continue
			}
			all = append(all, differences(o[i], n[i], append(slices.Clip(path), field.Index(i)))...)
		}
		return all
	}
	if reflect.DeepEqual(old, new) {
		return nil
	}
	return []difference{{path: path, old: old, new: new, inOld: true, inNew: true}}
}

// scalar reports whether a value can be compared with ==.
func scalar(v any) bool {
	switch v.(type) {
	case map[string]any, []any:
		return false
	}
	return true
}

// without removes a field from a tree.
func without(tree map[string]any, path field.Path) {
	last := path[len(path)-1]
	if v, ok := path[:len(path)-1].In(tree); ok && !last.List {
		if m, ok := v.(map[string]any); ok {
			delete(m, last.Key)
		}
	}
}

// longestPath limits the bytes of a path: the key of a mapping may be as long as the
// object.
const longestPath = 300

// text returns a path in the spelling of findings, with a leading dot.
func text(path field.Path) string {
	s := path.String()
	if len(s) > longestPath {
		s = strings.ToValidUTF8(s[:longestPath], "") + "…"
	}
	if s == "" || s[0] == '[' {
		return s
	}
	return "." + s
}
