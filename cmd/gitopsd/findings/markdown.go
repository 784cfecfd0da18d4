package findings

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/verify"
)

// MaxMarkdown bounds the Markdown of a report, in bytes, so that it fits into a
// comment of any forge.
const MaxMarkdown = 60_000

// WriteMarkdown writes the report as a comment: the verdict, one line a finding, its
// details folded below it, and a table of all types. What does not fit is left out,
// with a word on how much that is.
func WriteMarkdown(w io.Writer, r *verify.Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "### gitopsd verify\n\n**%s**\n", escaped(r.Summary()))
	section := func(write func(*textWriter)) string {
		var text strings.Builder
		t := &textWriter{w: bufio.NewWriter(&text)}
		write(t)
		_ = t.w.Flush() // a Builder takes everything
		return text.String()
	}
	if len(r.NotVerified) > 0 {
		b.WriteString("\n**Not verified**\n" + fenced(section(func(t *textWriter) { t.gaps(r.NotVerified) })))
	}
	table := ""
	if len(r.Groups) > 0 {
		table = "\n<details><summary>All types</summary>\n" + fenced(section(func(t *textWriter) { t.groups(r.Groups) })) + "\n</details>\n"
	}
	for _, n := range r.Notes {
		table += "\n> " + escaped(n) + "\n"
	}
	left := func(n int) string {
		return "\n" + prose.Agree(n, "more finding; run `gitopsd verify` to see it", "more findings; run `gitopsd verify` to see them") + "\n"
	}
	for i := range r.Findings {
		f := &r.Findings[i]
		_, body, _ := strings.Cut(section(func(t *textWriter) { t.finding(f) }), "\n") // the first line is the title
		part := "\n<details><summary>" + escaped(f.Title()) + "</summary>\n" + fenced(body) + "\n</details>\n"
		if b.Len()+len(part)+len(table)+len(left(len(r.Findings))) > MaxMarkdown {
			b.WriteString(left(len(r.Findings) - i))
			break
		}
		b.WriteString(part)
	}
	if b.Len()+len(table) <= MaxMarkdown {
		b.WriteString(table)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// escaped keeps names out of Markdown's and HTML's syntax.
func escaped(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "*", "\\*", "`", "\\`", "|", "\\|", "\n", " ").Replace(s)
}

// fenced puts text into a code block that no text can end.
func fenced(text string) string {
	ticks := "```"
	for strings.Contains(text, ticks) {
		ticks += "`"
	}
	return "\n" + ticks + "\n" + strings.Trim(text, "\n") + "\n" + ticks + "\n"
}
