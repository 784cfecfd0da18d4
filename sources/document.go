package sources

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Document is one document of a YAML stream, decoded to the types of JSON:
// map[string]any, []any, string, bool, int64, float64 and nil. Trees are shared
// between clusters and must not be changed once decoded.
type Document struct {
	// Line is where the document starts in its stream, from 1.
	Line int
	// Tree is the document's mapping.
	Tree map[string]any
}

// Limits bound what a YAML stream may cost. A zero field means the default.
type Limits struct {
	// Bytes of the whole stream; default DefaultMaxBytes.
	Bytes int64
	// Documents in the stream; default DefaultMaxDocuments.
	Documents int
	// Nodes of one document after aliases are expanded; default
	// DefaultMaxNodes.
	Nodes int
	// TotalNodes of all documents; default DefaultMaxTotalNodes.
	TotalNodes int
	// Depth of nesting; default DefaultMaxDepth.
	Depth int
}

// The defaults hold the largest package known (some 2,000 CRDs, 90 MB of YAML)
// several times over.
const (
	DefaultMaxBytes     = 512 << 20
	DefaultMaxDocuments = 20_000
	DefaultMaxNodes     = 4_000_000
	// Some 4 GB in the worst case, which is a small mapping for each.
	DefaultMaxTotalNodes = 20_000_000
	DefaultMaxDepth      = 500
)

// ErrLimit is in the chain of every error that says a limit was passed.
var ErrLimit = errors.New("limit passed")

func (l Limits) withDefaults() Limits {
	if l.Bytes == 0 {
		l.Bytes = DefaultMaxBytes
	}
	if l.Documents == 0 {
		l.Documents = DefaultMaxDocuments
	}
	if l.Nodes == 0 {
		l.Nodes = DefaultMaxNodes
	}
	if l.TotalNodes == 0 {
		l.TotalNodes = DefaultMaxTotalNodes
	}
	if l.Depth == 0 {
		l.Depth = DefaultMaxDepth
	}
	return l
}

// DecodeYAML reads a stream of YAML or JSON documents, strictly: each must be a
// mapping (empty documents are passed over), duplicate keys and invalid UTF-8
// are errors, and errors name the line. Values come out as kubectl reads them
// (sigs.k8s.io/yaml: YAML 1.1 booleans, integers as int64), so that a package
// means here what it means to every other Kubernetes tool.
//
// The documents decoded before an error are returned with it.
func DecodeYAML(r io.Reader, limits Limits) (docs []Document, err error) {
	limits = limits.withDefaults()
	in := &boundedReader{r: r, left: limits.Bytes, limit: limits.Bytes}
	defer func() {
		// The parser reports syntax errors by panicking across Decode in a few
		// corners (fuzzing found them); they are errors of the input here too.
		if p := recover(); p != nil {
			err = fmt.Errorf("malformed YAML: %v", p)
		}
	}()
	// The parser reads 512 bytes at a time, from a file with a system call each.
	dec := yaml.NewDecoder(bufio.NewReader(in))
	c := converter{limits: limits, strings: make(map[string]string)}
	for {
		var n yaml.Node
		switch err := dec.Decode(&n); {
		case err != nil && in.err != nil:
			return docs, in.err
		case errors.Is(err, io.EOF):
			return docs, nil
		case err != nil:
			return docs, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
		}
		tree, err := c.document(&n)
		if err != nil {
			return docs, err
		}
		if tree == nil {
			continue
		}
		if len(docs) == limits.Documents {
			return docs, fmt.Errorf("line %d: more than %d documents: %w", n.Content[0].Line, limits.Documents, ErrLimit)
		}
		docs = append(docs, Document{Line: n.Content[0].Line, Tree: tree})
	}
}

// boundedReader fails, rather than ends, when more than limit bytes come, and
// when what comes is not UTF-8 (the parser itself lets some of that through).
type boundedReader struct {
	r           io.Reader
	left, limit int64
	tail        []byte // an incomplete rune at the end of the last read
	err         error
}

