package kube

import (
	"context"
	"time"
)

// Pace limits the requests under way to many clusters. Its functions are called by
// several goroutines.
type Pace struct {
	// Before may delay a request. If it returns an error, the request fails with it.
	Before func(ctx context.Context) error
	// After is called when a request was answered or has failed.
	After func()
}

type paceKey struct{}

// WithPace returns a context with a pace for requests. Watches, which mostly wait, ignore
// it.
func WithPace(ctx context.Context, p *Pace) context.Context {
	return context.WithValue(ctx, paceKey{}, p)
}

// Waiting returns a context without a pace, for polling: a pass that waits for one
// cluster delays no other.
func Waiting(ctx context.Context) context.Context { return WithPace(ctx, nil) }

// paceOf returns the pace of a context, nil for none.
func paceOf(ctx context.Context) *Pace {
	p, _ := ctx.Value(paceKey{}).(*Pace)
	return p
}

// Sleep waits for a duration. The error is the context's, if that ends before.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
