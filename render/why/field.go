package why

import (
	"bytes"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// question is the field of a question; empty for the whole object.
type question field.Path

// ofName reports whether the question is about the whole object, its name or namespace.
func (p question) ofName() bool {
	return len(p) == 0 || len(p) == 2 && p[0].Key == "metadata" && (p[1].Key == "name" || p[1].Key == "namespace")
}

// value returns the field of an object.
func (p question) value(o *manifest.Object) Value {
	if len(p) == 0 {
		return Value{}
	}
	v, ok := field.Path(p).In(o.Tree())
	return Value{Set: ok, Value: p.shown(o.Tree(), v)}
}

// shown returns the value of the field in a tree without what must not be shown.
func (p question) shown(tree, v any) any {
	hide := func(v any) any { return hidden{v} }
	if field.Path(p).Hidden(tree) {
		return field.Conceal(v, hide)
	}
	return field.Redact(v, hide)
}

// hidden is a value of a Secret. It can be compared, but is not shown.
type hidden struct{ value any }

// String returns "(hidden)".
func (hidden) String() string { return "(hidden)" }

// GoString returns "(hidden)" for %#v.
func (hidden) GoString() string { return "(hidden)" }

// MarshalJSON returns "(hidden)" in JSON.
func (hidden) MarshalJSON() ([]byte, error) { return []byte(`"(hidden)"`), nil }

// differences returns the paths where two values differ. It compares lists as a whole.
func differences(at field.Path, a, b any) []string {
	m, aIsMap := a.(map[string]any)
	n, bIsMap := b.(map[string]any)
	if !aIsMap || !bIsMap {
		if reflect.DeepEqual(a, b) {
			return nil
		}
		return []string{at.String()}
	}
	keys := slices.AppendSeq(slices.Collect(maps.Keys(m)), maps.Keys(n))
	slices.Sort(keys)
	var paths []string
	for _, k := range slices.Compact(keys) {
		old, was := m[k]
		now, is := n[k]
		p := append(slices.Clone(at), field.Key(k))
		if was != is {
			paths = append(paths, p.String())
			continue
		}
		paths = append(paths, differences(p, old, now)...)
	}
	return paths
}

// find finds a field in the text of a file, in the object at line from or in an item of the
// List there, and returns its line and its value without what must not be shown. If the field is missing, it returns the number
// of existing steps and the line of the last one.
func (p question) find(content []byte, from int, is func(tree map[string]any) bool) (v any, line, steps int, ok bool) {
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	for {
		var doc yaml.Node
		if decoder.Decode(&doc) != nil || len(doc.Content) == 0 {
			return nil, 0, 0, false
		}
		if doc.Content[0].Line < from {
			continue
		}
		node := object(doc.Content[0], is)
		if node == nil {
			return nil, 0, 0, false
		}
		var tree any
		if node.Decode(&tree) != nil {
			return nil, 0, 0, false
		}
		line = node.Line
		for i, s := range p {
			value, key := below(node, s)
			if value == nil {
				return nil, line, i, false
			}
			node, line = value, value.Line
			if key != nil {
				line = key.Line
			}
		}
		ok = node.Decode(&v) == nil
		return p.shown(tree, v), line, len(p), ok
	}
}

// object returns the node itself, or the item of a List; nil if is reports neither.
func object(node *yaml.Node, is func(map[string]any) bool) *yaml.Node {
	var tree map[string]any
	if node.Decode(&tree) == nil && is(tree) {
		return node
	}
	items, _ := below(node, field.Key("items"))
	if items == nil {
		return nil
	}
	for _, item := range items.Content {
		if tree = nil; item.Decode(&tree) == nil && is(tree) {
			return item
		}
	}
	return nil
}

// below is [field.Step.In] for nodes. It also returns the node of the key.
func below(n *yaml.Node, s field.Step) (value, key *yaml.Node) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch {
	case n.Kind == yaml.MappingNode && !s.List:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == s.Key {
				return n.Content[i+1], n.Content[i]
			}
		}
	case n.Kind == yaml.SequenceNode && s.List && s.Match == nil && s.Index < len(n.Content):
		return n.Content[s.Index], nil
	case n.Kind == yaml.SequenceNode && s.List && s.Match != nil:
		for _, e := range n.Content {
			var tree any
			if e.Decode(&tree) != nil {
				continue
			}
			if _, fits := s.In([]any{tree}); fits {
				return e, nil
			}
		}
	}
	return nil, nil
}

// Line returns the line of an object's field in the file of its origin. For a missing field
// it is the line of the nearest existing parent. It is 0 if the line is not known, for
// example because a patch sets the field. The path has the API server's syntax,
// "spec.ports[0].port".
func Line(files fs.FS, o *manifest.Object, path string) int {
	p, err := field.Parse(path)
	if err != nil || len(p) == 0 {
		return 0
	}
	content, err := fs.ReadFile(files, o.Origin().File)
	if err != nil {
		return 0
	}
	_, line, steps, ok := question(p).find(content, o.Origin().Line, is(o.ID()))
	if ok || steps == len(p) {
		return line
	}
	if s := p[steps]; s.List && s.Match != nil {
		// The API server may name an element by a key with a default.
		only := 0
		for i, there := 0, true; there; i++ {
			q := slices.Clone(p)
			q[steps] = field.Index(i)
			_, at, reached, ok := question(q).find(content, o.Origin().Line, is(o.ID()))
			switch there = reached > steps; {
			case ok && only == 0:
				only = at
			case ok:
				return line // any of them
			}
		}
		if only > 0 {
			return only
		}
	}
	if _, more := p[:steps+1].In(o.Tree()); more {
		return 0
	}
	return line
}

// is returns a function that reports whether a document may be the source of an object.
// Kustomize may have added a prefix or suffix to the name.
func is(id manifest.ID) func(tree map[string]any) bool {
	return func(tree map[string]any) bool {
		name := manifest.Text(tree, "metadata", "name")
		return tree["kind"] == id.Kind && name != "" && strings.Contains(id.Name, name)
	}
}
