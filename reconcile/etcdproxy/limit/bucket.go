package limit

import (
	"context"
	"sync"
	"time"
)

// Bucket bounds a rate. What it is asked for goes through in the order of asking, at once
// as long as no more than a second's worth was asked for in advance, later otherwise. It
// is safe for concurrent use.
type Bucket struct {
	mu   sync.Mutex
	rate float64 // a second; 0 is no bound
	// due is when all that was asked for has had its time.
	due time.Time
}

// NewBucket returns a Bucket for a rate a second. Without a positive rate nothing waits.
func NewBucket(rate int64) *Bucket {
	b := &Bucket{}
	b.SetRate(rate)
	return b
}

// SetRate replaces the rate. What was asked for in advance is paid off at a higher one, so
// that it helps at once.
func (b *Bucket) SetRate(rate int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := float64(max(rate, 0))
	if debt := time.Until(b.due); debt > 0 && b.rate > 0 && next > b.rate {
		b.due = time.Now().Add(time.Duration(float64(debt) * b.rate / next))
	}
	b.rate = next
}

// Wait waits until n may go through. Even more than a second's worth goes through at once
// if nothing was before it; what comes after pays. The error is ErrTooManyRequests, at
// once, for a wait that would be longer than [MaxWait], or the context's.
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
