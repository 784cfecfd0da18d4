package compat

import (
	"context"
	"maps"
	"slices"

	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	apiservercel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	apiserver "k8s.io/apiserver/pkg/cel"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/immutable"
	"gitopsd.dev/render/manifest"
)

// ruleAt is a validation rule at its place.
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
		if w.spares(ctx, p, old, new, rule) {
			w.wait(p, rule)
			w.add(Finding{
				Name: name, Severity: Compatible, Version: w.version, Path: p.path, Detail: changed(from, rule),
				Advice: "nothing to do: no object has the fields that it reads",
			})
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

// spares reports whether a rule holds for every object of the old schema, since it only reads
// new fields, and holds without them.
func (w *walk) spares(ctx context.Context, p place, old, new node, rule string) bool {
	// A leading dot is another way to write a variable.
	reads, ok := cel.Reads(rule, "self", "oldSelf", ".self", ".oldSelf")
	if !ok || len(reads) == 0 {
		return false
	}
	fields := make(map[string]any)
	for name, f := range manifest.Mapping(new, "properties") {
		if escaped, ok := apiserver.Escape(name); ok && w.isNew(p, old, new, name) {
			fields[escaped] = map[string]any{name: f}
		}
	}
	read := make(map[string]any) // their schemas
	for _, r := range reads {
		if r.Variable != "self" || len(r.Fields) == 0 || fields[r.Fields[0]] == nil {
			return false
		}
		maps.Copy(read, manifest.Mapping(fields, r.Fields[0]))
	}
	internal, err := internalSchema(node{"type": "object", "properties": read, "x-kubernetes-validations": []any{node{"rule": rule}}})
	if err != nil {
		return false
	}
	s, err := structural.NewStructural(internal)
	if err != nil {
		return false
	}
	errs, _ := apiservercel.NewValidator(s, false, celconfig.PerCallLimit).Validate(ctx, nil, s, map[string]any{}, nil, celconfig.RuntimeCELCostBudget)
	return len(errs) == 0
}

// newRule reports a rule that is new at its place.
func (w *walk) newRule(p place, rule, name string, d direction, from any) {
	w.wait(p, rule)
	w.limit(p, name, d, from, rule)
}

// wait has a new rule compiled. The next finding is the rule's.
func (w *walk) wait(p place, rule string) {
	if w.pending == nil {
		w.pending = map[ruleAt][]int{}
	}
	at := ruleAt{p.path, rule}
	w.pending[at] = append(w.pending[at], len(w.findings))
}
