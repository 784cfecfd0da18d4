package cel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/parser"
	"k8s.io/apiserver/pkg/cel/library"

	"gitopsd.dev/render/exact"
)

// ObjectCost bounds what all expressions about one object may cost together, in
// cel-go's units. Those that are known to cost little do not count until they could
// cost half as much again.
const ObjectCost = 2_000_000

// Type is the type of a variable or a result. The zero Type is any value's.
type Type struct {
	t        *types.Type
	provider *provider
}

// StringType is the type of strings.
var StringType = Type{t: types.StringType}

// ObjectType returns the type of a whole object with that schema.
func ObjectType(schema map[string]any) Type {
	registry, err := types.NewRegistry()
	if err != nil {
		return Type{}
	}
	return Type{t: types.NewObjectType(root), provider: &provider{Provider: registry, schema: schema}}
}

// Field returns the type of a field of an object, or of the values of a map; ok is
// false if there is no such field.
func (t Type) Field(name string) (field Type, ok bool) {
	if t.t == nil {
		return Type{}, true
	}
	switch t.t.Kind() {
	case types.StructKind:
		f, ok := t.provider.FindStructFieldType(t.t.TypeName(), name)
		if !ok {
			return Type{}, false
		}
		return Type{f.Type, t.provider}, true
	case types.MapKind:
		return Type{t.t.Parameters()[1], t.provider}, true
	case types.DynKind:
		return Type{}, true
	}
	return Type{}, false
}

// Element returns the type of a list's elements or of a map's values; ok is false for
// other types.
func (t Type) Element() (element Type, ok bool) {
	if t.t == nil || t.t.Kind() == types.DynKind {
		return Type{}, true
	}
	if p := t.t.Parameters(); t.t.Kind() == types.ListKind || t.t.Kind() == types.MapKind {
		return Type{p[len(p)-1], t.provider}, true
	}
	return Type{}, false
}

// Kind returns "string", "int", "double", "bool", "list", "map", "object" or "null";
// "dyn" for any value; and CEL's name for types that no field has.
func (t Type) Kind() string {
	if t.t == nil {
		return "dyn"
	}
	if t.t.Kind() == types.StructKind && t.provider != nil {
		return "object"
	}
	switch t.t.Kind() {
	case types.ListKind:
		return "list"
	case types.MapKind:
		return "map"
	case types.NullTypeKind:
		return "null"
	case types.TypeParamKind:
		return "dyn"
	}
	return t.t.TypeName()
}

// Schema returns the schema of an object's type, nil for other types.
func (t Type) Schema() map[string]any {
	if t.provider == nil || t.t.Kind() != types.StructKind {
		return nil
	}
	name := t.t.TypeName()
	schema := t.provider.at(name)
	if fields, _ := properties(schema, name == root); name == root {
		return map[string]any{"type": "object", "properties": fields}
	}
	return schema
}

// String names the type as CEL does.
func (t Type) String() string {
	if t.t == nil {
		return "dyn"
	}
	if t.Kind() == "object" {
		return "object"
	}
	return strings.ReplaceAll(t.t.String(), root, "self")
}

// Variable is a name that expressions may use.
type Variable struct {
	Name string
	Type Type
}

// Scope compiles expressions that may use some variables.
type Scope struct {
	env   *cel.Env
	names []string
}

// base has the functions of all scopes: those of [Compile], the libraries of
// Kubernetes, and json.marshal and json.unmarshal.
var base = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(append(language(), library.URLs(), library.Regex(), library.Lists(), library.Quantity(), library.IP(), library.CIDR(),
		library.Format(), library.SemverLib(),
		cel.CustomTypeAdapter(adapter{types.DefaultTypeAdapter}),
		cel.Function("json.marshal", cel.Overload("json_marshal_dyn", []*cel.Type{cel.DynType}, cel.StringType, cel.UnaryBinding(marshal))),
		cel.Function("json.unmarshal", cel.Overload("json_unmarshal_string", []*cel.Type{cel.StringType}, cel.DynType, cel.UnaryBinding(unmarshal))))...)
})

func marshal(v ref.Val) ref.Val {
	native, err := Native(v)
	if err != nil {
		return types.WrapErr(err)
	}
	text, err := exact.Encode(native)
	if err != nil {
		return types.WrapErr(err)
	}
	return types.String(text)
}

