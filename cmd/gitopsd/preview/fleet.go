// Package preview shows plans before anything happens: those of a whole fleet, to
// people as text and as a comment on a pull request, and to programs as JSON.
//
// It owns
//   - what is shown together (fleet.go): the plans of several clusters, with the
//     packages, the lines of the lock, errors and notes beside them;
//   - what becomes of types (table.go), package by package, for all clusters in
//     which it is the same;
//   - the plans as text (text.go, tabletext.go), JSON (json.go) and Markdown
//     (markdown.go): what is folded, where it is cut, how it is coloured.
//
// What is in a plan, and why, is reconcile/plan's, which does not know this
// package; who makes the plans is cmd/gitopsd/cli.
package preview

import (
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/plan"
)

// Fleet is what a person asks for: the plans of several clusters, and what
// happens beside them.
type Fleet struct {
	// Source is the commit or tree that was planned, Against the revision it
	// was compared with; empty when that were the live clusters.
	Source, Against string
	// Clusters in the registry's order.
	Clusters []ClusterPlan
	// Lock are the lines of clusters.lock that change, with "+ " or "- ".
	Lock []string
	// Errors are what is wrong with the registry or with packages.
	Errors []string
	// Notes are worth knowing: revisions that wait for approval, activation
	// policies that do not do what they may be meant to.
	Notes []string
}

// ClusterPlan is the plan of one cluster, or why there is none.
type ClusterPlan struct {
	Name string
	// Suspended says that nothing is done to the cluster.
	Suspended bool
	// Packages of the cluster, by name: "repository version". Before are those
	// of which it is known what they were, as far as another version is wanted
	// now.
	Packages, Before map[string]string
	// Revisions are the packages' revisions, by name.
	Revisions map[string]string
	// Details are what else is known of the packages, by name.
	Details map[string]PackageDetails
	// Plan may be nil when Err is not empty.
	Plan *plan.Plan
	Err  string
}

// PackageDetails is what is known of a package of a cluster.
type PackageDetails struct {
	Repository string `json:"repository"`
	Version    string `json:"version"`
	// From is where it is fetched from, empty if that is its repository.
	From string `json:"from,omitempty"`
	// Verified says by whose signature it is accepted, empty if nobody asks
	// for one.
	Verified string `json:"verified,omitempty"`
}

// notes are what is worth knowing of a package beside its name.
func (p PackageDetails) notes() []string {
	var notes []string
	if p.From != "" {
		notes = append(notes, "fetched from "+p.From)
	}
	if p.Verified != "" {
		notes = append(notes, p.Verified)
	}
	return notes
}

// quiet lists the packages of which there is something to say although none of
// their objects change.
func (c ClusterPlan) quiet() []string {
	changing := make(map[string]bool)
	for _, g := range groups(c.Plan) {
		changing[g.name] = true
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(c.Details)) {
		if !changing[name] && len(c.Details[name].notes()) > 0 {
			names = append(names, name)
		}
	}
	return names
}

// HasChanges says that the fleet or the lock would change.
func (f *Fleet) HasChanges() bool {
	return len(f.Lock) > 0 || slices.ContainsFunc(f.Clusters, func(c ClusterPlan) bool { return c.Plan != nil && c.Plan.HasChanges() })
}

// Failed says that something could not be planned.
func (f *Fleet) Failed() bool {
	return len(f.Errors) > 0 || slices.ContainsFunc(f.Clusters, func(c ClusterPlan) bool { return c.Err != "" })
}

// group is the steps of one package, or of no package, that are worth showing.
type group struct {
	name  string // "" for plain manifests
	steps []*plan.Step
}

// groups sorts the steps that are not unchanged by package, plain manifests
// last.
func groups(p *plan.Plan) []group {
	var all []group
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Action == plan.Unchanged {
			continue
		}
		at := slices.IndexFunc(all, func(g group) bool { return g.name == s.Package })
		if at < 0 {
			all = append(all, group{name: s.Package})
			at = len(all) - 1
		}
		all[at].steps = append(all[at].steps, s)
	}
	slices.SortStableFunc(all, func(a, b group) int {
		switch {
		case a.name == b.name:
			return 0
		case a.name == "" || b.name != "" && a.name > b.name:
			return 1
		}
		return -1
	})
	for _, g := range all {
		slices.SortStableFunc(g.steps, func(a, b *plan.Step) int {
			if a.Action == plan.Refused && b.Action == plan.Refused {
				return strings.Compare(brief(a), brief(b))
			}
			return slices.Index(plan.Actions, a.Action) - slices.Index(plan.Actions, b.Action)
		})
	}
	return all
}
