package preview

import (
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/prose"
)

// surveys writes what a breaking change means to the objects of each cluster: first the
// clusters in which objects are harmed, with a few of them; at last those that it harms
// nobody in, in one line.
func (t textWriter) surveys(all []ClusterSurvey) {
	var unharmed, warnings, clients []string
	looked := 0
	for _, s := range all {
		switch {
		case s.Harmed > 0:
			t.Say(show.Red, fmt.Sprintf("      harms %d of %s in %s", s.Harmed, prose.Count(s.Looked, "object"), s.Cluster))
			shown, _ := t.Fold(len(s.Objects), shownNames)
			for _, o := range s.Objects[:shown] {
				t.Indented("        ", show.Red, o.String())
			}
			if n := s.Harmed - shown; n > 0 {
				t.Line("        … %s", prose.Count(n, "more object"))
			}
			if s.Unknown != "" {
				t.Indented("        ", show.Red, "and perhaps others: "+s.Unknown)
			}
		case s.Unknown != "":
			t.Indented("      ", show.Plain, s.Cluster+": "+s.Text(0))
		default:
			unharmed = append(unharmed, s.Cluster)
			looked += s.Looked
			if others := s.Others(); len(others) > 0 {
				clients = others
			}
		}
		for _, w := range s.Warnings() {
			if !slices.Contains(warnings, w) {
				warnings = append(warnings, w)
			}
		}
	}
	switch {
	case len(unharmed) > 0 && looked == 0:
		t.Line("      harms nobody in %s: there are no objects", where(unharmed))
	case len(clients) > 0:
		t.Line("      harms no object today in %s (%s looked at), but clients: %s", where(unharmed), prose.Count(looked, "object"), strings.Join(clients, ", "))
	case len(unharmed) > 0:
		t.Line("      harms nobody today in %s (%s looked at)", where(unharmed), prose.Count(looked, "object"))
	}
	for _, w := range warnings {
		t.Indented("      ", show.Yellow, w)
	}
}
