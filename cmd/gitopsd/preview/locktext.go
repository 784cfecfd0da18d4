package preview

import (
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/prose"
)

// shownLock is how many lines of the lock are shown.
const shownLock = 12

// lock writes the lines of the lock that change. Equal selections of several clusters share a
// line.
func (t textWriter) lock(lines []string) {
	t.Line("%s", t.Paint(show.Bold, "clusters.lock"))
	if !t.All {
		lines = selectedAlike(lines)
	}
	shown, folded := t.Fold(len(lines), shownLock)
	for _, l := range lines[:shown] {
		colour := show.Green
		if l[0] == '-' {
			colour = show.Red
		}
		t.Line("  %s", t.Paint(colour, l))
	}
	if folded > 0 {
		t.Line("  … %s", prose.Count(folded, "more line"))
	}
}

// selectedAlike merges lines that select the same for several clusters.
func selectedAlike(lines []string) []string {
	type kind struct{ sign, what string }
	clusters := make(map[kind][]string)
	of := func(line string) (k kind, cluster string, ok bool) {
		sign, rest, _ := strings.Cut(line, " ")
		cluster, what, ok := strings.Cut(rest, " ")
		cluster, isCluster := strings.CutPrefix(cluster, "@")
		return kind{sign, what}, cluster, ok && isCluster
	}
	for _, l := range lines {
		if k, cluster, ok := of(l); ok && !slices.Contains(clusters[k], cluster) {
			clusters[k] = append(clusters[k], cluster)
		}
	}
	var all []string
	for _, l := range lines {
		k, _, ok := of(l)
		names := clusters[k]
		switch {
		case !ok || len(names) == 1:
			all = append(all, l)
		case len(names) > 1:
			all = append(all, fmt.Sprintf("%s @… %s in %s", k.sign, k.what, where(names)))
			clusters[k] = nil
		}
	}
	return all
}
