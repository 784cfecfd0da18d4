package resolve

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/sources"
)

// With revisionActivationPolicy: Manual a person approves each version for a cluster,
// either with a digest in the declaration or with the cluster's line in the lock. Only
// commands, whose result a person commits, write that line and the records; the daemon
// adds neither. A record alone approves nothing: it may be there because another cluster
// activates versions automatically.
//
// Until then the cluster keeps the version that the lock selects for it, as if that
// were declared. With packagePullPolicy: Always a moved tag waits too. The lock has its
// line already, so what is approved is the new digest.

// Waiting is a revision of a package that waits for approval.
type Waiting struct {
	// Clusters that declare it, sorted.
	Clusters []string
	// Ref is the declared reference.
	Ref sources.Ref
	// Active is the pin that stays: another version, or, if the tag moved, its former
	// digest.
	Active sources.Pin
	// New is the tag's digest now; empty if it is unknown.
	New sources.Digest
	// Named is where Active's digest is declared, and Replaces is the entry that replaces
	// packages with it, if one of these keeps the tag from moving.
	Named, Replaces string
	// Excluded says why New cannot be used, if an entry excludes it.
	Excluded string
	// Unread is a cluster that keeps the tag from moving, since its declaration of it
	// cannot be read.
	Unread string
}

// String describes what waits, where, and how to approve it.
func (w Waiting) String() string {
	switch {
	case w.Excluded != "":
		return fmt.Sprintf("%s has a new revision %s, which is %s; the former one stays", w.Ref, w.New, w.Excluded)
	case w.Named != "":
		return fmt.Sprintf("%s has a new revision %s, and %s names the former one: declare %s@%s there, with packagePullPolicy: Always, to activate it in all clusters", w.Ref, w.New, w.Named, w.Ref, w.New)
	case w.Unread != "":
		return fmt.Sprintf("%s has a new revision %s, and the former one stays while the declaration of it in cluster %s cannot be read", w.Ref, w.New, w.Unread)
	case w.Replaces != "":
		return fmt.Sprintf("%s has a new revision %s, and %s replaces another package with it: run `gitopsd lock` and commit the change to activate it", w.Ref, w.New, w.Replaces)
	}
	if w.Active.Ref.Version() == w.Ref.Version() {
		return fmt.Sprintf("%s has a new revision %s that waits for approval: declare %s@%s, with packagePullPolicy: Always, to activate it in all clusters", w.Ref, w.New, w.Ref, w.New)
	}
	return fmt.Sprintf("%s waits for approval in %s, where %s stays: %s", w.Ref, strings.Join(w.Clusters, ", "), w.Active.Ref.Version(), toApprove(w.Ref, w.New))
}

// toApprove says how to approve a version.
func toApprove(ref sources.Ref, now sources.Digest) string {
	if now == "" {
		return "run `gitopsd lock` and commit the change"
	}
	return fmt.Sprintf("run `gitopsd lock` and commit the change, or declare %s@%s", ref, now)
}

// Unapproved is the error for a new package in a cluster that waits for approval.
type Unapproved struct {
	Ref sources.Ref
	// New is the tag's digest now; empty if it is unknown.
	New sources.Digest
}

func (u *Unapproved) Error() string {
	return fmt.Sprintf("%s waits for approval, as its revisionActivationPolicy says; %s", u.Ref, toApprove(u.Ref, u.New))
}

// approved returns the version of a declared package that a cluster may use: the
// declared one or, while that waits for approval, the one in the lock. The error is
// an [*Unapproved] if the lock has none.
func (p *pass) approved(req Request, d sources.Declaration) (sources.Ref, error) {
	version := d.Ref.Version()
	_, recorded := p.before.Digest(d.Ref.Repository, version)
	switch {
	case p.cfg.Rules.Replaced(d.Ref) != nil:
		return d.Ref, nil // the replacement must be in the lock
	case !d.ManualActivation, d.Ref.Digest != "", p.cfg.Approve, p.cfg.Mode == Check:
		return d.Ref, nil
	case p.cfg.Mode == Readonly && !recorded, p.before.Contested(d.Ref.Repository, version) != nil:
		return d.Ref, nil // pass.digest has the error
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
		// Its tag would be resolved again.
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

// peeked is a reference and its origin.
type peeked struct {
	ref  sources.Ref
	from sources.Origin
}

// peek returns the digest of a tag that waits for approval, to show to people, or "" if
// it is unknown: the lock's, if another cluster uses the tag already, else the
// registry's, which is asked once a pass.
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
		now = "" // it may be approved without
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.peeks[peeked{d.Ref, from}] = now
	return now
}

// allWaiting returns the revisions that wait for approval: those of single clusters, and
// moved tags, which wait in all clusters that declare them.
func (p *pass) allWaiting(requests []Request) []Waiting {
	all := p.waiting
	for ref, use := range p.uses {
		if use.waiting == "" {
			continue
		}
		locked, _ := p.before.Digest(ref.Repository, ref.Version())
		w := Waiting{Ref: ref, Active: sources.Pin{Ref: ref, Digest: locked}, New: use.waiting}
		says := p.says(ref)
		switch w.Named = says.keeper(); {
		case use.excluded != nil:
			w.Excluded = use.excluded.String()
		case w.Named != "":
		case use.unread != "":
			w.Unread = use.unread
		case says.replaces != nil:
			w.Replaces = says.replaces.Place
		}
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
