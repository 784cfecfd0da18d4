package upgrade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/errgroup"
	"gitopsd.dev/sources/versions"
)

// Versions is one version of a package that clusters have, and the newer versions.
type Versions struct {
	Repository string `json:"package"`
	// Current is the version that the clusters select: a tag, or a digest.
	Current string `json:"current"`
	// Clusters are the clusters with this version and equal values of the fields below,
	// sorted.
	Clusters []string `json:"clusters"`
	// DependencyOf are the repositories that depend on it, if no cluster declares it.
	DependencyOf []string `json:"dependencyOf,omitempty"`
	// Update is the newest version of the same major version that all dependents accept, and
	// Latest the newest of all; nil if that is Current.
	Update *Candidate `json:"update,omitempty"`
	Latest *Candidate `json:"latest,omitempty"`
	// Held are the dependents that do not accept Latest, with their constraints.
	Held []string `json:"held,omitempty"`
	// Excluded is why the fleet excludes Current, and Retracted why its publisher retracts
	// it. Skipped are newer versions that are not proposed, with the reasons.
	Excluded  string   `json:"excluded,omitempty"`
	Retracted string   `json:"retracted,omitempty"`
	Skipped   []string `json:"skipped,omitempty"`
	// Replaces is the package that it replaces by the fleet's rules, in words.
	Replaces string `json:"replaces,omitempty"`
	// Note is why newer versions cannot be determined, and Error why they could not be read.
	// Error names the repository.
	Note  string `json:"note,omitempty"`
	Error string `json:"error,omitempty"`

	needs []versions.Need
	pkg   *sources.Package
	// selected is the package as the first of Clusters selects it; if pkg is nil, it has the
	// declaration alone.
	selected sources.Selected
}

// Outdated reports whether there is a newer version.
func (p *Versions) Outdated() bool { return p.Update != nil || p.Latest != nil }

// TakenBack reports whether the current version should not be used.
func (p *Versions) TakenBack() bool { return p.Excluded != "" || p.Retracted != "" }

// Candidate is a newer version.
type Candidate struct {
	Version string         `json:"version"`
	Digest  sources.Digest `json:"digest,omitempty"`
	// Types counts its changes to the package's types.
	Types compat.Count `json:"types"`
	// Changes are the types that differ.
	Changes []compat.Change `json:"changes,omitempty"`
	// Controller are the differences in the behaviour behind types that both versions have;
	// nil if there are none or ControllerError is set.
	Controller      []behaviour.Difference `json:"controller,omitempty"`
	ControllerError string                 `json:"controllerError,omitempty"`
	// Misfits are conversion rules of the clusters that do not fit its types.
	Misfits []Misfit `json:"misfits,omitempty"`
	// Error is why the changes are unknown. It names the repository.
	Error string `json:"error,omitempty"`
}

// Bounds of concurrent requests to registries, and of packages in memory.
const (
	parallelTags     = 8
	parallelPackages = 2
)

// Outdated returns the packages that the computed clusters declare or depend on, sorted by
// repository, version and clusters, and the state of the tree. Patterns limit it to matching
// packages ([Matches]). An error of a registry is in the Error of its package. Outdated fails
// if [desired.Computer.Compute] does, if ctx ends, or if no package matches a pattern.
func (u *Upgrader) Outdated(ctx context.Context, commit sources.Commit, patterns []string) (all []*Versions, state *desired.State, err error) {
	if state, err = u.cfg.Computer.Compute(ctx, commit, desired.Earlier{}); err != nil {
		return nil, nil, err
	}
	matched := make(map[string]bool)
	groups, there := make(map[string]*Versions), make(map[string]bool)
	for _, c := range state.Clusters {
		for _, p := range packagesOf(c) {
			there[p.Repository] = true
			ok := len(patterns) == 0
			for _, pattern := range patterns {
				if Matches(pattern, p.Repository, p.name) {
					matched[pattern], ok = true, true
				}
			}
			if ok {
				p.join(groups, c.Name)
			}
		}
	}
	for _, pattern := range patterns {
		switch err := state.Err(); {
		case matched[pattern]:
		case len(there) > 0:
			return nil, state, errors.Join(err, fmt.Errorf("no cluster has a package %q; there are %s", pattern, strings.Join(slices.Sorted(maps.Keys(there)), ", ")))
		case err != nil:
			return nil, state, err // which may be why there is none
		default:
			return nil, state, fmt.Errorf("no cluster has a package %q, or any other", pattern)
		}
	}
	all = slices.SortedFunc(maps.Values(groups), func(a, b *Versions) int {
		return cmp.Or(cmp.Compare(a.Repository, b.Repository), cmp.Compare(a.Current, b.Current), slices.Compare(a.Clusters, b.Clusters))
	})
	u.find(ctx, state, all)
	return all, state, ctx.Err()
}

// installed is a package of one cluster.
type installed struct {
	Versions
	name string
}

// packagesOf returns the packages that a cluster selects, and those that it declares and that
// could not be resolved.
func packagesOf(c *desired.Unit) []installed {
	var all []installed
	for _, s := range c.Packages {
		p := installed{name: s.Declaration.Name}
		p.Repository, p.Current, p.pkg, p.selected = s.Pin.Ref.Repository, s.Pin.Ref.Version(), s.Package, s
		var parents []string
		p.Replaces = s.Replacement()
		if p.needs, parents = needs(c, s.Repository()); s.Parent != "" {
			p.DependencyOf = parents
		}
		all = append(all, p)
	}
	for _, d := range c.Declared {
		if slices.ContainsFunc(c.Packages, func(s sources.Selected) bool { return s.Repository() == d.Ref.Repository }) {
			continue
		}
		p := installed{name: d.Name}
		p.Repository, p.Current, p.selected.Declaration = d.Ref.Repository, d.Ref.Version(), d
		p.needs, _ = needs(c, p.Repository)
		all = append(all, p)
	}
	return all
}

