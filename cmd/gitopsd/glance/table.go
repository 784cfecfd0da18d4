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
)

// mostRows is how many clusters are a row of their own. In a larger fleet those that agree
// share one, so that it fits on a screen.
const mostRows = 20

// row is a line of the table.
type row struct {
	clusters []string
	phase    status.Phase
	// rest are the columns after the phase.
	rest [3]string
}

// writeTable writes the clusters.
func writeTable(t *show.Text, units []status.Unit) {
	if len(units) == 0 {
		return
	}
	together := len(units) > mostRows && !t.All
	var rows []row
	for i := range units {
		u := &units[i]
		r := row{clusters: []string{clean(u.Name)}, phase: u.Phase, rest: [3]string{short(u.Commit), strconv.Itoa(u.Objects), packages(u)}}
		same := slices.IndexFunc(rows, func(o row) bool { return o.phase == r.phase && o.rest == r.rest })
		if together && same >= 0 {
			rows[same].clusters = append(rows[same].clusters, r.clusters...)
			continue
		}
		rows = append(rows, r)
	}
	lines := [][]string{{"CLUSTER", "STATUS", "COMMIT", "OBJECTS", "PACKAGES"}}
	colours := []show.Colour{show.Plain}
	for _, r := range rows {
		lines = append(lines, append([]string{prose.Some(r.clusters, 3), string(r.phase)}, r.rest[:]...))
		colours = append(colours, colourOf(r.phase))
	}
	t.Line("")
	writeColumns(t, lines, colours)
}

// writeColumns aligns the columns; the second one has the colour of its line.
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

// packages counts a cluster's packages, and those that are not ready.
func packages(u *status.Unit) string {
	unready := 0
	for _, p := range u.Packages {
		if p.State != string(status.Ready) {
			unready++
		}
	}
	if unready == 0 {
		return strconv.Itoa(len(u.Packages))
	}
	return fmt.Sprintf("%d, %d not ready", len(u.Packages), unready)
}
