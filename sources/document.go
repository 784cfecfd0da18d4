package sources

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Document is one document of a YAML stream, decoded to the types of JSON:
// map[string]any, []any, string, bool, int64, float64 and nil. Clusters share
// trees, and equal parts of trees are in memory once: do not change them.
type Document struct {
	// Line is where the document starts in its stream, from 1.
	Line int
	// Tree is the document's mapping.
	Tree map[string]any
}

// Limits bound what a YAML stream may cost. A zero field means the default.
type Limits struct {
	// Bytes of the whole stream; by default [DefaultMaxBytes].
	Bytes int64
	// Documents in the stream; by default [DefaultMaxDocuments].
	Documents int
	// Nodes of one document after aliases are expanded; by default
	// [DefaultMaxNodes].
	Nodes int
	// TotalNodes of all documents; by default [DefaultMaxTotalNodes].
	TotalNodes int
	// Separators of one document, an upper bound of its nodes without aliases
	// (see [CountYAML]). They are counted while the text is read, before the
	// parser spends 200 bytes on each node; by default [DefaultMaxSeparators].
	Separators int
	// Depth of nesting; by default [DefaultMaxDepth].
	Depth int
}

// The defaults hold the largest package known (some 2,000 CRDs, 90 MB of YAML)
// several times over.
const (
	DefaultMaxBytes     = 512 << 20
	DefaultMaxDocuments = 20_000
	DefaultMaxNodes     = 4_000_000
	// Some 4 GB in the worst case, where each node is a small mapping.
	DefaultMaxTotalNodes = 20_000_000
	DefaultMaxDepth      = 500
	// Several times the separators of a document of 3 MiB, the most that an API
	// server accepts.
	DefaultMaxSeparators = 1_000_000
)

// ErrLimit is in the chain of errors about an exceeded limit.
var ErrLimit = errors.New("limit passed")

func (l Limits) withDefaults() Limits {
	return Limits{
		Bytes:      cmp.Or(l.Bytes, DefaultMaxBytes),
		Documents:  cmp.Or(l.Documents, DefaultMaxDocuments),
		Nodes:      cmp.Or(l.Nodes, DefaultMaxNodes),
		TotalNodes: cmp.Or(l.TotalNodes, DefaultMaxTotalNodes),
		Separators: cmp.Or(l.Separators, DefaultMaxSeparators),
		Depth:      cmp.Or(l.Depth, DefaultMaxDepth),
	}
}

// DecodeYAML reads a stream of YAML or JSON documents, strictly: each must be a
// mapping (empty documents are passed over), duplicate keys and invalid UTF-8
// are errors, and errors name the line. Values come out as kubectl reads them
// (sigs.k8s.io/yaml: YAML 1.1 booleans, integers as int64), so that a package
// means here what it means to every other Kubernetes tool. A document may begin with a
// byte order mark.
//
// The documents before an error are returned with it. The error for an exceeded
// limit is [ErrLimit].
func DecodeYAML(r io.Reader, limits Limits) ([]Document, error) {
	var d Decoder
	return d.Decode(r, limits)
}

// Decoder decodes one stream after another. Equal parts of their documents are
// in memory once. The zero value is ready; a Decoder is not safe for concurrent
// use.
type Decoder struct {
	shared sharing
}

// Cost returns the approximate memory that the decoded documents take, in bytes.
// Shared values count once.
func (d *Decoder) Cost() int64 { return d.shared.cost }

