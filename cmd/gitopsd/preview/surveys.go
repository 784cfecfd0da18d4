package preview

import (
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/prose"
)

// surveys writes how a breaking change affects the objects of each cluster: first the clusters
// with harmed objects, a few of them by name; last, in one line, the clusters without.
func (t textWriter) surveys(all []clusterSurvey) {
	var unharmed, warnings, clients, doubts []string
	looked, harmed := 0, 0
	var more []string // clusters that are folded
	add := func(list *[]string, more []string) {
		for _, m := range more {
			if !slices.Contains(*list, m) {
				*list = append(*list, m)
			}
		}
	}
	for _, s := range all {
		switch {
		case s.Harmed > 0 && harmed >= shownClusters && !t.All:
			more = append(more, s.Cluster)
		case s.Harmed > 0:
			harmed++
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
			add(&clients, s.Others())
			add(&doubts, s.Doubts())
		}
		add(&warnings, s.Warnings())
	}
	if len(more) > 0 {
		t.Say(show.Red, "      … and objects in "+where(more))
	}
	if len(unharmed) > 0 {
		t.Indented("      ", show.Plain, unharmedIn(unharmed, looked, clients, doubts))
	}
	for _, w := range warnings {
		t.Indented("      ", show.Yellow, w)
	}
}

// unharmedIn says that a change harms no object in clusters, and why it may still be refused.
func unharmedIn(clusters []string, looked int, clients, doubts []string) string {
	who, but := "nobody", doubts
	if len(clients) > 0 {
		who, but = "no object", append([]string{"clients: " + strings.Join(clients, ", ")}, doubts...)
	}
	text := fmt.Sprintf("harms %s today in %s (%s looked at)", who, where(clusters), prose.Count(looked, "object"))
	if looked == 0 {
		text = fmt.Sprintf("harms %s in %s: there are no objects", who, where(clusters))
	}
	if len(but) > 0 {
		text += ", but " + strings.Join(but, "; ")
	}
	return text
}
