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

// alike is a group of clusters with equal plans.
type alike struct {
	// of are the clusters in the plan's order; at least one.
	of []*ClusterPlan
	// written has the files and lines of each object in trouble; see places.
	written map[manifest.ID][]string
}

// alike groups clusters with equal plans: the order, packages, steps, reasons and fields are
// the same. The files of objects may differ, and so may the number of unchanged objects.
// Silent clusters are the last group.
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

// silent reports whether there is nothing to show of a cluster.
func (c *ClusterPlan) silent() bool {
	return !c.Suspended && c.Err == "" && c.Plan != nil && len(groups(c.Plan))+len(c.quiet())+len(c.Plan.Unreadable) == 0 && !c.tried()
}

// key is equal for clusters with equal plans, including folded parts.
func (c *ClusterPlan) key() [sha256.Size]byte {
	var b strings.Builder
	fmt.Fprintf(&b, "%t %t %q\n", c.Suspended, c.Plan != nil, c.Err)
	if c.Plan != nil {
		one := &alike{of: []*ClusterPlan{{
			Packages: c.Packages, Before: c.Before, BeforeLocked: c.BeforeLocked, Revisions: c.Revisions, Details: c.Details, Unpublished: c.Unpublished, Undeclared: c.Undeclared, Plan: c.Plan,
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

// headline summarizes the plans in one line, with the least and the most number of unchanged
// objects.
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

// where names clusters, a few of many.
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

// places returns the files and lines of an object in trouble, a few of many. It is empty if the
// object is from a package, or if its place is unknown.
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

// declared returns where the clusters declare a package, a few of many, or "" if none does.
func (a *alike) declared(pkg string) string {
	var all []string
	for _, c := range a.of {
		if d := c.Declared[pkg]; d != "" && !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	return prose.Some(all, 2)
}