// Decode reads one stream, as [DecodeYAML] does.
func (d *Decoder) Decode(r io.Reader, limits Limits) (docs []Document, err error) {
	limits = limits.withDefaults()
	in := &boundedReader{r: r, left: limits.Bytes, limit: limits.Bytes, line: 1, indented: true, separators: limits.Separators}
	defer func() {
		// In a few corners, which fuzzing found, the parser reports a syntax
		// error by panicking.
		if p := recover(); p != nil {
			err = fmt.Errorf("malformed YAML: %v", p)
		}
	}()
	// The parser reads 512 bytes at a time, each with a system call if r is a
	// file.
	text := &markless{r: bufio.NewReaderSize(in, 16<<10)}
	dec := yaml.NewDecoder(text)
	c := converter{limits: limits, shared: &d.shared}
	for {
		var n yaml.Node
		switch err := dec.Decode(&n); {
		case err != nil && in.err != nil:
			return docs, in.err
		case errors.Is(err, io.EOF):
			return docs, nil
		case err != nil && in.conflict > 0:
			return docs, errors.New(aboutConflict(in.conflict))
		case err != nil && text.stray > 0:
			return docs, aboutMark(text.stray)
		case err != nil:
			return docs, errors.New(aboutTabs(syntax(err), in.tabs))
		}
		tree, err := c.document(&n)
		if err != nil && in.conflict > 0 && !errors.Is(err, ErrLimit) {
			err = errors.New(aboutConflict(in.conflict))
		}
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

// unknownAnchor is the parser's error for an alias without an anchor. The name may be a password
// that needs quotes.
var unknownAnchor = regexp.MustCompile(`(?s)unknown anchor '.*' referenced`)

// syntax returns the text of a syntax error.
func syntax(err error) string {
	return unknownAnchor.ReplaceAllString(strings.TrimPrefix(err.Error(), "yaml: "), "an alias has no anchor; quote a text that begins with *")
}

// separators are the characters that separate values: one of them is between any two.
var separators = [256]bool{'\n': true, ':': true, ',': true, '-': true, '?': true, '[': true, '{': true}

// CountYAML returns the lines of a document and an upper bound of its values,
// without decoding it. Values behind aliases are not counted.
func CountYAML(doc []byte) (lines, values int) {
	for _, b := range doc {
		if separators[b] {
			values++
		}
	}
	return bytes.Count(doc, []byte("\n")), values
}

// boundedReader returns an error for more than limit bytes, for a document with too
// many separators, and for invalid UTF-8, some of which the parser accepts.
type boundedReader struct {
	r           io.Reader
	left, limit int64
	tail        []byte // an incomplete rune at the end of the last read
	err         error

	separators int // most separators in a document
	seen       int // separators in this document
	line       int
	dashes     int   // number of dashes that the line starts with; -1 after any other character
	indented   bool  // the line has nothing but spaces so far
	tabs       []int // the first lines with a tab in their indentation

	conflict int    // a line where Git left a conflict; 0 for none
	text     []byte // what was read last, after the end of what was read before
}

// findConflict looks for a conflict in what was read, and is called before count.
func (b *boundedReader) findConflict(p []byte) {
	if b.text == nil {
		b.text = []byte("\n") // the first line begins, too
	}
	kept := b.text[max(0, len(b.text)-longestMark):]
	b.text = append(append(b.text[:0], kept...), p...)
	line := b.line - bytes.Count(b.text[:len(kept)], []byte("\n"))
	for _, mark := range conflictMarks {
		if i := bytes.Index(b.text, []byte("\n"+mark)); i >= 0 && b.conflict == 0 {
			b.conflict = line + bytes.Count(b.text[:i+1], []byte("\n"))
		}
	}
}

// count counts lines, and the separators in each document. A line that starts with
// "---" and a blank always starts the next document (YAML 1.2.2, section 9.1.2).
func (b *boundedReader) count(p []byte) error {
	for _, c := range p {
		if separators[c] {
			if b.seen++; b.seen > b.separators {
				return fmt.Errorf("line %d: a document of more than %d values: %w", b.line, b.separators, ErrLimit)
			}
		}
		if b.indented && c != ' ' {
			if b.indented = false; c == '\t' && len(b.tabs) < maxTabs {
				b.tabs = append(b.tabs, b.line)
			}
		}
		switch {
		case c == '-' && b.dashes >= 0:
			b.dashes++
			continue
		case b.dashes == 3 && (c == ' ' || c == '\t' || c == '\r' || c == '\n'):
			b.seen = 0
		}
		b.dashes = -1
		if c == '\n' {
			b.line++
			b.dashes, b.indented = 0, true
		}
	}
	return nil
}

func (b *boundedReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		b.err = fmt.Errorf("more than %d bytes of YAML: %w", b.limit, ErrLimit)
		return 0, b.err
	}
	b.findConflict(p[:n])
	if b.err = b.count(p[:n]); b.err != nil {
		return 0, b.err
	}
	chunk := p[:n]
	if len(b.tail) > 0 {
		chunk = append(b.tail, chunk...)
		b.tail = nil
	}
	if !utf8.Valid(chunk) {
		// A read may end in the middle of a rune.
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
