package sources

import (
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// converter converts the parser's nodes to trees.
type converter struct {
	limits Limits
	first  int // first line of the document
	nodes  int // number of nodes in the document
	total  int // number of nodes in the documents before it
	shared *sharing
	parts  []numbered // items of the lists and mappings being read
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
	for i := 0; i < len(root.Content); i += 2 {
		if key := root.Content[i]; strings.HasPrefix(key.Value, byteOrderMark) {
			return nil, aboutMark(key.Line)
		}
	}
	c.first = root.Line
	tree, err := c.mapping(root, 1)
	if err != nil {
		return nil, err
	}
	return tree.value.(map[string]any), nil
}

// target returns the node that an alias refers to. The parser keeps anchors from one
// document to the next; YAML does not (1.2.2, section 3.2.2.2), nor do readers
// that split a stream before they parse it.
func (c *converter) target(n *yaml.Node) (*yaml.Node, error) {
	if n.Alias.Line < c.first {
		// The name may be a password that needs quotes.
		return nil, fmt.Errorf("line %d: an alias has no anchor in this document; quote a text that begins with *", n.Line)
	}
	return n.Alias, nil
}

func kindName(k yaml.Kind) string {
	switch k {
	case yaml.SequenceNode:
		return "list"
	case yaml.MappingNode:
		return "mapping"
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

func (c *converter) value(n *yaml.Node, depth int) (numbered, error) {
	if err := c.count(n, depth); err != nil {
		return numbered{}, err
	}
	switch n.Kind {
	case yaml.MappingNode:
		return c.mapping(n, depth)
	case yaml.SequenceNode:
		return c.list(n, depth)
	case yaml.AliasNode:
		target, err := c.target(n)
		if err != nil {
			return numbered{}, err
		}
		return c.value(target, depth+1)
	default:
		return c.scalar(n)
	}
}

func (c *converter) list(n *yaml.Node, depth int) (numbered, error) {
	start := len(c.parts)
	defer func() { c.parts = c.parts[:start] }()
	for _, item := range n.Content {
		v, err := c.value(item, depth+1)
		if err != nil {
			return numbered{}, err
		}
		c.parts = append(c.parts, v)
	}
	return c.shared.list(c.parts[start:]), nil
}

func (c *converter) mapping(n *yaml.Node, depth int) (numbered, error) {
	start := len(c.parts)
	defer func() { c.parts = c.parts[:start] }()
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		if key.Tag == "!!merge" {
			merges = append(merges, val)
			continue
		}
		name, err := c.key(key)
		if err != nil {
			return numbered{}, err
		}
		v, err := c.value(val, depth+1)
		if err != nil {
			return numbered{}, err
		}
		c.parts = append(c.parts, name, v)
	}
	own, twice := c.shared.mapping(c.parts[start:])
	if twice >= 0 {
		return numbered{}, fmt.Errorf("line %d: duplicate key %q", keys(n)[twice].Line, c.parts[start+2*twice].value)
	}
	if merges == nil {
		return own, nil
	}
	// Keys of the mapping itself win over merged ones, earlier merges over
	// later ones (https://yaml.org/type/merge.html).
	c.shared.cost += mappingCost + entryCost*int64(len(own.value.(map[string]any)))
	m := maps.Clone(own.value.(map[string]any))
	for _, merge := range merges {
		if err := c.merge(m, merge, depth+1); err != nil {
			return numbered{}, err
		}
	}
	return c.shared.fresh(m), nil
}

// keys returns the keys of a mapping, without merges.
func keys(n *yaml.Node) (keys []*yaml.Node) {
	for i := 0; i < len(n.Content); i += 2 {
		if key := n.Content[i]; key.Tag != "!!merge" {
			keys = append(keys, key)
		}
	}
	return keys
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
		for k, v := range m.value.(map[string]any) {
			if _, there := into[k]; !there {
				into[k] = v
			}
		}
		return nil
	case yaml.SequenceNode:
		for _, item := range n.Content {
			if item.Kind == yaml.SequenceNode {
				return onlyMappings(item)
			}
			if err := c.merge(into, item, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	return onlyMappings(n)
}

func onlyMappings(n *yaml.Node) error {
	return fmt.Errorf("line %d: << merges mappings only", n.Line)
}

// key converts a mapping's key as sigs.k8s.io/yaml does: JSON only has string keys,
// so a number or a boolean becomes its text.
func (c *converter) key(n *yaml.Node) (numbered, error) {
	for n.Kind == yaml.AliasNode {
		target, err := c.target(n)
		if err != nil {
			return numbered{}, err
		}
		n = target
	}
	switch {
	case n.Kind == yaml.MappingNode && n.Style&yaml.FlowStyle != 0:
		return numbered{}, fmt.Errorf("line %d: a key must be a scalar, not a mapping; if {{ }} is for a template, commit what that renders, such as the output of `helm template`", n.Line)
	case n.Kind != yaml.ScalarNode:
		return numbered{}, fmt.Errorf("line %d: a key must be a scalar, not a %s", n.Line, kindName(n.Kind))
	}
	key, err := c.scalar(n)
	if err != nil {
		return numbered{}, err
	}
	switch v := key.value.(type) {
	case string:
		return key, nil
	case bool:
		return c.shared.string(strconv.FormatBool(v)), nil
	case int64:
		return c.shared.string(strconv.FormatInt(v, 10)), nil
	case float64:
		return c.shared.string(strconv.FormatFloat(v, 'g', -1, 32)), nil
	}
	return numbered{}, fmt.Errorf("line %d: a key must not be null", n.Line)
}

func (c *converter) scalar(n *yaml.Node) (numbered, error) {
	if n.Tag == "!!str" && (n.Style != 0 || len(n.Value) > 3) {
		return c.shared.string(n.Value), nil
	}
	v, err := scalar(n)
	if err != nil {
		return numbered{}, err
	}
	if text, ok := v.(string); ok {
		return c.shared.string(text), nil
	}
	return c.shared.scalar(v), nil
}

// scalar returns a scalar's value, of the types of JSON.
func scalar(n *yaml.Node) (any, error) {
	bad := func(what string) error {
		return fmt.Errorf("line %d: the value is not %s", n.Line, what) // it may be a Secret's
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
		return n.Value, nil
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
	case "!!binary", "!!omap", "!!pairs", "!!set": // https://yaml.org/type/
		return nil, fmt.Errorf("line %d: tag %s means nothing in a Kubernetes document", n.Line, n.Tag)
	default: // it may be a password
		return nil, fmt.Errorf("line %d: the tag means nothing in a Kubernetes document; a text that begins with ! needs quotes", n.Line)
	}
}

func integer(n *yaml.Node, bad func(string) error) (any, error) {
	plain := strings.ReplaceAll(n.Value, "_", "")
	if i, err := strconv.ParseInt(plain, 0, 64); err == nil {
		return i, nil
	}
	// A larger number keeps float64's precision.
	if u, err := strconv.ParseUint(plain, 0, 64); err == nil {
		return float64(u), nil
	}
	return nil, bad("an integer")
}