func (b *boundedReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		b.err = fmt.Errorf("more than %d bytes of YAML: %w", b.limit, ErrLimit)
		return 0, b.err
	}
	chunk := p[:n]
	if len(b.tail) > 0 {
		chunk = append(b.tail, chunk...)
		b.tail = nil
	}
	if !utf8.Valid(chunk) {
		// A rune may be cut in two by the end of a read.
		cut := len(chunk) - 1
		for cut > 0 && !utf8.RuneStart(chunk[cut]) && len(chunk)-cut < utf8.UTFMax {
			cut--
		}
		if err != nil || utf8.FullRune(chunk[cut:]) || !utf8.Valid(chunk[:cut]) {
			b.err = errors.New("not valid UTF-8: save the file as UTF-8")
			return 0, b.err
		}
		b.tail = bytes.Clone(chunk[cut:])
	}
	if err != nil && err != io.EOF {
		b.err = err
	}
	return n, err
}

type converter struct {
	limits  Limits
	first   int // line of the document
	nodes   int // of the document
	total   int // of those before it
	strings map[string]string
}

func (c *converter) document(n *yaml.Node) (map[string]any, error) {
	c.total += c.nodes
	c.nodes = 0
	if n.Kind != yaml.DocumentNode || len(n.Content) == 0 {
		return nil, nil
	}
	root := n.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: a document must be a mapping (apiVersion, kind, …), not a %s", root.Line, kindName(root.Kind))
	}
	c.first = root.Line
	return c.mapping(root, 1)
}

// target returns what an alias stands for. The parser keeps anchors from one
// document to the next; YAML does not (1.2.2, section 3.2.2.2), nor do readers
// that take a stream apart before they parse it.
func (c *converter) target(n *yaml.Node) (*yaml.Node, error) {
	if n.Alias.Line < c.first {
		return nil, fmt.Errorf("line %d: alias *%s has no anchor in this document", n.Line, n.Value)
	}
	return n.Alias, nil
}

func kindName(k yaml.Kind) string {
	switch k {
	case yaml.SequenceNode:
		return "list"
	case yaml.AliasNode:
		return "alias"
	default:
		return "scalar"
	}
}

func (c *converter) count(n *yaml.Node, depth int) error {
	if c.nodes++; c.nodes > c.limits.Nodes {
		return fmt.Errorf("line %d: the document has more than %d values (are aliases nested?): %w", n.Line, c.limits.Nodes, ErrLimit)
	}
	if c.total+c.nodes > c.limits.TotalNodes {
		return fmt.Errorf("line %d: more than %d values so far (are aliases nested?): %w", n.Line, c.limits.TotalNodes, ErrLimit)
	}
	if depth > c.limits.Depth {
		return fmt.Errorf("line %d: nested deeper than %d: %w", n.Line, c.limits.Depth, ErrLimit)
	}
	return nil
}

func (c *converter) value(n *yaml.Node, depth int) (any, error) {
	if err := c.count(n, depth); err != nil {
		return nil, err
	}
	switch n.Kind {
	case yaml.MappingNode:
		return c.mapping(n, depth)
	case yaml.SequenceNode:
		list := make([]any, len(n.Content))
		for i, item := range n.Content {
			v, err := c.value(item, depth+1)
			if err != nil {
				return nil, err
			}
			list[i] = v
		}
		return list, nil
	case yaml.AliasNode:
		target, err := c.target(n)
		if err != nil {
			return nil, err
		}
		return c.value(target, depth+1)
	default:
		return c.scalar(n)
	}
}

