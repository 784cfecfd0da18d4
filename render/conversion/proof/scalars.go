package proof

import (
	"math"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"

	"gitopsd.dev/render/manifest"
)

// keys are the keys of generated maps, in the order in which they are used.
var keys = []string{"a", "example.com/dotted-key", "__dunder__", "Ünïcode", ""}

func keyOf(i int) string {
	if i < 4 {
		return keys[i]
	}
	return "k" + strings.Repeat("k", i)
}

// words are strings for fields that accept any string, and formatted are strings by format
// (k8s.io/apiextensions-apiserver, pkg/apiserver/validation/formats.go).
var (
	words = []any{"bob", "Ada Lovelace", "", "b.o-b/1", "x,y", "Ωmega ☃", "true", "2024-01-01", "42", strings.Repeat("long", 70), "line\nline"}

	formatted = map[string][]any{
		"date-time": {"2024-02-29T23:59:60Z", "2024-01-01T00:00:00Z", "2024-01-01T01:02:03.000000004+05:30"},
		"datetime":  {"2024-01-01T00:00:00Z"},
		"date":      {"2024-02-29", "1970-01-01"},
		"duration":  {"1h0m0s", "90m", "1ms", "0s"},
		"byte":      {"aGVsbG8=", "", "/+8="},
		"uri":       {"https://example.org/a?b=c#d", "/a"},
		"email":     {"a@example.org"},
		"hostname":  {"host-1.example.org", "a"},
		"ipv4":      {"192.0.2.1", "0.0.0.0"},
		"ipv6":      {"2001:db8::1", "::"},
		"cidr":      {"192.0.2.0/24", "2001:db8::/32"},
		"mac":       {"00:00:5e:00:53:01"},
		"uuid":      {"123e4567-e89b-42d3-a456-426614174000"}, "uuid4": {"123e4567-e89b-42d3-a456-426614174000"},
		"uuid3": {"123e4567-e89b-32d3-a456-426614174000"}, "uuid5": {"123e4567-e89b-52d3-a456-426614174000"},
		"hexcolor": {"#FFFFFF", "#abc"}, "bsonobjectid": {"507f1f77bcf86cd799439011"},
		"k8s-short-name": {"a", "name-1"}, "k8s-long-name": {"a.b-c", "a"},
	}
	integers = []any{int64(3), int64(0), int64(1), int64(-1), int64(1<<53 + 1), int64(math.MaxInt64), int64(math.MinInt64), int64(math.MaxInt32), int64(60)}
	numbers  = []any{1.5, int64(2), int64(0), -0.25, 1e-7, 1e21, int64(1<<53 + 1)}
	anything = []any{
		map[string]any{"kept": "as it is", "dotted.key/and-dash": int64(1<<53 + 1)}, map[string]any{},
		map[string]any{"list": []any{int64(1), "two", map[string]any{"three": 3.5}}, "null": nil},
	}
	embedded = []any{map[string]any{"apiVersion": "example.io/v1", "kind": "Gadget", "metadata": map[string]any{"name": "inside"}, "data": map[string]any{"a.b": "c"}}}
)

// scalars returns values of a schema that is not an object with properties, a map or a
// list: all values of an enum, or else a typical value, then those at the limits and those
// that rules seek. Values that the schema refuses are left out.
func (s schema) scalars() []any {
	var all []any
	switch {
	case s["enum"] != nil:
		all = slices.Clone(manifest.List(s, "enum"))
	case s.truth("x-kubernetes-int-or-string"):
		all = []any{int64(8080), "http", "50%", int64(0), ""}
	case s.truth("x-kubernetes-embedded-resource"):
		all = slices.Clone(embedded)
	case s.text("type") == "string":
		all = s.strings()
	case s.text("type") == "integer":
		all = append(s.bounds(true), integers...)
	case s.text("type") == "number":
		all = append(s.bounds(false), numbers...)
	case s.text("type") == "boolean":
		all = []any{true, false}
	case s.text("type") == "object" && !s.truth("x-kubernetes-preserve-unknown-fields") && s["additionalProperties"] == nil:
		return []any{map[string]any{}}
	case s.text("type") == "object":
		all = slices.Clone(anything)
	case s.text("type") == "array":
		return []any{[]any{}}
	default:
		all = append(slices.Clone(anything), "text", int64(1), true, []any{"a"})
	}
	if s.truth("nullable") && !slices.Contains(all, nil) {
		all = append(all, nil)
	}
	all = slices.DeleteFunc(all, func(v any) bool { return !s.admits(v) })
	all = append(all, s.sought()...)
	if d, ok := s["default"]; ok && s["enum"] == nil {
		all = append(all, d)
	}
	return all
}

