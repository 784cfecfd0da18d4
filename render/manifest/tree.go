package manifest

import "maps"

// NewTree returns the tree of an object in version v1 of its kind, with the fields in
// rest besides apiVersion, kind and metadata.
func NewTree(id ID, rest map[string]any) map[string]any {
	meta := map[string]any{"name": id.Name}
	if id.Namespace != "" {
		meta["namespace"] = id.Namespace
	}
	tree := map[string]any{"apiVersion": id.GroupKind().APIVersion("v1"), "kind": id.Kind, "metadata": meta}
	maps.Copy(tree, rest)
	return tree
}

// FromTexts returns strings as a list in a tree.
func FromTexts(values []string) []any {
	list := make([]any, len(values))
	for i, v := range values {
		list[i] = v
	}
	return list
}

// FromTextMap returns a map of strings as a mapping in a tree.
func FromTextMap(values map[string]string) map[string]any {
	m := make(map[string]any, len(values))
	for k, v := range values {
		m[k] = v
	}
	return m
}

// Mapping returns the mapping at a path of field names, or nil.
func Mapping(tree map[string]any, path ...string) map[string]any {
	for _, field := range path {
		tree, _ = tree[field].(map[string]any)
	}
	return tree
}

// List returns the list at a path, or nil.
func List(tree map[string]any, path ...string) []any { return at[[]any](tree, path) }

// Text returns the string at a path, or "".
func Text(tree map[string]any, path ...string) string { return at[string](tree, path) }

// Truth returns the boolean at a path, or false.
func Truth(tree map[string]any, path ...string) bool { return at[bool](tree, path) }

// Texts returns the strings in the list at a path. It skips other elements.
func Texts(tree map[string]any, path ...string) []string {
	var all []string
	for _, item := range List(tree, path...) {
		if s, ok := item.(string); ok {
			all = append(all, s)
		}
	}
	return all
}

// With returns a copy of a tree with another value at a path, and makes mappings that are
// missing on the way. The copy shares unchanged parts.
func With(tree map[string]any, value any, path ...string) map[string]any {
	copied := make(map[string]any, len(tree)+1)
	maps.Copy(copied, tree)
	if len(path) > 1 {
		value = With(Mapping(tree, path[0]), value, path[1:]...)
	}
	copied[path[0]] = value
	return copied
}

// Without returns a copy of a tree without the field at a path, or the tree itself if it has
// no such field. The copy shares unchanged parts.
func Without(tree map[string]any, path ...string) map[string]any {
	last := len(path) - 1
	parent := Mapping(tree, path[:last]...)
	if _, there := parent[path[last]]; !there {
		return tree
	}
	parent = maps.Clone(parent)
	if delete(parent, path[last]); last == 0 {
		return parent
	}
	return With(tree, parent, path[:last]...)
}

// NewCondition returns an entry of status.conditions. since is in RFC 3339.
func NewCondition(kind string, holds bool, reason, message, since string) map[string]any {
	status := "False"
	if holds {
		status = "True"
	}
	return map[string]any{"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}
}

// Condition returns the entry of status.conditions with a type, or nil.
func Condition(tree map[string]any, kind string) map[string]any {
	for _, item := range List(tree, "status", "conditions") {
		if c, _ := item.(map[string]any); c["type"] == kind {
			return c
		}
	}
	return nil
}

// ConditionTrue reports whether the condition with a type is True.
func ConditionTrue(tree map[string]any, kind string) bool {
	return Condition(tree, kind)["status"] == "True"
}

func at[T any](tree map[string]any, path []string) T {
	last := len(path) - 1
	v, _ := Mapping(tree, path[:last]...)[path[last]].(T)
	return v
}
