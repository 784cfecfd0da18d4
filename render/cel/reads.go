package cel

import (
	"slices"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
)

// FieldRead is a field that an expression reads: a variable, and fields and keys from
// there.
type FieldRead struct {
	Variable string
	Fields   []string
}

// readsOf adds the fields that an expression reads to reads.
func readsOf(e ast.Expr, names []string, reads []FieldRead) []FieldRead {
	if variable, fields, ok := chain(e); ok {
		if slices.Contains(names, variable) {
			reads = append(reads, FieldRead{variable, fields})
		}
		return reads
	}
	inside := func(list ...ast.Expr) {
		for _, x := range list {
			if x != nil {
				reads = readsOf(x, names, reads)
			}
		}
	}
	switch e.Kind() {
	case ast.SelectKind:
		inside(e.AsSelect().Operand())
	case ast.CallKind:
		c := e.AsCall()
		if c.IsMemberFunction() {
			inside(c.Target())
		}
		inside(c.Args()...)
	case ast.ListKind:
		inside(e.AsList().Elements()...)
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			inside(entry.AsMapEntry().Key(), entry.AsMapEntry().Value())
		}
	case ast.StructKind:
		for _, field := range e.AsStruct().Fields() {
			inside(field.AsStructField().Value())
		}
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		inside(c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result())
	}
	return reads
}

// chain returns the variable and fields of an expression that is nothing else, such as
// self.a["b"] and self.?a. At an index that is not a constant key it has the list or
// map before it.
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
