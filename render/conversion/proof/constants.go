package proof

import (
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/validate"
)

// Keywords of this package. constants are the values that rules use together with a
// field, and namedKeys the keys of a map that rules name. decides is set for a schema with
// such a field.
const (
	constants = "\x00constants"
	namedKeys = "\x00namedKeys"
	decides   = "\x00decides"
)

// Limits of what the rules add to a schema.
const (
	mostConstants = 32   // of one field
	mostNamedKeys = 8    // of one map
	mostRead      = 4000 // rules, those of a set once for each use
	mostSought    = 20000
)

// sought is what rules seek in a version: a field, perhaps in elements or under a key of a
// map, and values of it, or of any field in it.
type sought struct {
	path   rules.Path
	values []any
}

// seeker collects what the rules of one version seek.
type seeker struct {
	version string
	sets    map[string][]rules.Rule
	found   []sought
	read    int // rules
}

// seek adds what the rules of a document seek.
func (in *intent) seek(d rules.Document) {
	for _, pair := range d.Pairs {
		s := &seeker{version: pair.From, sets: d.Sets}
		for _, r := range pair.Rules {
			s.rule(r, []place{{}}, false)
		}
		in.sought[pair.From] = append(in.sought[pair.From], s.found...)
	}
}

// place is a field. If it is inexact, the value is somewhere in the field.
type place struct {
	path    rules.Path
	inexact bool
}

func (p place) below(steps ...rules.Step) place {
	if p.inexact {
		return p
	}
	return place{path: append(slices.Clip(p.path), steps...)}
}

// rule adds what a rule and its rules for elements seek. self are the places of self.
func (s *seeker) rule(r rules.Rule, self []place, inSet bool) {
	if s.read++; s.read > mostRead {
		return
	}
	from := s.expression(r.From, self)
	for i := range from {
		from[i].inexact = true
	}
	if path, err := rules.ParsePath(r.From); err == nil && slices.Contains(s.variables(), path[0].Key) {
		from = s.places(path[0].Key, path[1:], self)
		for _, p := range from {
			s.found = append(s.found, sought{p.path, nil}) // for the keys of maps in it
		}
	}
	if r.Transform != "" {
		s.expression(r.Transform, from)
	}
	var elements []place
	for _, p := range from {
		elements = append(elements, p.below(rules.Step{Each: true}))
	}
	for _, item := range r.Items {
		s.rule(item, elements, inSet)
	}
	if r.Use == "" || inSet {
		return // a set may use itself
	}
	for _, item := range s.sets[r.Use] {
		s.rule(item, elements, true)
	}
}

// expression adds what an expression seeks, and returns the places that it reads.
func (s *seeker) expression(text string, self []place) []place {
	used, reads := cel.Constants(text, s.variables()...)
	for _, c := range used {
		values := near(c)
		for _, read := range c.Reads {
			if len(s.found) > mostSought {
				break
			}
			if read.Variable == "key" {
				s.key(c, self)
			}
			for _, p := range s.places(read.Variable, rules.Keys(read.Fields), self) {
				s.found = append(s.found, sought{p.path, values})
			}
		}
	}
	var all []place
	seen := make(map[string]bool)
	for _, read := range reads {
		for _, p := range s.places(read.Variable, rules.Keys(read.Fields), self) {
			if text := p.path.String(); !seen[text] {
				seen[text] = true
				all = append(all, p)
			}
		}
	}
	return all
}

// variables returns the variables of expressions: self, the two names of the whole object,
// and the key of an element.
func (s *seeker) variables() []string { return []string{"self", s.version, "source", "key"} }

// places returns the fields that a path from a variable leads to. A key is no field.
func (s *seeker) places(variable string, path rules.Path, self []place) []place {
	switch variable {
	case "key":
		return nil
	case "self":
		var all []place
		for _, p := range self {
			all = append(all, p.below(path...))
		}
		return all
	}
	return []place{{path: path}}
}

// key adds a key of the map whose elements are at the places.
func (s *seeker) key(c cel.Constant, elements []place) {
	key, ok := c.Value.(string)
	for _, p := range elements {
		if last := len(p.path) - 1; ok && last >= 0 && p.path[last].Each {
			s.found = append(s.found, sought{append(slices.Clip(p.path[:last]), rules.Step{Key: key}), nil})
		}
	}
}

// near returns values for which a function or comparison with a constant has different
// results: the constant, and those beside it.
func near(c cel.Constant) []any {
	switch v := c.Value.(type) {
	case int64:
		numbers := []int64{v}
		if v > math.MinInt64 {
			numbers = append(numbers, v-1)
		}
		if v < math.MaxInt64 {
			numbers = append(numbers, v+1)
		}
		var all []any
		for _, n := range numbers {
			all = append(all, n)
			for _, function := range c.Through {
				if text, ok := measured(function, n); ok {
					all = append(all, text)
				}
			}
		}
		return all
	case float64:
		return []any{v, v - 1, v + 1}
	case string:
		switch c.Function {
		case "startsWith":
			return []any{v, v + "a"}
		case "endsWith":
			return []any{v, "a" + v}
		case "matches", "find", "findAll":
			re, err := regexp.Compile(v)
			if err != nil {
				return nil
			}
			all := slices.DeleteFunc(matching(v), func(text any) bool { return !re.MatchString(text.(string)) })
			return all[:min(len(all), 4)]
		case "duration":
			if d, err := time.ParseDuration(v); err == nil {
				return []any{v, (d - time.Second).String(), (d + time.Second).String()}
			}
		}
	}
	return []any{c.Value}
}

