package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git"
	"gitopsd.dev/sources/lockfile"
)

// Clusters depend on new lines of the lock before these are committed. The repository's
// pending ref keeps the lines until then, so that a daemon that was killed in between finds
// them. More people may write there than to the branch, and the ref can be moved, deleted or
// garbled at any time:
//
//   - Its content is a hint. The lock takes precedence, and a digest for a tag is
//     compared with the registry (sources/resolve). A malformed line is ignored.
//   - This process keeps its own lines in memory, and does not read them from there.
//   - The ref is read at the start, and then only while something is pending or others
//     have written there.
//   - A cluster waits until its new lines are kept. The others go on.

// pending is what the daemon knows of the pending ref.
type pending struct {
	// read reports whether the ref was read, and there whether it has content. lines are
	// the well-formed lock lines in it.
	read, there bool
	lines       *lockfile.File
	// due reports whether the last pass had lines to keep.
	due bool
}

// readPending reads the pending ref if it may matter. An error at the start is returned, as
// nothing may be computed without the ref; a later one is logged.
func (d *Daemon) readPending(ctx context.Context) error {
	if d.cfg.ReadonlyLock || d.pending.read && !d.pending.there && !d.pending.due {
		return nil
	}
	asked, cancel := d.bounded(ctx)
	defer cancel()
	err := d.fetchPending(asked)
	if err != nil && d.pending.read && ctx.Err() == nil {
		d.cfg.Log.Warn("pending lock records cannot be looked at", "error", err)
		return nil
	}
	return err
}

func (d *Daemon) fetchPending(ctx context.Context) error {
	text, err := d.cfg.Repository.ReadPending(ctx)
	unreadable := errors.Is(err, git.ErrUnreadable)
	if err != nil && !unreadable {
		return fmt.Errorf("reading pending lock records: %w", err)
	}
	lines, left := lockfile.Salvage(text)
	known := d.pending.read && d.pending.there == (unreadable || len(text) > 0) && string(lines.Format()) == string(d.pending.lines.Format())
	d.pending.read, d.pending.there, d.pending.lines = true, unreadable || len(text) > 0, lines
	switch {
	case known:
	case unreadable:
		d.cfg.Log.Warn("the pending ref was not written by gitopsd, and is not used", "error", err)
	case left > 0:
		d.cfg.Log.Warn("some pending lock records are garbled, and are not used", "lines", left)
	case len(text) > 0:
		d.cfg.Log.Info("pending lock records were found; they are compared with the registry before they are used")
	}
	return nil
}

// earlier returns the lock lines that the daemon knows besides a commit's own lock.
func (d *Daemon) earlier() desired.Earlier {
	if d.cfg.ReadonlyLock {
		return desired.Earlier{}
	}
	e := desired.Earlier{Hint: d.pending.lines}
	if d.now != nil && d.lockDue() {
		e.Asked, e.Of = d.now.state.Lock, d.now.committed
	}
	return e
}

// keepPending makes new lines of the lock durable before anything depends on them. If that
// fails, held has the units that must wait, and why.
func (d *Daemon) keepPending(ctx context.Context) (held map[desired.ID]string, err error) {
	if d.pending.due = d.lockDue(); !d.pending.due {
		return nil, nil
	}
	added := lockfile.Added(d.now.committed, d.now.state.Lock)
	wanted := added.Clone()
	if d.now.state.Unsettled != nil {
		wanted.Add(d.now.state.Unsettled)
	}
	if d.pending.lines.Has(wanted) || len(d.dependents(added)) == 0 {
		return nil, nil
	}
	if err = d.writePending(ctx, wanted.Format()); err == nil {
		return nil, nil
	}
	err = fmt.Errorf("keeping new lock records before they are used: %w", err)
	held = make(map[desired.ID]string)
	for _, id := range d.dependents(lockfile.Added(d.pending.lines, added)) {
		held[id] = "waits until its new lock records are kept: " + err.Error()
	}
	return held, err
}

// dependents returns the units that depend on lines of the lock: on records of their
// packages, and on selections of dependencies. Selections of declared packages do not count:
// the repository has the declarations.
func (d *Daemon) dependents(lines *lockfile.File) []desired.ID {
	var ids []desired.ID
	for _, c := range d.now.state.Clusters {
		if slices.ContainsFunc(lines.Selections(c.Name), func(s lockfile.Selection) bool { return s.Parent != "" }) ||
			slices.ContainsFunc(c.Packages, func(p sources.Selected) bool {
				return len(lines.Records(p.Pin.Ref.Repository, p.Pin.Ref.Version())) > 0
			}) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// settlePending removes all but the unsettled lines from the pending ref, as the branch has
// them.
func (d *Daemon) settlePending(ctx context.Context) error {
	if d.cfg.ReadonlyLock || !d.pending.there {
		return nil
	}
	var left []byte
	if d.now.state.Unsettled != nil {
		left = d.now.state.Unsettled.Format()
	}
	if string(left) == string(d.pending.lines.Format()) && len(left) > 0 {
		return nil
	}
	if err := d.writePending(ctx, left); err != nil {
		return fmt.Errorf("clearing pending lock records: %w", err)
	}
	return nil
}

// pendingTries bounds how often the pending ref is written while others write it too.
const pendingTries = 3

// writePending replaces the content of the pending ref, whoever wrote that. Empty text clears
// the ref.
func (d *Daemon) writePending(ctx context.Context, text []byte) error {
	ctx, cancel := d.bounded(ctx)
	defer cancel()
	for try := 1; ; try++ {
		var err error
		if len(text) > 0 {
			err = d.cfg.Repository.WritePending(ctx, text)
		} else {
			err = d.cfg.Repository.ClearPending(ctx)
		}
		if err == nil {
			d.pending.there = len(text) > 0
			d.pending.lines, _ = lockfile.Salvage(text)
			return nil
		}
		if !errors.Is(err, git.ErrMoved) || try == pendingTries {
			return err
		}
		if err := d.fetchPending(ctx); err != nil {
			return err
		}
	}
}
