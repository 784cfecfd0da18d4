package upgrade

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/render/edit"
	"gitopsd.dev/sources"
)

// unversioned is the error for a declaration with a version that has no order, such as a digest.
type unversioned struct{ error }

// BumpAll moves every declared package to the newest version of its major version, in the
// named clusters, or in all if none is named. Packages are moved one after the other, so that
// each meets the constraints of those before. A package that fails stays: the error joins
// these errors, and the result has the others. If the result is nil, the error is about the
// tree or the clusters.
func (u *Upgrader) BumpAll(ctx context.Context, commit sources.Commit, clusters []string) (*Bump, error) {
	first, err := u.cfg.Computer.Compute(ctx, commit, desired.Earlier{})
	if err != nil {
		return nil, err
	}
	if err := readable(first, clusters); err != nil {
		return nil, err
	}
	declaring := declared(first, clusters)
	if err := first.Err(); err != nil && len(declaring) == 0 {
		return nil, err // which may be why nothing is declared
	}
	if len(declaring) == 0 {
		return nil, fmt.Errorf("%s a package", nothingDeclares(clusters))
	}
	all := &Bump{Files: make(map[string][]byte), Before: first.Committed, Lock: first.Lock}
	now := first
	var errs []error
	for _, repository := range slices.Sorted(maps.Keys(declaring)) {
		req := Request{Package: repository, all: true}
		if len(clusters) > 0 {
			req.Clusters = declaring[repository]
		}
		b, after, err := u.bump(ctx, now, req)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all.join(b)
		if len(b.Files) == 0 {
			continue
		}
		// The next package starts from these files and this lock.
		now = after
		now.Commit.Files = edit.Overlay(now.Commit.Files, map[string][]byte{sources.LockFile: b.Lock.Format()})
	}
	all.Moves = u.moves(ctx, first, now)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	all.leaveOut(first, clusters, func(sources.Declaration) bool { return true })
	return all, errors.Join(errs...)
}

// Nothing reports whether a bump changes nothing and has no notes.
func (b *Bump) Nothing() bool {
	return len(b.Edits)+len(b.Notes)+len(b.Moves) == 0 && bytes.Equal(b.Before.Format(), b.Lock.Format())
}

// declared returns the repositories that clusters declare, with these clusters.
func declared(state *desired.State, clusters []string) map[string][]string {
	found := make(map[string][]string)
	for _, c := range state.Clusters {
		if len(clusters) > 0 && !slices.Contains(clusters, c.Name) {
			continue
		}
		for _, d := range c.Declared {
			if r := d.Ref.Repository; !slices.Contains(found[r], c.Name) {
				found[r] = append(found[r], c.Name)
			}
		}
	}
	return found
}

// join adds the bump of another package, which was computed after this one.
func (b *Bump) join(o *Bump) {
	b.Edits = append(b.Edits, o.Edits...)
	slices.SortStableFunc(b.Edits, func(x, y Edit) int { return cmp.Or(cmp.Compare(x.File, y.File), cmp.Compare(x.Line, y.Line)) })
	maps.Copy(b.Files, o.Files)
	b.Lock = o.Lock
	for _, n := range o.Notes {
		if n.newest {
			continue
		}
		if len(n.Clusters) > 0 { // otherwise its text names the package
			n.Package = path.Base(o.Repository)
		}
		b.Notes = append(b.Notes, n)
	}
}
