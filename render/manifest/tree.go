package manifest

// Mapping returns the mapping at a path of field names in a decoded tree, nil if
// there is none.
func Mapping(tree map[string]any, path ...string) map[string]any {
	for _, field := range path {
		tree, _ = tree[field].(map[string]any)
	}
	return tree
}

// List returns the list at a path, nil if there is none.
func List(tree map[string]any, path ...string) []any { return at[[]any](tree, path) }

// Text returns the string at a path, empty if there is none.
func Text(tree map[string]any, path ...string) string { return at[string](tree, path) }

// Truth returns the boolean at a path, false if there is none.
func Truth(tree map[string]any, path ...string) bool { return at[bool](tree, path) }

// Texts returns the strings of the list at a path, without its other elements.
func Texts(tree map[string]any, path ...string) []string {
	var all []string
	for _, item := range List(tree, path...) {
		if s, ok := item.(string); ok {
			all = append(all, s)
		}
	}
	return all
}

func at[T any](tree map[string]any, path []string) T {
	last := len(path) - 1
	v, _ := Mapping(tree, path[:last]...)[path[last]].(T)
	return v
}