// measured returns a text for which a function of texts or durations gives a number.
func measured(function string, n int64) (text string, ok bool) {
	switch function {
	case "int", "uint", "double":
		return strconv.FormatInt(n, 10), true
	case "size":
		if n < 0 || n > 1024 {
			return "", false
		}
		return strings.Repeat("y", int(n)), true
	}
	unit, ok := map[string]string{"getHours": "h", "getMinutes": "m", "getSeconds": "s", "getMilliseconds": "ms"}[function]
	return strconv.FormatInt(n, 10) + unit, ok
}

// with returns a schema with what the rules seek in it.
func (s schema) with(all []sought) schema {
	values := make(map[string][]any) // by path, since a path may lead to many fields
	for _, one := range all {
		values[one.path.String()] = append(values[one.path.String()], one.values...)
	}
	for _, one := range all {
		path := one.path.String()
		if v, ok := values[path]; ok {
			s = s.at(one.path, v)
			delete(values, path)
		}
	}
	return s
}

// at returns a schema with values for a field, or for all fields in it, and with the keys
// in the path. A schema that lacks the field is returned unchanged.
func (s schema) at(path rules.Path, values []any) schema {
	if len(path) == 0 {
		return s.holding(values)
	}
	step := path[0]
	switch {
	case step.Each || step.Element:
		for _, keyword := range []string{"items", "additionalProperties"} {
			if inner := schema(manifest.Mapping(s, keyword)); inner != nil {
				return s.changed(keyword, inner.at(path[1:], values))
			}
		}
	case s.field(step.Key) != nil:
		return s.changedField(step.Key, s.field(step.Key).at(path[1:], values))
	case s.additional() != nil:
		if own := manifest.List(s, namedKeys); len(own) < mostNamedKeys && !slices.Contains(own, any(step.Key)) {
			s = maps.Clone(s)
			s[namedKeys], s[decides] = append(slices.Clip(own), step.Key), true
		}
		return s.changed("additionalProperties", s.additional().at(path[1:], values))
	}
	return s
}

// holding returns a schema with values for all fields in it.
func (s schema) holding(values []any) schema {
	if len(values) == 0 {
		return s
	}
	if shape := s.shape(); shape == mapping || shape == list {
		s, values = s.holdingSizes(values)
	}
	switch s.shape() {
	case object:
		for name := range manifest.Mapping(s, "properties") {
			s = s.changedField(name, s.field(name).holding(values))
		}
		return s
	case mapping:
		return s.changed("additionalProperties", s.additional().holding(values))
	case list:
		return s.changed("items", s.items().holding(values))
	}
	all := slices.Clip(manifest.List(s, constants))
	for _, v := range values {
		if n, ok := v.(size); ok {
			v = strings.Repeat("y", int(n))
		}
		if len(all) < mostConstants && !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	s = maps.Clone(s)
	s[constants], s[decides] = all, true
	return s
}

// holdingSizes returns a list or map with the sizes among the values, and the other values.
func (s schema) holdingSizes(values []any) (schema, []any) {
	all := slices.Clip(manifest.List(s, sizes))
	var rest []any
	for _, v := range values {
		if _, ok := v.(size); !ok {
			rest = append(rest, v)
		} else if !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	if len(all) == 0 {
		return s, rest
	}
	s = maps.Clone(s)
	s[sizes], s[decides] = all, true
	return s, rest
}

// changed returns a schema with another schema in it, if that decides.
func (s schema) changed(keyword string, inner schema) schema {
	if !inner.truth(decides) {
		return s
	}
	s = maps.Clone(s)
	s[keyword], s[decides] = map[string]any(inner), true
	return s
}

func (s schema) changedField(name string, inner schema) schema {
	if !inner.truth(decides) {
		return s
	}
	properties := maps.Clone(manifest.Mapping(s, "properties"))
	properties[name] = map[string]any(inner)
	s = maps.Clone(s)
	s["properties"], s[decides] = properties, true
	return s
}

// sought returns the values that rules use together with the field, as far as the schema
// admits them.
func (s schema) sought() []any {
	if s["enum"] != nil {
		return nil // all values of the enum are tried
	}
	var all []any
	for _, v := range manifest.List(s, constants) {
		if v, ok := s.typed(v); ok && s.admits(v) && !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return all
}

// typed returns a constant as a value of the schema's type, as far as that and the format
// allow it. Expressions may compare an integer with a float.
func (s schema) typed(v any) (any, bool) {
	if f, ok := v.(float64); ok && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		v = int64(f)
	}
	text, isText := v.(string)
	_, whole := v.(int64)
	switch typ := s.text("type"); {
	case s.truth("x-kubernetes-int-or-string"):
		return v, isText || whole
	case typ == "string":
		return v, isText && validate.Format(s.text("format"), text)
	case typ == "integer":
		return v, whole
	case typ == "number":
		return v, !isText
	default:
		return v, typ == "" && !s.truth("x-kubernetes-embedded-resource")
	}
}

// keys returns the keys of generated maps, those that rules name first.
func (s schema) keys() []string {
	own := s.texts(namedKeys)
	return append(own, slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return slices.Contains(own, k) })...)
}

// key returns the key of the entry with an index in a generated map.
func (s schema) key(i int) string {
	own := s.texts(namedKeys)
	if i < len(own) {
		return own[i]
	}
	return keyOf(i - len(own))
}
