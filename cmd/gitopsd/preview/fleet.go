// Package preview shows the plans of a fleet: to people as text and as a comment on a
// pull request, and to programs as JSON.
//
//   - fleet.go has the plans of several clusters, with packages, the lines of the
//     lock, errors and notes. alike.go groups clusters with equal plans, and
//     verdict.go summarizes all plans in a line.
//   - table.go has the changes of types, package by package, once for all clusters
//     in which they are the same; controllers.go has the changes of controllers, and
//     proofs.go the proofs of conversion rules.
//   - text.go, refusals.go, locktext.go, tabletext.go, surveys.go, json.go and
//     markdown.go write them; controllers.go and proofs.go also write their tables.
//
// reconcile/plan has the contents of a plan, and cmd/gitopsd/cli makes the plans.
// cmd/gitopsd/show folds, wraps and cuts.
package preview

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/sources"
)

// Fleet is the plans of several clusters, with the changes outside of them.
type Fleet struct {
	// Source is the commit or tree that was planned. Against is the revision that it was
	// compared with, empty for the live clusters.
	Source, Against string
	// Revision is the short hash of the commit that equals the tree, empty if there is none or
	// if that is unknown.
	Revision string
	// Clusters are in the registry's order.
	Clusters []ClusterPlan
	// Lock are the lines of clusters.lock that change, with "+ " or "- ".
	Lock []string
	// Errors are those of the registry and of packages.
	Errors []string
	// Notes are not errors: revisions that wait for approval, activation policies
	// that match nothing.
	Notes []string

	formed formed
}

// ClusterPlan is the plan of one cluster, or the error of making it.
type ClusterPlan struct {
	Name string
	// Suspended reports whether gitopsd leaves the cluster alone.
	Suspended bool
	// Packages are the cluster's, by name: "repository version". Before are the
	// earlier versions of packages whose version changes, if known.
	Packages, Before map[string]string
	// BeforeLocked are the packages in Before whose version is from the lock, since the
	// cluster does not tell it.
	BeforeLocked map[string]bool
	// Declared is where each package is declared, by name: "Provider web
	// (clusters/dev/web.yaml:1)".
	Declared map[string]string
	// Undeclared are declarations for the packages without one, dependencies, by name.
	Undeclared map[string]sources.Declaration
	// Revisions are the packages' revisions, by name.
	Revisions map[string]string
	// Details are the packages' origins and signatures, by name.
	Details map[string]PackageDetails
	// Unpublished are the packages by --replace, by name. An allowance names the version that
	// they get when they are published.
	Unpublished map[string]bool
	// Plan may be nil when Err is not empty.
	Plan *plan.Plan
	Err  string
}

// allowedVersion returns the version that an allowance of a package names.
func (c *ClusterPlan) allowedVersion(pkg string) string {
	if c.Unpublished[pkg] {
		return "<published version>"
	}
	return version(c.Packages[pkg])
}

// PackageDetails says where a package of a cluster comes from. It is documented JSON,
// see [Fleet.WriteJSON].
type PackageDetails struct {
	Repository string `json:"repository"`
	Version    string `json:"version"`
	// From is the repository it is fetched from, empty for its own.
	From string `json:"from,omitempty"`
	// Verified is the verified signature, empty if none is required.
	Verified string `json:"verified,omitempty"`
	// Replaces names what the package replaces, if anything.
	Replaces string `json:"replaces,omitempty"`
}

// notes returns lines about a package, shown below its name.
func (p PackageDetails) notes() []string {
	var notes []string
	if p.Replaces != "" {
		notes = append(notes, p.Replaces)
	}
	if p.From != "" {
		notes = append(notes, "fetched from "+p.From)
	}
	if p.Verified != "" {
		notes = append(notes, p.Verified)
	}
	return notes
}

// quiet returns the packages that have notes and whose objects do not change.
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

// tried reports whether conversion rules were tried on the objects of the cluster.
func (c ClusterPlan) tried() bool {
	return slices.ContainsFunc(c.Plan.Steps, func(s plan.Step) bool { return s.Tried != nil })
}

// Untrue returns the definitions whose conversion rules lose something of the cluster's
// objects.
func (c ClusterPlan) Untrue() []string {
	var names []string
	if c.Plan == nil {
		return nil
	}
	for i := range c.Plan.Steps {
		if s := &c.Plan.Steps[i]; s.Tried != nil && s.Tried.Failed() {
			names = append(names, s.ID.Name)
		}
	}
	return names
}

// HasChanges reports whether the lock or a cluster differs from what is declared: it would
// change, or changes are held back, wait or would fail. Suspended clusters do not count.
func (f *Fleet) HasChanges() bool {
	return len(f.Lock) > 0 || slices.ContainsFunc(f.Clusters, func(c ClusterPlan) bool {
		return c.Plan != nil && !c.Suspended && (c.Plan.HasChanges() || attention(c.Plan) > 0)
	})
}

// group is the steps of one package, or of plain manifests, that are shown.
type group struct {
	name  string // "" for plain manifests
	steps []*plan.Step
}

// groups returns the steps by package, without unchanged ones. Groups with changes come first;
// in both parts plain manifests come last. A group may have only cosmetic steps, see
// [isCosmetic].
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
	rank := func(g group) (n int) {
		if !g.changes() {
			n = 2
		}
		if g.name == "" {
			n++
		}
		return n
	}
	slices.SortStableFunc(all, func(a, b group) int { return cmp.Or(rank(a)-rank(b), strings.Compare(a.name, b.name)) })
	for _, g := range all {
		because := func(s *plan.Step) string {
			if s.Action.Writes() {
				return ""
			}
			return cause(s)
		}
		slices.SortStableFunc(g.steps, func(a, b *plan.Step) int {
			return cmp.Or(slices.Index(plan.Actions, markOf(a))-slices.Index(plan.Actions, markOf(b)), strings.Compare(because(a), because(b)))
		})
	}
	return all
}

// changes reports whether a step of the group writes.
func (g group) changes() bool {
	return slices.ContainsFunc(g.steps, func(s *plan.Step) bool { return s.Action.Writes() && !isCosmetic(s) })
}