// join adds a cluster's package to the group of equal ones.
func (p installed) join(groups map[string]*Versions, cluster string) {
	key := strings.Join(append([]string{p.Repository, p.Current, p.Replaces, fmt.Sprint(p.needs), fmt.Sprint(p.pkg == nil)}, p.DependencyOf...), "\n")
	g, ok := groups[key]
	if !ok {
		g = &p.Versions
		groups[key] = g
	}
	g.Clusters = append(g.Clusters, cluster)
	slices.Sort(g.Clusters)
}

// find reads newer versions of all packages, and compares them.
func (u *Upgrader) find(ctx context.Context, state *desired.State, all []*Versions) {
	var mu sync.Mutex
	tags, errs := make(map[string][]string), make(map[string]error)
	g := new(errgroup.Group)
	g.SetLimit(parallelTags)
	asked := make(map[string]bool)
	for _, p := range all {
		if asked[p.Repository] {
			continue
		}
		asked[p.Repository] = true
		g.Go(func() error {
			list, err := u.cfg.Tags(ctx, state.Origin(p.Repository))
			mu.Lock()
			defer mu.Unlock()
			tags[p.Repository], errs[p.Repository] = list, err
			return nil
		})
	}
	_ = g.Wait() // each repository keeps its own error
	g.SetLimit(parallelPackages)
	for _, p := range all {
		if err := errs[p.Repository]; err != nil {
			p.Error = err.Error()
			continue
		}
		g.Go(func() error {
			u.candidates(ctx, state, p, tags[p.Repository])
			return nil
		})
	}
	_ = g.Wait() // each candidate keeps its own error
}

// candidates finds the newer versions among tags and compares their types.
func (u *Upgrader) candidates(ctx context.Context, state *desired.State, p *Versions, tags []string) {
	if p.pkg == nil {
		if s, ok := u.excluded(ctx, state, p.selected.Declaration); ok {
			p.pkg, p.selected = s.Package, s
		}
	}
	r := u.ruling(ctx, state, p, tags)
	p.Excluded, p.Retracted = r.about(p.current())
	opts := versions.Options{Needs: p.needs, Prerelease: u.cfg.Prerelease}
	var newer versions.Newer
	err := r.unknown
	for again := err == nil; again && err == nil; {
		if newer, err = versions.Find(r.open, p.Current, opts); err != nil {
			break
		}
		again, err = u.refuse(ctx, state, r, newer.Update)
		if err == nil && !again {
			again, err = u.refuse(ctx, state, r, newer.Latest)
		}
	}
	switch {
	case errors.Is(err, versions.ErrNotVersion):
		p.Note = fmt.Sprintf("%s %v", sources.Abbreviate(p.Current), versions.ErrNotVersion)
		return
	case err != nil:
		p.Error = fmt.Sprintf("%s: %v", p.Repository, err)
		return
	}
	p.Skipped = r.skipped(tags, p.Current, opts)
	for _, n := range newer.Held {
		p.Held = append(p.Held, n.String())
	}
	if newer.Update != "" {
		p.Update = &Candidate{Version: newer.Update}
	}
	switch newer.Latest {
	case "":
	case newer.Update:
		p.Latest = p.Update
	default:
		p.Latest = &Candidate{Version: newer.Latest}
	}
	u.compare(ctx, state, p, p.Update, r)
	if p.Latest != p.Update {
		u.compare(ctx, state, p, p.Latest, r)
	}
}

// current returns the version that the clusters have, with its digest if that is known.
func (p *Versions) current() sources.Ref {
	ref := sources.Ref{Repository: p.Repository, Tag: p.Current}
	if d, err := sources.ParseDigest(p.Current); err == nil {
		ref = sources.Ref{Repository: p.Repository, Digest: d}
	}
	if p.pkg != nil {
		ref.Digest = p.pkg.Digest
	}
	return ref
}

// compare fetches a candidate, unless the ruling has it, and compares it with the current
// version.
func (u *Upgrader) compare(ctx context.Context, state *desired.State, p *Versions, c *Candidate, r *ruling) {
	if c == nil {
		return
	}
	err := func() error {
		var err error
		ref := sources.Ref{Repository: p.Repository, Tag: c.Version}
		if c.Digest, err = u.digest(ctx, state, ref); err != nil {
			return err
		}
		if err := u.signed(ctx, state, p.Clusters, ref, c.Digest); err != nil {
			return err
		}
		if p.pkg == nil {
			return fmt.Errorf("%s %s could not be read, to compare it with what is newer", p.Repository, sources.Abbreviate(p.Current))
		}
		pkg := r.newest
		if pkg == nil || pkg.Digest != c.Digest {
			if pkg, err = u.cfg.Fetch(ctx, state.Origin(p.Repository), c.Digest); err != nil {
				return err
			}
		}
		if c.Changes, err = compare(ctx, p.pkg, pkg); err != nil {
			return fmt.Errorf("%s: %w", ref, err)
		}
		c.Types = compat.Summarize(c.Changes)
		c.Misfits = p.misfits(state, pkg)
		if c.Controller, err = u.controller(ctx, state, p, c, pkg); err != nil {
			c.ControllerError = err.Error()
		}
		return nil
	}()
	if err != nil {
		c.Error = err.Error()
	}
}
