package proof

import (
	"iter"
	"maps"
	"slices"

	"gitopsd.dev/render/manifest"
)

// mostShrinks limits the smaller objects that are tried for one counterexample.
const mostShrinks = 600

// shrink returns a smaller object that still fails. It leaves out fields, keys and items
// one at a time and, if scalars is set, simplifies values. apiVersion, kind and name stay.
func shrink(tree map[string]any, scalars bool, fails func(map[string]any) bool) map[string]any {
	fixed := map[string]any{"apiVersion": tree["apiVersion"], "kind": tree["kind"]}
	name := manifest.Mapping(tree, "metadata")["name"]
	content := maps.Clone(tree)
	delete(content, "apiVersion")
	delete(content, "kind")
	meta := maps.Clone(manifest.Mapping(tree, "metadata"))
	delete(meta, "name")
	content["metadata"] = meta
	whole := func(content map[string]any) map[string]any {
		object := maps.Clone(content)
		maps.Copy(object, fixed)
		return manifest.With(object, name, "metadata", "name")
	}
	tries := 0
	for again := true; again; {
		again = false
		for smaller := range reductions(content, scalars) {
			if tries++; tries > mostShrinks {
				return whole(content)
			}
			if m, ok := smaller.(map[string]any); ok && fails(whole(m)) {
				content, again = m, true
				break
			}
		}
	}
	return whole(content)
}

// reductions yields smaller values. Large steps come first, so that most of an object is
// removed early.
func reductions(v any, scalars bool) iter.Seq[any] {
	return func(yield func(any) bool) {
		switch v := v.(type) {
		case map[string]any:
			reduceMap(v, scalars, yield)
		case []any:
			reduceList(v, scalars, yield)
		case string:
			if !scalars {
				return
			}
			for _, simple := range simpler(v) {
				if !yield(simple) {
					return
				}
			}
		case int64:
			for _, simple := range []int64{0, 1, v / 2} {
				if scalars && abs(simple) < abs(v) && !yield(simple) {
					return
				}
			}
		case bool:
			if scalars && v {
				yield(false)
			}
		}
	}
}

func abs(n int64) uint64 {
	if n < 0 {
		return -uint64(n)
	}
	return uint64(n)
}

func simpler(text string) []string {
	runes := []rune(text)
	all := []string{"", "a"}
	if len(runes) > 2 {
		all = append(all, string(runes[:len(runes)/2]), string(runes[1:]), string(runes[:len(runes)-1]))
	}
	return slices.DeleteFunc(all, func(s string) bool { return len(s) >= len(text) })
}

func reduceMap(m map[string]any, scalars bool, yield func(any) bool) {
	names := slices.Sorted(maps.Keys(m))
	for _, name := range names {
		smaller := maps.Clone(m)
		delete(smaller, name)
		if !yield(smaller) {
			return
		}
	}
	for _, name := range names {
		for inner := range reductions(m[name], scalars) {
			smaller := maps.Clone(m)
			smaller[name] = inner
			if !yield(smaller) {
				return
			}
		}
	}
}

func reduceList(l []any, scalars bool, yield func(any) bool) {
	if len(l) > 0 && !yield([]any{}) {
		return
	}
	for i := range l {
		if len(l) > 1 && !yield(slices.Delete(slices.Clone(l), i, i+1)) {
			return
		}
	}
	for i := range l {
		for inner := range reductions(l[i], scalars) {
			smaller := slices.Clone(l)
			smaller[i] = inner
			if !yield(smaller) {
				return
			}
		}
	}
}
