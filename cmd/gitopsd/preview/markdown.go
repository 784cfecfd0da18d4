package preview

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
)

// Limits outside of sections: the lines of the tables of types and of clusters, the
// bytes of errors, and the notes.
const (
	maxTypeLines    = 40
	maxClusterLines = 60
	maxErrors       = 10_000
	maxNotes        = 20
)

// WriteMarkdown writes the plans as a comment for a pull request: a table of clusters
// and one of changed types, then the findings of each package and the steps of each
// cluster, folded. Sections that do not fit into [show.MaxComment] are cut, and the
// comment says how much is missing. Errors are those of w.
func (f *Fleet) WriteMarkdown(w io.Writer) error {
	c := show.Comment{Command: "gitopsd plan", Item: "section"}
	b := &c.Head
	b.WriteString("### gitopsd plan\n\n")
	if !f.HasChanges() && !f.Failed() && !slices.ContainsFunc(f.Clusters, func(c ClusterPlan) bool { return attention(c.Plan) > 0 }) {
		b.WriteString("No changes.\n\n")
	}
	f.writeClusters(b)
	if len(f.Errors) > 0 {
		b.WriteString("\n**Errors**\n" + show.Fenced("", shortText(strings.Join(f.Errors, "\n\n"), maxErrors)))
	}
	for i, n := range f.Notes {
		if i == maxNotes {
			fmt.Fprintf(b, "\n> … and %d more\n", len(f.Notes)-i)
			break
		}
		fmt.Fprintf(b, "\n> %s\n", n)
	}
	tables := f.TypeTables()
	writeTypes(b, tables)
	writeControllers(b, alone(f.ControllerTables()))
	for _, table := range tables {
		c.Section(fmt.Sprintf("types of %s in %s: %s", table.title(), table.where(), table.counts()), "", show.Sprint(func(t *show.Text) { textWriter{t}.typeRows(table) }))
	}
	for _, table := range f.ProofTables() {
		c.Section(fmt.Sprintf("conversion rules of %s in %s: %s", table.Definition, where(table.Clusters), table.summary()), "", show.Sprint(func(t *show.Text) { textWriter{t}.proof(table) }))
	}
	if len(f.Lock) > 0 {
		c.Section("clusters.lock: "+prose.Count(len(f.Lock), "line"), "diff", strings.Join(f.Lock, "\n"))
	}
	for _, cl := range f.Clusters {
		if cl.Err != "" {
			c.Section(cl.Name+": error", "", cl.Err)
		}
		if cl.Plan == nil || len(groups(cl.Plan))+len(cl.quiet()) == 0 && !cl.tried() {
			continue
		}
		_, body, _ := strings.Cut(show.Sprint(func(t *show.Text) { textWriter{t}.cluster(cl) }), "\n") // the first line is the summary
		c.Section(cl.Name+": "+headline(cl.Plan), "", body)
	}
	_, err := c.WriteTo(w)
	return err
}

// writeClusters writes the table of clusters. In a larger fleet, clusters without
// changes share a line.
func (f *Fleet) writeClusters(b *strings.Builder) {
	b.WriteString("| cluster | create | change | prune | unchanged | attention |\n|---|---|---|---|---|---|\n")
	quiet, unchanged := 0, 0
	var shown []ClusterPlan
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

// shortText cuts text to about most bytes.
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