func (s schema) strings() []any {
	var all []any
	if p := s.text("pattern"); p != "" {
		all = matching(p)
	} else if f := formatted[s.text("format")]; f != nil {
		all = slices.Clone(f)
	} else {
		all = slices.Clone(words)
	}
	if s["format"] != nil {
		return all
	}
	for _, keyword := range []string{"minLength", "maxLength"} {
		if n, ok := s[keyword].(int64); ok && n >= 0 && n <= 1024 {
			all = append(all, strings.Repeat("y", int(n)))
		}
	}
	return all
}

// bounds returns the values at minimum and maximum.
func (s schema) bounds(whole bool) []any {
	var all []any
	for _, b := range []struct {
		keyword, exclusive string
		inward             int64
	}{{"minimum", "exclusiveMinimum", 1}, {"maximum", "exclusiveMaximum", -1}} {
		n, ok := number(s[b.keyword])
		if !ok {
			continue
		}
		for _, v := range []float64{n, n + float64(b.inward)} {
			if math.Abs(v) < 1<<62 && v == math.Trunc(v) {
				all = append(all, int64(v))
			} else if !whole {
				all = append(all, v)
			}
		}
	}
	if m, ok := s["multipleOf"].(int64); ok {
		all = append(all, m, 2*m, 5*m)
	}
	if s.text("format") == "int32" {
		all = append(all, int64(math.MinInt32))
	}
	return all
}

// admits reports whether a scalar is within the schema's own limits. It ignores CEL rules
// and unions.
func (s schema) admits(v any) bool {
	if text, ok := v.(string); ok {
		n := int64(utf8.RuneCountInString(text))
		if least, ok := s["minLength"].(int64); ok && n < least {
			return false
		}
		if most, ok := s["maxLength"].(int64); ok && n > most {
			return false
		}
		if p := s.text("pattern"); p != "" {
			re, err := regexp.Compile(p)
			return err == nil && re.MatchString(text)
		}
		return true
	}
	n, ok := number(v)
	if !ok {
		return true
	}
	if least, ok := number(s["minimum"]); ok && (n < least || n == least && s.truth("exclusiveMinimum")) {
		return false
	}
	if most, ok := number(s["maximum"]); ok && (n > most || n == most && s.truth("exclusiveMaximum")) {
		return false
	}
	if s.text("format") == "int32" && (n > math.MaxInt32 || n < math.MinInt32) {
		return false
	}
	if m, ok := number(s["multipleOf"]); ok && m > 0 && math.Mod(n, m) != 0 {
		return false
	}
	return true
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

// matching returns strings that a regular expression may match.
func matching(pattern string) []any {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil
	}
	re = re.Simplify()
	var all []any
	for choice := range 4 {
		var b strings.Builder
		spell(&b, re, choice)
		if !slices.Contains(all, any(b.String())) {
			all = append(all, b.String())
		}
	}
	for _, w := range words {
		if !slices.Contains(all, w) {
			all = append(all, w)
		}
	}
	return all
}

// spell writes a string that an expression matches. The choice selects branches and
// repetitions. Assertions such as \b are ignored.
func spell(b *strings.Builder, re *syntax.Regexp, choice int) {
	switch re.Op {
	case syntax.OpLiteral:
		b.WriteString(string(re.Rune))
	case syntax.OpCharClass:
		ranges := len(re.Rune) / 2
		if ranges == 0 {
			return
		}
		i := 2 * ((ranges - 1 + choice) % ranges) // the last range first: letters come after digits
		b.WriteRune(re.Rune[i] + min(rune(choice), re.Rune[i+1]-re.Rune[i]))
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.WriteByte(byte('m' + choice))
	case syntax.OpCapture, syntax.OpConcat:
		for _, sub := range re.Sub {
			spell(b, sub, choice)
		}
	case syntax.OpAlternate:
		spell(b, re.Sub[choice%len(re.Sub)], choice)
	case syntax.OpPlus, syntax.OpStar, syntax.OpQuest, syntax.OpRepeat:
		n := 1
		switch {
		case re.Op == syntax.OpRepeat:
			n = re.Min
			if choice > 0 && (re.Max < 0 || re.Max > re.Min) {
				n++
			}
		case choice == 1 && re.Op != syntax.OpPlus:
			n = 0
		case choice == 2 && re.Op != syntax.OpQuest:
			n = 3
		}
		for range min(n, 64) {
			spell(b, re.Sub[0], choice)
		}
	}
}
