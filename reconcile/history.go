package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"gitopsd.dev/sources"
)

// maxLookBack bounds how many ancestors of a commit are read to find out whether another one
// comes before it, and maxWalks for how many commits they are kept.
const (
	maxLookBack = 50
	maxWalks    = 16
)

// history decides which of two commits of the branch comes after the other, by which one is the
// newest now, then by their places on the branch. So after a reset to an older commit that
// commit counts as newer, also for a process that saw the others and did not hear of the reset.
type history struct {
	repository Repository

	mu sync.Mutex
	// as maps the commit of a lock to the commit before it, which declares the same.
	as map[string]string

	// head and err are the repository's last answer, and begun is when it was asked.
	// Whoever asks holds ask.
	ask   sync.Mutex
	begun time.Time
	head  string
	err   error

	// walks are the ancestors that were read, by commit. Whoever reads more of them holds walk.
	walk  sync.Mutex
	walks map[string]*ancestors
}

// ancestors are the last ancestors of a commit, by first parents, the newest first.
type ancestors struct {
	list []string
	end  bool // the last one has no parent
}

func newHistory(r Repository) *history {
	return &history{repository: r, as: make(map[string]string), walks: make(map[string]*ancestors)}
}

// same notes a commit that declares the same as another one, which stays in charge.
func (h *history) same(commit, other string) {
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
	newer := false
	if head != applied && as != applied {
		newer, err = h.newerThan(ctx, commit, applied, head)
	}
	if err != nil {
		return err
	}
	if !newer {
		return fmt.Errorf("commit %s was applied by another process of this fleet, and the branch has moved on from %s: nothing is done for it, the newest commit is followed next", sources.ShortHash(applied), sources.ShortHash(commit))
	}
	return nil
}

// newerThan reports whether a commit that is not the head any more is still on the branch, and
// comes after an applied one, which may be far behind it. Applied was read before the head: if
// it is the newer one, it is on the branch after commit, or has commit among its ancestors.
func (h *history) newerThan(ctx context.Context, commit, applied, head string) (bool, error) {
	after, on, err := h.between(ctx, commit, head)
	if !on || err != nil || slices.Contains(after, applied) {
		return false, err
	}
	_, older, err := h.between(ctx, commit, applied)
	return !older && err == nil, ctx.Err() // an applied commit that cannot be read may be anything
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

// between reports whether a commit is among the last ancestors of another, and returns the
// ancestors after it.
func (h *history) between(ctx context.Context, ancestor, of string) (after []string, found bool, err error) {
	h.walk.Lock()
	defer h.walk.Unlock()
	w := h.walks[of]
	if w == nil {
		if len(h.walks) >= maxWalks {
			clear(h.walks)
		}
		w = new(ancestors)
		h.walks[of] = w
	}
	at := slices.Index(w.list, ancestor)
	for last := of; at < 0 && !w.end && len(w.list) < maxLookBack; {
		if n := len(w.list); n > 0 {
			last = w.list[n-1]
		}
		parent, ok, err := h.repository.Parent(ctx, last)
		if err != nil {
			return nil, false, err
		}
		if w.end = !ok; ok {
			w.list = append(w.list, parent.Hash)
		}
		if ok && parent.Hash == ancestor {
			at = len(w.list) - 1
		}
	}
	if at < 0 {
		return nil, false, nil
	}
	return w.list[:at], true, nil
}
