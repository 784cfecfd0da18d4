package reconcile

import (
	"context"
	"sync"
	"time"

	"gitopsd.dev/reconcile/kube"
)

// lendAfter is how long a cluster may keep its slot without answering.
const lendAfter = 3 * time.Second

// turn is the claim of one attempt on a slot. The slots bound the clusters that are
// worked on. A cluster that does not answer is only waited for: its slot is lent to
// others, and it needs another slot for its next request.
type turn struct {
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

// takeTurn waits for a slot.
func takeTurn(ctx context.Context, slots chan struct{}, waits func(bool)) (*turn, error) {
	t := &turn{slots: slots, waits: waits, taking: make(chan struct{}, 1)}
	return t, t.take(ctx)
}

func (t *turn) take(ctx context.Context) error {
	select {
	case t.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(tellAfter):
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
	t.timer = time.AfterFunc(lendAfter, t.lend)
	return nil
}

// lend gives the slot back for as long as nothing is answered.
func (t *turn) lend() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.held {
		return
	}
	if left := lendAfter - time.Since(t.seen); left > 0 {
		t.timer.Reset(left)
		return
	}
	t.held, t.lent = false, true
	<-t.slots
}

// end gives the slot back, and reports whether it was lent meanwhile.
func (t *turn) end() (lent bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer.Stop()
	if t.held {
		<-t.slots
	}
	t.held, t.ended = false, true
	return t.lent
}

// pace returns the pace for the requests of the attempt: each needs the slot, and
// its answer keeps the slot.
func (t *turn) pace() *kube.Pace {
	return &kube.Pace{Before: t.before, After: t.answered}
}

func (t *turn) before(ctx context.Context) error {
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

func (t *turn) holds() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held
}

func (t *turn) answered() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen = time.Now()
}
