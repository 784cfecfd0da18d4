package stash

import (
	"fmt"
	"maps"
	"slices"

	"gitopsd.dev/render/conversion/structural"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// Ignored is a tree of fields that are never kept. A nil Ignored ignores none.
type Ignored struct {
	// All is set if the whole is ignored.
	All    bool
	Fields map[string]*Ignored
	// Each applies to all elements of a list, and to the values of a map that are not in
	// Fields.
	Each *Ignored
}

func (i *Ignored) all() bool { return i != nil && i.All }

func (i *Ignored) each() *Ignored {
	if i == nil {
		return nil
	}
	return i.Each
}

// field returns the fields to ignore in a field, or in the value of a map's key.
func (i *Ignored) field(name string, kind string) *Ignored {
	if i == nil {
		return nil
	}
	if f := i.Fields[name]; f != nil || kind != structural.Map {
		return f
	}
	return i.Each
}

// maxPath limits the length of the paths of differences; deeper differences are kept as
// one value. Objects of open schemas may be nested without limit, and the paths of all
// their levels together grow with the square of the depth.
// Covers reports whether the field at a path, or one that it is part of, is ignored.
func (i *Ignored) Covers(schema map[string]any, path field.Path) bool {
	for _, s := range path {
		if i.all() {
			return true
		}
		if s.List {
			i, schema = i.each(), structural.Element(schema)
		} else {
			i, schema = i.field(s.Key, structural.Kind(schema)), structural.Child(schema, s.Key)
		}
	}
	return i.all()
}

const maxPath = 64

// Differences returns the fields of a schema in which a differs from b, with the
// values of a. path is the path of a and b.
func Differences(schema map[string]any, a, b any, ignored *Ignored, path field.Path) []Entry {
	if ignored.all() {
		return nil
	}
	am, aIsMap := a.(map[string]any)
	bm, bIsMap := b.(map[string]any)
	kind := structural.Kind(schema)
	if aIsMap && bIsMap && kind != structural.List && len(path) < maxPath {
		var all []Entry
		names := map[string]any{}
		maps.Copy(names, am)
		maps.Copy(names, bm)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			s := structural.Child(schema, name)
			if s == nil || name == manifest.ConversionStashAnnotation && len(path) == 2 && path[0].Key == "metadata" {
				continue // not a field: it is not kept
			}
			inner := ignored.field(name, kind)
			next := append(slices.Clone(path), field.Key(name))
			av, aHas := present(s, am, name)
			bv, bHas := present(s, bm, name)
			switch {
			case len(path) == 1 && path[0].Key == "metadata":
				// Empty labels are the same as none.
				av, _ := av.(map[string]any)
				bv, _ := bv.(map[string]any)
				all = append(all, Differences(s, av, bv, inner, next)...)
			case len(path) == 0 && name == "metadata" && !(aHas && bHas):
			case aHas && bHas:
				all = append(all, Differences(s, av, bv, inner, next)...)
			case inner.all():
			case aHas:
				all = append(all, Entry{Path: next, Value: structural.Known(s, av)})
			case bHas:
				all = append(all, Entry{Path: next, Absent: true})
			}
		}
		return all
	}
	if all, ok := byKey(schema, a, b, ignored, path); ok {
		return all
	}
	if a = structural.Known(schema, a); exact.Equal(a, structural.Known(schema, b)) {
		return nil
	}
	return []Entry{{Path: path, Value: a}}
}

// present returns a field. A null that the schema does not allow counts as absent.
func present(schema map[string]any, m map[string]any, name string) (any, bool) {
	v, ok := m[name]
	return v, ok && (v != nil || structural.Nullable(schema))
}

// byKey compares two lists whose elements have keys; ok is false unless both have the
// same keys in the same order.
func byKey(schema map[string]any, a, b any, ignored *Ignored, path field.Path) ([]Entry, bool) {
	as, aIsList := a.([]any)
	bs, bIsList := b.([]any)
	names := manifest.Texts(schema, "x-kubernetes-list-map-keys")
	if !aIsList || !bIsList || len(as) != len(bs) || len(names) == 0 || manifest.Text(schema, "x-kubernetes-list-type") != "map" {
		return nil, false
	}
	var all []Entry
	seen := map[string]bool{}
	for i := range as {
		step, ok := keyed(names, as[i])
		other, okToo := keyed(names, bs[i])
		if !ok || !okToo || step.String() != other.String() || seen[step.String()] {
			return nil, false
		}
		seen[step.String()] = true
		all = append(all, Differences(structural.Element(schema), as[i], bs[i], ignored.each(), append(slices.Clone(path), step))...)
	}
	return all, true
}

func keyed(names []string, item any) (field.Step, bool) {
	m, _ := item.(map[string]any)
	var match []field.Pair
	for _, name := range names {
		switch v := m[name].(type) {
		case string, int64, bool:
			match = append(match, field.Pair{Field: name, Value: fmt.Sprint(v)})
		default:
			return field.Step{}, false
		}
	}
	step := field.Element(match...)
	// A path must be readable again.
	if again, err := field.Parse("a" + step.String()); err != nil || len(again) != 2 || again.String() != "a"+step.String() {
		return field.Step{}, false
	}
	return step, true
}
