package cli

import (
	"context"
	"errors"
	"testing"

	"gitopsd.dev/reconcile"
	"gitopsd.dev/sources"
)

// written counts the writes to a repository.
type written struct {
	reconcile.Repository
	n int
}

func (w *written) Update(context.Context, string, string, func(sources.Commit) ([]byte, error)) (sources.Commit, bool, error) {
	w.n++
	return sources.Commit{}, true, nil
}

func (w *written) WritePending(context.Context, []byte) error { w.n++; return nil }
func (w *written) ClearPending(context.Context) error         { w.n++; return nil }

// Only the leader writes to the repository.
func TestGuarded(t *testing.T) {
	t.Parallel()
	refused := errors.New("not the leader")
	for _, may := range []error{nil, refused} {
		w := new(written)
		g := guarded{w, func(context.Context) error { return may }}
		_, wrote, err := g.Update(t.Context(), "", "", nil)
		if err != may || wrote != (may == nil) {
			t.Errorf("update: %v, %v", wrote, err)
		}
		if err := g.WritePending(t.Context(), nil); err != may {
			t.Errorf("pending lines: %v", err)
		}
		if err := g.ClearPending(t.Context()); err != may {
			t.Errorf("no pending lines: %v", err)
		}
		if w.n != 3 && may == nil || w.n != 0 && may != nil {
			t.Errorf("%d writes with %v", w.n, may)
		}
	}
}
