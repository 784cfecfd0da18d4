// Package cel reads expressions of the Common Expression Language.
//
//   - An [Expression] is parsed only, to compare it with others and to find the fields
//     that it names. render/types/compat compiles such expressions with the API server's
//     own compiler.
//   - A [Program] is an expression about one object, compiled against its schema, with a
//     bool or string as result.
//   - A [Scope] compiles expressions with several variables and any result, for
//     conversion rules. A [Budget] limits the cost of all of them for one object.
//
// The files: cel.go parses, program.go has Program and the types of schemas, scope.go
// and type.go have Scope and its types, cost.go has budgets, bounds.go the limits that
// cel-go lacks, reads.go finds fields, constant.go finds constants, literal.go reads map
// literals, and value.go converts values. known.go chooses environments for the API server's
// compiler. It is the only package that imports cel-go.
package cel

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/parser"
	apiserver "k8s.io/apiserver/pkg/cel"
)

// Expression is a parsed expression.
type Expression struct {
	form   string
	fields map[string]bool
	parsed bool
}

// Read reads an expression. An expression that cannot be parsed is equal only to the same
// text, and may name any field.
func Read(text string) Expression {
	e, ok := parsed(text)
	if !ok {
		return Expression{form: unreadable(text)}
	}
	w := writer{fields: make(map[string]bool)}
	w.expr(e)
	return Expression{form: w.String(), fields: w.fields, parsed: true}
}

// parsed parses an expression, and checks no types. Macros are not expanded: their text
// determines the expansion. The API server has optional syntax since Kubernetes 1.28.
func parsed(text string, options ...parser.Option) (ast.Expr, bool) {
	p, err := parser.NewParser(append(options, parser.EnableOptionalSyntax(true))...)
	if err != nil {
		return nil, false
	}
	tree, problems := p.Parse(common.NewTextSource(text))
	if problems != nil && len(problems.GetErrors()) > 0 {
		return nil, false
	}
	return tree.Expr(), true
}

func unreadable(text string) string { return "unreadable " + strconv.Quote(text) }

// Form returns a text that is equal for expressions that parse to the same tree: white
// space, quotes, comments, redundant parentheses and the base of a number make no
// difference. It is only for comparison.
func (e Expression) Form() string { return e.form }

// Index finds expressions by the fields that they name.
type Index struct {
	// first has the position of the first expression that names a field.
	first map[string]int
	// unread is the position of the first expression that cannot be parsed, or else total,
	// the number of expressions.
	unread, total int
}

// NewIndex returns the index of a list of expressions.
func NewIndex(list []Expression) *Index {
	x := &Index{first: make(map[string]int), unread: len(list), total: len(list)}
	for i, e := range list {
		if !e.parsed {
			x.unread = min(x.unread, i)
		}
		for name := range e.fields {
			if _, named := x.first[name]; !named {
				x.first[name] = i
			}
		}
	}
	return x
}

// First returns the position of the first expression that may read a field of that name,
// in any object. ok is false if none does.
func (x *Index) First(field string) (i int, ok bool) {
	i = x.unread
	if at, named := x.first[field]; named {
		i = min(i, at)
	}
	escaped, ok := apiserver.Escape(field) // as the API server's expressions write it
	if at, named := x.first[escaped]; ok && named {
		i = min(i, at)
	}
	return i, i < x.total
}

// writer writes a tree in an unambiguous form, and collects names of fields.
type writer struct {
	strings.Builder
	fields map[string]bool
}

func (w *writer) expr(e ast.Expr) {
	switch e.Kind() {
	case ast.IdentKind:
		w.WriteString(e.AsIdent())
	case ast.LiteralKind:
		v := e.AsLiteral()
		if s, ok := v.Value().(string); ok {
			w.fields[s] = true // the name in an index: self["a"]
		}
		fmt.Fprintf(w, "%s(%q)", v.Type().TypeName(), fmt.Sprint(v.Value()))
	case ast.SelectKind:
		s := e.AsSelect()
		w.fields[s.FieldName()] = true
		w.call("select", s.Operand())
		w.WriteString(strconv.Quote(s.FieldName()))
	case ast.CallKind:
		c := e.AsCall()
		name := c.FunctionName()
		args := c.Args()
		if c.IsMemberFunction() {
			name, args = "."+name, append([]ast.Expr{c.Target()}, args...)
		}
		w.call(name, args...)
	case ast.ListKind:
		l := e.AsList()
		fmt.Fprintf(w, "list%v", l.OptionalIndices())
		w.call("", l.Elements()...)
	case ast.MapKind:
		w.entries("map", e.AsMap().Entries())
	case ast.StructKind:
		s := e.AsStruct()
		w.entries(s.TypeName(), s.Fields())
	}
	// There are no comprehensions, since macros are not expanded.
}

func (w *writer) call(name string, args ...ast.Expr) {
	w.WriteString(name + "(")
	for _, a := range args {
		w.expr(a)
		w.WriteByte(',')
	}
	w.WriteByte(')')
}

func (w *writer) entries(name string, entries []ast.EntryExpr) {
	w.WriteString(name + "{")
	for _, e := range entries {
		switch e.Kind() {
		case ast.MapEntryKind:
			m := e.AsMapEntry()
			fmt.Fprint(w, m.IsOptional(), " ")
			w.call("", m.Key(), m.Value())
		case ast.StructFieldKind:
			f := e.AsStructField()
			fmt.Fprint(w, f.IsOptional(), " ", strconv.Quote(f.Name()))
			w.call("", f.Value())
		}
	}
	w.WriteByte('}')
}
