package cel

import (
	"math"
	"slices"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/parser"
)

// Constant is a constant of an expression that is used together with fields, such as in
// self.mode == "old".
type Constant struct {
	// Value is a string, an int64 or a finite float64.
	Value any
	// Function is the function that has the constant as an argument, such as startsWith;
	// the name of an operator is CEL's own.
	Function string
	// Reads are the fields: those of the smallest call that has both the constant and
	// fields.
	Reads []FieldRead
	// Through are the functions in that call, such as size in size(self.name) > 3.
	Through []string
}

// Constants returns the constants of an expression that may decide which result it has,
// and all fields that it reads. Other constants, such as the results of a condition, are
// left out. The expression is parsed only; one that cannot be parsed has none.
func Constants(text string, variables ...string) (all []Constant, reads []FieldRead) {
	if len(text) > maxLength {
		return nil, nil
	}
	e, ok := parsed(text, parser.EnableIdentEscapeSyntax(true))
	if !ok {
		return nil, nil
	}
	f := constantFinder{variables: variables}
	_, reads, _ = f.find(e, "")
	return f.found, reads
}

// computing are operators whose constants decide about nothing.
var computing = []string{
	operators.Index, operators.OptIndex, operators.Add, operators.Subtract, operators.Multiply, operators.Divide, operators.Modulo,
}

type constantFinder struct {
	variables []string
	found     []Constant
}

// find adds the constants of an expression that are used with fields to found. It returns
// those that are not, which a call around the expression may use, the fields, and the
// functions that are called.
func (f *constantFinder) find(e ast.Expr, function string) (free []Constant, reads []FieldRead, calls []string) {
	if e.Kind() == ast.LiteralKind {
		if v, ok := plainValue(e); ok && !slices.Contains(computing, function) {
			free = append(free, Constant{Value: v, Function: function})
		}
		return free, nil, nil
	}
	if variable, fields, ok := chain(e); ok {
		if slices.Contains(f.variables, variable) {
			reads = append(reads, FieldRead{variable, fields})
		}
		return nil, reads, nil
	}
	function = ""
	if e.Kind() == ast.CallKind {
		function = e.AsCall().FunctionName()
	}
	for _, x := range children(e) {
		constants, fields, functions := f.find(x, function)
		free, reads, calls = append(free, constants...), append(reads, fields...), append(calls, functions...)
	}
	// A list, a map or a condition only chooses among its constants.
	if len(reads) > 0 && e.Kind() == ast.CallKind && function != operators.Conditional {
		for _, c := range free {
			c.Reads, c.Through = reads, calls
			f.found = append(f.found, c)
		}
		free = nil
	}
	if e.Kind() == ast.CallKind && !slices.Contains(calls, function) {
		calls = append(calls, function)
	}
	return free, reads, calls
}

// plainValue returns the value of a literal as JSON may have it.
func plainValue(e ast.Expr) (any, bool) {
	switch v := e.AsLiteral().(type) {
	case types.String:
		return string(v), true
	case types.Int:
		return int64(v), true
	case types.Uint:
		return int64(v), v <= math.MaxInt64
	case types.Double:
		return float64(v), !math.IsInf(float64(v), 0)
	}
	return nil, false
}
