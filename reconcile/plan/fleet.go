package plan

import (
	"slices"

	"gitopsd.dev/render/manifest"
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
	// Notes are worth knowing: revisions that wait for approval.
	Notes []string
}

// ClusterPlan is the plan of one cluster, or why there is none.
type ClusterPlan struct {
	Name string
	// Packages of the cluster, by name: "repository version, revision name".
	Packages map[string]string
	// Plan may be nil when Err is not empty.
	Plan *Plan
	Err  string
}

// HasChanges says that the fleet or the lock would change.
func (f *Fleet) HasChanges() bool {
	return len(f.Lock) > 0 || slices.ContainsFunc(f.Clusters, func(c ClusterPlan) bool { return c.Plan != nil && c.Plan.HasChanges() })
}

// Failed says that something could not be planned.
func (f *Fleet) Failed() bool {
	return len(f.Errors) > 0 || slices.ContainsFunc(f.Clusters, func(c ClusterPlan) bool { return c.Err != "" })
}

// Between compares two renderings of a cluster without looking at it: what would
// be done to a cluster that holds the one, to bring it to the other.
func Between(cluster string, before, after *manifest.Set) *Plan {
	p := &Plan{Cluster: cluster}
	for _, o := range after.All() {
		s := Step{Action: Unchanged, ID: o.ID(), Stage: StageOf(o.ID()), Object: o, Package: o.Label(PackageLabel)}
		switch old := before.Get(o.ID()); {
		case old == nil:
			s.Action = Create
		case old.Hash() != o.Hash():
			s.Action, s.Changes = Configure, Diff(o.ID(), old.Tree(), o.Tree())
		}
		p.Steps = append(p.Steps, s)
	}
	sortApplied(p.Steps)
	var prunes []Step
	for _, o := range before.All() {
		if after.Get(o.ID()) == nil {
			prunes = append(prunes, Step{Action: Prune, ID: o.ID(), Stage: StageOf(o.ID()), Package: o.Label(PackageLabel)})
		}
	}
	sortPruned(prunes)
	p.Steps = append(p.Steps, prunes...)
	return p
}

// group is the steps of one package, or of no package, that are worth showing.
type group struct {
	name  string // "" for plain manifests
	steps []*Step
}

// groups sorts the steps that are not unchanged by package, plain manifests
// last.
func (p *Plan) groups() []group {
	var all []group
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Action == Unchanged {
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
		slices.SortStableFunc(g.steps, func(a, b *Step) int {
			return slices.Index(Actions, a.Action) - slices.Index(Actions, b.Action)
		})
	}
	return all
}
