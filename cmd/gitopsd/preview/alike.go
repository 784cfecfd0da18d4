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
}

// alike returns the clusters in groups with equal plans: the order, packages, steps,
// reasons and fields are the same. Where in the repository a step comes from may differ,
// and so may the number of unchanged objects. Clusters with nothing to tell are one
// group, the last.
func (f *Fleet) alike() []alike {
	var all []alike
	at := make(map[[sha256.Size]byte]int)
	var quiet alike
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
			all = append(all, alike{})
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
	return c.Err == "" && c.Plan != nil && len(groups(c.Plan))+len(c.quiet())+len(c.Plan.Unreadable) == 0 && !c.tried()
}

// key is equal for clusters of which the same is told, whatever is folded.
func (c *ClusterPlan) key() [sha256.Size]byte {
	var b strings.Builder
	fmt.Fprintf(&b, "%t %q\n", c.Suspended, c.Err)
	if c.Plan != nil {
		one := alike{of: []*ClusterPlan{{
			Packages: c.Packages, Before: c.Before, BeforeLocked: c.BeforeLocked, Revisions: c.Revisions, Details: c.Details, Plan: c.Plan,
		}}}
		b.WriteString(show.Sprint(func(t *show.Text) {
			t.All = true
			textWriter{Text: t, placeless: true}.body(one)
		}))
		for i := range c.Plan.Steps {
			s := &c.Plan.Steps[i]
			for _, change := range s.Changes { // long values are cut in the text
				fmt.Fprintln(&b, s.ID, change.Path, change.Old, change.New)
			}
		}
	}
	return sha256.Sum256([]byte(b.String()))
}

// first is the cluster that is shown for all.
func (a alike) first() *ClusterPlan { return a.of[0] }

// names returns the names of the clusters.
func (a alike) names() []string {
	names := make([]string, len(a.of))
	for i, c := range a.of {
		names[i] = c.Name
	}
	return names
}

// headline returns the plans in one line. It counts unchanged objects from the least to
// the most.
func (a alike) headline() string {
	first := a.first()
	if first.Plan == nil {
		return "no plan"
	}
	n := count(first.Plan)
	least, most := n.unchanged, n.unchanged
	for _, c := range a.of[1:] {
		u := c.Plan.Count(plan.Unchanged) + len(cosmetic(c.Plan))
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
func (a alike) title() string { return upper(Subject(a.names())) }

// upper returns the text with its first letter, which is ASCII, in upper case.
func upper(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// places returns where in the repository an object comes from in the clusters, a few of
// many; empty if it comes from a package, or if it is not known.
func (a alike) places(id manifest.ID) string {
	var all []string
	for _, c := range a.of {
		for i := range c.Plan.Steps {
			if s := &c.Plan.Steps[i]; s.ID == id && place(s) != "" && !slices.Contains(all, place(s)) {
				all = append(all, place(s))
			}
		}
	}
	return prose.Some(all, 2)
}

// place returns the file and line that a step's object is written in, if that is in the
// repository.
func place(s *plan.Step) string {
	if s.Object == nil || s.Object.Origin().File == "" || s.Object.Origin().Package.Ref.Repository != "" {
		return ""
	}
	return s.Object.Origin().String()
}

// declared returns where a package is declared in the clusters, a few of many; empty if
// that is nowhere.
func (a alike) declared(pkg string) string {
	var all []string
	for _, c := range a.of {
		if d := c.Declared[pkg]; d != "" && !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	return prose.Some(all, 2)
}
