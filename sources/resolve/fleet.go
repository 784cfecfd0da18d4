package resolve

import (
	"context"
	"slices"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

// A new dependency gets a version that another cluster of the fleet has, if one
// satisfies its dependents, even if newer ones have been published. So the time at which
// a cluster was registered does not matter. A cluster has the versions that the lock
// selects for it and those that it declares. Both are known before the first cluster is
// resolved, so that the order of clusters does not matter, either.

// fleet describes the clusters before a resolution.
type fleet struct {
	// versions are the tags of each repository by cluster.
	versions map[string]map[string][]string
	// selecting are the clusters that select or declare a version.
	selecting map[sources.Ref][]string
	requests  map[string]Request // by cluster
}

// survey fills p.fleet.
func (p *pass) survey(requests []Request) {
	p.fleet = fleet{versions: make(map[string]map[string][]string), selecting: make(map[sources.Ref][]string), requests: make(map[string]Request)}
	for _, req := range requests {
		p.fleet.requests[req.Cluster] = req
		for _, d := range req.Declarations {
			if ref, err := p.approved(req, d); err == nil {
				p.fleet.has(req.Cluster, ref)
			}
		}
		for _, h := range p.held(req) {
			if h.err == nil {
				p.fleet.has(req.Cluster, h.ref)
			}
		}
	}
	for _, cluster := range p.before.Clusters() {
		req, asked := p.fleet.requests[cluster]
		lines := p.lines[cluster]
		stays, contested := p.reached(req, lines), contestedIn(lines)
		for _, s := range lines {
			ref := versionRef(s.Repository, s.Version)
			p.fleet.selects(cluster, ref)
			if !contested[s.Repository] && (!asked || req.Failed || s.Parent != "" && stays[s.Parent]) {
				p.fleet.has(cluster, ref)
			}
		}
	}
}

// reached returns the repositories that a cluster declares, and all that they depend on
// according to its lines in the lock.
func (p *pass) reached(req Request, lines []lockfile.Selection) map[string]bool {
	reached := make(map[string]bool)
	for _, d := range req.Declarations {
		reached[d.Ref.Repository] = true
		if by := p.cfg.Rules.Replaced(d.Ref); by != nil && by.Directory == "" {
			reached[by.With.Repository] = true
		}
	}
	for _, h := range p.held(req) {
		reached[h.ref.Repository] = true
	}
	for changed := true; changed; {
		changed = false
		for _, s := range lines {
			if s.Parent != "" && reached[s.Parent] && !reached[s.Repository] {
				reached[s.Repository], changed = true, true
			}
		}
	}
	return reached
}

// contestedIn returns the dependencies with several versions in a cluster's lines.
func contestedIn(lines []lockfile.Selection) map[string]bool {
	contested, version := make(map[string]bool), make(map[string]string)
	for _, s := range lines {
		if s.Parent == "" {
			continue
		}
		was, there := version[s.Repository]
		contested[s.Repository] = contested[s.Repository] || there && was != s.Version
		version[s.Repository] = s.Version
	}
	return contested
}

// has notes that a cluster has a version.
func (f *fleet) has(cluster string, ref sources.Ref) {
	f.selects(cluster, ref)
	if ref.Tag == "" {
		return // a digest satisfies no range
	}
	if f.versions[ref.Repository] == nil {
		f.versions[ref.Repository] = make(map[string][]string)
	}
	f.versions[ref.Repository][cluster] = append(f.versions[ref.Repository][cluster], ref.Tag)
}

// selects notes that a cluster selects or declares a version.
func (f *fleet) selects(cluster string, ref sources.Ref) {
	key := versionRef(ref.Repository, ref.Version())
	if !slices.Contains(f.selecting[key], cluster) {
		f.selecting[key] = append(f.selecting[key], cluster)
	}
}

// elsewhere returns the tags of a repository that other clusters have. A tag without a
// record in the lock counts only if it loads for the cluster that declares it, so that
// its mistakes do not spread.
func (p *pass) elsewhere(ctx context.Context, req Request, repository string) []string {
	var tags []string
	for _, cluster := range sortedKeys(p.fleet.versions[repository]) {
		for _, tag := range p.fleet.versions[repository][cluster] {
			_, recorded := p.before.Digest(repository, tag)
			if cluster != req.Cluster && (recorded || p.possible(ctx, cluster, repository, tag)) {
				tags = append(tags, tag)
			}
		}
	}
	return tags
}

// possible reports whether a tag loads wherever a cluster declares it.
func (p *pass) possible(ctx context.Context, cluster, repository, tag string) bool {
	req := p.fleet.requests[cluster]
	for _, d := range req.Declarations {
		if d.Ref.Repository != repository || d.Ref.Tag != tag {
			continue
		}
		if p.excluded(d.Ref) != nil || p.load(ctx, d.Ref, d.PullSecrets, req.Images).err != nil {
			return false
		}
	}
	return true
}

// updates reports whether a repository is updated in a cluster. Packages that the cluster
// keeps because of an error are not.
func (p *pass) updates(req Request, repository string) bool {
	return p.cfg.Update != nil && p.cfg.Update(req.Cluster, repository) && unreadable(req, repository) == nil
}

// updatesVersion reports whether the digest of a reference is resolved again: a cluster
// updates its repository, and no cluster that does not selects the version.
func (p *pass) updatesVersion(ref sources.Ref) bool {
	if p.cfg.Update == nil {
		return false
	}
	for _, cluster := range p.fleet.selecting[versionRef(ref.Repository, ref.Version())] {
		if !p.cfg.Update(cluster, ref.Repository) || unreadable(p.fleet.requests[cluster], ref.Repository) != nil {
			return false
		}
	}
	for _, req := range p.fleet.requests {
		if p.updates(req, ref.Repository) {
			return true
		}
	}
	return false
}
