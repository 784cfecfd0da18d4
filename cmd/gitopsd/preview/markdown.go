package preview

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
)

// MaxMarkdown bounds the Markdown of a plan, in bytes: GitHub, GitLab and Gitea
// take comments of 65,536 characters at least.
const MaxMarkdown = 60_000

// What is not folded is bounded by itself: the lines of the tables of types and
// of clusters, the bytes of errors, and the notes.
const (
	maxTypeLines    = 40
	maxClusterLines = 60
	maxErrors       = 10_000
	maxNotes        = 20
)

// WriteMarkdown writes the plans as a comment for a pull request: a table of
// clusters, one of what becomes of types, package by package, with the findings
// folded under it, and below them the steps of each cluster, folded. What does not fit into a
// comment is cut with a word on how much that is.
func (f *Fleet) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString("### gitopsd plan\n\n")
	if !f.HasChanges() && !f.Failed() && !slices.ContainsFunc(f.Clusters, func(c Cluster) bool { return attention(c.Plan) > 0 }) {
		b.WriteString("No changes.\n\n")
	}
	f.writeClusters(&b)
	if len(f.Errors) > 0 {
		b.WriteString("\n**Errors**\n" + fenced("", shortText(strings.Join(f.Errors, "\n\n"), maxErrors)))
	}
	for i, n := range f.Notes {
		if i == maxNotes {
			fmt.Fprintf(&b, "\n> … and %d more\n", len(f.Notes)-i)
			break
		}
		fmt.Fprintf(&b, "\n> %s\n", n)
	}
	tables := f.TypeTables()
	writeTypes(&b, tables)
	var sections []string
	for _, table := range tables {
		var text strings.Builder
		t := &textWriter{w: bufio.NewWriter(&text)}
		t.typeRows(table)
		if err := t.w.Flush(); err != nil {
			return err
		}
		sections = append(sections, details(fmt.Sprintf("types of %s in %s: %s", table.title(), table.where(), table.counts()), "", text.String()))
	}
	if len(f.Lock) > 0 {
		sections = append(sections, details("clusters.lock: "+prose.Count(len(f.Lock), "line"), "diff", strings.Join(f.Lock, "\n")))
	}
	for _, c := range f.Clusters {
		if c.Err != "" {
			sections = append(sections, details(c.Name+": error", "", c.Err))
		}
		if c.Plan == nil || len(groups(c.Plan))+len(c.quiet()) == 0 {
			continue
		}
		var text strings.Builder
		t := &textWriter{w: bufio.NewWriter(&text)}
		t.cluster(c)
		if err := t.w.Flush(); err != nil {
			return err
		}
		_, body, _ := strings.Cut(text.String(), "\n") // the first line is the summary
		sections = append(sections, details(c.Name+": "+headline(c.Plan), "", body))
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

// writeClusters writes the table of clusters. In a larger fleet those without
// changes share a line.
func (f *Fleet) writeClusters(b *strings.Builder) {
	b.WriteString("| cluster | create | change | prune | unchanged | attention |\n|---|---|---|---|---|---|\n")
	quiet, unchanged := 0, 0
	var shown []Cluster
	for _, c := range f.Clusters {
		if p := c.Plan; len(f.Clusters) > 10 && p != nil && !p.HasChanges() && attention(p) == 0 {
			quiet++
			unchanged += p.Count(plan.Unchanged)
			continue
		}
		shown = append(shown, c)
	}
	for i, c := range shown {
		if i == maxClusterLines && len(shown) > maxClusterLines+1 {
			fmt.Fprintf(b, "| … %d more | | | | | |\n", len(shown)-i)
			break
		}
		p := c.Plan
		if p == nil {
			fmt.Fprintf(b, "| %s | | | | | no plan |\n", c.Name)
			continue
		}
		fmt.Fprintf(b, "| %s | %d | %d | %d | %d | %d |\n", c.Name, p.Count(plan.Create), p.Count(plan.Configure), p.Count(plan.Prune), p.Count(plan.Unchanged), attention(p))
	}
	if quiet > 0 {
		fmt.Fprintf(b, "| %d without changes | 0 | 0 | 0 | %d | 0 |\n", quiet, unchanged)
	}
}

// shortText cuts text to about so many bytes.
func shortText(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "\n… " + prose.Count(len(text)-most, "more byte")
}

// writeTypes writes the table of types: a line for each package and bump.
func writeTypes(b *strings.Builder, tables []*TypeTable) {
	if len(tables) == 0 {
		return
	}
	b.WriteString("\n| types of | clusters | breaking | removed | compatible | added |\n|---|---|---|---|---|---|\n")
	for i, t := range tables {
		if i == maxTypeLines && len(tables) > maxTypeLines+1 {
			fmt.Fprintf(b, "| … %d more | | | | | |\n", len(tables)-i)
			return
		}
		n := t.count()
		breaking := fmt.Sprint(n.refused + n.allowed)
		if n.refused > 0 {
			breaking = fmt.Sprintf("**%s** (%d refused)", breaking, n.refused)
		}
		fmt.Fprintf(b, "| %s | %s | %s | %d | %d | %d |\n", t.title(), t.where(), breaking, n.removed, n.changed, n.added)
	}
}

// attention is the number of steps that somebody may have to do something about.
func attention(p *plan.Plan) int {
	n := 0
	for i := range p.Steps {
		switch s := &p.Steps[i]; s.Action {
		case plan.Conflict, plan.Refused, plan.Held, plan.Wait:
			n++
		default:
			if s.Rejected != "" {
				n++
			}
		}
	}
	return n
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
	note := func(n int) string {
		return "… " + prose.Agree(n, "more line; run `gitopsd plan` to see it", "more lines; run `gitopsd plan` to see them") + "\n"
	}
	room -= len(strings.Join(tail, "")) + len(note(len(lines)))
	n, size := 0, 0
	for n < len(lines)-len(tail) && size+len(lines[n]) <= room {
		size += len(lines[n])
		n++
	}
	if n < 4 {
		return "" // not even the summary fits
	}
	return strings.Join(lines[:n], "") + note(len(lines)-len(tail)-n) + strings.Join(tail, "")
}
