package show

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/prose"
)

// MaxComment is the largest size of a comment, in bytes: GitHub, GitLab and Gitea
// accept at least 65,536 characters.
const MaxComment = 60_000

// leastShare is the least room for a section.
const leastShare = 1_000

// Comment is Markdown for a pull request, of at most [MaxComment] bytes.
type Comment struct {
	// Command is the command that shows omitted text, "gitopsd plan". Item is the subject of
	// a section, "cluster".
	Command, Item string
	// Head comes before the sections. The caller bounds it.
	Head strings.Builder
	// Tail follows the sections. It is left out if there is no room for all of it.
	Tail strings.Builder

	sections []string
}

// Section adds a section that is folded under its summary. Its text is a code block
// of a language, which may be empty.
func (c *Comment) Section(summary, language, text string) {
	c.sections = append(c.sections, Details(summary, language, text))
}

// WriteTo writes the comment. Sections are cut to their share of the room, and short ones leave
// room to others. If there are too many, the last are left out. The comment says how much is
// missing.
func (c *Comment) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	b.WriteString(c.Head.String())
	tail := c.Tail.String()
	more := func(n int, what string) string {
		return prose.Agree(n, "more "+what+"; run `"+c.Command+"` to see it", "more "+what+"s; run `"+c.Command+"` to see them") + "\n"
	}
	room := MaxComment - len(more(len(c.sections), c.Item)) - 1
	if b.Len()+len(tail) > room {
		tail = ""
	}
	room -= len(tail)
	most := max(share(c.sections, room-b.Len()), leastShare)
	missing := 0
	for _, s := range c.sections {
		if s = cut(s, min(most, room-b.Len()), func(n int) string { return "… " + more(n, "line") }); s == "" {
			missing++
		}
		b.WriteString(s)
	}
	if missing > 0 {
		b.WriteString("\n" + more(missing, c.Item))
	}
	b.WriteString(tail)
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}

// share returns the size to which sections are cut to fill the room.
func share(sections []string, room int) int {
	sizes := make([]int, len(sections))
	for i, s := range sections {
		sizes[i] = len(s)
	}
	slices.Sort(sizes)
	for i, size := range sizes {
		if size > room/(len(sizes)-i) {
			return room / (len(sizes) - i)
		}
		room -= size
	}
	return MaxComment
}

// Details returns text that is folded under its summary, in a code block of a
// language, which may be empty.
func Details(summary, language, text string) string {
	summary = strings.NewReplacer("&", "&amp;", "<", "&lt;", "\n", " ").Replace(Clean(summary))
	return "\n<details><summary>" + summary + "</summary>\n" + Fenced(language, text) + "\n</details>\n"
}

// Fenced returns text in a code block that no text can end. The language may be
// empty.
func Fenced(language, text string) string {
	text = Clean(text)
	ticks := "```"
	for strings.Contains(text, ticks) {
		ticks += "`"
	}
	return fmt.Sprintf("\n%s%s\n%s\n%s\n", ticks, language, strings.Trim(text, "\n"), ticks)
}

// markup escapes the characters that have a meaning in Markdown and HTML: emphasis, code, links,
// pictures and columns.
var markup = strings.NewReplacer("\\", "\\\\", "&", "&amp;", "<", "&lt;", ">", "&gt;", "*", "\\*", "`", "\\`", "|", "\\|", "[", "\\[", "]", "\\]", "~", "\\~", "\n", " ")

// mention matches a name that a forge would notify.
var mention = regexp.MustCompile(`(^|[^\pL\pN_/.])@([\pL\pN])`)

// Escaped returns a line of text with all Markdown, HTML and mentions escaped.
func Escaped(s string) string {
	return mention.ReplaceAllString(markup.Replace(Clean(s)), "$1@<!-- -->$2")
}

// Sentence is like [Escaped], but keeps code in single backquotes.
func Sentence(s string) string {
	parts := strings.Split(s, "`")
	if len(parts)%2 == 0 || len(parts) > 1 && slices.Contains(parts[1:len(parts)-1], "") {
		return Escaped(s) // a backquote is alone, or there are several in a row
	}
	for i, part := range parts {
		if i%2 == 0 {
			parts[i] = Escaped(part)
		} else {
			parts[i] = strings.ReplaceAll(Clean(part), "\n", " ")
		}
	}
	return strings.Join(parts, "`")
}

// cut shortens a section to room bytes at the end of a line, and closes the block and the
// details. note returns the text for n missing lines. cut returns "" if there is no room for
// the summary.
func cut(section string, room int, note func(n int) string) string {
	if len(section) <= room {
		return section
	}
	lines := strings.SplitAfter(section, "\n")
	tail := lines[max(0, len(lines)-4):] // fence, empty line, </details>, nothing
	room -= len(strings.Join(tail, "")) + len(note(len(lines)))
	n, size := 0, 0
	for n < len(lines)-len(tail) && size+len(lines[n]) <= room {
		size += len(lines[n])
		n++
	}
	if n < 4 { // empty line, summary, empty line, fence
		return ""
	}
	return strings.Join(lines[:n], "") + note(len(lines)-len(tail)-n) + strings.Join(tail, "")
}
