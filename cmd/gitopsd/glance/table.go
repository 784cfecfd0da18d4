package glance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/sources"
)

// mostRows is how many clusters may each have a row. In a larger fleet clusters that agree share
// a row, so that the table fits on a screen.
const mostRows = 20

// row is a line of the table.
type row struct {
	clusters []string
	phase    status.Phase
	commit   string
	// Clusters that share a row may differ in these.
	objects, packages, unready span
}

// span is a range of a number.
type span struct{ least, most int }

func (s span) with(o span) span { return span{min(s.least, o.least), max(s.most, o.most)} }

func (s span) String() string {
	if s.least == s.most {
		return strconv.Itoa(s.least)
	}
	return fmt.Sprintf("%d to %d", s.least, s.most)
}

// agrees reports whether two rows differ only in numbers. Rows with and without packages that
// are not ready do not agree.
func (r *row) agrees(o *row) bool {
	return r.phase == o.phase && r.commit == o.commit && (r.unready.most == 0) == (o.unready.most == 0)
}

// writeTable writes the clusters.
func writeTable(t *show.Text, units []status.Unit) {
	if len(units) == 0 {
		return
	}
	together := len(units) > mostRows && !t.All
	var rows []*row
	for i := range units {
		r := rowOf(&units[i])
		same := -1
		if together {
			same = slices.IndexFunc(rows, r.agrees)
		}
		if same < 0 {
			rows = append(rows, r)
			continue
		}
		o := rows[same]
		o.clusters = append(o.clusters, r.clusters...)
		o.objects, o.packages, o.unready = o.objects.with(r.objects), o.packages.with(r.packages), o.unready.with(r.unready)
	}
	lines := [][]string{{"CLUSTER", "STATUS", "COMMIT", "OBJECTS", "PACKAGES"}}
	colours := []show.Colour{show.Plain}
	for _, r := range rows {
		packages := r.packages.String()
		if r.unready.most > 0 {
			packages += fmt.Sprintf(", %s not ready", r.unready)
		}
		lines = append(lines, []string{prose.Some(r.clusters, 3), string(r.phase), r.commit, r.objects.String(), packages})
		colours = append(colours, colourOf(r.phase))
	}
	t.Line("")
	writeColumns(t, lines, colours)
}

// rowOf returns the row of one cluster.
func rowOf(u *status.Unit) *row {
	unready := 0
	for _, p := range u.Packages {
		if p.State != string(status.Ready) {
			unready++
		}
	}
	one := func(n int) span { return span{n, n} }
	return &row{clusters: []string{u.Name}, phase: u.Phase, commit: sources.ShortHash(u.Commit), objects: one(u.Objects), packages: one(len(u.Packages)), unready: one(unready)}
}

// writeColumns writes aligned columns. The second has the colour of its line.
func writeColumns(t *show.Text, lines [][]string, colours []show.Colour) {
	widths := make([]int, len(lines[0]))
	for _, l := range lines {
		for i, cell := range l {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for n, l := range lines {
		var b strings.Builder
		for i, cell := range l {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2)
			if i == 1 {
				cell = t.Paint(colours[n], cell)
			}
			b.WriteString(cell + pad)
		}
		t.Line("%s", strings.TrimRight(b.String(), " "))
	}
}
