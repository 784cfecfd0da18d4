package errgroup

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestPanicComesOutOfWait(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func()
		want string
	}{
		{"the runtime's", func() { var list []int; _ = list[len(list)] }, "a bug in gitopsd: panic: runtime error: index out of range [0] with length 0"},
		{"one that may quote a Secret", func() { panic("password: hunter2") }, "a bug in gitopsd: panic with a value of type string"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			outer, ctx := WithContext(t.Context())
			outer.SetLimit(1)
			outer.Go(func() error {
				var inner Group
				inner.Go(func() error { tt.do(); return nil })
				return inner.Wait()
			})
			defer func() {
				p, ok := recover().(*PanicError)
				if !ok || p.Error() != tt.want || !strings.Contains(string(p.Stack), "TestPanicComesOutOfWait") {
					t.Errorf("recovered %v with the stack %s", p, p.Stack)
				}
				if context.Cause(ctx) != error(p) {
					t.Errorf("the context ended with %v", context.Cause(ctx))
				}
			}()
			t.Errorf("Wait returned %v", outer.Wait())
		})
	}
}

func TestFirstError(t *testing.T) {
	g, ctx := WithContext(t.Context())
	first := errors.New("first")
	g.Go(func() error { return first })
	g.Go(func() error { <-ctx.Done(); return ctx.Err() })
	if err := g.Wait(); err != first || context.Cause(ctx) != first {
		t.Errorf("%v, %v", err, context.Cause(ctx))
	}
}
