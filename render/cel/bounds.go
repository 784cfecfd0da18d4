package cel

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// cel-go counts the cost after each step. It does not count strings that quote, encode or
// format return, nor lists that contain one list many times. A few hundred bytes of text
// can make such values larger than memory, so these limits are checked first.
const (
	// maxSize limits a value that an expression makes: the bytes of texts, and nodeSize for
	// each element.
	maxSize  = 1 << 20
	nodeSize = 8
	// maxTime limits the time of a [Program] with loops.
	maxTime = 5 * time.Second
	// maxLoops limits the depth of loops such as map, exists and optMap, in one another and
	// over the result of another: each doubles the time of cel-go's type checker.
	// maxLiterals limits the depth of lists and maps, and maxCalls that of other
	// expressions.
	maxLoops, maxLiterals, maxCalls = 5, 10, 40
	// loopCheck is the number of loop iterations between checks of the time.
	loopCheck = 100
)

func errTooLarge() ref.Val {
	return types.NewErr("a value that the expression makes is larger than %d bytes", maxSize)
}

// checkNesting returns an error for an expression with types that would take too long to
// check.
func checkNesting(tree *cel.Ast) error {
	loops, literals, calls := nesting(tree.NativeRep().Expr())
	switch {
	case loops > maxLoops:
		return &Error{Msg: fmt.Sprintf("the expression has %d loops in and over one another; at most %d are checked", loops, maxLoops)}
	case literals > maxLiterals:
		return &Error{Msg: fmt.Sprintf("the expression has lists and maps %d deep; at most %d are checked", literals, maxLiterals)}
	case calls > maxCalls:
		return &Error{Msg: fmt.Sprintf("the expression has calls and fields %d deep; at most %d are checked", calls, maxCalls)}
	}
	return nil
}

// nesting returns the depth of loops, literals and calls in an expression. The parser has
// limited the depth of the whole.
func nesting(e ast.Expr) (loops, literals, calls int) {
	for _, x := range children(e) {
		l, m, c := nesting(x)
		loops, literals, calls = max(loops, l), max(literals, m), max(calls, c)
	}
	switch e.Kind() {
	case ast.ComprehensionKind:
		loops++
	case ast.ListKind, ast.MapKind, ast.StructKind:
		literals++
	case ast.CallKind, ast.SelectKind:
		calls++
	}
	return loops, literals, calls
}

// children returns the expressions that an expression directly consists of.
func children(e ast.Expr) []ast.Expr {
	var all []ast.Expr
	switch e.Kind() {
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		all = append(all, c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result())
	case ast.ListKind:
		all = append(all, e.AsList().Elements()...)
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			all = append(all, entry.AsMapEntry().Key(), entry.AsMapEntry().Value())
		}
	case ast.CallKind:
		c := e.AsCall()
		if c.IsMemberFunction() {
			all = append(all, c.Target())
		}
		all = append(all, c.Args()...)
	case ast.SelectKind:
		all = append(all, e.AsSelect().Operand())
	case ast.StructKind:
		for _, field := range e.AsStruct().Fields() {
			all = append(all, field.AsStructField().Value())
		}
	}
	return slices.DeleteFunc(all, func(x ast.Expr) bool { return x == nil })
}

// bounded wraps the steps of a program that make values.
func bounded(step interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	switch s := step.(type) {
	case interpreter.InterpretableConstructor:
		return &boundedConstructor{s}, nil
	case interpreter.InterpretableCall:
		return &boundedCall{s}, nil
	}
	return step, nil
}

type boundedConstructor struct {
	interpreter.InterpretableConstructor
}

func (b *boundedConstructor) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	v := b.InterpretableConstructor.Exec(frame)
	if sizeOf(v, 0) > maxSize {
		return errTooLarge()
	}
	return v
}

func (b *boundedConstructor) Eval(vars interpreter.Activation) ref.Val {
	return b.Exec(interpreter.AsFrame(vars))
}

