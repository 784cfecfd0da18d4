// Package turn bounds how many clusters are worked on at a time. The daemon's own
// workers and the workers of applications share one bound.
//
// A cluster that does not answer is only waited for, so its turn is lent to others: one
// that hangs delays no other.
package turn

import (
	"context"
	"sync"
	"time"

	"gitopsd.dev/reconcile/kube"
)

// LendAfter is how long a cluster may keep its slot without answering, and TellAfter how
// long a wait may take before somebody is told.
const (
	LendAfter = 3 * time.Second
	TellAfter = 2 * time.Second
)

// Turns are the slots that clusters take turns at. It is safe for concurrent use.
type Turns struct {
	slots chan struct{}
	// suspects are the slots of clusters that did not answer the last time, so that
	// many of them do not take the slots of the others.
	suspects chan struct{}
}

// New makes Turns for n clusters at a time, and as many that did not answer the last time.
func New(n int) *Turns {
	return &Turns{slots: make(chan struct{}, n), suspects: make(chan struct{}, n)}
}

// Turn is the claim of one attempt on a slot. A cluster that does not answer is only
// waited for: its slot is lent to others, and it needs another slot for its next request.
type Turn struct {
	slots chan struct{}
	// waits is told whether a slot is waited for, once that takes a while.
	waits func(bool)

	taking chan struct{} // has a token while a request of the attempt takes a slot for all

	mu    sync.Mutex
	held  bool
	lent  bool // at least once
	ended bool
	seen  time.Time // when something was answered last
	timer *time.Timer
}

// Take waits for a slot. suspect says that the cluster did not answer the last time. waits
// is told whether a slot is waited for, once that takes a while. The error is the
// context's.
func (ts *Turns) Take(ctx context.Context, suspect bool, waits func(bool)) (*Turn, error) {
	slots := ts.slots
	if suspect {
		slots = ts.suspects
	}
	t := &Turn{slots: slots, waits: waits, taking: make(chan struct{}, 1)}
	return t, t.take(ctx)
}

func (t *Turn) take(ctx context.Context) error {
	select {
	case t.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(TellAfter):
		t.waits(true)
		select {
		case t.slots <- struct{}{}:
			t.waits(false)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		<-t.slots
		return context.Canceled
	}
	t.held, t.seen = true, time.Now()
	t.timer = time.AfterFunc(LendAfter, t.lend)
	return nil
}

// lend gives the slot back for as long as nothing is answered.
func (t *Turn) lend() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.held {
		return
	}
	if left := LendAfter - time.Since(t.seen); left > 0 {
		t.timer.Reset(left)
		return
	}
	t.held, t.lent = false, true
	<-t.slots
}

// End gives the slot back, and reports whether it was lent meanwhile.
func (t *Turn) End() (lent bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer.Stop()
	if t.held {
		<-t.slots
	}
	t.held, t.ended = false, true
	return t.lent
}

// Pace returns the pace for the requests of the attempt: each needs the slot, and
// its answer keeps the slot.
func (t *Turn) Pace() *kube.Pace {
	return &kube.Pace{Before: t.before, After: t.answered}
}

func (t *Turn) before(ctx context.Context) error {
	if t.holds() {
		return nil
	}
	// One request takes the slot back for all that run side by side.
	select {
	case t.taking <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-t.taking }()
	if t.holds() {
		return nil
	}
	return t.take(ctx)
}

func (t *Turn) holds() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held
}

func (t *Turn) answered() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen = time.Now()
}
