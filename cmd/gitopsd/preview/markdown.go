package preview

import (
	"fmt"
	"io"
	"strings"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
)

// Limits outside of sections: the lines of the tables of types and of clusters, the
// errors and the notes. Together they are less than [show.MaxComment].
const (
	maxTypeLines    = 40
	maxClusterLines = 60
	maxNotes        = 20

	// In bytes.
	maxClusters = 16_000 // of the table of clusters
	maxTable    = 10_000 // of another table
	maxText     = 8_000  // of the notes, and of the errors
	maxMessage  = 300    // of why there is no plan, in the table
	maxTitle    = 600
)

// WriteMarkdown writes the plans as a comment for a pull request. The title names the
// transition, and the verdict comes first and last. Between them are a table of clusters
// (those with equal plans share a line), tables of types and controllers, and folded
// sections, in the colours of a diff: the findings of each package, the steps of each group
// of clusters, and the lock. Sections that do not fit into [show.MaxComment] are cut, and the
// comment says how much is missing. It returns errors of w.
func (f *Fleet) WriteMarkdown(w io.Writer) error {
	c := show.Comment{Command: "gitopsd plan", Item: "section"}
	b := &c.Head
	title := "gitopsd plan"
	if t := f.transition(); t != "" {
		title += ": " + t
	}
	verdict := "**" + escaped(f.verdict().text) + "**\n"
	fmt.Fprintf(b, "### %s\n\n%s", escaped(shortText(title, maxTitle)), verdict)
	all := f.alike()
	if quiet := len(all) == 0 || len(all) == 1 && all[0].first().silent(); !quiet {
		writeClusters(b, all)
	}
	if len(f.Errors) > 0 {
		b.WriteString("\n**Errors**\n" + show.Fenced("", shortText(strings.Join(f.Errors, "\n\n"), maxText)))
	}
	writeNotes(b, f.Notes)
	tables := f.typeTables()
	writeTypes(b, tables)
	writeControllers(b, alone(f.controllerTables()))
	for _, table := range tables {
		c.Section(fmt.Sprintf("types of %s in %s: %s", table.title(), table.where(), table.counts()), "diff", diff(show.Sprint(func(t *show.Text) { textWriter{Text: t}.typeRows(table) })))
	}
	for _, table := range f.proofTables() {
		c.Section(fmt.Sprintf("conversion rules of %s in %s: %s", table.Definition, where(table.Clusters), table.summary()), "diff", diff(show.Sprint(func(t *show.Text) { textWriter{Text: t}.proof(table) })))
	}
	sections := 0
	for _, a := range all {
		if a.first().silent() {
			continue
		}
		body := show.Sprint(func(t *show.Text) {
			if len(a.of) > shownClusters {
				t.Line("  %s", shortText(strings.Join(a.names(), ", "), maxText))
			}
			textWriter{Text: t}.body(a)
		})
		if body == "" {
			continue // the table says it
		}
		sections++
		c.Section(Subject(a.names())+": "+a.headline(), "diff", diff(body))
	}
	if len(f.Lock) > 0 {
		c.Section("clusters.lock: "+prose.Count(len(f.Lock), "line"), "diff", strings.Join(f.Lock, "\n"))
	}
	if legend := f.legend(); legend != "" && sections+len(tables) > 0 {
		fmt.Fprintf(&c.Tail, "\nMarks: %s\n", "`"+strings.ReplaceAll(legend, "   ", "`, `")+"`")
	}
	if sections+len(tables)+len(f.Lock)+len(f.Errors)+len(f.Notes) > 0 {
		c.Tail.WriteString("\n" + verdict)
	}
	_, err := c.WriteTo(w)
	return err
}

// escaped escapes text that is not at the beginning of a line of the comment.
func escaped(text string) string { return arrows(show.Escaped(text)) }

// arrows restores > for people who read the source. Within a line it quotes nothing.
func arrows(text string) string { return strings.ReplaceAll(text, "&gt;", ">") }

// diff colours the lines that have a mark. A block in the language diff takes the colour of a
// line from its first character. Marks that are not such a character stay where they are.
func diff(text string) string {
	colours := map[string]string{"+": "+", "-": "-", "~": "!", "!": "-", "=": "#", "…": "#"}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, l := range lines {
		rest := strings.TrimLeft(l, " ")
		mark, after, ok := strings.Cut(rest, " ")
		colour := colours[mark]
		indent := len(l) - len(rest)
		if !ok || colour == "" || indent == 0 || mark == "…" {
			continue
		}
		if mark == colour {
			mark = " "
		}
		lines[i] = colour + l[:indent-1] + mark + " " + after
	}
	return strings.Join(lines, "\n")
}

// writeRows writes the first of n lines: at most the number in lines, and about so many bytes.
// more returns the text for the lines from an index on, which are left out.
func writeRows(b *strings.Builder, n, lines, bytes int, line func(int) string, more func(from int) string) {
	size := 0
	for i := range n {
		text := line(i)
		if size += len(text); i > 0 && size > bytes || i == lines && n > lines+1 {
			b.WriteString(more(i))
			return
		}
		b.WriteString(text)
	}
}

// writeNotes writes the notes as quotations.
func writeNotes(b *strings.Builder, notes []string) {
	writeRows(b, len(notes), maxNotes, maxText, func(i int) string {
		return "\n> " + arrows(show.Sentence(shortText(notes[i], maxText/2))) + "\n"
	}, func(from int) string { return fmt.Sprintf("\n> … and %d more\n", len(notes)-from) })
}

// writeClusters writes the table of clusters.
func writeClusters(b *strings.Builder, all []*alike) {
	b.WriteString("\n| clusters | plan |\n|---|---|\n")
	writeRows(b, len(all), maxClusterLines, maxClusters, func(i int) string {
		a := all[i]
		line := a.headline()
		if a.first().Plan == nil {
			line += ": " + shortText(a.first().Err, maxMessage)
		}
		return fmt.Sprintf("| %s | %s |\n", escaped(where(a.names())), escaped(line))
	}, func(from int) string {
		clusters := 0
		for _, a := range all[from:] {
			clusters += len(a.of)
		}
		return fmt.Sprintf("| … %s | |\n", prose.Count(clusters, "more cluster"))
	})
}

// shortText cuts text to about most bytes.
func shortText(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "\n… " + prose.Count(len(text)-most, "more byte")
}

// writeTypes writes the table of types: a line for each package and bump.
func writeTypes(b *strings.Builder, tables []*typeTable) {
	if len(tables) == 0 {
		return
	}
	b.WriteString("\n| types of | clusters | breaking | removed | compatible | added |\n|---|---|---|---|---|---|\n")
	writeRows(b, len(tables), maxTypeLines, maxTable, func(i int) string {
		t := tables[i]
		n := t.count()
		breaking := some(n[breakingRefused] + n[breakingAllowed])
		if n[breakingRefused] > 0 {
			breaking = fmt.Sprintf("**%s** (%d refused)", breaking, n[breakingRefused])
		}
		return fmt.Sprintf("| %s | %s | %s | %s | %s | %s |\n", escaped(t.title()), escaped(t.where()), breaking, some(n[removed]), some(n[compatible]), some(n[added]))
	}, func(from int) string { return fmt.Sprintf("| … %d more | | | | | |\n", len(tables)-from) })
}

// some returns a number for a table, "" for 0.
func some(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// attention returns the number of steps that may need a person's attention.
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
