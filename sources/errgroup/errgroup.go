// Package errgroup is golang.org/x/sync/errgroup with panics that need not end the
// process: if a goroutine panics, Wait panics in the goroutine that calls it, where the
// panic can be recovered.
package errgroup

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"

	"golang.org/x/sync/errgroup"
)

// PanicError is a panic that was recovered.
type PanicError struct {
	value any
	// Stack is the stack of the goroutine that panicked.
	Stack []byte
}

// Recovered returns the error for the value v that recover returned. Call it in the same
// deferred function. If v is from a group's Wait, Recovered returns it unchanged.
func Recovered(v any) *PanicError {
	if p, ok := v.(*PanicError); ok {
		return p
	}
	return &PanicError{value: v, Stack: debug.Stack()}
}

// Error describes the panic. It includes only values of the runtime: others may have
// secret data.
func (p *PanicError) Error() string {
	if err, ok := p.value.(runtime.Error); ok {
		return "a bug in gitopsd: panic: " + err.Error()
	}
	return fmt.Sprintf("a bug in gitopsd: panic with a value of type %T", p.value)
}

// Group is a collection of goroutines that work on one task. The zero Group is
// valid, has no limit, and does not cancel on error.
type Group struct {
	group  errgroup.Group
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	panic *PanicError
}

// WithContext returns a Group, and a context that ends when one of its functions
// returns an error or panics, and when Wait returns.
func WithContext(ctx context.Context) (*Group, context.Context) {
	ctx, cancel := context.WithCancelCause(ctx)
	return &Group{cancel: cancel}, ctx
}

// SetLimit bounds the goroutines that run at a time. Call it before Go.
func (g *Group) SetLimit(n int) { g.group.SetLimit(n) }

// Go calls f in a goroutine of its own, once the limit allows it.
func (g *Group) Go(f func() error) {
	g.group.Go(func() (err error) {
		defer func() {
			if v := recover(); v != nil {
				p := Recovered(v)
				g.mu.Lock()
				g.panic = p
				g.mu.Unlock()
				err = p
			}
			if err != nil && g.cancel != nil {
				g.cancel(err)
			}
		}()
		return f()
	})
}

// Wait waits for all goroutines, and returns their first error. If one of them
// panicked, Wait panics with a [*PanicError].
func (g *Group) Wait() error {
	err := g.group.Wait()
	if g.cancel != nil {
		g.cancel(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.panic != nil {
		panic(g.panic)
	}
	return err
}
