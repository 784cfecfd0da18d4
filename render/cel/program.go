package cel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/ext"
)

// Limits of one expression. The cost is in cel-go's units, like the API server's limit
// for one call.
const (
	maxLength = 8 << 10
	maxCost   = 1_000_000
)

// Result is the type of an expression's result.
type Result string

// The types of results that a [Program] may have.
const (
	Bool   Result = "bool"
	String Result = "string"
)

// ErrAbsent is the error of an expression that reads a field, key or element that the
// object lacks.
var ErrAbsent = errors.New("the object lacks a field that the expression reads")

// Program is a compiled expression about one object. It is safe for concurrent use.
type Program struct {
	program cel.Program
	result  Result
}

// Error is a fault in the text of an expression.
type Error struct {
	// Line and Column are the place of the fault, from 1. Both are 0 if it concerns the
	// whole expression.
	Line, Column int
	Msg          string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.Msg
	}
	return fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.Msg)
}

// loose are the fields of an object without a schema that expressions may use as
// variables.
var loose = []string{"apiVersion", "kind", "metadata", "spec", "status", "data", "type", "items"}

// Compile compiles an expression about an object. The object is self, and each of its
// fields is a variable too: "self.status" and "status" are the same.
//
// schema is the OpenAPI v3 schema of the object's version, as in a CRD. A field that it
// lacks, or of the wrong type, is an error. If schema is nil, any field may exist.
// Expressions may use CEL's standard functions, strings, sets, encoders and optional
// fields. The error is an [*Error].
func Compile(text string, schema map[string]any, result Result) (*Program, error) {
	env, err := environment(schema)
	if err != nil {
		return nil, &Error{Msg: err.Error()}
	}
	tree, err := checked(env, text)
	if err != nil {
		return nil, err
	}
	want := map[Result]*types.Type{Bool: types.BoolType, String: types.StringType}[result]
	if have := tree.OutputType(); !have.IsExactType(want) && !have.IsExactType(types.DynType) {
		return nil, &Error{Msg: fmt.Sprintf("the expression gives %s; %s is needed", named(have), result)}
	}
	program, err := env.Program(tree, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(maxCost),
		cel.CustomDecoratorV2(bounded), cel.InterruptCheckFrequency(loopCheck))
	if err != nil {
		return nil, &Error{Msg: err.Error()}
	}
	return &Program{program: program, result: result}, nil
}

// checked parses an expression and checks its types. The error is an [*Error].
func checked(env *cel.Env, text string) (*cel.Ast, error) {
	if strings.TrimSpace(text) == "" {
		return nil, &Error{Msg: "the expression is empty"}
	}
	if len(text) > maxLength {
		return nil, &Error{Msg: fmt.Sprintf("the expression has %d bytes; at most %d are read", len(text), maxLength)}
	}
	tree, issues := env.Parse(text)
	if issues == nil || len(issues.Errors()) == 0 {
		if err := checkNesting(tree); err != nil {
			return nil, err
		}
		tree, issues = env.Check(tree)
	}
	if issues != nil && len(issues.Errors()) > 0 {
		return nil, fault(issues.Errors()[0])
	}
	return tree, nil
}

func fault(e *common.Error) *Error {
	// Authors do not know the internal name of the root.
	msg := strings.ReplaceAll(e.Message, "'"+root, "'self")
	if e.Location == nil || e.Location.Line() < 1 {
		return &Error{Msg: msg}
	}
	return &Error{Line: e.Location.Line(), Column: e.Location.Column() + 1, Msg: msg}
}

func named(t *types.Type) string {
	return strings.Replace(t.String(), root, "self", 1)
}

// language returns the syntax and functions of all expressions.
func language() []cel.EnvOption {
	return append([]cel.EnvOption{
		cel.EnableIdentifierEscapeSyntax(), cel.DefaultUTCTimeZone(true), cel.CrossTypeNumericComparisons(true),
		cel.OptionalTypes(), ext.Strings(), ext.Sets(), ext.Encoders(),
	}, boundedFunctions()...)
}

func environment(schema map[string]any) (*cel.Env, error) {
	options := append(language(), cel.HomogeneousAggregateLiterals())
	if schema == nil {
		for _, name := range append([]string{"self"}, loose...) {
			options = append(options, cel.Variable(name, types.DynType))
		}
		return cel.NewEnv(options...)
	}
	registry, err := types.NewRegistry()
	if err != nil {
		return nil, err
	}
	p := &provider{Provider: registry, schema: schema}
	options = append(options, cel.CustomTypeProvider(p), cel.CustomTypeAdapter(registry), cel.Variable("self", types.NewObjectType(root)))
	names, _ := p.FindStructFieldNames(root)
	for _, name := range names {
		if field, ok := p.FindStructFieldType(root, name); ok {
			options = append(options, cel.Variable(name, field.Type))
		}
	}
	return cel.NewEnv(options...)
}

// True evaluates an expression that gives a [Bool]. The error is [ErrAbsent], or
// another one if values have the wrong type or the evaluation costs too much.
func (p *Program) True(object map[string]any) (bool, error) { return eval[bool](p, object) }

// Text evaluates an expression that gives a [String]. Its errors are the same as those
// of True.
func (p *Program) Text(object map[string]any) (string, error) { return eval[string](p, object) }

func eval[T any](p *Program, object map[string]any) (result T, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), maxTime)
	defer cancel()
	v, _, err := p.program.ContextEval(ctx, variables(object))
	if ctx.Err() != nil {
		return result, errTime
	}
	if err != nil {
		return result, absence(err)
	}
	result, ok := v.Value().(T)
	if !ok {
		return result, fmt.Errorf("the expression gave %T; %s is needed", v.Value(), p.result)
	}
	return result, nil
}

