package cel

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// ObjectCost bounds what all expressions about one object may cost together, in
// cel-go's units. Those that are known to cost little do not count until they could
// cost half as much again.
const ObjectCost = 2_000_000

// smallText is the size of small texts, maxLight what a light program costs at most,
// and maxLights what all about an object do.
const (
	smallText = 1 << 10
	maxLight  = 5_000
	maxLights = ObjectCost / 2
)

// unknownSizes leaves the sizes of values open.
type unknownSizes struct{}

func (unknownSizes) EstimateSize(checker.AstNode) *checker.SizeEstimate { return nil }

func (unknownSizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

// smallSizes are the sizes of the values that a light program is for.
type smallSizes struct{ unknownSizes }

func (smallSizes) EstimateSize(checker.AstNode) *checker.SizeEstimate {
	return &checker.SizeEstimate{Max: smallText}
}

// small reports whether all that the expression reads are small scalar values.
func (f *Func) small(values []any) bool {
	for _, r := range f.reads {
		i := slices.Index(f.names, r.Variable)
		if i < 0 || i >= len(values) {
			return false
		}
		v := values[i]
		for _, name := range r.Fields {
			m, _ := v.(map[string]any)
			v = m[name]
		}
		switch v := v.(type) {
		case string:
			if len(v) > smallText {
				return false
			}
		case map[string]any, []any:
			return false
		}
	}
	return true
}

// Budget is what expressions about one object may still cost, and how long they may
// still take. It is for one goroutine.
type Budget struct {
	ctx    context.Context
	cancel context.CancelFunc
	spent  uint64
	// lights is what light programs may have cost, since the last Again, and evaluated how
	// many there were in all.
	lights, evaluated uint64
	// end is when the time is up; zero until it is asked for the first time.
	end  time.Time
	late bool
}

// lateCheck is after how many light programs the time is checked: none of them loops, but
// each may make a value of maxSize.
const lateCheck = 8

// Again lets the expressions cost as much once more, about the object in another form.
// The time for all goes on.
func (b *Budget) Again() { b.spent, b.lights = 0, 0 }

// Late reports whether the time is up. Every expression fails from then on.
func (b *Budget) Late() bool { return b.late || b.ctx != nil && b.ctx.Err() != nil }

// start begins to count the time, if that was not done.
func (b *Budget) start() {
	if b.end.IsZero() {
		b.end = time.Now().Add(maxTime)
	}
}

// Done releases the budget.
func (b *Budget) Done() {
	if b.cancel != nil {
		b.cancel()
	}
}

// ErrCost is the error of expressions about an object that cost too much together.
var ErrCost = fmt.Errorf("the expressions about the object cost more than %d or take longer than %s", ObjectCost, maxTime)

// Eval evaluates the expression with the values of the scope's variables, in their
// order. The value is as package exact holds it. The error is [ErrAbsent] for a field,
// key or element that a value does not have, and for an optional result without value.
func (f *Func) Eval(b *Budget, values ...any) (any, error) {
	if b.spent > ObjectCost || b.Late() {
		return nil, ErrCost
	}
	v, err := f.eval(b, values)
	if b.Late() {
		return nil, ErrCost
	}
	if err != nil {
		return nil, absence(err)
	}
	if o, ok := v.(*types.Optional); ok {
		if !o.HasValue() {
			return nil, ErrAbsent
		}
		v = o.GetValue()
	}
	return Native(v)
}

func (f *Func) eval(b *Budget, values []any) (ref.Val, error) {
	if f.light != nil && b.lights+f.lightCost <= maxLights && f.small(values) {
		b.lights += f.lightCost
		if b.evaluated++; b.evaluated%lateCheck == 0 {
			b.start()
			if b.late = b.late || time.Now().After(b.end); b.late {
				return nil, ErrCost
			}
		}
		v, _, err := f.light.Eval(positional{f.names, values})
		return v, err
	}
	if b.ctx == nil {
		b.start()
		b.ctx, b.cancel = context.WithDeadline(context.Background(), b.end)
	}
	v, details, err := f.program.ContextEval(b.ctx, positional{f.names, values})
	if details != nil && details.ActualCost() != nil {
		b.spent += *details.ActualCost()
	}
	return v, err
}
