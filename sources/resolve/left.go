package resolve

import (
	"context"
	"path"
	"slices"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

// A package that could not be resolved stays in the cluster as the lock has it, and so do
// the dependencies that only such packages need. Their controllers go on running, and have
// rights that depend on each other's packages.

// left returns the packages of lines that are neither selected nor held. If a line may be of
// several declarations, each has a Selected.
func (p *pass) left(ctx context.Context, req Request, nodes map[string]*node, out *Resolution, lines []lockfile.Selection) []sources.Selected {
	done := make(map[string]bool)
	for _, s := range slices.Concat(out.Selected, out.Held) {
		done[s.Pin.Ref.Repository] = true
	}
	var left []sources.Selected
	for _, line := range lines {
		if done[line.Repository] {
			continue
		}
		all, guessed := p.declarationsOf(req, nodes, line)
		for _, d := range all {
			left = append(left, p.asLocked(ctx, req, d, line, guessed))
		}
	}
	return left
}

// declarationsOf returns the declarations that a line may be of; for a dependency, one with
// its defaults. guessed reports whether nothing in the line tells that it is of one of them.
func (p *pass) declarationsOf(req Request, nodes map[string]*node, line lockfile.Selection) (all []sources.Declaration, guessed bool) {
	for _, d := range req.Declarations {
		n := nodes[d.Ref.Repository]
		if d.Ref.Repository == line.Repository || n.load != nil && n.load.ref.Repository == line.Repository {
			all = append(all, d)
		}
	}
	if all == nil && line.Parent == "" {
		all = p.strange(req, nodes)
		guessed = all != nil
	}
	if d := unreadable(req, line.Repository); d != nil {
		all = append(all, *d)
	}
	if all == nil {
		all = []sources.Declaration{{Name: path.Base(line.Repository)}}
	}
	return all, guessed
}

// strange returns the failed declarations that the lock does not know. Each may be one of the
// lock's under a misspelt repository.
func (p *pass) strange(req Request, nodes map[string]*node) []sources.Declaration {
	var strange []sources.Declaration
	for _, repo := range sortedKeys(nodes) {
		known := func(s lockfile.Selection) bool { return s.Parent == "" && s.Repository == repo }
		if n := nodes[repo]; n.declared != nil && n.err != nil && !slices.ContainsFunc(p.lines[req.Cluster], known) {
			strange = append(strange, *n.declared)
		}
	}
	return strange
}

// asLocked returns the package of a line. Its signature is not verified: it is not installed
// again. It is read for its controller's rights alone, so that a package without a controller
// is not, nor one that this pass failed to read. Nor is one whose declaration is a guess: its
// controller may have another name.
func (p *pass) asLocked(ctx context.Context, req Request, d sources.Declaration, line lockfile.Selection, guessed bool) sources.Selected {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	s := sources.Selected{Declaration: d, Pin: sources.Pin{Ref: versionRef(line.Repository, line.Version)}, Parent: line.Parent}
	records := p.before.Records(line.Repository, line.Version)
	if image := records[lockfile.ItemRuntime]; image != "" {
		s.Runtime = line.Repository + "@" + image
	}
	s.Pin.Digest = sources.Digest(records[""])
	origin, err := req.Images.Origin(s.Pin.Ref, d.PullSecrets)
	if err != nil || s.Pin.Digest == "" {
		return s
	}
	s.Origin = origin
	if d.Kind == sources.Configuration || d.Kind == sources.Function || guessed || p.failed(origin, s.Pin.Digest) {
		return s
	}
	if pkg, err := p.fetch(ctx, origin, s.Pin.Digest); err == nil {
		s.Package, s.Declaration.Kind = pkg, pkg.Meta.Kind
	}
	return s
}
