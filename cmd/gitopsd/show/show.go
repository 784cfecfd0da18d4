// Package show lays out the command line's output: text for a terminal, coloured, wrapped and
// folded (show.go, wrap.go), comments on pull requests of a bounded size (comment.go), and
// JSON. groups.go lists things once with what they have in common.
//
// Texts come from repositories, registries and clusters. Control characters are removed, so a
// terminal obeys none of them (clean.go), and Markdown is escaped.
//
// cmd/gitopsd/preview shows plans, cmd/gitopsd/findings the reports of verify, and
// cmd/gitopsd/glance the status of a fleet.
package show

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Options control how text is shown. The zero value is plain text with long lists
// folded.
type Options struct {
	// Colour uses ANSI colours.
	Colour bool
	// Width is the number of columns at which sentences are wrapped; 0 does not wrap. Lines
	// for copying, such as lines of the lock, stay whole.
	Width int
	// All shows everything instead of folding long lists.
	All bool
}

// Colour is an ANSI colour.
type Colour string

// The colours.
const (
	Plain  Colour = ""
	Bold   Colour = "\x1b[1m"
	Red    Colour = "\x1b[31m"
	Green  Colour = "\x1b[32m"
	Yellow Colour = "\x1b[33m"
	Cyan   Colour = "\x1b[36m"
)

// Text writes text for a terminal. Errors of the writer are kept for [Text.Flush].
type Text struct {
	Options
	w *bufio.Writer
}

// NewText returns a Text that writes to w.
func NewText(w io.Writer, o Options) *Text { return &Text{Options: o, w: bufio.NewWriter(w)} }

// Sprint returns the output of write, folded and without colours.
func Sprint(write func(*Text)) string {
	var b strings.Builder
	t := NewText(&b, Options{})
	write(t)
	_ = t.Flush() // a Builder takes everything
	return b.String()
}

// Flush writes what is buffered. It returns the first error of the writer.
func (t *Text) Flush() error { return t.w.Flush() }

// Line writes a line that is not wrapped. It stays one line.
func (t *Text) Line(format string, args ...any) {
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ")
	if t.Colour {
		text = cleanPainted(text)
	} else {
		text = Clean(text)
	}
	fmt.Fprintln(t.w, text)
}

// Say writes a sentence, wrapped. If the text has several lines, the others are indented, so
// that none looks like a separate sentence.
func (t *Text) Say(c Colour, text string) {
	first := true
	for line := range strings.SplitSeq(text, "\n") {
		if !first {
			line = indentOf(text) + "  " + line
		}
		first = false
		for _, l := range wrap(line, t.Width) {
			t.Line("%s", t.Paint(c, l))
		}
	}
}

// indentOf returns the spaces that a text begins with.
func indentOf(text string) string { return text[:len(text)-len(strings.TrimLeft(text, " "))] }

// Heading writes a name in bold and, after a colon, a text.
func (t *Text) Heading(indent, name, text string) {
	for i, l := range wrap(indent+name+": "+text, t.Width) {
		if i == 0 {
			l = strings.Replace(l, name, t.Paint(Bold, name), 1)
		}
		t.Line("%s", l)
	}
}

// Indented writes each line of a text as a sentence.
func (t *Text) Indented(indent string, c Colour, text string) {
	for l := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		t.Say(c, indent+l)
	}
}

// Paint returns the text in a colour, if colours are used.
func (t *Text) Paint(c Colour, text string) string {
	if !t.Colour || c == Plain {
		return text
	}
	return string(c) + text + reset
}

// Fold returns how many of n lines to show, about most, and how many to fold. It never folds a
// single line, since the note about it would be as long.
func (t *Text) Fold(n, most int) (shown, folded int) {
	if t.All || n <= most+1 {
		return n, 0
	}
	return most, n - most
}

// JSON writes a value as JSON.
func JSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
