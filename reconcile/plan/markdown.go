package plan

import (
	"fmt"
	"io"
	"strings"
)

// MaxMarkdown bounds the Markdown of a plan, in bytes: GitHub, GitLab and Gitea
// take comments of 65,536 characters at least.
const MaxMarkdown = 60_000

// WriteMarkdown writes the plans as a comment for a pull request: a table of
// clusters, and below it the steps of each, folded. What does not fit into a
// comment is cut with a word on how much that is.
func (f *Fleet) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString("### gitopsd plan\n\n")
	if !f.HasChanges() && !f.Failed() {
		b.WriteString("No changes.\n\n")
	}
	b.WriteString("| cluster | create | change | prune | unchanged | attention |\n|---|---|---|---|---|---|\n")
	for _, c := range f.Clusters {
		if c.Plan == nil {
			fmt.Fprintf(&b, "| %s | | | | | no plan |\n", c.Name)
			continue
		}
		p := c.Plan
		attention := p.Count(Conflict) + p.Count(Refused) + p.Count(Held) + p.Count(Wait)
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d |\n", c.Name, p.Count(Create), p.Count(Configure), p.Count(Prune), p.Count(Unchanged), attention)
	}
	if len(f.Errors) > 0 {
		b.WriteString("\n**Errors**\n" + fenced("", strings.Join(f.Errors, "\n\n")))
	}
	for _, n := range f.Notes {
		fmt.Fprintf(&b, "\n> %s\n", n)
	}
	var sections []string
	if len(f.Lock) > 0 {
		sections = append(sections, details(fmt.Sprintf("clusters.lock: %d lines", len(f.Lock)), "diff", strings.Join(f.Lock, "\n")))
	}
	for _, c := range f.Clusters {
		if c.Err != "" {
			sections = append(sections, details(c.Name+": error", "", c.Err))
		}
		if c.Plan == nil || len(c.Plan.groups()) == 0 {
			continue
		}
		var text strings.Builder
		t := &Fleet{Clusters: []ClusterPlan{{Name: c.Name, Packages: c.Packages, Plan: c.Plan}}}
		if err := t.WriteText(&text, TextOptions{}); err != nil {
			return err
		}
		_, body, _ := strings.Cut(text.String(), "\n") // the first line is the summary
		sections = append(sections, details(c.Name+": "+c.Plan.Summary(), "", body))
	}
	// Every section gets its share of the room; short ones leave theirs to the
	// others.
	for left := len(sections); left > 0; left-- {
		s := sections[len(sections)-left]
		room := (MaxMarkdown - b.Len()) / left
		b.WriteString(cut(s, room))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// fenced puts text into a code block that no text can end.
func fenced(language, text string) string {
	ticks := "```"
	for strings.Contains(text, ticks) {
		ticks += "`"
	}
	return "\n" + ticks + language + "\n" + strings.TrimRight(text, "\n") + "\n" + ticks + "\n"
}

func details(summary, language, body string) string {
	return "\n<details><summary>" + summary + "</summary>\n" + fenced(language, body) + "\n</details>\n"
}

// cut shortens a section to room bytes at the end of a line, closing what it
// opened.
func cut(section string, room int) string {
	if len(section) <= room {
		return section
	}
	lines := strings.SplitAfter(section, "\n")
	tail := lines[max(0, len(lines)-4):] // fence, empty line, </details>, nothing
	const note = "… %d more lines; run `gitopsd plan` to see them\n"
	room -= len(strings.Join(tail, "")) + len(note) + 10
	n, size := 0, 0
	for n < len(lines)-len(tail) && size+len(lines[n]) <= room {
		size += len(lines[n])
		n++
	}
	if n < 4 {
		return "" // not even the summary fits
	}
	return strings.Join(lines[:n], "") + fmt.Sprintf(note, len(lines)-len(tail)-n) + strings.Join(tail, "")
}