func (c *converter) mapping(n *yaml.Node, depth int) (map[string]any, error) {
	m := make(map[string]any, len(n.Content)/2)
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		if key.Tag == "!!merge" {
			merges = append(merges, val)
			continue
		}
		name, err := c.key(key)
		if err != nil {
			return nil, err
		}
		if _, twice := m[name]; twice {
			return nil, fmt.Errorf("line %d: key %q is there twice", key.Line, name)
		}
		v, err := c.value(val, depth+1)
		if err != nil {
			return nil, err
		}
		m[name] = v
	}
	// Keys of the mapping itself win over merged ones, earlier merges over
	// later ones (https://yaml.org/type/merge.html).
	for _, merge := range merges {
		if err := c.merge(m, merge, depth+1); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (c *converter) merge(into map[string]any, n *yaml.Node, depth int) error {
	if err := c.count(n, depth); err != nil {
		return err
	}
	switch n.Kind {
	case yaml.AliasNode:
		target, err := c.target(n)
		if err != nil {
			return err
		}
		return c.merge(into, target, depth+1)
	case yaml.MappingNode:
		m, err := c.mapping(n, depth+1)
		if err != nil {
			return err
		}
		for k, v := range m {
			if _, there := into[k]; !there {
				into[k] = v
			}
		}
		return nil
	case yaml.SequenceNode:
		for _, item := range n.Content {
			if item.Kind == yaml.SequenceNode {
				break
			}
			if err := c.merge(into, item, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("line %d: << merges mappings only", n.Line)
}

// key converts a mapping's key as sigs.k8s.io/yaml does: JSON has string keys
// only, so a number or a boolean becomes its text.
func (c *converter) key(n *yaml.Node) (string, error) {
	for n.Kind == yaml.AliasNode {
		target, err := c.target(n)
		if err != nil {
			return "", err
		}
		n = target
	}
	if n.Kind != yaml.ScalarNode {
		return "", fmt.Errorf("line %d: a key must be a scalar, not a %s", n.Line, kindName(n.Kind))
	}
	v, err := c.scalar(n)
	if err != nil {
		return "", err
	}
	switch v := v.(type) {
	case string:
		return v, nil
	case bool:
		return strconv.FormatBool(v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 32), nil
	}
	return "", fmt.Errorf("line %d: a key must not be null", n.Line)
}

// intern returns one copy of short strings that come again and again: the keys
// and types of a CRD's schema are a large part of its size in memory.
func (c *converter) intern(s string) string {
	if len(s) > 40 {
		return s
	}
	if known, ok := c.strings[s]; ok {
		return known
	}
	if len(c.strings) < 100_000 {
		c.strings[s] = s
	}
	return s
}

func (c *converter) scalar(n *yaml.Node) (any, error) {
	bad := func(what string) error {
		return fmt.Errorf("line %d: %q is not %s", n.Line, n.Value, what)
	}
	switch n.Tag {
	case "!!str", "!!timestamp":
		// YAML 1.1 booleans are plain; a quoted or tagged one is a string.
		if n.Style == 0 && len(n.Value) <= 3 {
			switch n.Value {
			case "y", "Y", "yes", "Yes", "YES", "on", "On", "ON":
				return true, nil
			case "n", "N", "no", "No", "NO", "off", "Off", "OFF":
				return false, nil
			}
		}
		return c.intern(n.Value), nil
	case "!!null":
		return nil, nil
	case "!!bool":
		switch n.Value {
		case "true", "True", "TRUE":
			return true, nil
		case "false", "False", "FALSE":
			return false, nil
		}
		return nil, bad("a boolean")
	case "!!int":
		return integer(n, bad)
	case "!!float":
		f, err := strconv.ParseFloat(strings.ReplaceAll(n.Value, "_", ""), 64)
		if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
			return nil, bad("a number that JSON can hold")
		}
		return f, nil
	default:
		return nil, fmt.Errorf("line %d: tag %s means nothing in a Kubernetes document", n.Line, n.Tag)
	}
}

func integer(n *yaml.Node, bad func(string) error) (any, error) {
	plain := strings.ReplaceAll(n.Value, "_", "")
	if i, err := strconv.ParseInt(plain, 0, 64); err == nil {
		return i, nil
	}
	// Beyond int64 JSON keeps a number, at float64's precision.
	if u, err := strconv.ParseUint(plain, 0, 64); err == nil {
		return float64(u), nil
	}
	return nil, bad("an integer")
}
