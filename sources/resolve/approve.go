package resolve

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/sources"
)

// With revisionActivationPolicy: Manual nothing is applied whose digest nobody has
// seen. A person approves a version for a cluster by a digest in the declaration, or
// by the cluster's line in the lock, which for such a package only commands write
// whose result a person commits: the daemon adds neither the line nor a record. So a
// record that is there since another cluster takes new versions by itself approves
// nothing.
//
// Until then the cluster keeps the version that the lock selects for it, as if that
// were declared. With packagePullPolicy: Always a tag that moves waits as well, but
// for its digest: the lock has its line already.

// Waiting is a revision of a package that waits for approval.
type Waiting struct {
	// Clusters that it is declared in, sorted.
	Clusters []string
	// Ref is declared.
	Ref sources.Ref
	// Active is what stays meanwhile: a version of the same repository, or for a
	// tag that moved what it was.
	Active sources.Pin
	// New is what the tag names now; empty if the registry does not say.
	New sources.Digest
}

// String says what waits, where, and how to approve it.
func (w Waiting) String() string {
	if w.Active.Ref.Version() == w.Ref.Version() {
		return fmt.Sprintf("%s has a new revision %s that waits for approval: declare %s@%s to activate it", w.Ref, w.New, w.Ref, w.New)
	}
	return fmt.Sprintf("%s waits for approval in %s, where %s stays: %s", w.Ref, strings.Join(w.Clusters, ", "), w.Active.Ref.Version(), toApprove(w.Ref, w.New))
}

// toApprove says how a version is approved.
func toApprove(ref sources.Ref, now sources.Digest) string {
	if now == "" {
		return "run `gitopsd lock` and commit the change"
	}
	return fmt.Sprintf("run `gitopsd lock` and commit the change, or declare %s@%s", ref, now)
}

// Unapproved is an error about a package that a cluster does not have yet and does
// not get, since it waits for approval.
type Unapproved struct {
	Ref sources.Ref
	// New is what the tag names now; empty if the registry does not say.
	New sources.Digest
}

func (u *Unapproved) Error() string {
	return fmt.Sprintf("%s waits for approval, as its revisionActivationPolicy says; %s", u.Ref, toApprove(u.Ref, u.New))
}

// approved returns the version of a declared package that a cluster may have: the
// declared one, or the one in the lock while that waits for approval. The error is
// an [*Unapproved] if the lock has none.
func (p *pass) approved(req Request, d sources.Declaration) (sources.Ref, error) {
	version := d.Ref.Version()
	_, recorded := p.before.Digest(d.Ref.Repository, version)
	switch {
	case p.cfg.Rules.Replaced(d.Ref) != nil:
		return d.Ref, nil // what replaces it must be in the lock
	case !d.ManualActivation, d.Ref.Digest != "", p.cfg.Approve, p.cfg.Mode == Check:
		return d.Ref, nil
	case p.cfg.Mode == Readonly && !recorded, p.before.Contested(d.Ref.Repository, version) != nil:
		return d.Ref, nil // which is an error
	}
	var declared, all []string
	for _, s := range p.lines[req.Cluster] {
		if s.Repository != d.Ref.Repository {
			continue
		}
		if s.Version == version && recorded {
			return d.Ref, nil
		}
		all = append(all, s.Version)
		if s.Parent == "" {
			declared = append(declared, s.Version)
		}
	}
	if declared != nil {
		all = declared
	}
	all = slices.Compact(all) // selections are sorted
	switch {
	case len(all) > 1:
		return sources.Ref{}, fmt.Errorf("%s selects both %s of %s for cluster %s, and %s waits for approval; %s",
			sources.LockFile, strings.Join(all, " and "), d.Ref.Repository, req.Cluster, version, toApprove(d.Ref, ""))
	case len(all) == 0, all[0] == version:
		return sources.Ref{}, &Unapproved{Ref: d.Ref}
	}
	active := versionRef(d.Ref.Repository, all[0])
	if _, recorded := p.before.Digest(active.Repository, all[0]); !recorded && active.Digest == "" {
		// Its tag would be resolved anew.
		return sources.Ref{}, fmt.Errorf("%s has no digest of %s %s, which stays in cluster %s while %s waits for approval; restore the record from Git, or %s",
			sources.LockFile, active.Repository, all[0], req.Cluster, version, toApprove(d.Ref, ""))
	}
	return active, nil
}

// waits notes that a declared version waits for approval.
func (p *pass) waits(ctx context.Context, req Request, d sources.Declaration, active sources.Ref) {
	was, _ := p.before.Digest(active.Repository, active.Version())
	p.waiting = append(p.waiting, Waiting{Clusters: []string{req.Cluster}, Ref: d.Ref, Active: sources.Pin{Ref: active, Digest: was}, New: p.peek(ctx, req, d)})
}

// peeked is a reference at its origin.
type peeked struct {
	ref  sources.Ref
	from sources.Origin
}

// peek returns what a tag that waits for approval stands for, for a person: what the
// lock has if another cluster has it already, else what the registry has. The
// registry is asked once a pass, also if it does not say.
func (p *pass) peek(ctx context.Context, req Request, d sources.Declaration) sources.Digest {
	if known, ok := p.before.Digest(d.Ref.Repository, d.Ref.Version()); ok {
		return known
	}
	from, err := req.Images.Origin(d.Ref, d.PullSecrets)
	if err != nil || d.PullPolicy == sources.PullNever {
		return ""
	}
	p.mu.Lock()
	known, asked := p.peeks[peeked{d.Ref, from}]
	p.mu.Unlock()
	if asked {
		return known
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	now, err := p.now(ctx, &load{asked: d.Ref, ref: d.Ref, origin: from})
	if err != nil {
		now = "" // it may be approved all the same
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.peeks[peeked{d.Ref, from}] = now
	return now
}

// allWaiting returns what waits for approval: in single clusters, and tags that
// moved, which do so wherever they are declared.
func (p *pass) allWaiting(requests []Request) []Waiting {
	all := p.waiting
	for ref, use := range p.uses {
		if use.waiting == "" {
			continue
		}
		locked, _ := p.before.Digest(ref.Repository, ref.Version())
		w := Waiting{Ref: ref, Active: sources.Pin{Ref: ref, Digest: locked}, New: use.waiting}
		for _, req := range requests {
			if slices.ContainsFunc(req.Declarations, func(d sources.Declaration) bool { return d.Ref == ref }) {
				w.Clusters = append(w.Clusters, req.Cluster)
			}
		}
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b Waiting) int {
		return cmp.Or(cmp.Compare(a.Ref.String(), b.Ref.String()), cmp.Compare(a.Active.String(), b.Active.String()), slices.Compare(a.Clusters, b.Clusters))
	})
	var merged []Waiting
	for _, w := range all {
		if last := len(merged) - 1; last >= 0 && merged[last].Ref == w.Ref && merged[last].Active == w.Active && merged[last].New == w.New {
			merged[last].Clusters = append(merged[last].Clusters, w.Clusters...)
		} else {
			merged = append(merged, w)
		}
	}
	for _, w := range merged {
		slices.Sort(w.Clusters)
	}
	return merged
}
