package compat

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	apiservercel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"gitopsd.dev/render/field"
	"gitopsd.dev/render/immutable"
	"gitopsd.dev/render/manifest"
)

// ruleAt is a validation rule of the new schema that has a finding and is yet to be
// compiled.
type ruleAt struct{ path, rule string }

// validations compares x-kubernetes-validations. It pairs rules by their parsed form, and
// the remaining ones by message and field path.
func (w *walk) validations(ctx context.Context, p place, old, new node) {
	o, n := rulesOf(old), rulesOf(new)
	if len(o) == 0 && len(n) == 0 {
		return
	}
	key := func(r map[string]any) string { return manifest.Text(r, "rule") }
	before, after := byKey(o, key), byKey(n, key)
	if len(before) != len(after) || !slices.Equal(slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after))) {
		key = func(r map[string]any) string { return w.read(ctx, manifest.Text(r, "rule")).Form() }
		before, after = byKey(o, key), byKey(n, key)
	}
	var gone []map[string]any
	replaced := make(map[int]bool)    // of gone
	answers := make(map[answer][]int) // of gone, in order
	for _, r := range o {
		if after[key(r)] != nil {
			continue
		}
		if a := w.answer(ctx, r); a != (answer{}) {
			answers[a] = append(answers[a], len(gone))
		}
		gone = append(gone, r)
	}
	for _, r := range n {
		rule := manifest.Text(r, "rule")
		if was := before[key(r)]; was != nil {
			w.sameRule(ctx, p, was, r)
			continue
		}
		from, name, d := any(absent{}), "rule-added", narrower
		a := w.answer(ctx, r)
		if same := answers[a]; len(same) > 0 {
			from, name, d = manifest.Text(gone[same[0]], "rule"), "rule-changed", neither
			replaced[same[0]], answers[a] = true, same[1:]
		}
		if path, ok := immutable.FieldOf(r); ok {
			w.wait(p, rule)
			w.limit(p.at(path), "immutable-added", d, absent{}, immutable.Message)
			continue
		}
		w.newRule(p, rule, name, d, from)
	}
	for i, r := range gone {
		if replaced[i] {
			continue
		}
		if path, ok := immutable.FieldOf(r); ok {
			w.limit(p.at(path), "immutable-removed", wider, immutable.Message, absent{})
			continue
		}
		w.limit(p, "rule-removed", wider, manifest.Text(r, "rule"), absent{})
	}
}

func byKey(rules []map[string]any, key func(map[string]any) string) map[string]map[string]any {
	m := make(map[string]map[string]any, len(rules))
	for _, r := range rules {
		m[key(r)] = r
	}
	return m
}

func rulesOf(s node) []map[string]any { return mappings(s["x-kubernetes-validations"]) }

// answer is what a rule tells a user; empty if it leaves that to the API server. If a new
// rule has the answer of one that is gone, it is likely a new version of that.
type answer struct{ message, expression, fieldPath string }

func (w *walk) answer(ctx context.Context, r map[string]any) answer {
	a := answer{message: manifest.Text(r, "message"), fieldPath: manifest.Text(r, "fieldPath")}
	if manifest.Text(r, "messageExpression") != "" {
		a.expression = w.read(ctx, manifest.Text(r, "messageExpression")).Form()
	}
	return a
}

// sameText reports whether a field of two rules is the same; message expressions
// are compared by their parsed form.
func (w *walk) sameText(ctx context.Context, field string, a, b map[string]any) bool {
	return manifest.Text(a, field) == manifest.Text(b, field) ||
		field == "messageExpression" && w.read(ctx, manifest.Text(a, field)).Form() == w.read(ctx, manifest.Text(b, field)).Form()
}

// sameRule compares the other fields of two rules with the same text.
func (w *walk) sameRule(ctx context.Context, p place, old, new map[string]any) {
	rule := manifest.Text(new, "rule")
	for _, k := range []string{"message", "messageExpression", "fieldPath"} {
		if a, b := manifest.Text(old, k), manifest.Text(new, k); !w.sameText(ctx, k, old, new) {
			if k != "message" && b != "" {
				w.wait(p, rule)
			}
			w.other(p, "rule-message-changed", Documentation, 0, show(rule)+": "+k+": "+changed(a, b))
		}
	}
	reason := func(r map[string]any) any { return orDefault(r["reason"], "FieldValueInvalid") }
	if a, b := reason(old), reason(new); a != b {
		w.other(p, "rule-reason-changed", Compatible, Writers, show(rule)+": "+changed(a, b))
	}
	switch a, b := manifest.Truth(old, "optionalOldSelf"), manifest.Truth(new, "optionalOldSelf"); {
	case !a && b: // now checked on creation, too
		w.newRule(p, rule, "rule-changed", narrower, "only for updates")
	case a && !b:
		w.limit(p, "rule-changed", wider, rule, "only for updates")
	}
}

