package conversion

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/conversion/structural"
	"gitopsd.dev/render/manifest"
)

// expression compiles a rule whose from is an expression; it returns nil after an error.
func (c *compiler) expression(s scope, r rules.Rule, out *rule) *rule {
	fn, ok := c.compile(r.Where, r.From, s.self, s.key)
	if !ok {
		return nil
	}
	out.fn = fn
	out.reads = c.read(s, fn, r.Where, true)
	if r.Use != "" {
		c.fail(r.Where, "use: %s is an expression; use is for fields that are read by their path", r.From)
		return nil
	}
	if r.Items != nil {
		schema := map[string]any{"type": "array", "items": map[string]any{}}
		elem, ok := fn.Result().Element()
		if !ok || fn.Result().Kind() != "list" {
			c.fail(r.Where, "itemRules: %s gives %s; want a list", r.From, fn.Result())
			return nil
		}
		if s := elem.Schema(); s != nil {
			schema["items"] = s
		}
		out.mapping = c.items(s, r, schema, fn.Result(), &marks{free: true}, out)
		if out.mapping == nil {
			return nil
		}
		return out
	}
	if err := assignable(fn.Result(), out.schema); err != nil {
		c.fail(r.Where, "to: %s: %v", r.To, err)
		return nil
	}
	return out
}

// maxShown limits how many characters of an expression an error quotes.
const maxShown = 200

// compile compiles an expression, and records an error if it cannot.
func (c *compiler) compile(where, text string, self cel.Type, key bool) (*cel.Func, bool) {
	s, err := cel.NewScope(c.variables(self, key)...)
	if err != nil {
		c.fail(where, "%v", err)
		return nil, false
	}
	fn, err := s.Compile(text)
	if err != nil {
		hint := c.hint(text, err)
		if runes := []rune(text); len(runes) > maxShown {
			text = string(runes[:maxShown]) + "…"
		}
		c.fail(where, "%s: %v%s", text, err, hint)
		return nil, false
	}
	return fn, true
}

// hint returns a hint to add to CEL's error about an expression; it may be empty.
func (c *compiler) hint(text string, err error) string {
	quoted, bare := cel.Quoted(text)
	switch {
	case bare:
		return "; keys are quoted: write '" + quoted + "'"
	case !c.named && c.from != "self" && strings.Contains(text, c.from+"."):
		return fmt.Sprintf("; CEL reads %s as something else: write self, or %s for the whole object", c.from, wholeObject)
	case strings.Contains(err.Error(), "undeclared reference to 'key'"):
		return "; key is there for the values of a map: read spec.colors[key], for example"
	case !strings.Contains(text, c.from+"."):
		return ""
	}
	return namesake(c.rootType.Schema(), c.from)
}

// read marks the fields that an expression reads, and returns them. self reports whether
// the variable self is the scope's; otherwise it is the value of a field.
func (c *compiler) read(s scope, fn *cel.Func, where string, self bool) []fieldRead {
	var all []fieldRead
	mark := func(m *marks) { m.read, m.computed = true, cmp.Or(m.computed, where) }
	for _, r := range fn.Reads() {
		path := rules.Keys(r.Fields)
		switch {
		case r.Variable == "key":
			all = append(all, fieldRead{origin: fromKey})
		case r.Variable != "self":
			mark(c.src.at(path))
			all = append(all, fieldRead{fromRoot, path})
		case self:
			mark(s.src.at(path))
			all = append(all, fieldRead{fromSelf, path})
		}
	}
	return all
}

// assignable returns an error if no result of a type fits a field.
func assignable(t cel.Type, schema map[string]any) error {
	want, have := structural.Kind(schema), t.Kind()
	ok := false
	switch have {
	case "dyn":
		return nil
	case "string":
		ok = want == structural.String || want == structural.IntOrString
	case "int":
		ok = want == structural.Integer || want == structural.Number || want == structural.IntOrString
	case "double":
		ok = want == structural.Number
	case "bool":
		ok = want == structural.Boolean
	case "null_type", "null":
		ok = structural.Nullable(schema)
	case "list":
		if ok = want == structural.List; ok {
			elem, _ := t.Element()
			if err := assignable(elem, structural.Element(schema)); err != nil {
				return fmt.Errorf("in each element, %w", err)
			}
		}
	case "map":
		ok = want == structural.Map || want == structural.Object
		if want == structural.Map {
			elem, _ := t.Element()
			if err := assignable(elem, structural.Element(schema)); err != nil {
				return fmt.Errorf("in each value, %w", err)
			}
		}
	case "object":
		if ok = want == structural.Object; ok {
			if err := subtype(t.Schema(), schema); err != nil {
				return err
			}
		} else {
			ok = want == structural.Map
		}
	}
	if ok || want == structural.Any && (schema["type"] == nil || have == "map" || have == "object") {
		return nil
	}
	hint := ""
	switch {
	case want == structural.String && slices.Contains([]string{"int", "double", "bool", "google.protobuf.Duration", "google.protobuf.Timestamp"}, have):
		hint = "; string(…) makes one"
	case want == structural.Integer && (have == "string" || have == "double"):
		hint = "; int(…) makes one"
	case want == structural.Number && have == "string":
		hint = "; double(…) makes one"
	}
	return fmt.Errorf("want %s, and the expression gives %s%s", structural.Article(want), t, hint)
}

// subtype returns an error if no value of one schema fits another.
func subtype(from, to map[string]any) error {
	a, b := structural.Kind(from), structural.Kind(to)
	switch {
	case b == structural.Any || a == structural.Any:
		return nil
	case a == structural.Object && b == structural.Object:
		for _, name := range slices.Sorted(maps.Keys(manifest.Mapping(from, "properties"))) {
			have, want := manifest.Mapping(from, "properties", name), manifest.Mapping(to, "properties", name)
			if want == nil {
				return fmt.Errorf("the expression gives an object with %s, which is not a field here", name)
			}
			if err := subtype(have, want); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	case a == b && (a == structural.List || a == structural.Map):
		return subtype(structural.Element(from), structural.Element(to))
	case !moves(a, b):
		return fmt.Errorf("want %s, have %s", structural.Article(b), structural.Article(a))
	}
	return nil
}
