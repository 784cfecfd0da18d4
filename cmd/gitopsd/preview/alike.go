package preview

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
)

// alike are the clusters of which the same is told.
type alike struct {
	// of are the clusters in the plan's order; at least one.
	of []*ClusterPlan
	// written is where the clusters have each object in trouble from, files with lines; it
	// is made when it is asked for.
	written map[manifest.ID][]string
}

// alike returns the clusters in groups with equal plans: the order, packages, steps,
// reasons and fields are the same. Where in the repository a step comes from may differ,
// and so may the number of unchanged objects. Clusters with nothing to tell are one
// group, the last.
func (f *Fleet) alike() []*alike {
	var all []*alike
	at := make(map[[sha256.Size]byte]int)
	quiet := new(alike)
	for i := range f.Clusters {
		c := &f.Clusters[i]
		if c.silent() {
			quiet.of = append(quiet.of, c)
			continue
		}
		key := c.key()
		n, known := at[key]
		if !known {
			n = len(all)
			at[key] = n
			all = append(all, new(alike))
		}
		all[n].of = append(all[n].of, c)
	}
	if len(quiet.of) > 0 {
		all = append(all, quiet)
	}
	return all
}

// silent reports whether there is nothing to tell of a cluster, but that it is as it should
// be.
func (c *ClusterPlan) silent() bool {
	return !c.Suspended && c.Err == "" && c.Plan != nil && len(groups(c.Plan))+len(c.quiet())+len(c.Plan.Unreadable) == 0 && !c.tried()
}

// key is equal for clusters of which the same is told, whatever is folded.
func (c *ClusterPlan) key() [sha256.Size]byte {
	var b strings.Builder
	fmt.Fprintf(&b, "%t %t %q\n", c.Suspended, c.Plan != nil, c.Err)
	if c.Plan != nil {
		one := &alike{of: []*ClusterPlan{{
			Packages: c.Packages, Before: c.Before, BeforeLocked: c.BeforeLocked, Revisions: c.Revisions, Details: c.Details, Plan: c.Plan,
		}}}
		b.WriteString(show.Sprint(func(t *show.Text) {
			t.All = true
			textWriter{Text: t, placeless: true}.body(one)
		}))
		for i := range c.Plan.Steps {
			s := &c.Plan.Steps[i]
			for _, change := range s.Changes { // long values are cut in the text
				fmt.Fprintf(&b, "%q %q %#v %#v\n", s.ID, change.Path, change.Old, change.New)
			}
		}
	}
	return sha256.Sum256([]byte(b.String()))
}

// first is the cluster that is shown for all.
func (a *alike) first() *ClusterPlan { return a.of[0] }

// names returns the names of the clusters.
func (a *alike) names() []string {
	names := make([]string, len(a.of))
	for i, c := range a.of {
		names[i] = c.Name
	}
	return names
}

// headline returns the plans in one line. It counts unchanged objects from the least to
// the most.
func (a *alike) headline() string {
	first := a.first()
	if first.Plan == nil {
		return "no plan"
	}
	n := count(first.Plan)
	least, most := n.by[plan.Unchanged], n.by[plan.Unchanged]
	for _, c := range a.of[1:] {
		u := count(c.Plan).by[plan.Unchanged]
		least, most = min(least, u), max(most, u)
	}
	text := n.text(least, most)
	if first.Suspended {
		text = "suspended, nothing is done: " + text
	}
	return text
}

// shownClusters is how many clusters of a group are named.
const shownClusters = 3

// where names clusters, the first of many.
func where(clusters []string) string {
	if len(clusters) > shownClusters {
		return fmt.Sprintf("%d clusters (%s …)", len(clusters), strings.Join(clusters[:shownClusters], ", "))
	}
	return strings.Join(clusters, ", ")
}

// Subject names clusters at the start of a line: "cluster dev", "2 clusters (dev, prod)".
func Subject(clusters []string) string {
	switch n := len(clusters); {
	case n == 1:
		return "cluster " + clusters[0]
	case n > shownClusters:
		return where(clusters)
	}
	return fmt.Sprintf("%d clusters (%s)", len(clusters), strings.Join(clusters, ", "))
}

// title is the subject as a heading.
func (a *alike) title() string { return upper(Subject(a.names())) }

// upper returns the text with its first letter, which is ASCII, in upper case.
func upper(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// places returns where in the repository an object that is in trouble comes from in the
// clusters, a few of many; empty if it comes from a package, or if it is not known.
func (a *alike) places(id manifest.ID) string {
	if a.written == nil {
		a.written = make(map[manifest.ID][]string)
		type written struct {
			id    manifest.ID
			where string
		}
		seen := make(map[written]bool)
		for _, c := range a.of {
			for i := range c.Plan.Steps {
				s := &c.Plan.Steps[i]
				if w := (written{s.ID, s.Place()}); w.where != "" && inTrouble(s) && !seen[w] {
					seen[w] = true
					a.written[s.ID] = append(a.written[s.ID], w.where)
				}
			}
		}
	}
	return prose.Some(a.written[id], 2)
}

// inTrouble reports whether a step would fail or may fail.
func inTrouble(s *plan.Step) bool {
	return s.Action == plan.Refused || s.Action == plan.Conflict || s.Rejected != "" || doubtful(s)
}

// declared returns where a package is declared in the clusters, a few of many; empty if
// that is nowhere.
func (a *alike) declared(pkg string) string {
	var all []string
	for _, c := range a.of {
		if d := c.Declared[pkg]; d != "" && !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	return prose.Some(all, 2)
}
