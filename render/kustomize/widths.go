package kustomize

import (
	"fmt"

	"gitopsd.dev/sources"
)

// maxComparisons bounds the comparisons of keys, which take some nanoseconds each: kustomize
// compares each key of a mapping with all others when it reads an object, and again for
// each patch to it. A mapping of 60,000 keys fits into a megabyte, and takes a minute
// without any patch.
const maxComparisons = 1_000_000_000

// Mappings and lists with fewer entries are not counted.
const (
	wideMapping = 200
	wideList    = 50
)

// listWeight is the time to compare two elements of a list that patches merge by a key,
// relative to the time to compare two keys of a mapping.
const listWeight = 200

// merged are the fields of Kubernetes' built-in types with lists that kustomize merges by a
// key: those with x-kubernetes-patch-strategy merge in its schema. Kustomize searches these
// lists for every patch to an object, even if the patch does not have them. It replaces
// lists in custom resources as a whole, unless the user sets a schema.
var merged = map[string]bool{
	"addresses": true, "conditions": true, "configMapGenerator": true, "containers": true, "drivers": true, "env": true,
	"ephemeralContainers": true, "hostAliases": true, "imagePullSecrets": true, "initContainers": true, "key": true,
	"ownerReferences": true, "podIPs": true, "ports": true, "secretGenerator": true, "secrets": true,
	"topologySpreadConstraints": true, "volumeDevices": true, "volumeMounts": true, "volumes": true, "webhooks": true,
}

// widths counts the comparisons for values, in total and for each patch.
type widths struct {
	mappings int
	lists    int // lists that kustomize merges
	others   int // lists that it merges if the user's schema says so
}

// add counts the comparisons in a value, and returns the number of values in it,
// itself included.
func (w *widths) add(v any) int {
	n := 1
	switch v := v.(type) {
	case map[string]any:
		w.keys(len(v))
		for key, item := range v {
			if list, ok := item.([]any); ok {
				w.list(key, list)
			}
			n += w.add(item)
		}
	case []any:
		for _, item := range v {
			n += w.add(item)
		}
	}
	return n
}

// list counts a list of mappings under a key.
func (w *widths) list(key string, items []any) {
	if len(items) < wideList {
		return
	}
	if _, ofMappings := items[0].(map[string]any); !ofMappings {
		return
	}
	if merged[key] {
		w.lists += len(items) * len(items)
	} else {
		w.others += len(items) * len(items)
	}
}

// keys counts a mapping with n keys.
func (w *widths) keys(n int) {
	if n >= wideMapping {
		w.mappings += n * n
	}
}

// check checks the limit for a number of patches; schema reports whether the user sets a
// schema. The limits on bytes and values keep the sums far from overflow.
func (w *widths) check(patches int, schema bool) error {
	each := w.mappings + listWeight*w.lists
	if schema {
		each += listWeight * w.others
	}
	if w.mappings > maxComparisons || patches > 0 && each > maxComparisons/patches {
		return fmt.Errorf("mappings or lists have too many entries for kustomize, which compares each with all others for each patch (more than %d comparisons); divide them: %w", maxComparisons, sources.ErrLimit)
	}
	return nil
}
