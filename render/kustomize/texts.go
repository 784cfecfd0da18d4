package kustomize

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// textFields are the fields of metadata with mappings of strings. Kustomize writes numbers and
// booleans in annotations as text, and empties mappings, lists and values that are left out;
// it makes null in a label an error, and in an operation the text "null". Null beside an annotation
// of gitopsd's is an error too: in {a: b, c} the c is most likely a part of that value.
var textFields = []string{"labels", "annotations"}

// checkTexts checks the labels and annotations of an object, and returns the path of a wrong
// one with the error. In a patch, null removes a value, and keys that begin with a $ are
// directives. operation: they are set by a JSON 6902 operation.
func checkTexts(tree map[string]any, patch, operation bool) (where []string, err error) {
	meta := manifest.Mapping(tree, "metadata")
	for _, field := range textFields {
		switch values := meta[field].(type) {
		case nil:
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(values)) {
				if values[key] == nil && field == "annotations" && !operation && !patch && ours(values) {
					return []string{"metadata", field, key}, fmt.Errorf("metadata.%s: %s: want a string, have null; if it is a part of the value before a comma, quote the whole value, else write \"\" for an empty one", field, key)
				}
				if values[key] == nil && field == "annotations" && !operation || patch && (values[key] == nil || strings.HasPrefix(key, "$")) {
					continue
				}
				if err := checkText(key, values[key]); err != nil {
					return []string{"metadata", field, key}, fmt.Errorf("metadata.%s: %w", field, err)
				}
			}
		case string:
			return []string{"metadata", field}, fmt.Errorf("metadata.%s: want a mapping of strings, have a string", field)
		case []any:
			return []string{"metadata", field}, fmt.Errorf("metadata.%s: want a mapping of strings, have a list", field)
		default:
			return []string{"metadata", field}, fmt.Errorf("metadata.%s: want a mapping of strings, have %v", field, values)
		}
	}
	return nil, nil
}

// ours reports whether one of the annotations is gitopsd's, many of which are lists.
func ours(annotations map[string]any) bool {
	for key := range annotations {
		if strings.HasPrefix(key, manifest.Group+"/") {
			return true
		}
	}
	return false
}

// checkText checks the value of a label or annotation.
func checkText(key string, v any) error {
	switch v.(type) {
	case nil:
		return fmt.Errorf(`%s: want a string, have null; write "" for an empty one, or remove the key`, key)
	case map[string]any:
		return fmt.Errorf("%s: want a string, have a mapping, which would be lost; quote it, or write | before it for a text of several lines", key)
	case []any:
		return fmt.Errorf("%s: want a string, have a list, which would be lost; quote it, or write | before it for a text of several lines", key)
	}
	return nil
}

// checkTextsOfPatch checks the labels and annotations that a strategic merge patch or JSON 6902
// operations set, the data of ConfigMaps and Secrets, and that nothing is lost. The path is of the
// first wrong one.
func checkTextsOfPatch(tree map[string]any, operations []any) (where []string, err error) {
	var all any = tree
	if operations != nil {
		all = operations
	}
	if where, err := checkKept(all, operations != nil); err != nil {
		return where, err
	}
	if operations == nil {
		// Kustomize's own error would name neither the patch nor the field.
		for _, name := range []string{"binaryData", "data", "stringData"} {
			_, mapping := tree[name].(map[string]any)
			if kind := manifest.KindOf(tree); !mapping && tree[name] != nil && (kind == manifest.Secret || kind == manifest.ConfigMap) {
				return []string{name}, fmt.Errorf("%s: want a mapping of strings", name)
			}
		}
		return checkTexts(tree, true, false)
	}
	for i, op := range operations {
		m, _ := op.(map[string]any)
		if name := manifest.Text(m, "op"); name != "add" && name != "replace" {
			continue
		}
		path := pointer(manifest.Text(m, "path"))
		if len(path) < 2 || len(path) > 3 || path[0] != "metadata" || !slices.Contains(textFields, path[1]) {
			continue
		}
		value := m["value"]
		if len(path) == 3 {
			value = map[string]any{unescaped.Replace(path[2]): value}
		}
		if _, err := checkTexts(map[string]any{"metadata": map[string]any{path[1]: value}}, false, true); err != nil {
			return []string{strconv.Itoa(i), "value"}, err
		}
	}
	return nil, nil
}

