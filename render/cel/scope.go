package cel

import (
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"k8s.io/apiserver/pkg/cel/library"

	"gitopsd.dev/render/exact"
)

// Variable is a name that expressions may use.
type Variable struct {
	Name string
	Type Type
}

// Scope compiles expressions with a list of variables.
type Scope struct {
	env   *cel.Env
	names []string
}

// base is the environment of all scopes: the functions of [Compile] and of Kubernetes,
// json.marshal and json.unmarshal.
var base = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(append(language(), library.URLs(), library.Regex(), library.Lists(), library.Quantity(), library.IP(), library.CIDR(),
		library.Format(), library.SemverLib(),
		cel.CustomTypeAdapter(adapter{types.DefaultTypeAdapter}),
		cel.Function("json.marshal", cel.Overload("json_marshal_dyn", []*cel.Type{cel.DynType}, cel.StringType, cel.UnaryBinding(marshal))),
		cel.Function("json.unmarshal", cel.Overload("json_unmarshal_string", []*cel.Type{cel.StringType}, cel.DynType, cel.UnaryBinding(unmarshal))))...)
})

func marshal(v ref.Val) ref.Val {
	value, err := native(v)
	if err != nil {
		return types.WrapErr(err)
	}
	text, err := exact.Encode(value)
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

// NewScope returns a scope. All types of variables that come from a schema must come from
// the same schema.
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
	// light is the program without counting its cost. For values that are not larger than
	// smallText it costs at most lightCost. It is nil if the cost has no such limit.
	light     cel.Program
	lightCost uint64
	names     []string
	reads     []FieldRead
	result    Type
	optional  bool
}

// Compile compiles an expression. The error is an [*Error].
func (s *Scope) Compile(text string) (*Func, error) {
	tree, err := checked(s.env, text)
	if err != nil {
		return nil, err
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

// Result returns the type of the result, or of the value of an optional result.
func (f *Func) Result() Type { return f.result }

// Optional reports whether the result is optional, so that it may have no value.
func (f *Func) Optional() bool { return f.optional }

// Reads returns the fields that the expression reads, each with all fields in it.
func (f *Func) Reads() []FieldRead { return f.reads }
