package compat

import (
	"cmp"
	"context"
	"math"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/validate"

	"gitopsd.dev/render/manifest"
)

// format compares formats. The API server does not check formats that it does not
// know, but clients may. Rules in CEL read some formats as another type: without its
// format a duration is a text, and 90m is more than 2h.
func (w *walk) format(ctx context.Context, p place, old, new node) {
	o, n := manifest.Text(old, "format"), manifest.Text(new, "format")
	if o == n {
		return
	}
	name := "format-changed"
	var from, to any = o, n
	switch {
	case o == "":
		name, from = "format-added", absent{}
	case n == "":
		name, to = "format-removed", absent{}
	}
	was, is := checkedFormat(manifest.Text(old, "type"), o), checkedFormat(manifest.Text(new, "type"), n)
	rule := ""
	if !p.nested && typeInRules(old) != typeInRules(new) {
		rule = w.readBy(ctx, p, new)
	}
	switch {
	case rule != "":
		w.limit(p, name, neither, from, to)
		w.findings[len(w.findings)-1].Detail += ", which changes the meaning of " + rule
	case was == is:
		w.other(p, name, Compatible, Readers, changed(from, to))
	case was == "":
		w.limit(p, name, narrower, from, to)
	case is == "":
		w.limit(p, name, wider, from, to)
	default:
		w.limit(p, name, neither, from, to)
	}
}

// typeInRules returns the type that rules in CEL give the strings of a schema.
func typeInRules(s node) string {
	if manifest.Text(s, "type") == "string" {
		switch format := manifest.Text(s, "format"); format {
		case "byte", "duration":
			return format
		case "date", "date-time":
			return "timestamp"
		}
	}
	return "string"
}

// readBy names a rule of the new schema that may read a field; empty if there is none. A rule
// around the field reads it by the first name that leads to it. Elements have no name.
func (w *walk) readBy(ctx context.Context, p place, new node) string {
	if rules := rulesOf(new); len(rules) > 0 {
		return "the rule " + show(manifest.Text(rules[0], "rule")) + " of the field"
	}
	for in := p.around; in != nil; in = in.place.around {
		c := w.checksOf(ctx, in)
		i, ok := c.byField.First(in.element)
		if in.element == "[*]" || in.element == "{*}" {
			i, ok = 0, len(c.rules) > 0
		}
		if ok {
			return "the rule " + show(c.rules[i]) + " of " + cmp.Or(in.place.path, "the object")
		}
	}
	return ""
}

// checkedFormat returns the name under which the API server looks up a format; "" if it
// does not check the format.
func checkedFormat(typ, format string) string {
	if format == "" {
		return ""
	}
	s := spec.Schema{SchemaProps: spec.SchemaProps{Format: format}}
	if typ != "" {
		s.Type = []string{typ}
	}
	if len(validation.GetUnrecognizedFormats(&s, environment.DefaultCompatibilityVersion())) > 0 {
		return ""
	}
	if format == "int64" || format == "double" || format == "password" && typ == "string" {
		// Every number matches int64 and double, and every string matches password. Without
		// a type, password requires a string.
		return ""
	}
	return strings.ReplaceAll(format, "-", "")
}

func (w *walk) enum(p place, old, new node) {
	o, n := manifest.List(old, "enum"), manifest.List(new, "enum")
	if !w.presence(p, "enum", len(o) > 0, len(n) > 0, o, n) {
		return
	}
	for _, v := range without(o, n) {
		w.limit(p, "enum-value-removed", narrower, v, absent{})
	}
	for _, v := range without(n, o) {
		w.limit(p, "enum-value-added", wider, absent{}, v)
	}
}

// without returns the elements of a that are not in b, each once.
func without(a, b []any) []any {
	seen := make(map[string]bool, len(b))
	for _, v := range b {
		seen[form(v)] = true
	}
	var left []any
	for _, v := range a {
		if f := form(v); !seen[f] {
			seen[f] = true
			left = append(left, v)
		}
	}
	return left
}

