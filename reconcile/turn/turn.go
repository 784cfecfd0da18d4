// Package turn limits how many clusters are worked on at a time. The daemon's own
// workers and the workers of applications share one limit.
//
// While a cluster does not answer, other clusters use its slot, so one that hangs delays
// no other.
package turn

import (
	"context"
	"sync"
	"time"

	"gitopsd.dev/reconcile/kube"
)

// LendAfter is how long a cluster keeps its slot without answering, and TellAfter how long
// an attempt waits for a slot before it reports that.
const (
	LendAfter = 3 * time.Second
	TellAfter = 2 * time.Second
)

// Turns are the slots of clusters. They are safe for concurrent use.
type Turns struct {
	slots chan struct{}
	// suspects are separate slots for clusters that did not answer the last time, so
	// that these do not hold up the others.
	suspects chan struct{}
}

// New returns Turns for n clusters at a time, and n more that did not answer the last time.
func New(n int) *Turns {
	return &Turns{slots: make(chan struct{}, n), suspects: make(chan struct{}, n)}
}

// Turn is the slot of one attempt. While the cluster does not answer, the slot is lent to
// others, and the next request waits for another one.
type Turn struct {
	slots chan struct{}
	waits func(bool) // see Take

	taking chan struct{} // has a token while a request of the attempt takes a slot for all

	mu    sync.Mutex
	held  bool
	lent  bool // at least once
	ended bool
	seen  time.Time // when something was answered last
	timer *time.Timer
}

// Take waits for a slot. suspect reports whether the cluster did not answer the last time.
// The Turn calls waits with true when it has waited for a slot for TellAfter, and then with
// false when it gets one. The error is the context's.
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

// lend gives the slot back until the next request.
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

// Pace returns the pace for the requests of the attempt: each waits for the slot, and its
// answer prolongs the turn.
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