// absence returns ErrAbsent for an error about a missing field, and other errors
// unchanged.
func absence(err error) error {
	// cel-go does not export the types of these errors.
	text := err.Error()
	for _, absent := range []string{"no such key", "no such attribute", "index out of bounds", "optional.none() dereference"} {
		if strings.HasPrefix(text, absent) {
			return ErrAbsent
		}
	}
	return err
}

// variables has an object's fields by name, and the object as self.
type variables map[string]any

func (v variables) ResolveName(name string) (any, bool) {
	if name == "self" {
		return map[string]any(v), true
	}
	value, ok := v[name]
	return value, ok
}

func (v variables) Parent() cel.Activation { return nil }

// root is the name of the type of an object. It is not a valid identifier. The type of a
// field has the name of its parent, a dot and its own name, and the type of an element
// ends in "[]".
const root = "$object"

// provider finds the types of an object's fields in its schema.
type provider struct {
	types.Provider
	schema map[string]any
}

// metadata is the schema of every object's metadata.
var metadata = map[string]any{"type": "object", "properties": map[string]any{
	"name": scalar("string"), "generateName": scalar("string"), "namespace": scalar("string"), "uid": scalar("string"),
	"resourceVersion": scalar("string"), "selfLink": scalar("string"), "generation": scalar("integer"),
	"creationTimestamp": scalar("string"), "deletionTimestamp": scalar("string"), "deletionGracePeriodSeconds": scalar("integer"),
	"labels":      map[string]any{"type": "object", "additionalProperties": scalar("string")},
	"annotations": map[string]any{"type": "object", "additionalProperties": scalar("string")},
	"finalizers":  map[string]any{"type": "array", "items": scalar("string")},
	"ownerReferences": map[string]any{"type": "array", "items": map[string]any{"type": "object", "properties": map[string]any{
		"apiVersion": scalar("string"), "kind": scalar("string"), "name": scalar("string"), "uid": scalar("string"),
		"controller": scalar("boolean"), "blockOwnerDeletion": scalar("boolean"),
	}}},
	"managedFields": map[string]any{"type": "array"},
}}

func scalar(kind string) map[string]any { return map[string]any{"type": kind} }

// properties returns the fields of an object's schema. open reports whether objects may
// have others.
func properties(schema map[string]any, top bool) (fields map[string]any, open bool) {
	declared, _ := schema["properties"].(map[string]any)
	open = schema["x-kubernetes-preserve-unknown-fields"] == true
	if embedded := schema["x-kubernetes-embedded-resource"] == true; top || embedded {
		fields = map[string]any{"apiVersion": scalar("string"), "kind": scalar("string"), "metadata": metadata}
		for name, s := range declared {
			if _, fixed := fields[name]; !fixed {
				fields[name] = s
			}
		}
		return fields, open
	}
	return declared, open
}

// at returns the schema of the type with this name; nil if there is none.
func (p *provider) at(name string) map[string]any {
	rest, ok := strings.CutPrefix(name, root)
	if !ok {
		return nil
	}
	schema, top := p.schema, true
	for rest != "" && schema != nil {
		switch {
		case strings.HasPrefix(rest, "[]"):
			rest = rest[2:]
			inner, _ := schema["items"].(map[string]any)
			if schema["type"] == "object" {
				inner, _ = schema["additionalProperties"].(map[string]any)
			}
			schema = inner
		default:
			field := rest[1:] // behind the dot
			rest = ""
			// A name may contain dots: the longest name that exists counts.
			fields, _ := properties(schema, top)
			for {
				if s, ok := fields[field].(map[string]any); ok {
					schema = s
					break
				}
				i := strings.LastIndexAny(field, ".[")
				if i < 0 {
					return nil
				}
				field, rest = field[:i], field[i:]+rest
			}
		}
		top = false
	}
	return schema
}

func (p *provider) FindStructType(name string) (*types.Type, bool) {
	if p.at(name) == nil {
		return p.Provider.FindStructType(name)
	}
	return types.NewTypeTypeWithParam(types.NewObjectType(name)), true
}

func (p *provider) FindStructFieldNames(name string) ([]string, bool) {
	schema := p.at(name)
	if schema == nil {
		return p.Provider.FindStructFieldNames(name)
	}
	fields, _ := properties(schema, name == root)
	return slices.Sorted(maps.Keys(fields)), true
}

func (p *provider) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	schema := p.at(name)
	if schema == nil {
		return p.Provider.FindStructFieldType(name, field)
	}
	fields, open := properties(schema, name == root)
	s, ok := fields[field].(map[string]any)
	switch {
	case ok:
		return &types.FieldType{Type: typeOf(name+"."+field, s)}, true
	case open:
		return &types.FieldType{Type: types.DynType}, true
	}
	return nil, false
}

// typeOf returns the type of values with a schema. name is the name of the type, if it is
// an object's.
func typeOf(name string, schema map[string]any) *types.Type {
	if schema["x-kubernetes-int-or-string"] == true {
		return types.DynType
	}
	switch schema["type"] {
	case "string":
		return types.StringType // dates too: they are strings in an object
	case "boolean":
		return types.BoolType
	case "integer":
		return types.IntType
	case "array":
		if items, ok := schema["items"].(map[string]any); ok {
			return types.NewListType(typeOf(name+"[]", items))
		}
		return types.NewListType(types.DynType)
	case "object":
		if values, ok := schema["additionalProperties"].(map[string]any); ok {
			return types.NewMapType(types.StringType, typeOf(name+"[]", values))
		}
		if fields, _ := properties(schema, false); len(fields) > 0 {
			return types.NewObjectType(name)
		}
		return types.NewMapType(types.StringType, types.DynType)
	}
	// The value of a number decides whether it is an integer.
	return types.DynType
}