func unmarshal(v ref.Val) ref.Val {
	text, ok := v.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(v)
	}
	value, err := exact.Decode([]byte(text))
	if err != nil {
		return types.NewErr("json.unmarshal: %v", err)
	}
	return adapter{types.DefaultTypeAdapter}.NativeToValue(value)
}

// NewScope returns a scope. All types that come from schemas must come from the same
// one.
func NewScope(variables ...Variable) (*Scope, error) {
	env, err := base()
	if err != nil {
		return nil, err
	}
	s := &Scope{}
	var options []cel.EnvOption
	for _, v := range variables {
		t := v.Type.t
		if t == nil {
			t = types.DynType
		}
		if v.Type.provider != nil && len(options) == len(s.names) {
			options = append(options, cel.CustomTypeProvider(v.Type.provider))
		}
		options = append(options, cel.Variable(v.Name, t))
		s.names = append(s.names, v.Name)
	}
	s.env, err = env.Extend(options...)
	return s, err
}

// Func is a compiled expression. It is safe for concurrent use.
type Func struct {
	program cel.Program
	// light is the program without a count of its cost, for values that are as small as
	// smallText: then it costs at most lightCost. It is nil if there is no such bound.
	light     cel.Program
	lightCost uint64
	names     []string
	reads     []FieldRead
	result    Type
	optional  bool
}

// smallText is the size of small texts, maxLight what a light program costs at most,
// and maxLights what all about an object do.
const (
	smallText = 1 << 10
	maxLight  = 5_000
	maxLights = ObjectCost / 2
)

// FieldRead is a field that an expression reads: a variable, and fields and keys from
// there.
type FieldRead struct {
	Variable string
	Fields   []string
}

// Compile compiles an expression. The error is an [*Error].
func (s *Scope) Compile(text string) (*Func, error) {
	if strings.TrimSpace(text) == "" {
		return nil, &Error{Msg: "the expression is empty"}
	}
	if len(text) > maxLength {
		return nil, &Error{Msg: fmt.Sprintf("the expression has %d bytes; at most %d are read", len(text), maxLength)}
	}
	tree, issues := s.env.Parse(text)
	if issues == nil || len(issues.Errors()) == 0 {
		if err := checkNesting(tree); err != nil {
			return nil, err
		}
		tree, issues = s.env.Check(tree)
	}
	if issues != nil && len(issues.Errors()) > 0 {
		return nil, fault(issues.Errors()[0])
	}
	estimator := &library.CostEstimator{SizeEstimator: unknownSizes{}}
	if cost, err := s.env.EstimateCost(tree, estimator); err == nil && cost.Min > ObjectCost {
		return nil, &Error{Msg: fmt.Sprintf("the expression costs at least %d; all about an object may cost %d", cost.Min, ObjectCost)}
	}
	program, err := s.env.Program(tree, cel.EvalOptions(cel.OptOptimize), cel.CostTracking(estimator), cel.CostLimit(ObjectCost),
		cel.CustomDecoratorV2(bounded), cel.InterruptCheckFrequency(loopCheck))
	if err != nil {
		return nil, &Error{Msg: err.Error()}
	}
	f := &Func{program: program, names: s.names}
	if loops, _, _ := nesting(tree.NativeRep().Expr()); loops == 0 {
		cost, err := s.env.EstimateCost(tree, &library.CostEstimator{SizeEstimator: smallSizes{}})
		if err == nil && cost.Max <= maxLight {
			f.lightCost = cost.Max
			if f.light, err = s.env.Program(tree, cel.EvalOptions(cel.OptOptimize), cel.CustomDecoratorV2(bounded)); err != nil {
				return nil, &Error{Msg: err.Error()}
			}
		}
	}
	result := tree.OutputType()
	if result.Kind() == types.OpaqueKind && result.TypeName() == "optional_type" && len(result.Parameters()) == 1 {
		result, f.optional = result.Parameters()[0], true
	}
	if result.Kind() != types.DynKind {
		p, _ := s.env.CELTypeProvider().(*provider)
		f.result = Type{result, p}
	}
	f.reads = readsOf(tree.NativeRep().Expr(), s.names, nil)
	return f, nil
}

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

// Result returns the type of the result; of an optional result, the one that it has
// if there is one.
func (f *Func) Result() Type { return f.result }

// Optional reports whether the result is optional, so that it may have no value.
func (f *Func) Optional() bool { return f.optional }

