package kustomize

import (
	"fmt"

	"gitopsd.dev/sources"
)

// MaxComparisons is how often kustomize may compare keys with one another, at
// some nanoseconds each: it holds each key of a mapping against all the others,
// when it reads an object and again for each patch to it. A mapping of 60,000
// keys, which a file of a megabyte has room for, takes a minute without any patch.
const MaxComparisons = 1_000_000_000

// Mappings and lists with fewer entries are not worth counting, however many
// there are.
const (
	wideMapping = 200
	wideList    = 50
)

// listWeight is what comparing two elements of a list of mappings, which a
// patch merges by a key in them, takes longer than comparing two keys.
const listWeight = 200

// widths are the comparisons that values take, once and for each patch.
type widths struct {
	mappings, lists int
}

// add counts what is in a value.
func (w *widths) add(v any) {
	switch v := v.(type) {
	case map[string]any:
		w.keys(len(v))
		for _, item := range v {
			w.add(item)
		}
	case []any:
		if _, ofMappings := first(v).(map[string]any); ofMappings && len(v) >= wideList {
			w.lists += len(v) * len(v)
		}
		for _, item := range v {
			w.add(item)
		}
	}
}

func first(list []any) any {
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

// keys counts a mapping with so many keys.
func (w *widths) keys(n int) {
	if n >= wideMapping {
		w.mappings += n * n
	}
}

// check holds the comparisons against the limit, for so many patches. The limits on
// bytes and values keep the sums far from overflowing.
func (w *widths) check(patches int) error {
	each := w.mappings + listWeight*w.lists
	if w.mappings > MaxComparisons || patches > 0 && each > MaxComparisons/patches {
		return fmt.Errorf("mappings or lists have too many entries for kustomize, which compares each with all others for each patch (more than %d comparisons); divide them: %w", MaxComparisons, sources.ErrLimit)
	}
	return nil
}