// checkDates returns an error at the first date without quotes in objects or strategic merge
// patches, and its line. Kustomize reads it as a time, and writes 2012-10-17 as
// 2012-10-17T00:00:00Z. Times that are written so already do not change. It keeps dates in
// annotations, unless JSON 6902 operations change the object, too.
func checkDates(content []byte, docs []sources.Document) (line int, err error) {
	if !slices.ContainsFunc(docs, func(d sources.Document) bool { return holdsDate(d.Tree) }) {
		return 0, nil // as most files, which need no second reading
	}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	for {
		var doc yaml.Node
		if decoder.Decode(&doc) != nil {
			return 0, nil
		}
		if line, err := dateIn(&doc); err != nil {
			return line, err
		}
	}
}

// holdsDate reports whether a text in a value begins like a date.
func holdsDate(v any) bool {
	switch v := v.(type) {
	case string:
		return beginsWithYear.MatchString(v)
	case map[string]any:
		for _, item := range v {
			if holdsDate(item) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, holdsDate)
	}
	return false
}

var beginsWithYear = regexp.MustCompile(`^[0-9]{4}-`)

// dateIn returns the first date below a node that kustomize would change, as checkDates. The path
// of the node begins at the object.
func dateIn(n *yaml.Node, path ...string) (line int, err error) {
	switch n.Kind {
	case yaml.AliasNode:
		return dateIn(n.Alias, path...)
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content) && err == nil; i += 2 {
			below := slices.Concat(path, []string{n.Content[i].Value})
			item := len(below) == 4 && below[0] == "items" // of a List
			if slices.Equal(below, annotationsPath) || item && slices.Equal(below[2:], annotationsPath) {
				continue
			}
			line, err = dateIn(n.Content[i+1], below...)
		}
	case yaml.SequenceNode:
		for i := 0; i < len(n.Content) && err == nil; i++ {
			line, err = dateIn(n.Content[i], slices.Concat(path, []string{strconv.Itoa(i)})...)
		}
	case yaml.ScalarNode:
		var at time.Time
		if n.ShortTag() != "!!timestamp" || n.Decode(&at) != nil || at.Format(time.RFC3339Nano) == n.Value {
			return 0, nil
		}
		return n.Line, fmt.Errorf("%s: is a date without quotes, which kustomize would write as a time; quote it", strings.Join(path, "."))
	case yaml.DocumentNode:
		return dateIn(n.Content[0], path...)
	}
	return line, err
}

// checkKept returns an error at a field that kustomize would lose or change, and its path.
// operations: the value is of JSON 6902 operations, or of an object that they change.
func checkKept(v any, operations bool) (where []string, err error) {
	where, why := lost(v, operations)
	if why != "" {
		err = fmt.Errorf("%s: %s", strings.Join(where, "."), why)
	}
	return where, err
}

func lost(v any, operations bool) (where []string, why string) {
	switch v := v.(type) {
	case map[string]any:
		for key, item := range v {
			below, reason := lost(item, operations)
			if key == "<<" {
				below, reason = nil, "kustomize reads this key as a merge, and would lose it; use another"
			}
			if reason != "" && (why == "" || key < where[0]) {
				where, why = append([]string{key}, below...), reason
			}
		}
	case []any:
		for i, item := range v {
			if below, reason := lost(item, operations); reason != "" {
				return append([]string{strconv.Itoa(i)}, below...), reason
			}
		}
	case int64: // kustomize reads the results of operations as JSON, with numbers of 53 bits
		if f := float64(v); operations && (f >= 1<<63 || int64(f) != v) {
			why = "JSON 6902 operations would round this number; use a strategic merge patch"
		}
	}
	return where, why
}

var annotationsPath = []string{"metadata", "annotations"}

// unescaped replaces the escapes of a JSON pointer (RFC 6901).
var unescaped = strings.NewReplacer("~1", "/", "~0", "~")

// lineBelow returns the line of a field in the document of a file that starts at a line, or of
// its nearest parent. Elements of lists are named by their index.
func lineBelow(content []byte, start int, path ...string) int {
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	for {
		var doc yaml.Node
		if decoder.Decode(&doc) != nil || len(doc.Content) == 0 {
			return start
		}
		if doc.Content[0].Line < start {
			continue
		}
		node, line := doc.Content[0], start
		for _, key := range path {
			for node.Kind == yaml.AliasNode {
				node = node.Alias
			}
			var below *yaml.Node
			switch i, err := strconv.Atoi(key); {
			case node.Kind == yaml.SequenceNode && err == nil && i < len(node.Content):
				below, line = node.Content[i], node.Content[i].Line
			case node.Kind == yaml.MappingNode:
				for i := 0; i+1 < len(node.Content); i += 2 {
					if node.Content[i].Value == key {
						below, line = node.Content[i+1], node.Content[i].Line
					}
				}
			}
			if below == nil {
				return line
			}
			node = below
		}
		return line
	}
}
