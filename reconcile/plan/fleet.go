package plan

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources"
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
	Details map[string]Package
	// Plan may be nil when Err is not empty.
	Plan *Plan
	Err  string
}

// Package is a package of a cluster.
type Package struct {
	Repository string `json:"repository"`
	Version    string `json:"version"`
	// From is where it is fetched from, empty if that is its repository.
	From string `json:"from,omitempty"`
	// Verified says by whose signature it is accepted, empty if nobody asks
	// for one.
	Verified string `json:"verified,omitempty"`
}

// notes are what is worth knowing of a package beside its name.
func (p Package) notes() []string {
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
	for _, g := range c.Plan.groups() {
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

// Comparer compares definitions, and remembers what came of it: the same bump
// in many clusters is looked at once. It is safe for concurrent use.
type Comparer struct {
	mu   sync.Mutex
	done map[[2]sources.Digest]*comparison
}

type comparison struct {
	once    sync.Once
	changes []Change
	report  compat.Report
	before  []types.Type
	err     error
}

// compare takes the definitions as they are rendered; now may be nil. Which
// versions are stored is not known.
func (c *Comparer) compare(old, now *manifest.Object) *comparison {
	key := [2]sources.Digest{old.Hash()}
	var tree map[string]any
	if now != nil {
		key[1], tree = now.Hash(), now.Tree()
	}
	c.mu.Lock()
	if c.done == nil {
		c.done = make(map[[2]sources.Digest]*comparison)
	}
	one := c.done[key]
	if one == nil {
		one = new(comparison)
		c.done[key] = one
	}
	c.mu.Unlock()
	one.once.Do(func() {
		if now != nil {
			one.changes = Diff(now.ID(), old.Tree(), tree)
		}
		one.report, one.err = compat.Compare(old.Tree(), tree, compat.Options{})
		if one.err == nil {
			one.before, one.err = types.Of(old.Tree())
		}
	})
	return one
}

// Between compares two renderings of a cluster without looking at it: what would
// be done to a cluster that holds the one, to bring it to the other. What would
// be refused there is refused, as far as it can be told.
func (c *Comparer) Between(cluster string, before, after *manifest.Set, allowed Allowed, find FindType) *Plan {
	p := &Plan{Cluster: cluster}
	packages := make(map[string]bool)
	for _, o := range after.All() {
		packages[o.Label(PackageLabel)] = true
		s := Step{Action: Unchanged, ID: o.ID(), Stage: StageOf(o.ID()), Object: o, Package: o.Label(PackageLabel)}
		switch old := before.Get(o.ID()); {
		case old == nil:
			s.Action = Create
		case old.Hash() != o.Hash():
			s.Action = Configure
			if !IsDefinition(o.ID()) {
				s.Changes = Diff(o.ID(), old.Tree(), o.Tree())
			}
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
	sortPruned(prunes, func(s *Step) []string {
		return dependencies(before.Get(s.ID).Annotation(DependsOnAnnotation), Order{})
	})
	p.Steps = append(p.Steps, prunes...)
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range p.Steps {
		s := &p.Steps[i]
		dropped := s.Action == Prune && s.Package != "" && packages[s.Package]
		if !IsDefinition(s.ID) || s.Action != Configure && !dropped {
			continue
		}
		g.Go(func() error {
			done := c.compare(before.Get(s.ID), s.Object)
			s.Changes = done.changes
			if done.err != nil {
				s.Action, s.Reason = Refused, fmt.Sprintf("comparing the types of %s: %v", s.ID, done.err)
				return nil
			}
			s.Compatibility, s.Findings, s.Before = done.report.Severity, done.report.Findings, done.before
			return nil
		})
	}
	_ = g.Wait() // each step has its own error
	RefuseBreaking(p, allowed)
	CheckPins(p, nil, find, false)
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
			if a.Action == Refused && b.Action == Refused {
				return strings.Compare(brief(a), brief(b))
			}
			return slices.Index(Actions, a.Action) - slices.Index(Actions, b.Action)
		})
	}
	return all
}
