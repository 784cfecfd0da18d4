package kube

import "context"

// Pace is what somebody who bounds the work on many clusters wants to know of the
// requests to one. Its functions are called from several goroutines.
type Pace struct {
	// Before may hold a request back; its error is the request's.
	Before func(ctx context.Context) error
	// After is told that a request was answered, or given up.
	After func()
}

type paceKey struct{}

// WithPace has the requests that are made with the returned context keep to a
// pace. Watches, which mostly wait, do not.
func WithPace(ctx context.Context, p *Pace) context.Context {
	return context.WithValue(ctx, paceKey{}, p)
}

// Waiting is for requests that only ask whether something has come: they keep to
// no pace, so that who waits for it holds up nobody.
func Waiting(ctx context.Context) context.Context { return WithPace(ctx, nil) }

// paceOf returns the pace of a context, nil for none.
func paceOf(ctx context.Context) *Pace {
	p, _ := ctx.Value(paceKey{}).(*Pace)
	return p
}
