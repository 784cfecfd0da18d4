package compat

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	apiservercel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// retypes are the findings after which a rule that did not change may be refused: the
// values that it reads may be more, larger or of another type, or their earlier state not
// known.
var retypes = map[string]bool{
	"max-length-loosened": true, "max-length-removed": true, "max-items-loosened": true, "max-items-removed": true,
	"max-properties-loosened": true, "max-properties-removed": true, "enum-value-added": true, "enum-removed": true,
	"required-removed": true, "format-added": true, "format-changed": true, "format-removed": true,
	"type-changed": true, "type-narrowed": true, "type-widened": true, "field-removed": true,
	"additional-properties-added": true, "additional-properties-removed": true,
	"embedded-resource-added": true, "embedded-resource-removed": true,
	"list-type-changed": true,
}

// compile compiles the rules of a new schema like the API server, and reports those that
// it would refuse. It does nothing if no rule is new, and no change concerns rules. A new
// rule that keeps a value as it is does not concern unchanged objects.
//
// Once any part of a schema changes, the API server refuses its other rules too, however
// long it had them. Such a rule is reported if the old schema's was not refused. If it
// was, the API server of the cluster seems to estimate costs in another way.
func (w *walk) compile(ctx context.Context, before *definition, old, new node) {
	concerned := w.retyped || slices.ContainsFunc(w.findings, func(f Finding) bool { return retypes[f.Name] })
	if len(w.pending) == 0 && !(concerned && hasRules(new)) {
		return
	}
	now := w.compiled(ctx, new, known(before))
	for at := range now.updates {
		for _, i := range w.pending[at] {
			if w.findings[i].Name == "immutable-added" || w.keeps(ctx, at.rule) {
				w.findings[i].Breaks &^= StoredObjects
			}
		}
	}
	var was *compiled
	for _, r := range now.refusals {
		_, isNew := w.pending[r.rule]
		if isNew = isNew || r.rule == allRules && len(w.pending) > 0; !isNew {
			if was == nil {
				was = w.compiled(ctx, old, apiservercel.StoredExpressionsEnvLoader())
			}
			if was.refuses(r) {
				continue
			}
		}
		w.refused(r)
	}
}

// keeps reports whether a rule only keeps a value as it is. The API server does not accept
// errors of other rules with oldSelf, even if the object stays the same.
func (w *walk) keeps(ctx context.Context, rule string) bool {
	form := w.read(ctx, rule).Form()
	return form == w.read(ctx, "self == oldSelf").Form() || form == w.read(ctx, "oldSelf == self").Form()
}

// known returns the expressions of all versions of a definition.
func known(d *definition) cel.Known {
	k := cel.Known{Rules: make(map[string]bool), Messages: make(map[string]bool)}
	var add func(s node)
	add = func(s node) {
		for _, r := range rulesOf(s) {
			k.Rules[manifest.Text(r, "rule")] = true
			k.Messages[manifest.Text(r, "messageExpression")] = true
		}
		for _, inner := range inside(s) {
			add(inner)
		}
	}
	for _, v := range d.versions {
		add(v.Schema)
	}
	return k
}

// hasRules reports whether a schema has rules, in it or further inside.
func hasRules(s node) bool {
	return len(rulesOf(s)) > 0 || slices.ContainsFunc(inside(s), hasRules)
}

// inside returns the schemas of the values that a value with a schema contains. Only these
// may have rules.
func inside(s node) []node {
	var all []node
	for _, property := range manifest.Mapping(s, "properties") {
		if p, ok := property.(map[string]any); ok {
			all = append(all, p)
		}
	}
	for _, keyword := range []string{"items", "additionalProperties"} {
		if inner := manifest.Mapping(s, keyword); inner != nil {
			all = append(all, inner)
		}
	}
	return all
}

// internalSchema converts a schema to the API server's internal type.
func internalSchema(schema node) (*apiextensions.JSONSchemaProps, error) {
	text, err := json.Marshal(schema)
	if err != nil {
		return nil, err
	}
	var external apiextensionsv1.JSONSchemaProps
	if err := json.Unmarshal(text, &external); err != nil {
		return nil, err
	}
	internal := new(apiextensions.JSONSchemaProps)
	return internal, apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&external, internal, nil)
}

// refusal is the API server's refusal of a rule.
type refusal struct {
	rule ruleAt
	// form is the parsed form of the rule.
	form ruleAt
	// expression is the part that is refused: the rule, its messageExpression or fieldPath.
	// It is empty if the rules cannot be compiled at all.
	expression, why string
}

// allRules stands for all rules of a schema together.
var allRules = ruleAt{rule: "all rules together"}

// compiled is what the API server's compiler says about the rules of a schema.
type compiled struct {
	refusals []refusal
	refused  map[ruleAt]bool // forms of the refused rules
	// updates are the rules that are only checked when an object is changed.
	updates map[ruleAt]bool
}

func (c *compiled) refuse(r refusal) {
	c.refusals = append(c.refusals, r)
	c.refused[r.form] = true
}

// refuses reports whether a refusal of another schema applies to this schema too.
func (c *compiled) refuses(r refusal) bool {
	return c.refused[r.form] || c.refused[ruleAt{path: r.form.path}] || c.refused[ruleAt{}]
}

// compiled compiles the rules of a schema.
func (w *walk) compiled(ctx context.Context, schema node, envs apiservercel.EnvLoader) *compiled {
	c := &compiled{refused: make(map[ruleAt]bool), updates: make(map[ruleAt]bool)}
	s, err := internalSchema(schema)
	if err != nil {
		c.refuse(refusal{why: err.Error()})
		return c
	}
	root := validation.RootCELContext(s)
	x := compiler{shared: w.shared, compiled: c, envs: envs}
	x.node(ctx, "", s, root, "")
	if cost := root.TotalCost.Total; cost > validation.StaticEstimatedCRDCostLimit {
		c.refuse(refusal{rule: allRules, form: allRules, expression: allRules.rule, why: tooExpensive(cost, validation.StaticEstimatedCRDCostLimit)})
	}
	return c
}

