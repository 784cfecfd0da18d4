package why

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"gitopsd.dev/render/manifest"
)

// Path names a field of an object. Make one with ParsePath; the empty Path is
// the whole object.
type Path []segment

// segment is one step down: into a mapping by key, or into a list by match or,
// if that is nil, by index.
type segment struct {
	key   string
	list  bool
	index int
	match [][2]string
}

// ParsePath reads a path in the form in which plans show it:
//
//	spec.template.spec.containers[name=web].image
//	metadata.labels["a.b/c"]
//	spec.versions[0].schema
func ParsePath(text string) (Path, error) {
	var p Path
	rest := strings.TrimPrefix(text, ".")
	if rest == "" {
		return nil, fmt.Errorf("%q names no field", text)
	}
	for rest != "" {
		switch {
		case strings.HasPrefix(rest, `["`):
			quoted, err := strconv.QuotedPrefix(rest[1:])
			if err != nil || !strings.HasPrefix(rest[1+len(quoted):], "]") {
				return nil, fmt.Errorf(`%q: want ["key"] at %q`, text, rest)
			}
			key, err := strconv.Unquote(quoted)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", text, err)
			}
			p = append(p, segment{key: key})
			rest = rest[len(quoted)+2:]
		case rest[0] == '[':
			inside, after, ok := strings.Cut(rest[1:], "]")
			s, err := element(inside)
			if !ok || err != nil {
				return nil, fmt.Errorf("%q: want [index], [name=value] or [\"key\"] at %q", text, rest)
			}
			p = append(p, s)
			rest = after
		default:
			n := strings.IndexAny(rest, ".[")
			if n < 0 {
				n = len(rest)
			}
			if n == 0 {
				return nil, fmt.Errorf("%q: a name is missing before %q", text, rest)
			}
			p = append(p, segment{key: rest[:n]})
			rest = rest[n:]
		}
		if after, ok := strings.CutPrefix(rest, "."); ok {
			if after == "" {
				return nil, fmt.Errorf("%q: ends in a dot", text)
			}
			rest = after
		}
	}
	return p, nil
}

func element(text string) (segment, error) {
	if n, err := strconv.Atoi(text); err == nil && n >= 0 {
		return segment{list: true, index: n}, nil
	}
	s := segment{list: true}
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return s, fmt.Errorf("%q is neither an index nor name=value", text)
		}
		s.match = append(s.match, [2]string{key, value})
	}
	return s, nil
}

var plainKey = regexp.MustCompile(`^[A-Za-z_$][A-Za-z0-9_$-]*$`)

// String is the path as ParsePath reads it.
func (p Path) String() string {
	var b strings.Builder
	for _, s := range p {
		switch {
		case s.match != nil:
			var pairs []string
			for _, m := range s.match {
				pairs = append(pairs, m[0]+"="+m[1])
			}
			fmt.Fprintf(&b, "[%s]", strings.Join(pairs, ","))
		case s.list:
			fmt.Fprintf(&b, "[%d]", s.index)
		case !plainKey.MatchString(s.key):
			fmt.Fprintf(&b, "[%q]", s.key)
		default:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(s.key)
		}
	}
	return b.String()
}

// ofName says that what gives an object its name is an answer to the question: it
// is about the whole object, or the name.
func (p Path) ofName() bool {
	return len(p) == 0 || len(p) == 2 && p[0].key == "metadata" && (p[1].key == "name" || p[1].key == "namespace")
}

// secretPart says that a field of an object holds what nobody must see.
func (p Path) secretPart(id manifest.ID) bool {
	return id.Is(manifest.Secret) && len(p) > 0 && (p[0].key == "data" || p[0].key == "stringData")
}

// value is the field of an object.
func (p Path) value(o *manifest.Object) Value {
	if len(p) == 0 {
		return Value{}
	}
	var v any = o.Tree()
	for _, s := range p {
		var ok bool
		if v, ok = s.in(v); !ok {
			return Value{}
		}
	}
	if p.secretPart(o.ID()) {
		return Value{Set: true, Value: hidden{v}}
	}
	return Value{Set: true, Value: v}
}

