package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"gitopsd.dev/sources"
)

// maxLookBack bounds how many commits are read to find out whether one comes after
// another.
const maxLookBack = 50

// history decides which of two commits of the branch comes after the other: by the order in
// which this process saw them as the newest, then by which one is the newest now, then by
// which one is an ancestor of the other. So after a reset to an older commit that commit
// counts as newer, and a process that has not seen the newest commit yet counts as older.
type history struct {
	repository Repository

	mu sync.Mutex
	// seen has the count at which each commit was last seen as the newest.
	seen  map[string]int
	count int
	// as maps the commit of a lock to the commit before it, which declares the same.
	as map[string]string

	// head and err are the repository's last answer, and begun is when it was asked.
	// Whoever asks holds ask.
	ask   sync.Mutex
	begun time.Time
	head  string
	err   error

	// before are ancestors of the commit of, and at is the oldest of them. Whoever reads
	// more of them holds walk.
	walk   sync.Mutex
	of, at string
	before map[string]bool
}

func newHistory(r Repository) *history {
	return &history{repository: r, seen: make(map[string]int), as: make(map[string]string)}
}

// saw notes the branch's newest commit.
func (h *history) saw(commit string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count++
	h.seen[commit] = h.count
}

// sawAs notes a newest commit that declares the same as another one, which stays in charge.
func (h *history) sawAs(commit, other string) {
	h.saw(commit)
	h.mu.Lock()
	defer h.mu.Unlock()
	if of, ok := h.as[other]; ok {
		other = of
	}
	h.as[commit] = other
}

// Supersedes returns an error with the reason if a commit must not be applied to a cluster
// that has another one applied, maybe by another process. It is safe for concurrent use.
func (d *Daemon) Supersedes(ctx context.Context, commit, applied string) error {
	return d.history.supersedes(ctx, commit, applied)
}

func (h *history) supersedes(ctx context.Context, commit, applied string) error {
	h.mu.Lock()
	mine, theirs := h.seen[commit], h.seen[applied]
	h.mu.Unlock()
	if theirs > 0 && theirs < mine {
		return nil
	}
	head, err := h.newest(ctx)
	if err != nil {
		return fmt.Errorf("commit %s was applied by another process, and whether %s comes after it cannot be told: %w", sources.ShortHash(applied), sources.ShortHash(commit), err)
	}
	h.mu.Lock()
	as := h.as[head]
	h.mu.Unlock()
	if head == commit || as == commit {
		return nil
	}
	// On a busy branch there is always a newer commit: an older one is applied all the same.
	older, err := h.ancestor(ctx, applied, commit)
	if err != nil {
		return err
	}
	if !older {
		return fmt.Errorf("commit %s was applied by another process of this fleet, and the branch has moved on from %s: nothing is done for it, the newest commit is followed next", sources.ShortHash(applied), sources.ShortHash(commit))
	}
	return nil
}

// newest returns the branch's newest commit. Callers at the same time share one request.
func (h *history) newest(ctx context.Context) (string, error) {
	wanted := time.Now()
	h.ask.Lock()
	defer h.ask.Unlock()
	if !h.begun.After(wanted) && ctx.Err() == nil {
		h.begun = time.Now()
		if h.head, h.err = h.repository.Head(ctx); ctx.Err() != nil {
			h.begun = time.Time{} // only this caller gave up
		}
	}
	return h.head, errors.Join(h.err, ctx.Err())
}

// ancestor reports whether a commit is among the last ancestors of another.
func (h *history) ancestor(ctx context.Context, ancestor, of string) (bool, error) {
	h.walk.Lock()
	defer h.walk.Unlock()
	if h.of != of {
		h.of, h.at, h.before = of, of, make(map[string]bool)
	}
	for !h.before[ancestor] && h.at != "" && len(h.before) < maxLookBack {
		parent, ok, err := h.repository.Parent(ctx, h.at)
		if err != nil {
			return false, err
		}
		if h.at = parent.Hash; ok {
			h.before[h.at] = true
		}
	}
	return h.before[ancestor], nil
}