// newRule reports a rule that is new at its place, and queues it for compilation.
func (w *walk) newRule(p place, rule, name string, d direction, from any) {
	w.wait(p, rule)
	w.limit(p, name, d, from, rule)
}

// wait queues a rule, whose finding is the next one, for compilation.
func (w *walk) wait(p place, rule string) {
	if w.pending == nil {
		w.pending = map[ruleAt][]int{}
	}
	at := ruleAt{p.path, rule}
	w.pending[at] = append(w.pending[at], len(w.findings))
}

// compile compiles the rules of a new schema like the API server, if any of them is new,
// and reports rules that the API server would refuse. New rules that compare an object
// with its previous state do not concern unchanged objects.
func (w *walk) compile(schema node) {
	if len(w.pending) == 0 {
		return
	}
	s, err := internalSchema(schema)
	if err != nil {
		w.refused(place{}, "", err.Error())
		return
	}
	context := validation.RootCELContext(s)
	w.compileNode(place{}, s, context)
	if cost := context.TotalCost.Total; cost > validation.StaticEstimatedCRDCostLimit {
		w.refused(place{}, "all rules together", tooExpensive(cost, validation.StaticEstimatedCRDCostLimit))
	}
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

// compileNode compiles the rules of a schema and of the schemas in it. The context has the
// number of times that they may run for one object.
func (w *walk) compileNode(p place, s *apiextensions.JSONSchemaProps, context *validation.CELSchemaContext) {
	if len(s.XValidations) > 0 {
		w.compileRules(p, context)
	}
	for name, property := range s.Properties {
		w.compileNode(p.at(field.Key(name).String()), &property, context.ChildPropertyContext(&property, name))
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		values := s.AdditionalProperties.Schema
		w.compileNode(p.at("{*}"), values, context.ChildAdditionalPropertiesContext(values))
	}
	if s.Items != nil && s.Items.Schema != nil {
		w.compileNode(p.at("[*]"), s.Items.Schema, context.ChildItemsContext(s.Items.Schema))
	}
}

func (w *walk) compileRules(p place, context *validation.CELSchemaContext) {
	info, err := context.TypeInfo()
	if err != nil {
		w.refused(p, "", err.Error())
		return
	}
	base := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	results, err := apiservercel.Compile(info.Schema, info.DeclType, celconfig.PerCallLimit, base, apiservercel.NewExpressionsEnvLoader())
	if err != nil {
		w.refused(p, "", err.Error())
		return
	}
	for i, r := range results {
		rule := info.Schema.XValidations[i]
		cost := ruleCost(r, context.MaxCardinality)
		context.TotalCost.ObserveExpressionCost(nil, cost)
		if r.MessageExpression != nil {
			context.TotalCost.ObserveExpressionCost(nil, r.MessageExpressionMaxCost)
		}
		waiting := w.pending[ruleAt{p.path, rule.Rule}]
		if len(waiting) == 0 {
			continue
		}
		switch {
		case r.Error != nil:
			w.refused(p, rule.Rule, r.Error.Detail)
		case r.Program == nil:
			w.refused(p, rule.Rule, "a rule must not be empty")
		case r.MessageExpressionError != nil:
			w.refused(p, rule.MessageExpression, r.MessageExpressionError.Detail)
		case cost > validation.StaticEstimatedCostLimit:
			w.refused(p, rule.Rule, tooExpensive(cost, validation.StaticEstimatedCostLimit))
		case r.MessageExpression != nil && r.MessageExpressionMaxCost > validation.StaticEstimatedCostLimit:
			w.refused(p, rule.MessageExpression, tooExpensive(r.MessageExpressionMaxCost, validation.StaticEstimatedCostLimit))
		}
		if rule.FieldPath != "" {
			if _, _, err := apiservercel.ValidFieldPath(rule.FieldPath, info.Schema); err != nil {
				w.refused(p, rule.FieldPath, err.Error())
			}
		}
		if r.UsesOldSelf && (rule.OptionalOldSelf == nil || !*rule.OptionalOldSelf) {
			for _, i := range waiting {
				w.findings[i].Breaks &^= StoredObjects
			}
		}
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

func (w *walk) refused(p place, rule, why string) {
	detail := show(why)
	if rule != "" {
		detail = show(rule) + ": " + detail
	}
	w.other(p, "rule-refused", Breaking, Writers|Controllers, detail)
}
