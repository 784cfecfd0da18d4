package show

import (
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean returns a text without control characters, which a terminal would obey. It keeps tabs
// and ends of lines.
func Clean(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, obeyed) {
		return text
	}
	return strings.Map(func(r rune) rune {
		if obeyed(r) {
			return -1
		}
		return r
	}, text)
}

// obeyed reports whether a terminal may do something other than print a character. This includes
// marks of direction, which change how a text reads.
func obeyed(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }

// escape begins a terminal's commands. reset ends a colour.
const escape, reset = "\x1b", "\x1b[0m"

// cleanPainted is [Clean] for a text with colours, which it keeps.
func cleanPainted(text string) string {
	var b strings.Builder
	for i, part := range strings.Split(text, escape) {
		if i > 0 {
			for _, c := range []string{reset, string(Bold), string(Red), string(Green), string(Yellow), string(Cyan)} {
				if rest, ok := strings.CutPrefix(escape+part, c); ok {
					b.WriteString(c)
					part = rest
					break
				}
			}
		}
		b.WriteString(Clean(part))
	}
	return b.String()
}

// Cleaned returns a writer that cleans text with [Clean] and writes it to w. Each Write must
// have whole characters.
func Cleaned(w io.Writer) io.Writer { return cleaned{w} }

type cleaned struct{ w io.Writer }

func (c cleaned) Write(p []byte) (int, error) {
	if _, err := io.WriteString(c.w, Clean(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
