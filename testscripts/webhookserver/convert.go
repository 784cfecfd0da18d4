package webhookserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// decode decodes JSON, and leaves numbers as they are written.
func decode(text []byte, into *map[string]any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(into)
}

// convertObject converts an object to an apiVersion: it moves each renamed field.
func (r rules) convertObject(text []byte, to string) ([]byte, error) {
	var object map[string]any
	if err := decode(text, &object); err != nil {
		return nil, err
	}
	from, _ := object["apiVersion"].(string)
	group, version, _ := strings.Cut(from, "/")
	wantedGroup, wanted, _ := strings.Cut(to, "/")
	back := false
	switch {
	case group != wantedGroup:
		return nil, fmt.Errorf("%s cannot be converted to %s: another group", from, to)
	case version == wanted:
		return text, nil
	case version == r.versions[0] && wanted == r.versions[1]:
	case version == r.versions[1] && wanted == r.versions[0]:
		back = true
	default:
		return nil, fmt.Errorf("%s cannot be converted to %s: want %s and %s", from, to, r.versions[0], r.versions[1])
	}
	object["apiVersion"] = to
	for _, rename := range r.renames {
		source, target := rename[0], rename[1]
		if back {
			source, target = target, source
		}
		if v, ok := remove(object, strings.Split(source, ".")); ok {
			if err := set(object, strings.Split(target, "."), v); err != nil {
				return nil, err
			}
		}
	}
	return json.Marshal(object)
}

func get(tree map[string]any, steps []string) (v any, ok bool) {
	for i, step := range steps {
		if v, ok = tree[step]; !ok || i == len(steps)-1 {
			return v, ok
		}
		tree, _ = v.(map[string]any)
	}
	return nil, false
}

func remove(tree map[string]any, steps []string) (v any, ok bool) {
	last := len(steps) - 1
	for _, step := range steps[:last] {
		tree, _ = tree[step].(map[string]any)
	}
	v, ok = tree[steps[last]]
	delete(tree, steps[last])
	return v, ok
}

func set(tree map[string]any, steps []string, v any) error {
	last := len(steps) - 1
	for _, step := range steps[:last] {
		below, ok := tree[step].(map[string]any)
		if !ok {
			if tree[step] != nil {
				return fmt.Errorf("%s is not an object", step)
			}
			below = make(map[string]any)
			tree[step] = below
		}
		tree = below
	}
	tree[steps[last]] = v
	return nil
}
