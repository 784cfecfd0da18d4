package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

// lockDue reports whether the lock to commit differs from the committed one.
func (d *Daemon) lockDue() bool {
	return !d.cfg.ReadonlyLock && string(d.now.state.Lock.Format()) != string(d.now.committed.Format())
}

// lockPatience bounds, in multiples of LockGrace, how long the records of a pass wait while
// others push faster than their commits are computed.
const lockPatience = 4

// errOvertaken ends an Update because the head moved.
var errOvertaken = errors.New("somebody else pushed")

// commitLock commits the lock if it changed. If the branch has a newer head, the next pass
// computes the lock for that; with alone, the records are committed there without the
// selections.
func (d *Daemon) commitLock(ctx context.Context, alone bool) error {
	if ctx.Err() != nil || d.cfg.ReadonlyLock {
		return ctx.Err()
	}
	if !d.lockDue() {
		return d.settlePending(ctx)
	}
	onOwn, lock, committed := false, d.now.state.Lock, d.now.committed
	asked, cancel := d.bounded(ctx)
	defer cancel()
	commit, wrote, err := d.cfg.Repository.Update(asked, sources.LockFile, lockMessage(committed, lock), func(head sources.Commit) ([]byte, error) {
		if onOwn = head.Hash == d.now.commit.Hash; onOwn {
			return lock.Format(), nil
		}
		if !alone {
			return nil, errOvertaken
		}
		theirs, err := desired.ReadLock(head.Files)
		if err != nil {
			return nil, err
		}
		records := lock.Clone()
		for _, name := range append(lock.Clusters(), committed.Clusters()...) {
			records.Select(name, committed.Selections(name))
			records.Convert(name, committed.Conversions(name))
		}
		return lockfile.Rebase(committed, records, theirs).Format(), nil
	})
	if errors.Is(err, errOvertaken) {
		d.overtaken = true
		return nil
	}
	if err != nil {
		err = fmt.Errorf("committing %s: %w", sources.LockFile, err)
		var refused interface{ ByRule() bool }
		if errors.As(err, &refused) && refused.ByRule() {
			err = fmt.Errorf("%w\nLet the daemon's account push to the branch, or start it with --lock readonly and commit the output of `gitopsd lock`", err)
		}
		return err
	}
	if wrote {
		d.cfg.Log.Info("lock committed", "commit", sources.ShortHash(commit.Hash), "subject", commit.Subject)
		d.cfg.Board.LockCommitted(commit.Hash)
	}
	d.dueSince = time.Time{}
	if !onOwn {
		return nil // its selections are still pending
	}
	// The lock's own commit asks for nothing new, and starts no pass.
	d.history.same(commit.Hash, d.now.state.Commit.Hash)
	d.head, d.now = commit, d.now.locked(commit)
	// The computation under way uses the lock before: it is repeated.
	d.due = d.due || d.computing != nil
	return d.settlePending(ctx)
}

// lockMessage returns a commit message with the selections and digests that change.
func lockMessage(before, after *lockfile.File) string {
	var changes []string
	subject := make(map[string]bool)
	base := func(repository string) string { return repository[strings.LastIndexByte(repository, '/')+1:] }
	for _, k := range lockfile.Moved(before, after) {
		was, _ := before.Digest(k.Repository, k.Version)
		now, _ := after.Digest(k.Repository, k.Version)
		changes = append(changes, fmt.Sprintf("- %s %s", k, was), fmt.Sprintf("+ %s %s", k, now))
		subject[fmt.Sprintf("%s %s %s -> %s", base(k.Repository), k.Version, was.Short(), now.Short())] = true
	}
	names := append(before.Clusters(), after.Clusters()...)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		old, now := lines(before, name), lines(after, name)
		for _, line := range sortedKeys(old) {
			if !now[line] {
				changes = append(changes, "- "+line)
			}
		}
		for _, line := range sortedKeys(now) {
			if !old[line] {
				changes = append(changes, "+ "+line)
				fields := strings.Fields(line)
				subject[base(fields[1])+" "+sources.Abbreviate(fields[2])] = true
			}
		}
	}
	title := "Lock " + strings.Join(sortedKeys(subject), ", ")
	switch {
	case len(subject) == 0 && len(changes) > 0:
		title = "Lock what was removed"
	case len(subject) == 0:
		title = "Lock what was resolved"
	case len(title) > 72:
		title = "Lock " + prose.Count(len(subject), "package")
	}
	const most = 50
	if len(changes) > most {
		changes = append(changes[:most], fmt.Sprintf("… and %d more", len(changes)-most))
	}
	return strings.TrimSpace(title + "\n\n" + strings.Join(changes, "\n"))
}

func lines(f *lockfile.File, cluster string) map[string]bool {
	found := make(map[string]bool)
	for _, s := range f.Selections(cluster) {
		found[s.String()] = true
	}
	for _, c := range f.Conversions(cluster) {
		found[c.String()] = true
	}
	return found
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
