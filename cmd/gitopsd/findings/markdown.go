package findings

import (
	"fmt"
	"io"
	"strings"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/verify"
)

// maxBlock bounds the errors, and the reasons for what is not verified, in bytes.
const maxBlock = 8_000

func shortened(text string) string {
	if len(text) <= maxBlock {
		return text
	}
	return strings.ToValidUTF8(text[:maxBlock], "") + "\n…"
}

// WriteMarkdown writes the report as a comment for a pull request: the verdict, the errors, a line for each
// finding with its details folded below it, and a table of all types. A report larger than
// [show.MaxComment] is cut, and the comment says how much is missing. It returns errors of w.
func WriteMarkdown(w io.Writer, r *verify.Report) error {
	c := show.Comment{Command: "gitopsd verify", Item: "finding"}
	fmt.Fprintf(&c.Head, "### gitopsd verify\n\n**%s**\n", show.Escaped(r.Summary()))
	if len(r.Errors) > 0 {
		c.Head.WriteString("\n**Errors**\n" + show.Fenced("", shortened(strings.Join(r.Errors, "\n\n"))))
	}
	if len(r.NotVerified) > 0 {
		c.Head.WriteString("\n**Not verified**\n" + show.Fenced("", shortened(show.Sprint(func(t *show.Text) { textWriter{t}.gaps(r.NotVerified) }))))
	}
	for i := range r.Findings {
		f := &r.Findings[i]
		_, body, _ := strings.Cut(show.Sprint(func(t *show.Text) { textWriter{t}.finding(f) }), "\n") // the first line is the title
		c.Section(f.Title(), "", body)
	}
	if len(r.Groups) > 0 {
		c.Tail.WriteString(show.Details("All types", "", show.Sprint(func(t *show.Text) { textWriter{t}.groups(r.Groups) })))
		c.Tail.WriteString(show.Details("What was looked at", "", show.Sprint(func(t *show.Text) { textWriter{t}.looked(r) })))
	}
	for _, n := range r.Notes {
		c.Tail.WriteString("\n> " + show.Escaped(n) + "\n")
	}
	_, err := c.WriteTo(w)
	return err
}