type boundedCall struct{ interpreter.InterpretableCall }

func (b *boundedCall) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	v := b.InterpretableCall.Exec(frame)
	switch v := v.(type) {
	case types.String, types.Bytes:
		if sizeOf(v, 0) > maxSize {
			return errTooLarge()
		}
	case traits.MutableLister: // the result of a loop so far
	case traits.Lister:
		if b.Function() == operators.Add && sizeOf(v, 0) > maxSize {
			return errTooLarge()
		}
	}
	return v
}

func (b *boundedCall) Eval(vars interpreter.Activation) ref.Val {
	return b.Exec(interpreter.AsFrame(vars))
}

// sizeOf returns the sum of before and the size of a value. It stops counting above
// maxSize.
func sizeOf(v ref.Val, before int) int {
	size := before + nodeSize
	switch v := v.(type) {
	case types.String:
		return size + len(v)
	case types.Bytes:
		return size + len(v)
	case *types.Optional:
		if v.HasValue() {
			return sizeOf(v.GetValue(), size)
		}
	case traits.Lister:
		for it := v.Iterator(); size <= maxSize && it.HasNext() == types.True; {
			size = sizeOf(it.Next(), size)
		}
	case traits.Mapper:
		for it := v.Iterator(); size <= maxSize && it.HasNext() == types.True; {
			key := it.Next()
			if value, ok := v.Find(key); ok {
				size = sizeOf(value, sizeOf(key, size))
			}
		}
	}
	return size
}

// boundedFunctions returns replace and join of ext.Strings. The result of either may be as
// large as the product of its arguments, so these compute its size before they make it.
func boundedFunctions() []cel.EnvOption {
	text := func(v ref.Val) string { s, _ := v.(types.String); return string(s) }
	replace := func(s, old, with string, n int) ref.Val {
		times := strings.Count(s, old)
		if n >= 0 {
			times = min(times, n)
		}
		if len(s)+times*(len(with)-len(old)) > maxSize {
			return errTooLarge()
		}
		return types.String(strings.Replace(s, old, with, n))
	}
	join := func(v ref.Val, separator string) ref.Val {
		var parts []string
		size := 0
		for it := v.(traits.Lister).Iterator(); it.HasNext() == types.True; {
			item := it.Next()
			part, ok := item.(types.String)
			if !ok {
				return types.NewErr("join: a list of strings is needed, and it has a %s", item.Type())
			}
			if size += len(part) + len(separator); size > maxSize {
				return errTooLarge()
			}
			parts = append(parts, string(part))
		}
		return types.String(strings.Join(parts, separator))
	}
	list, str := cel.ListType(cel.StringType), cel.StringType
	return []cel.EnvOption{
		cel.Function("replace",
			cel.MemberOverload("string_replace_string_string", []*cel.Type{str, str, str}, str,
				cel.FunctionBinding(func(args ...ref.Val) ref.Val { return replace(text(args[0]), text(args[1]), text(args[2]), -1) })),
			cel.MemberOverload("string_replace_string_string_int", []*cel.Type{str, str, str, cel.IntType}, str,
				cel.FunctionBinding(func(args ...ref.Val) ref.Val {
					n, _ := args[3].(types.Int)
					return replace(text(args[0]), text(args[1]), text(args[2]), int(n))
				}))),
		cel.Function("join",
			cel.MemberOverload("list_join", []*cel.Type{list}, str,
				cel.UnaryBinding(func(v ref.Val) ref.Val { return join(v, "") })),
			cel.MemberOverload("list_join_string", []*cel.Type{list, str}, str,
				cel.BinaryBinding(func(v, separator ref.Val) ref.Val { return join(v, text(separator)) }))),
	}
}

// errTime is the error of an expression that loops for too long.
var errTime = fmt.Errorf("the expression takes longer than %s", maxTime)
