package edit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Object is an object as written in a text.
type Object struct {
	// Line is where it starts, from 1.
	Line             int
	APIVersion, Kind string
	Namespace, Name  string
	// Value is the value of the annotation; empty if it is missing.
	Value string
}

// String returns the object for a message: "Widget default/w".
func (o Object) String() string {
	name := o.Name
	if o.Namespace != "" {
		name = o.Namespace + "/" + name
	}
	return o.Kind + " " + name
}

// Annotate sets an annotation on the objects of a text, which is a stream of YAML or JSON
// documents. The items of Lists are objects too. value returns the annotation's value for
// an object, or "" to leave the object unchanged. Key and values must be valid in YAML
// without quotes.
//
// Annotate parses the edited text again and fails if anything but the annotation differs.
// So an unsupported style is an error and never changes a manifest. Errors name the line;
// an error of value is returned unchanged.
func Annotate(text []byte, key string, value func(Object) (string, error)) ([]byte, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("not valid UTF-8: save the file as UTF-8")
	}
	before, err := sources.DecodeYAML(bytes.NewReader(text), sources.Limits{})
	if err != nil {
		return nil, err
	}
	e := newEditor(text, key)
	dec := yaml.NewDecoder(bytes.NewReader(text))
	want := make(map[place]string)
	for doc := 0; ; {
		var n yaml.Node
		if err := dec.Decode(&n); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if len(n.Content) == 0 || n.Content[0].Kind != yaml.MappingNode {
			continue // an empty document, which DecodeYAML skips too
		}
		for i, root := range objects(n.Content[0]) {
			o := read(root, key)
			v, err := value(o)
			if err != nil {
				return nil, err
			}
			if v == "" || v == o.Value {
				continue
			}
			if err := e.set(root, v); err != nil {
				return nil, fmt.Errorf("line %d: %s: %w; write it by hand: metadata.annotations needs %s: %s", o.Line, o, err, key, v)
			}
			want[place{doc, i}] = v
		}
		doc++
	}
	if len(want) == 0 {
		return text, nil
	}
	after := splice(text, e.edits)
	if err := check(before, after, key, want); err != nil {
		return nil, err
	}
	return after, nil
}

// place identifies an object by the indices of its document and of its item there.
type place struct{ doc, item int }

// check parses the edited text and compares it with the old one.
func check(before []sources.Document, edited []byte, key string, want map[place]string) error {
	after, err := sources.DecodeYAML(bytes.NewReader(edited), sources.Limits{})
	same := err == nil && len(after) == len(before)
	for i := 0; same && i < len(before); i++ {
		old, now := trees(before[i].Tree), trees(after[i].Tree)
		same = len(old) == len(now)
		for j := 0; same && j < len(old); j++ {
			if v, ok := want[place{i, j}]; ok {
				old[j] = annotated(old[j], key, v)
			}
			same = reflect.DeepEqual(old[j], now[j])
		}
		same = same && reflect.DeepEqual(rest(before[i].Tree), rest(after[i].Tree))
	}
	if same {
		return nil
	}
	var lines []string
	for i := range before {
		for j := range trees(before[i].Tree) {
			if v, ok := want[place{i, j}]; ok {
				lines = append(lines, fmt.Sprintf("%s: %s in the object that starts at line %d", key, v, before[i].Line))
			}
		}
	}
	return fmt.Errorf("the file shares parts between objects (anchors, merges) or is written in a way that cannot be edited without changing something else; write it by hand: %s", strings.Join(lines, ", "))
}

// objects returns the root itself, or the items of a List.
func objects(root *yaml.Node) []*yaml.Node {
	kind, items := field(root, "kind"), field(root, "items")
	if kind == nil || items == nil || items.Kind != yaml.SequenceNode || !strings.HasSuffix(kind.Value, "List") {
		return []*yaml.Node{root}
	}
	return items.Content
}

// trees is [objects] for a decoded document.
func trees(root map[string]any) []any {
	items, ok := root["items"].([]any)
	if !ok || !strings.HasSuffix(manifest.Text(root, "kind"), "List") {
		return []any{root}
	}
	return slices.Clone(items)
}

// rest returns a List without its items, nil for other objects.
func rest(root map[string]any) map[string]any {
	if !strings.HasSuffix(manifest.Text(root, "kind"), "List") {
		return nil
	}
	return manifest.Without(root, "items")
}

// annotated returns a copy of an object with the annotation.
func annotated(object any, key, value string) any {
	tree, _ := object.(map[string]any)
	return manifest.With(tree, value, "metadata", "annotations", key)
}

func read(root *yaml.Node, key string) Object {
	meta := field(root, "metadata")
	return Object{
		Line: root.Line, APIVersion: scalar(field(root, "apiVersion")), Kind: scalar(field(root, "kind")),
		Namespace: scalar(field(meta, "namespace")), Name: scalar(field(meta, "name")),
		Value: scalar(field(field(meta, "annotations"), key)),
	}
}

func scalar(n *yaml.Node) string {
	if n == nil || n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		return ""
	}
	return n.Value
}

// field returns the value of a mapping's key, with aliases resolved; nil if it is missing or
// n is not a mapping.
func field(n *yaml.Node, key string) *yaml.Node {
	_, v := entry(n, key)
	for v != nil && v.Kind == yaml.AliasNode {
		v = v.Alias
	}
	return v
}

// entry returns the key and value as written.
func entry(n *yaml.Node, key string) (k, v *yaml.Node) {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key && n.Content[i].Kind == yaml.ScalarNode {
			return n.Content[i], n.Content[i+1]
		}
	}
	return nil, nil
}
