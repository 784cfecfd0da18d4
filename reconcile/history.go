package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// maxLookBack bounds how many commits are read to find out whether one comes after
// another.
const maxLookBack = 50

// history knows which of two commits of the branch comes after the other. It decides,
// in this order, by the order in which this process saw them as the branch's newest,
// by which of them is the newest now, and by which of them is an ancestor of the
// other. So the target of a reset to an older commit counts as newer, and a process
// that has not seen the newest commit yet counts as older.
type history struct {
	repository Repository

	mu sync.Mutex
	// seen has the count at which each commit was last found to be the newest.
	seen  map[string]int
	count int
	// as maps the commit of a lock to the commit before it, which asks for the same.
	as map[string]string

	// head and err are the repository's last answer, to the request sent at begun.
	// The sender holds ask.
	ask   sync.Mutex
	begun time.Time
	head  string
	err   error

	// before are ancestors of the last commit in question, and at is the oldest of
	// them. The reader of more of them holds walk.
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

// sawAs notes a commit that asks for the same as another one, which stays in charge.
func (h *history) sawAs(commit, other string) {
	h.saw(commit)
	h.mu.Lock()
	defer h.mu.Unlock()
	if of, ok := h.as[other]; ok {
		other = of
	}
	h.as[commit] = other
}

// Supersedes returns nil if a commit may be applied to a cluster after another one
// that was applied there, maybe by another process, and otherwise an error with the
// reason. It may be used by several goroutines.
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
		return fmt.Errorf("commit %s was applied by another process, and whether %s comes after it cannot be told: %w", short(applied), short(commit), err)
	}
	h.mu.Lock()
	as := h.as[head]
	h.mu.Unlock()
	if head == commit || as == commit {
		return nil
	}
	// A branch that always has a newer commit must not keep every commit from being
	// applied.
	older, err := h.ancestor(ctx, applied, commit)
	if err != nil {
		return err
	}
	if !older {
		return fmt.Errorf("commit %s was applied by another process of this fleet, and the branch has moved on from %s: nothing is done for it, the newest commit is followed next", short(applied), short(commit))
	}
	return nil
}

// newest asks for the branch's newest commit, once for all clusters that need it at
// the same time.
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