func number(s node, keyword string) (float64, bool) {
	switch v := s[keyword].(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

// bounds compares limits on sizes and numbers.
func (w *walk) bounds(p place, old, new node) {
	for _, b := range [...]struct{ keyword, name string }{
		{"maxLength", "max-length"}, {"maxItems", "max-items"}, {"maxProperties", "max-properties"},
	} {
		o, inOld := number(old, b.keyword)
		n, inNew := number(new, b.keyword)
		w.bound(p, b.name, bound{value: o, set: inOld}, bound{value: n, set: inNew}, +1)
	}
	for _, b := range [...]struct{ keyword, name string }{
		{"minLength", "min-length"}, {"minItems", "min-items"}, {"minProperties", "min-properties"},
	} {
		// No size is below zero.
		o, _ := number(old, b.keyword)
		n, _ := number(new, b.keyword)
		w.bound(p, b.name, bound{value: o, set: o > 0}, bound{value: n, set: n > 0}, -1)
	}
	w.bound(p, "maximum", limitOf(old, "maximum", "exclusiveMaximum", +1), limitOf(new, "maximum", "exclusiveMaximum", +1), +1)
	w.bound(p, "minimum", limitOf(old, "minimum", "exclusiveMinimum", -1), limitOf(new, "minimum", "exclusiveMinimum", -1), -1)
	w.multipleOf(p, old, new)
}

// bound is one limit of a range.
type bound struct {
	value     float64
	exclusive bool
	set       bool
	// empty is set if the API server refuses every value because the type cannot have the
	// limit: 3.5 for integers, or 1<<40 for those of format int32.
	empty bool
}

func limitOf(s node, keyword, exclusive string, sign float64) bound {
	v, set := number(s, keyword)
	b := bound{value: v, set: set, exclusive: set && manifest.Truth(s, exclusive)}
	typ := manifest.Text(s, "type")
	if set && validate.IsValueValidAgainstRange(v, typ, checkedFormat(typ, manifest.Text(s, "format")), keyword, "") != nil {
		b.empty = true
		return b
	}
	if b.exclusive && typ == "integer" && v == math.Trunc(v) && math.Abs(v) < 1<<53 {
		return bound{value: v - sign, set: true} // below 5 is up to 4
	}
	return b
}

func (b bound) show() any {
	switch {
	case !b.set:
		return absent{}
	case b.exclusive:
		return show(b.value) + " (exclusive)"
	}
	return b.value
}

// bound compares an upper limit (sign +1) or a lower one (sign -1).
func (w *walk) bound(p place, name string, old, new bound, sign float64) {
	order := func(b bound) (float64, float64) {
		if b.exclusive {
			return sign * b.value, -1
		}
		return sign * b.value, 0
	}
	if !w.presence(p, name, old.set, new.set, old.show(), new.show()) {
		return
	}
	if new.empty && !old.empty {
		w.limit(p, name+"-tightened", narrower, old.show(), new.show())
		return
	}
	ov, oe := order(old)
	nv, ne := order(new)
	switch d := cmp.Or(cmp.Compare(nv, ov), cmp.Compare(ne, oe)); {
	case d == -1:
		w.limit(p, name+"-tightened", narrower, old.show(), new.show())
	case d == +1 && new.exclusive && !old.exclusive && math.Trunc(new.value) == math.Trunc(old.value):
		// The API server drops the fraction of a limit before it compares an integer with
		// it: 3 is not below 3.5.
		w.limit(p, name+"-tightened", neither, old.show(), new.show())
	case d == +1:
		w.limit(p, name+"-loosened", wider, old.show(), new.show())
	}
}

func (w *walk) multipleOf(p place, old, new node) {
	o, inOld := number(old, "multipleOf")
	n, inNew := number(new, "multipleOf")
	if !w.presence(p, "multiple-of", inOld, inNew, o, n) || o == n {
		return
	}
	divides := func(a, b float64) bool { return a != 0 && math.Mod(b, a) == 0 }
	switch {
	case divides(n, o) && n == math.Trunc(n):
		// The API server drops the fraction of a factor before it divides an integer by
		// it, so a factor with a fraction may narrow.
		w.limit(p, "multiple-of-loosened", wider, o, n)
	case divides(o, n):
		w.limit(p, "multiple-of-tightened", narrower, o, n)
	default:
		w.limit(p, "multiple-of-changed", neither, o, n)
	}
}

// pattern compares regular expressions by their text. It does not decide which one
// accepts more.
func (w *walk) pattern(p place, old, new node) {
	o, n := manifest.Text(old, "pattern"), manifest.Text(new, "pattern")
	if w.presence(p, "pattern", o != "", n != "", o, n) && o != n {
		w.limit(p, "pattern-changed", neither, o, n)
	}
}
