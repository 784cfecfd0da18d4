package show

import (
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean returns a text without characters that a terminal would obey: it keeps what can
// be printed, tabs and the ends of lines.
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

// obeyed reports whether a terminal may do something other than print a character. It
// is true of marks of direction too, which make a text read otherwise than it is.
func obeyed(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }

// escape begins what a terminal obeys, reset ends a colour.
const escape, reset = "\x1b", "\x1b[0m"

// cleanPainted is Clean for a text with colours, which stay.
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

// Cleaned returns a writer that writes to w what Clean leaves. Each Write has whole
// characters.
func Cleaned(w io.Writer) io.Writer { return cleaned{w} }

type cleaned struct{ w io.Writer }

func (c cleaned) Write(p []byte) (int, error) {
	if _, err := io.WriteString(c.w, Clean(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
