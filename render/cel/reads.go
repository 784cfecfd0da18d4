package cel

import (
	"slices"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
)

// FieldRead is a field that an expression reads: a variable, and the fields and keys
// that lead from it to the field.
type FieldRead struct {
	Variable string
	Fields   []string
}

// Reads returns the fields that an expression reads of some variables; without Fields for a
// variable that is used in any other way. The expression is parsed only; ok is false for one
// that cannot be parsed.
func Reads(text string, variables ...string) (reads []FieldRead, ok bool) {
	e, ok := parsed(text)
	if !ok {
		return nil, false
	}
	return readsOf(e, variables, nil), true
}

// readsOf adds the fields that an expression reads to reads.
func readsOf(e ast.Expr, names []string, reads []FieldRead) []FieldRead {
	if variable, fields, ok := chain(e); ok {
		if slices.Contains(names, variable) {
			reads = append(reads, FieldRead{variable, fields})
		}
		return reads
	}
	for _, x := range children(e) {
		reads = readsOf(x, names, reads)
	}
	return reads
}

// chain returns the variable and fields of an expression that only selects fields, such
// as self.a["b"] and self.?a; ok is false for others, also for an index that is not a
// constant key.
func chain(e ast.Expr) (variable string, fields []string, ok bool) {
	switch e.Kind() {
	case ast.IdentKind:
		return e.AsIdent(), nil, true
	case ast.SelectKind:
		s := e.AsSelect()
		if variable, fields, ok = chain(s.Operand()); ok {
			fields = append(fields, s.FieldName())
		}
		return variable, fields, ok
	case ast.CallKind:
		c := e.AsCall()
		switch c.FunctionName() {
		case operators.Index, operators.OptIndex, operators.OptSelect:
		default:
			return "", nil, false
		}
		args := c.Args()
		if len(args) != 2 || args[1].Kind() != ast.LiteralKind {
			return "", nil, false
		}
		key, isKey := args[1].AsLiteral().(types.String)
		if !isKey {
			return "", nil, false
		}
		if variable, fields, ok = chain(args[0]); ok {
			fields = append(fields, string(key))
		}
		return variable, fields, ok
	}
	return "", nil, false
}