// hidden is a Secret's value: it can be compared, but not seen.
type hidden struct{ value any }

// String is what is shown instead, in text.
func (hidden) String() string { return "(hidden)" }

// GoString keeps it out of %#v too.
func (hidden) GoString() string { return "(hidden)" }

// MarshalJSON is what is shown instead, in JSON.
func (hidden) MarshalJSON() ([]byte, error) { return []byte(`"(hidden)"`), nil }

func equal(a, b Value) bool { return reflect.DeepEqual(a, b) }

func (s segment) in(v any) (any, bool) {
	if !s.list {
		m, _ := v.(map[string]any)
		child, ok := m[s.key]
		return child, ok
	}
	list, _ := v.([]any)
	if s.match == nil {
		if s.index >= len(list) {
			return nil, false
		}
		return list[s.index], true
	}
	for _, e := range list {
		m, _ := e.(map[string]any)
		fits := func(pair [2]string) bool { f, ok := m[pair[0]]; return ok && fmt.Sprint(f) == pair[1] }
		if !slices.ContainsFunc(s.match, func(pair [2]string) bool { return !fits(pair) }) {
			return e, true
		}
	}
	return nil, false
}

// differences are the paths at which two values differ, lists as a whole.
func differences(at Path, a, b any) []string {
	m, aIsMap := a.(map[string]any)
	n, bIsMap := b.(map[string]any)
	if !aIsMap || !bIsMap {
		if reflect.DeepEqual(a, b) {
			return nil
		}
		return []string{at.String()}
	}
	keys := slices.Collect(maps.Keys(m))
	for k := range n {
		if _, both := m[k]; !both {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	var paths []string
	for _, k := range keys {
		old, was := m[k]
		now, is := n[k]
		p := append(slices.Clone(at), segment{key: k})
		if was != is {
			paths = append(paths, p.String())
			continue
		}
		paths = append(paths, differences(p, old, now)...)
	}
	return paths
}

// find looks for a field in the text of a file, in the object that starts at a
// line or is the item of a List there, and returns its value and line.
func (p Path) find(content []byte, from int, is func(tree map[string]any) bool) (v any, line int, ok bool) {
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	for {
		var doc yaml.Node
		if decoder.Decode(&doc) != nil || len(doc.Content) == 0 {
			return nil, 0, false
		}
		if doc.Content[0].Line < from {
			continue
		}
		node := object(doc.Content[0], is)
		if node == nil {
			return nil, 0, false
		}
		for _, s := range p {
			var key *yaml.Node
			if node, key = s.node(node); node == nil {
				return nil, 0, false
			}
			line = node.Line
			if key != nil {
				line = key.Line
			}
		}
		if node.Decode(&v) != nil {
			return nil, 0, false
		}
		return v, line, true
	}
}

// object is the node itself, or the item of a List.
func object(node *yaml.Node, is func(map[string]any) bool) *yaml.Node {
	var tree map[string]any
	if node.Decode(&tree) == nil && is(tree) {
		return node
	}
	items, _ := segment{key: "items"}.node(node)
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

// node is segment.in for nodes, with the node of the key.
func (s segment) node(n *yaml.Node) (value, key *yaml.Node) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch {
	case n.Kind == yaml.MappingNode && !s.list:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == s.key {
				return n.Content[i+1], n.Content[i]
			}
		}
	case n.Kind == yaml.SequenceNode && s.list && s.match == nil && s.index < len(n.Content):
		return n.Content[s.index], nil
	case n.Kind == yaml.SequenceNode && s.list && s.match != nil:
		for _, e := range n.Content {
			var tree any
			if e.Decode(&tree) != nil {
				continue
			}
			if _, fits := s.in([]any{tree}); fits {
				return e, nil
			}
		}
	}
	return nil, nil
}
