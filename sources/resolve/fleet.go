package resolve

import (
	"context"
	"slices"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

// When a cluster was registered does not decide on what it gets: a new dependency
// gets a version that another cluster of the fleet has, if one suits, though newer
// ones may have been published since. What others have is what the lock selects for
// them, and what is declared now; both are known before the first cluster is
// resolved, so that the order of clusters does not matter.

// fleet is what the clusters have before a resolution.
type fleet struct {
	// versions are the tags that each cluster has, by repository.
	versions map[string]map[string][]string
	// selecting are the clusters that select or declare a version.
	selecting map[sources.Ref][]string
	requests  map[string]Request
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

// reached returns the repositories that a cluster's declarations still lead to by its
// lines in the lock. What only depended on packages that are no longer declared is
// not among them.
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

// contestedIn returns the dependencies of a cluster for which its lines have several
// versions, so that none is followed.
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

func (f *fleet) has(cluster string, ref sources.Ref) {
	f.selects(cluster, ref)
	if ref.Tag == "" {
		return // a digest is in no range
	}
	if f.versions[ref.Repository] == nil {
		f.versions[ref.Repository] = make(map[string][]string)
	}
	f.versions[ref.Repository][cluster] = append(f.versions[ref.Repository][cluster], ref.Tag)
}

func (f *fleet) selects(cluster string, ref sources.Ref) {
	key := versionRef(ref.Repository, ref.Version())
	if !slices.Contains(f.selecting[key], cluster) {
		f.selecting[key] = append(f.selecting[key], cluster)
	}
}

// elsewhere returns the tags of a repository that other clusters have. One that is
// only declared there and that the lock does not record counts if the declaring
// cluster can have it: its mistakes are no other's.
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

// possible reports whether no declaration of a cluster names a tag that it cannot
// have.
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

// updates reports whether a repository is resolved anew in a cluster. What the
// cluster keeps because of an error is not.
func (p *pass) updates(req Request, repository string) bool {
	return p.cfg.Update != nil && p.cfg.Update(req.Cluster, repository) && unreadable(req, repository) == nil
}

// updatesVersion reports whether the digest of a reference is resolved anew: some
// cluster updates its repository, and no cluster that keeps what it has selects the
// version.
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