// compiler compiles the rules of a schema, place by place.
type compiler struct {
	*shared
	*compiled
	envs apiservercel.EnvLoader
}

// node compiles the rules of a schema and of the schemas in it. The place has the number
// of times that they may run for one object. list is the path of the outermost list around
// it that is not of type map; empty if there is none. The API server does not find the
// earlier state of its elements, so rules in it must not use oldSelf.
func (x *compiler) node(ctx context.Context, path string, s *apiextensions.JSONSchemaProps, at *validation.CELSchemaContext, list string) {
	if len(s.XValidations) > 0 {
		x.rules(ctx, path, at, list)
	}
	for name, property := range s.Properties {
		x.node(ctx, path+field.Key(name).String(), &property, at.ChildPropertyContext(&property, name), list)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		values := s.AdditionalProperties.Schema
		x.node(ctx, path+"{*}", values, at.ChildAdditionalPropertiesContext(values), list)
	}
	if s.Items != nil && s.Items.Schema != nil {
		if list == "" && (s.XListType == nil || *s.XListType != "map") {
			list = path
		}
		x.node(ctx, path+"[*]", s.Items.Schema, at.ChildItemsContext(s.Items.Schema), list)
	}
}

// rulesAtOnce is the number of rules that are compiled between checks of the context.
const rulesAtOnce = 50

// rules compiles the rules of a place.
func (x *compiler) rules(ctx context.Context, path string, at *validation.CELSchemaContext, list string) {
	info, err := at.TypeInfo()
	if err != nil {
		x.refuse(refusal{form: ruleAt{path: path}, rule: ruleAt{path: path}, why: err.Error()})
		return
	}
	base := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	for some := range slices.Chunk(info.Schema.XValidations, rulesAtOnce) {
		if ctx.Err() != nil {
			return
		}
		part := *info.Schema
		part.XValidations = some
		results, err := apiservercel.Compile(&part, info.DeclType, celconfig.PerCallLimit, base, x.envs)
		if err != nil {
			x.refuse(refusal{form: ruleAt{path: path}, rule: ruleAt{path: path}, why: err.Error()})
			return
		}
		for i, r := range results {
			x.rule(ctx, path, info.Schema, some[i], r, at, list)
		}
	}
}

// rule looks at a compiled rule.
func (x *compiler) rule(ctx context.Context, path string, s *structural.Structural, rule apiextensionsv1.ValidationRule, r apiservercel.CompilationResult, at *validation.CELSchemaContext, list string) {
	cost := ruleCost(r, at.MaxCardinality)
	at.TotalCost.ObserveExpressionCost(nil, cost)
	if r.MessageExpression != nil {
		at.TotalCost.ObserveExpressionCost(nil, r.MessageExpressionMaxCost)
	}
	refuse := func(expression, why string) {
		x.refuse(refusal{rule: ruleAt{path, rule.Rule}, form: ruleAt{path, x.read(ctx, rule.Rule).Form()}, expression: expression, why: why})
	}
	switch {
	case r.Error != nil:
		refuse(rule.Rule, r.Error.Detail)
	case r.Program == nil:
		refuse(rule.Rule, "a rule must not be empty")
	case r.MessageExpressionError != nil:
		refuse(rule.MessageExpression, r.MessageExpressionError.Detail)
	case cost > validation.StaticEstimatedCostLimit:
		refuse(rule.Rule, tooExpensive(cost, validation.StaticEstimatedCostLimit))
	case r.MessageExpression != nil && r.MessageExpressionMaxCost > validation.StaticEstimatedCostLimit:
		refuse(rule.MessageExpression, tooExpensive(r.MessageExpressionMaxCost, validation.StaticEstimatedCostLimit))
	case r.UsesOldSelf && list != "":
		refuse(rule.Rule, "oldSelf cannot be used in "+list+", since its x-kubernetes-list-type is not map")
	case !r.UsesOldSelf && rule.OptionalOldSelf != nil:
		refuse(rule.Rule, "optionalOldSelf cannot be set for a rule that does not use oldSelf")
	}
	if rule.FieldPath != "" {
		if _, _, err := apiservercel.ValidFieldPath(rule.FieldPath, s); err != nil {
			refuse(rule.FieldPath, err.Error())
		}
	}
	if r.UsesOldSelf && (rule.OptionalOldSelf == nil || !*rule.OptionalOldSelf) {
		x.updates[ruleAt{path, rule.Rule}] = true
	}
}

// ruleCost returns the estimated cost of a rule times the number of times that it may
// run. If the enclosing schemas do not limit that number, the size of a request does.
func ruleCost(r apiservercel.CompilationResult, cardinality *uint64) uint64 {
	n := r.MaxCardinality
	if cardinality != nil {
		n = *cardinality
	}
	if n != 0 && r.MaxCost > math.MaxUint64/n {
		return math.MaxUint64
	}
	return r.MaxCost * n
}

func tooExpensive(cost, limit uint64) string {
	return fmt.Sprintf("estimated to cost %.3g times the API server's limit", float64(cost)/float64(limit))
}

func (w *walk) refused(r refusal) {
	detail := show(r.why)
	if r.expression != "" {
		detail = show(r.expression) + ": " + detail
	}
	w.other(place{path: r.rule.path}, "rule-refused", Breaking, Writers|Controllers, detail)
}
