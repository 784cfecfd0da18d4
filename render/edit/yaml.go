package edit

import (
	"bytes"
	"errors"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// editor collects edits of a text. Positions are byte offsets into it.
type editor struct {
	old   []byte
	key   string
	lines []int // where each line starts
	edits []edit
}

func newEditor(text []byte, key string) *editor {
	return &editor{old: text, key: key, lines: lineStarts(text)}
}

// bom is the byte order mark, which the parser does not count.
const bom = "\ufeff"

// lineStarts returns the starts of lines as the parser counts them (YAML 1.1,
// section 4.1.4).
func lineStarts(text []byte) []int {
	at := 0
	if bytes.HasPrefix(text, []byte(bom)) {
		at = len(bom)
	}
	starts := []int{at}
	for at < len(text) {
		r, size := utf8.DecodeRune(text[at:])
		at += size
		switch r {
		case '\r':
			if at < len(text) && text[at] == '\n' {
				at++
			}
			fallthrough
		case '\n', '\u0085', '\u2028', '\u2029':
			starts = append(starts, at)
		}
	}
	return starts
}

var errStyle = errors.New("it is written in a way that cannot be edited safely")

// offset returns where a node starts.
func (e *editor) offset(n *yaml.Node) (int, error) {
	if n.Line < 1 || n.Line > len(e.lines) {
		return 0, errStyle
	}
	at := e.lines[n.Line-1]
	for range n.Column - 1 {
		if at >= len(e.old) {
			return 0, errStyle
		}
		_, size := utf8.DecodeRune(e.old[at:])
		at += size
	}
	return at, nil
}

// extent returns the start and end of a scalar on one line without escapes. quote is its
// quote, 0 for none. A scalar that is not written at all has no extent; see [editor.behind].
func (e *editor) extent(n *yaml.Node) (start, end int, quote byte, err error) {
	if start, err = e.offset(n); err != nil || n.Kind != yaml.ScalarNode || unwritten(n) {
		return 0, 0, 0, errStyle
	}
	written := n.Value
	switch n.Style {
	case 0:
	case yaml.DoubleQuotedStyle, yaml.SingleQuotedStyle:
		quote = '"'
		if n.Style == yaml.SingleQuotedStyle {
			quote = '\''
		}
		written = string(quote) + n.Value + string(quote)
	default:
		return 0, 0, 0, errStyle
	}
	if !bytes.HasPrefix(e.old[start:], []byte(written)) {
		return 0, 0, 0, errStyle
	}
	return start, start + len(written), quote, nil
}

// unwritten reports whether a scalar has no text, as in "key:".
func unwritten(n *yaml.Node) bool { return n.Value == "" && n.Style == 0 }

// behind returns the position after the colon of a key on one line.
func (e *editor) behind(key *yaml.Node) (int, error) {
	_, end, _, err := e.extent(key)
	if err != nil {
		return 0, err
	}
	rest := bytes.TrimLeft(e.old[end:], " \t")
	if !bytes.HasPrefix(rest, []byte(":")) {
		return 0, errStyle
	}
	return len(e.old) - len(rest) + 1, nil
}

// lineEnd returns the end of the line that holds a position, without its line
// ending, and the line ending; "" at the end of the text.
func (e *editor) lineEnd(at int) (end int, ending string) {
	i := bytes.IndexAny(e.old[at:], "\r\n")
	if i < 0 {
		return len(e.old), ""
	}
	end = at + i
	if bytes.HasPrefix(e.old[end:], []byte("\r\n")) {
		return end, "\r\n"
	}
	return end, string(e.old[end : end+1])
}

// ending returns the line ending of the text.
func (e *editor) ending() string {
	if _, ending := e.lineEnd(0); ending != "" {
		return ending
	}
	return "\n"
}

// after inserts lines after the line that holds a position.
func (e *editor) after(at int, lines ...string) {
	end, ending := e.lineEnd(at)
	if ending == "" {
		ending = e.ending()
	}
	e.edits = append(e.edits, edit{end, end, ending + strings.Join(lines, ending)})
}

func (e *editor) insert(at int, text string) { e.edits = append(e.edits, edit{at, at, text}) }

// set sets the annotation of an object.
func (e *editor) set(root *yaml.Node, value string) error {
	metaKey, meta := entry(root, "metadata")
	if meta == nil || meta.Kind != yaml.MappingNode || len(meta.Content) == 0 {
		return errors.New("it has no metadata with a name")
	}
	key, annotations := entry(meta, "annotations")
	switch {
	case annotations == nil:
		return e.addAnnotations(metaKey, meta, value)
	case null(annotations) && unwritten(annotations) && meta.Style&yaml.FlowStyle == 0:
		at, err := e.offset(key)
		if err != nil {
			return err
		}
		e.after(at, indent(key.Column-1+e.step(metaKey, meta))+e.key+": "+value)
		return nil
	case null(annotations):
		return e.fill(key, annotations, "{"+e.pair(key, value)+"}")
	case annotations.Kind != yaml.MappingNode:
		return errStyle
	}
	k, v := entry(annotations, e.key)
	switch {
	case v == nil:
		return e.add(key, annotations, value)
	case null(v) && annotations.Style&yaml.FlowStyle != 0:
		return e.fill(k, v, `"`+value+`"`)
	case null(v):
		return e.fill(k, v, value)
	}
	return e.replace(v, value)
}

// null reports whether a node is null, written or not.
func null(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// fill writes a text in place of a null.
func (e *editor) fill(key, n *yaml.Node, text string) error {
	if !unwritten(n) {
		start, end, _, err := e.extent(n)
		if err == nil {
			e.edits = append(e.edits, edit{start, end, text})
		}
		return err
	}
	at, err := e.behind(key)
	if err == nil {
		e.insert(at, " "+text)
	}
	return err
}

// replace writes another value in place of a scalar.
func (e *editor) replace(n *yaml.Node, value string) error {
	start, end, quote, err := e.extent(n)
	if err != nil {
		return err
	}
	if quote != 0 {
		value = string(quote) + value + string(quote)
	}
	e.edits = append(e.edits, edit{start, end, value})
	return nil
}

// add adds the annotation as the first one of an object that has some.
func (e *editor) add(key, annotations *yaml.Node, value string) error {
	if annotations.Style&yaml.FlowStyle == 0 {
		at, err := e.offset(key)
		if err != nil {
			return err
		}
		e.after(at, indent(annotations.Content[0].Column-1)+e.key+": "+value)
		return nil
	}
	at, err := e.offset(annotations)
	if err != nil || at >= len(e.old) || e.old[at] != '{' {
		return errStyle
	}
	pair := e.pair(key, value)
	if len(annotations.Content) == 0 {
		e.insert(at+1, pair)
		return nil
	}
	first := annotations.Content[0]
	if at, err = e.offset(first); err != nil {
		return err
	}
	e.insert(at, pair+","+e.gap(annotations, first))
	return nil
}

// addAnnotations adds the field annotations to metadata, after the name and namespace that
// usually come first. If the end of these is not known, it becomes the first field.
func (e *editor) addAnnotations(metaKey, meta *yaml.Node, value string) error {
	var last, lastKey *yaml.Node
	for i := 0; i+1 < len(meta.Content); i += 2 {
		if name := meta.Content[i].Value; name != "name" && name != "namespace" {
			break
		}
		lastKey, last = meta.Content[i], meta.Content[i+1]
	}
	flow := meta.Style&yaml.FlowStyle != 0
	var at int
	var err error
	if last != nil {
		if _, at, _, err = e.extent(last); err != nil {
			last = nil
		}
	}
	if last == nil && flow {
		at, err = e.offset(meta.Content[0])
	} else if last == nil {
		at, err = e.offset(metaKey)
	}
	if err != nil {
		return err
	}
	first := meta.Content[0]
	if !flow {
		in := first.Column - 1
		e.after(at, indent(in)+"annotations:", indent(in+e.step(metaKey, meta))+e.key+": "+value)
		return nil
	}
	field := e.quoted(metaKey, "annotations") + ": {" + e.pair(metaKey, value) + "}"
	if last != nil {
		e.insert(at, ","+e.gap(meta, lastKey)+field)
	} else {
		e.insert(at, field+","+e.gap(meta, first))
	}
	return nil
}

// pair returns the annotation for a flow mapping, quoted like the field of the mapping.
func (e *editor) pair(like *yaml.Node, value string) string {
	return e.quoted(like, e.key) + `: "` + value + `"`
}

func (e *editor) quoted(like *yaml.Node, name string) string {
	if like.Style == yaml.DoubleQuotedStyle {
		return `"` + name + `"`
	}
	return name
}

// gap returns the text between two fields of a flow mapping: a space, or a new line
// if its fields are on separate lines.
func (e *editor) gap(mapping, key *yaml.Node) string {
	if key.Line == mapping.Line {
		return " "
	}
	return e.ending() + indent(key.Column-1)
}

// step returns the indentation of metadata's fields relative to metadata.
func (e *editor) step(metaKey, meta *yaml.Node) int {
	if n := meta.Content[0].Column - metaKey.Column; n > 0 {
		return n
	}
	return 2
}

func indent(n int) string { return strings.Repeat(" ", n) }
