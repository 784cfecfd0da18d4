package managed

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// Lost are the applied fields of an object that our entry no longer covers. If it is
// empty, the object is as it was applied. A single empty path means that we have no
// entry.
type Lost []fieldpath.Path

// Find lists the lost fields of an object.
//
// Writing another value takes a field from those who applied it, and removing it
// takes it from everybody. So as long as our entry covers every applied field, all
// of them have their applied values, and any other field belongs to others. The
// reverse does not hold: an empty list that merges with the elements of others is
// applied and owned by nobody.
func Find(o *manifest.Object, meta *metav1.ObjectMeta) Lost {
	entry := Own(meta)
	set, err := fieldsOf(entry)
	if entry == nil || err != nil {
		return Lost{{}}
	}
	c := coverage{}
	for k, v := range o.Tree() {
		switch k {
		case "apiVersion", "kind", "status":
		case "metadata":
			// Nobody owns name and namespace, and fields that the API server itself
			// maintains cannot be applied.
			m, _ := v.(map[string]any)
			for _, k := range []string{"labels", "annotations", "finalizers", "ownerReferences"} {
				if v, ok := m[k]; ok {
					c.field(set.Children.Descend(fieldpath.FieldNameElement("metadata")), fieldpath.MakePathOrDie("metadata"), k, v)
				}
			}
		default:
			c.field(set, nil, k, v)
		}
	}
	return c.missing
}

// coverage compares an object with a set of owned fields.
type coverage struct {
	missing []fieldpath.Path
}

// field checks a map's field k with value v; set is the owned part of the map.
func (c *coverage) field(set *fieldpath.Set, path fieldpath.Path, k string, v any) {
	if v == nil {
		return // null is not applied
	}
	c.under(set, path, fieldpath.FieldNameElement(k), v)
}

func (c *coverage) under(set *fieldpath.Set, path fieldpath.Path, e fieldpath.PathElement, v any) {
	children, descends := set.Children.Get(e)
	path = append(path[:len(path):len(path)], e)
	switch {
	case descends:
		c.value(children, path, v)
	case !set.Members.Has(e):
		c.missing = append(c.missing, path)
	}
}

// value checks a value whose parts are owned one by one. An atomic value is owned as
// a whole, and does not get here.
func (c *coverage) value(set *fieldpath.Set, path fieldpath.Path, v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, field := range v {
			c.field(set, path, k, field)
		}
	case []any:
		c.list(set, path, v)
	}
}

// list checks an associative list or a set: each of its elements has an entry.
func (c *coverage) list(set *fieldpath.Set, path fieldpath.Path, list []any) {
	elements := make(map[string]fieldpath.PathElement)
	collect := func(e fieldpath.PathElement) { elements[e.String()] = e }
	set.Members.Iterate(collect)
	set.Children.Iterate(collect)
	// Items that spell out their keys come first, so that one which leaves some
	// to defaults does not take another's entry.
	var vague []any
	for _, item := range list {
		if !c.item(set, path, item, elements, true) {
			vague = append(vague, item)
		}
	}
	for _, item := range vague {
		if !c.item(set, path, item, elements, false) {
			c.missing = append(c.missing, path)
			return
		}
	}
}

// item finds the entry of a list item, removes it from elements, and checks the fields
// under it.
func (c *coverage) item(set *fieldpath.Set, path fieldpath.Path, item any, elements map[string]fieldpath.PathElement, exact bool) bool {
	for name, e := range elements {
		if !matches(e, item, exact) {
			continue
		}
		delete(elements, name)
		if e.Key != nil {
			c.under(set, path, e, item)
		}
		return true
	}
	return false
}

// matches reports whether a path element may stand for a list item. Unless exact, a
// key field that the item leaves to its default matches any value.
func matches(e fieldpath.PathElement, item any, exact bool) bool {
	switch {
	case e.Value != nil:
		return value.Equals(*e.Value, value.NewValueInterface(item))
	case e.Key != nil:
		m, ok := item.(map[string]any)
		for _, f := range *e.Key {
			v, there := m[f.Name]
			if !there && exact || there && !value.Equals(f.Value, value.NewValueInterface(v)) {
				return false
			}
		}
		return ok
	}
	return false
}

// Blame describes the lost fields and their new owners.
func (l Lost) Blame(meta *metav1.ObjectMeta) string {
	if len(l) == 1 && len(l[0]) == 0 {
		return "the record of our fields is gone from metadata.managedFields"
	}
	by := make(map[string][]string)
	for _, path := range l {
		name := ""
		for i := range meta.ManagedFields {
			e := &meta.ManagedFields[i]
			if e.Subresource == "status" || e == Own(meta) {
				continue
			}
			if theirs, err := fieldsOf(e); err == nil && touches(theirs, path) {
				name = e.Manager
			}
		}
		by[name] = append(by[name], pathOf(path).String())
	}
	return strings.Join(byManager(by, "changed by"), "; ")
}

// byManager lists fields by their managers; a field without one was removed.
func byManager(by map[string][]string, how string) []string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(by)) {
		fields := by[name]
		slices.Sort(fields)
		text := prose.Some(fields, 3)
		if name == "" {
			parts = append(parts, text+" removed")
		} else {
			parts = append(parts, text+" "+how+" "+name)
		}
	}
	return parts
}

// pathOf returns a path as plans show it.
func pathOf(p fieldpath.Path) field.Path {
	path := make(field.Path, len(p))
	for i, e := range p {
		switch {
		case e.FieldName != nil:
			path[i] = field.Key(*e.FieldName)
		case e.Index != nil:
			path[i] = field.Index(*e.Index)
		case e.Value != nil:
			path[i] = field.Element(field.Pair{Value: fmt.Sprint((*e.Value).Unstructured())})
		case e.Key != nil:
			var match []field.Pair
			for _, k := range *e.Key {
				match = append(match, field.Pair{Field: k.Name, Value: fmt.Sprint(k.Value.Unstructured())})
			}
			path[i] = field.Element(match...)
		}
	}
	return path
}
