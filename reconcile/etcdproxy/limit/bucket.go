package limit

import (
	"context"
	"sync"
	"time"
)

// Bucket bounds a rate. Requests go through in order: at once while at most a second's worth has been
// taken in advance, later otherwise. It is safe for concurrent use.
type Bucket struct {
	mu   sync.Mutex
	rate float64 // per second; 0 for no bound
	// due is when everything taken so far is paid off.
	due time.Time
}

// NewBucket returns a Bucket for a rate per second. Without a positive rate nothing waits.
func NewBucket(rate int64) *Bucket {
	b := &Bucket{}
	b.SetRate(rate)
	return b
}

// SetRate replaces the rate. A higher rate also shortens the waits for what was taken in advance.
func (b *Bucket) SetRate(rate int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := float64(max(rate, 0))
	if debt := time.Until(b.due); debt > 0 && b.rate > 0 && next > b.rate {
		b.due = time.Now().Add(time.Duration(float64(debt) * b.rate / next))
	}
	b.rate = next
}

// Wait waits until n may go through. Any n goes through at once if nothing was taken in advance; later
// requests wait for it. The error is [ErrTooManyRequests], at once, if the wait would be longer than
// [MaxWait], or the context's.
func (b *Bucket) Wait(ctx context.Context, n int64) error {
	wait, cost, err := b.reserve(n)
	if err != nil || wait <= 0 {
		return err
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		b.mu.Lock()
		defer b.mu.Unlock()
		b.due = b.due.Add(-cost)
		return ctx.Err()
	}
}

func (b *Bucket) reserve(n int64) (wait, cost time.Duration, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rate == 0 || n <= 0 {
		return 0, 0, nil
	}
	now := time.Now()
	if b.due.Before(now) {
		b.due = now
	}
	wait = b.due.Sub(now) - time.Second
	if wait > MaxWait {
		return 0, 0, ErrTooManyRequests
	}
	cost = time.Duration(float64(n) / b.rate * float64(time.Second))
	b.due = b.due.Add(cost)
	return wait, cost, nil
}