// Reads returns the fields that the expression reads. It reads all below them too.
func (f *Func) Reads() []FieldRead { return f.reads }

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

type positional struct {
	names  []string
	values []any
}

func (p positional) ResolveName(name string) (any, bool) {
	i := slices.Index(p.names, name)
	if i < 0 || i >= len(p.values) {
		return nil, false
	}
	return p.values[i], true
}

func (p positional) Parent() cel.Activation { return nil }

// adapter gives CEL the numbers of package exact.
type adapter struct{ types.Adapter }

func (a adapter) NativeToValue(v any) ref.Val {
	switch v := v.(type) {
	case json.Number:
		f, err := v.Float64()
		if err != nil {
			return types.NewErr("%s is no number that CEL holds", v)
		}
		return types.Double(f)
	case map[string]any:
		return types.NewStringInterfaceMap(a, v)
	case []any:
		return objectList{types.NewDynamicList(a, v), v}
	case string:
		return types.String(v)
	}
	return a.Adapter.NativeToValue(v)
}

// objectList is a list of an object, and not one that an expression made.
type objectList struct {
	traits.Lister
	list []any
}

// Native returns a value of CEL as package exact holds it. Values that no object holds
// are an error.
func Native(v ref.Val) (any, error) {
	// Parts of the object have its own numbers.
	if native, ok := v.Value().(map[string]any); ok {
		return native, nil
	}
	switch v := v.(type) {
	case objectList:
		return v.list, nil
	case types.String:
		return string(v), nil
	case types.Int:
		return int64(v), nil
	case types.Bool:
		return bool(v), nil
	case types.Null:
		return nil, nil
	case types.Double:
		if n, ok := exact.Float(float64(v)); ok {
			return n, nil
		}
		return nil, errors.New("the result is not a finite number")
	case traits.Lister:
		list := []any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			item, err := Native(it.Next())
			if err != nil {
				return nil, err
			}
			list = append(list, item)
		}
		return list, nil
	case traits.Mapper:
		m := map[string]any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			name, ok := key.(types.String)
			if !ok {
				return nil, fmt.Errorf("a map has a key of type %s; want string", key.Type().TypeName())
			}
			item, err := Native(v.Get(key))
			if err != nil {
				return nil, err
			}
			m[string(name)] = item
		}
		return m, nil
	}
	return nil, fmt.Errorf("the result is of type %s, which no field holds", v.Type().TypeName())
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

// Entry is a key of a literal and the expression of its value.
type Entry struct{ Name, Text string }

// Literal returns the entries of an expression that is a map literal whose keys are
// constant strings.
func Literal(text string) (entries []Entry, ok bool) {
	if len(text) > maxLength {
		return nil, false
	}
	env, err := base()
	if err != nil {
		return nil, false
	}
	tree, issues := env.Parse(text)
	if issues.Err() != nil || tree.NativeRep().Expr().Kind() != ast.MapKind {
		return nil, false
	}
	for _, e := range tree.NativeRep().Expr().AsMap().Entries() {
		entry := e.AsMapEntry()
		if entry.IsOptional() || entry.Key().Kind() != ast.LiteralKind {
			return nil, false
		}
		name, isText := entry.Key().AsLiteral().(types.String)
		value, err := parser.Unparse(entry.Value(), tree.NativeRep().SourceInfo())
		if !isText || err != nil {
			return nil, false
		}
		entries = append(entries, Entry{string(name), value})
	}
	return entries, len(entries) > 0
}

// Quoted returns an expression whose map literals have quotes around keys that are
// bare names, {name: key} as {"name": key}; ok is false if there are none.
func Quoted(text string) (quoted string, ok bool) {
	env, err := base()
	if err != nil || len(text) > maxLength {
		return "", false
	}
	tree, issues := env.Parse(text)
	if issues.Err() != nil || tree.NativeRep().Expr().Kind() != ast.MapKind {
		return "", false
	}
	var parts []string
	for _, e := range tree.NativeRep().Expr().AsMap().Entries() {
		entry := e.AsMapEntry()
		value, err := parser.Unparse(entry.Value(), tree.NativeRep().SourceInfo())
		if err != nil || entry.Key().Kind() != ast.IdentKind {
			return "", false
		}
		parts = append(parts, fmt.Sprintf("%q: %s", entry.Key().AsIdent(), value))
	}
	return "{" + strings.Join(parts, ", ") + "}", len(parts) > 0
}
