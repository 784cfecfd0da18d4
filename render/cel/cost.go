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

// ObjectCost limits the cost of all expressions about one object together, in cel-go's
// units. Light programs, which are known to cost little, have a limit of their own.
const ObjectCost = 2_000_000

const (
	// objectTime limits the time of all expressions about an object, in all its forms. It
	// is far longer than they take without much other work, as the same object should have
	// the same result each time, and shorter than the 30 s that API servers wait.
	objectTime = 20 * time.Second
	// smallText is the size of small texts.
	smallText = 1 << 10
	// maxLight limits the cost of a light program, and maxLights the cost of all light
	// programs about an object.
	maxLight  = 5_000
	maxLights = ObjectCost / 2
)

// unknownSizes estimates no sizes.
type unknownSizes struct{}

func (unknownSizes) EstimateSize(checker.AstNode) *checker.SizeEstimate { return nil }

func (unknownSizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

// smallSizes estimates the sizes of the values that a light program may read.
type smallSizes struct{ unknownSizes }

func (smallSizes) EstimateSize(checker.AstNode) *checker.SizeEstimate {
	return &checker.SizeEstimate{Max: smallText}
}

// small reports whether the expression only reads small scalar values.
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

// Budget limits the cost and the time of the expressions about one object. The zero
// Budget is ready to use, by one goroutine.
type Budget struct {
	ctx    context.Context
	cancel context.CancelFunc
	// spent is the cost since the last Again, and before what was spent until then.
	spent, before uint64
	// lights is the largest cost that light programs may have had since the last Again.
	// evaluated counts them all.
	lights, evaluated uint64
	// end is the deadline; zero until it is needed for the first time.
	end  time.Time
	late bool
}

// lateCheck is the number of light programs between checks of the time: none of them
// loops, but each may make a value of maxSize.
const lateCheck = 8

// Again resets the cost, for the object in another form. The time continues.
func (b *Budget) Again() {
	b.before = b.Total()
	b.spent, b.lights = 0, 0
}

// Total returns the cost in all forms of the object. It does not depend on the time.
func (b *Budget) Total() uint64 { return b.before + b.spent + b.lights }

// Late reports whether the time is up. Every expression fails from then on.
func (b *Budget) Late() bool { return b.late || b.ctx != nil && b.ctx.Err() != nil }

// start sets the deadline, if it is not set.
func (b *Budget) start() {
	if b.end.IsZero() {
		b.end = time.Now().Add(objectTime)
	}
}

// Done releases the budget.
func (b *Budget) Done() {
	if b.cancel != nil {
		b.cancel()
	}
}

// ErrCost is the error of expressions about an object that cost too much together.
var ErrCost = fmt.Errorf("the expressions about the object cost more than %d", ObjectCost)

// ErrTime is the error of expressions about an object that take too long together. They
// may take less another time.
var ErrTime = fmt.Errorf("the expressions about the object take longer than %s", objectTime)

// Eval evaluates the expression with the values of the scope's variables, in their
// order. The result has the types of package exact. The error is [ErrAbsent] for a field,
// key or element that a value lacks, and for an optional result without value. It is
// [ErrCost] if the budget is spent, and [ErrTime] if the time is up.
func (f *Func) Eval(b *Budget, values ...any) (any, error) {
	switch {
	case b.Late():
		return nil, ErrTime
	case b.spent > ObjectCost:
		return nil, ErrCost
	}
	v, err := f.eval(b, values)
	if b.Late() {
		return nil, ErrTime
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
	return native(v)
}

func (f *Func) eval(b *Budget, values []any) (ref.Val, error) {
	if f.light != nil && b.lights+f.lightCost <= maxLights && f.small(values) {
		b.lights += f.lightCost
		if b.evaluated++; b.evaluated%lateCheck == 0 {
			b.start()
			if b.late = b.late || time.Now().After(b.end); b.late {
				return nil, ErrTime
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
