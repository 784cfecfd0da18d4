package proof

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// Difference is one field that differs between two objects.
type Difference struct {
	Path field.Path
	// Before and After are the values as JSON, shortened; empty for absent.
	Before, After string
}

// String returns the difference in a line for each value.
func (d Difference) String() string {
	var lines []string
	if d.Before != "" {
		lines = append(lines, "- "+d.Path.String()+": "+d.Before)
	}
	if d.After != "" {
		lines = append(lines, "+ "+d.Path.String()+": "+d.After)
	}
	return strings.Join(lines, "\n")
}

// longestValue limits the length of a value in a Difference.
const longestValue = 120

func shown(v any) string {
	text := string(manifest.AppendJSON(nil, v))
	if utf8.RuneCountInString(text) <= longestValue {
		return text
	}
	return string([]rune(text)[:longestValue-1]) + "…"
}

// Compare returns the fields that differ between two objects, in order.
func Compare(before, after map[string]any) []Difference {
	return differences(Numeric(before), Numeric(after))
}

// Numeric returns a copy of an object with all numbers as int64 or float64, also those
// that a conversion keeps as text.
func Numeric(tree map[string]any) map[string]any {
	m, _ := numeric(exact.Clone(tree)).(map[string]any)
	return m
}

// WithoutAnnotation returns a copy of an object without an annotation. If it was the
// last, the copy has no annotations.
func WithoutAnnotation(tree map[string]any, annotation string) map[string]any {
	tree = exact.Clone(tree)
	meta := manifest.Mapping(tree, "metadata")
	annotations := manifest.Mapping(meta, "annotations")
	if delete(annotations, annotation); len(annotations) == 0 {
		delete(meta, "annotations")
	}
	return tree
}

// differences returns the fields that differ between two values, in order. An integer
// and a float of the same value differ.
func differences(before, after any) []Difference {
	var all []Difference
	compare(nil, before, after, &all)
	return all
}

func compare(path field.Path, before, after any, all *[]Difference) {
	switch b := before.(type) {
	case map[string]any:
		if a, ok := after.(map[string]any); ok {
			compareMaps(path, b, a, all)
			return
		}
	case []any:
		if a, ok := after.([]any); ok {
			compareLists(path, b, a, all)
			return
		}
	default:
		if !isContainer(after) && before == after {
			return
		}
	}
	*all = append(*all, Difference{path, shown(before), shown(after)})
}

func isContainer(v any) bool {
	switch v.(type) {
	case map[string]any, []any:
		return true
	}
	return false
}

func compareMaps(path field.Path, before, after map[string]any, all *[]Difference) {
	names := slices.Collect(maps.Keys(before))
	for name := range after {
		if _, ok := before[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		at := append(slices.Clip(path), field.Key(name))
		b, was := before[name]
		a, is := after[name]
		switch {
		case !was:
			*all = append(*all, Difference{at, "", shown(a)})
		case !is:
			*all = append(*all, Difference{at, shown(b), ""})
		default:
			compare(at, b, a, all)
		}
	}
}

func compareLists(path field.Path, before, after []any, all *[]Difference) {
	for i := range max(len(before), len(after)) {
		at := append(slices.Clip(path), field.Index(i))
		switch {
		case i >= len(before):
			*all = append(*all, Difference{at, "", shown(after[i])})
		case i >= len(after):
			*all = append(*all, Difference{at, shown(before[i]), ""})
		default:
			compare(at, before[i], after[i], all)
		}
	}
}

// general returns a path without the indices of elements, so that the same fault in
// several elements has one name.
func general(path field.Path) string {
	var b strings.Builder
	for _, step := range path {
		if step.List {
			b.WriteString("[]")
			continue
		}
		b.WriteString("." + step.Key)
	}
	return strings.TrimPrefix(b.String(), ".")
}
