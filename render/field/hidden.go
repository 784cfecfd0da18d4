package field

import (
	"fmt"
	"slices"

	"gitopsd.dev/render/manifest"
)

// LastApplied is the annotation where kubectl keeps a whole object, even a Secret.
const LastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// shownOfSecret are the fields of a Secret that may be shown, and those of a reference to one
// (core/v1 ObjectReference), which also has an apiVersion and a kind.
var shownOfSecret = []string{
	"apiVersion", "kind", "metadata", "type", "immutable",
	"fieldPath", "name", "namespace", "resourceVersion", "uid",
}

// Hides reports whether the value of a key of a mapping must not be shown: all fields of a
// Secret except metadata, type and immutable, and the [LastApplied] annotation. The mapping
// may be a whole object or a part of one: a Composition, a KubernetesApplication and many
// others hold objects.
func Hides(m map[string]any, key string) bool {
	return key == LastApplied || isSecret(m) && !slices.Contains(shownOfSecret, key)
}

// isSecret reports whether a mapping is a Secret. A template may omit the apiVersion.
func isSecret(m map[string]any) bool {
	if manifest.KindOf(m) != manifest.Secret {
		return false
	}
	_, data := m["data"]
	_, stringData := m["stringData"]
	return m["apiVersion"] != nil || data || stringData
}

// Hidden reports whether the value at the path in a decoded object must not be shown: the
// path leads through a key that its mapping [Hides]. Other values may hold some that must not
// be shown; see [Redact].
func (p Path) Hidden(tree any) bool {
	for _, s := range p {
		if !s.List && !s.Every {
			if m, _ := tree.(map[string]any); Hides(m, s.Key) {
				return true
			}
		}
		tree, _ = s.In(tree)
	}
	return false
}

// Redact returns a value with hide called for each part that must not be shown. The names of
// fields stay.
func Redact(v any, hide func(v any) any) any {
	switch v := v.(type) {
	case map[string]any:
		return redacted(v, func(key string, item any) any {
			if Hides(v, key) {
				return Conceal(item, hide)
			}
			return Redact(item, hide)
		})
	case map[any]any: // YAML with keys that are not strings
		return Redact(textKeys(v), hide)
	case []any:
		list := make([]any, len(v))
		for i, item := range v {
			list[i] = Redact(item, hide)
		}
		return list
	}
	return v
}

// Conceal is [Redact] for a value that must not be shown at all.
func Conceal(v any, hide func(v any) any) any {
	switch v := v.(type) {
	case map[string]any:
		return redacted(v, func(_ string, item any) any { return Conceal(item, hide) })
	case map[any]any:
		return Conceal(textKeys(v), hide)
	}
	return hide(v)
}

func redacted(m map[string]any, of func(key string, item any) any) map[string]any {
	all := make(map[string]any, len(m))
	for key, item := range m {
		all[key] = of(key, item)
	}
	return all
}

func textKeys(m map[any]any) map[string]any {
	all := make(map[string]any, len(m))
	for key, item := range m {
		all[fmt.Sprint(key)] = item
	}
	return all
}
