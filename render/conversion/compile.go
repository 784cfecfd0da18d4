package conversion

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/conversion/structural"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// compiler compiles one pair.
type compiler struct {
	from, to string
	// place is a document's, for errors that are about no rule.
	place    string
	rootType cel.Type
	src, dst *marks
	errs     []error
	// later are functions that plan the copied fields. They run when the fields that all
	// rules read and write are marked.
	later []func()
	// sets are the rule sets by name, and compiledSets the mappings made of them.
	sets         map[string][]rules.Rule
	compiledSets map[string]*mapping
	// named is set if expressions name the whole object by its version; see variables.
	named bool
}

func (c *compiler) fail(where, format string, args ...any) {
	if where == "" {
		where = c.place
	}
	c.errs = append(c.errs, fmt.Errorf("%s: %s to %s: "+format, append([]any{where, c.from, c.to}, args...)...))
}

// scope is the object, or the elements of one field, that rules read and write.
type scope struct {
	self   cel.Type
	schema map[string]any // of self
	key    bool
	target map[string]any
	// src and dst are the marks at self and at the target.
	src, dst *marks
	item     bool
	path     string // of the target
}

// wholeObject names the whole object in expressions whose version's name is not a CEL
// identifier.
const wholeObject = "source"

// variables returns the variables of expressions, in the order in which [run.value] gives
// their values.
func (c *compiler) variables(self cel.Type, key bool) []cel.Variable {
	all := []cel.Variable{{Name: "self", Type: self}, {Name: wholeObject, Type: c.rootType}}
	if c.named {
		all[1].Name = c.from
	}
	if key {
		all = append(all, cel.Variable{Name: "key", Type: cel.StringType})
	}
	return all
}

// nameable reports whether a version's name can be a variable. Some names are words or
// types of CEL, such as in and list.
func nameable(version string) bool {
	if version == "self" || version == "key" {
		return false
	}
	s, err := cel.NewScope(cel.Variable{Name: version, Type: cel.StringType})
	if err != nil {
		return false
	}
	fn, err := s.Compile(version)
	return err == nil && fn.Result().Kind() == "string"
}

// namesake returns a hint to add to an error about a path of a version, if the version
// has a field of its own name: the path may be meant to begin with that field.
func namesake(schema map[string]any, version string) string {
	if manifest.Mapping(schema, "properties", version) == nil {
		return ""
	}
	return fmt.Sprintf("; %s at the beginning is the version, and its field %s is self.%s", version, version, version)
}

// rules compiles the rules of a scope.
func (c *compiler) rules(s scope, list []rules.Rule) []*rule {
	var all []*rule
	for _, r := range list {
		if compiled := c.rule(s, r); compiled != nil {
			all = append(all, compiled)
		}
	}
	// A field is written before those below it, and elements in their order.
	slices.SortStableFunc(all, func(a, b *rule) int { return comparePaths(a.to, b.to) })
	c.later = append(c.later, func() {
		for i := 1; i < len(all); i++ {
			for _, before := range all[:i] {
				if c.overlap(before, all[i]) {
					break
				}
			}
		}
	})
	return all
}

// overlap records an error if two rules write the same field, and reports whether they
// do.
func (c *compiler) overlap(a, b *rule) bool {
	if a.toKey || b.toKey {
		if a.toKey && b.toKey {
			c.fail(b.where, "key is written by %s too", a.where)
		}
		return a.toKey && b.toKey
	}
	n := min(len(a.to), len(b.to))
	switch {
	case comparePaths(a.to[:n], b.to[:n]) != 0:
		return false
	case len(a.to) == len(b.to):
		c.fail(b.where, "%s is written by %s too", b.to, a.where)
	case a.mapping == nil || a.mapping.kind != object:
		c.fail(b.where, "%s is part of %s, which %s writes", b.to, a.to, a.where)
	default:
		return false
	}
	return true
}

func comparePaths(a, b rules.Path) int {
	return slices.CompareFunc(a, b, func(a, b rules.Step) int {
		if a.Element && b.Element {
			return a.Index - b.Index
		}
		return strings.Compare(a.Key, b.Key)
	})
}

// rule compiles one rule: nil after an error.
func (c *compiler) rule(s scope, r rules.Rule) *rule {
	out := &rule{where: r.Where, to: r.To, label: r.To.String()}
	var err error
	if s.item {
		err = c.itemTarget(s, r, out)
	} else {
		out.whole = true
		err = writable(out.to)
	}
	if err == nil && !out.toKey {
		err = c.target(s, r, out)
	}
	if err != nil {
		c.fail(r.Where, "to: %v", err)
		return nil
	}
	if plain := c.plain(s, r, out); plain != nil || out.origin != computed {
		return plain
	}
	return c.expression(s, r, out)
}

// itemTarget sets the target of a rule for elements: the key, or a field of the element.
func (c *compiler) itemTarget(s scope, r rules.Rule, out *rule) error {
	if r.To[0].Key == "key" {
		if s.target == nil || structural.Kind(s.target) != structural.Map {
			return errors.New("key: the target has no keys; it is a list")
		}
		out.toKey = true
		out.schema = map[string]any{"type": "string"}
	}
	out.to = r.To[1:]
	out.label = s.path
	for _, step := range out.to {
		out.label = field.Join(out.label, field.Key(step.Key))
	}
	return nil
}

// writable returns an error if rules may not write a field of the object.
func writable(to rules.Path) error {
	switch first := to[0].Key; {
	case first == "apiVersion" || first == "kind":
		return fmt.Errorf("%s cannot be written by a rule; the version gives it", to)
	case first != "metadata":
		return nil
	case len(to) == 3 && (to[1].Key == "labels" || to[1].Key == "annotations") && to[2].Key != manifest.ConversionStashAnnotation:
		return qualified(to)
	}
	return fmt.Errorf(`%s: of metadata only labels and annotations can be written: metadata.annotations["example.org/name"]`, to)
}

// target sets the schema of the field that a rule writes, and marks the field.
func (c *compiler) target(s scope, r rules.Rule, out *rule) (err error) {
	target := s.target
	if s.item {
		target = structural.Element(s.target)
	}
	if out.schema, err = structural.In(target, out.to, c.to); err != nil {
		if !s.item {
			err = fmt.Errorf("%w%s", err, namesake(target, c.to))
		}
		return err
	}
	for i, step := range out.to {
		if of, err := structural.In(target, out.to[:i], c.to); step.Element && err == nil && structural.Kind(of) != structural.List {
			return fmt.Errorf("%s: the schema does not say that %s is a list", r.To, out.to[:i])
		}
	}
	s.dst.at(out.to).written = r.Where
	return nil
}

// plain compiles a rule that reads a path; nil with out.origin computed if it is an
// expression.
func (c *compiler) plain(s scope, r rules.Rule, out *rule) *rule {
	out.origin = computed
	path, err := rules.ParsePath(r.From)
	if err != nil {
		return nil
	}
	schema, typ, src, ok := c.origin(s, path, out)
	if !ok {
		return nil
	}
	out.path = path[1:]
	found, err := structural.In(schema, out.path, c.from)
	if err != nil {
		out.origin = computed
		if r.Transform != "" || simple(r.From) {
			out.origin = fromSelf
			hint := ""
			if src == c.src {
				hint = namesake(schema, c.from)
			}
			c.fail(r.Where, "from: %v%s", err, hint)
		}
		return nil
	}
	typ = typeAt(typ, out.path)
	below := src.at(out.path)
	if i := slices.IndexFunc(out.path, func(s rules.Step) bool { return s.Element }); i < 0 {
		below.claimed = true
	} else {
		src.at(out.path[:i]).part = true // the other elements of this list are not read
	}
	if r.Transform != "" {
		below.computed = cmp.Or(below.computed, r.Where)
		return c.transformed(s, r, typ, out)
	}
	if err := c.checkKind(r, structural.Kind(found)); err != nil {
		c.fail(r.Where, "%v", err)
		return nil
	}
	switch {
	case r.Use != "":
		out.mapping = c.use(r, found, out)
	case r.Items != nil:
		out.mapping = c.items(s, r, found, typ, below, out)
	default:
		out.mapping = c.moved(s, r, found, below, out)
	}
	if out.mapping == nil {
		return nil
	}
	return out
}

// origin returns the schema, type and marks of the value that a path starts from; ok is
// false if the path starts with another name.
func (c *compiler) origin(s scope, path rules.Path, out *rule) (schema map[string]any, typ cel.Type, src *marks, ok bool) {
	switch first := path[0].Key; {
	case first == "self":
		out.origin = fromSelf
		return s.schema, s.self, s.src, true
	case first == c.from:
		out.origin = fromRoot
		out.repeats = s.src != c.src
		return c.rootType.Schema(), c.rootType, c.src, true
	case first == "key" && s.key && len(path) == 1:
		out.origin = fromKey
		return map[string]any{"type": "string"}, cel.StringType, &marks{free: true}, true
	}
	return nil, cel.Type{}, nil, false
}

// transformed compiles the transformation of a field's value of type typ.
func (c *compiler) transformed(s scope, r rules.Rule, typ cel.Type, out *rule) *rule {
	out.transform = true
	fn, ok := c.compile(r.Where, r.Transform, typ, s.key)
	if !ok {
		return nil
	}
	out.fn = fn
	c.read(s, fn, r.Where, false)
	if err := assignable(fn.Result(), out.schema); err != nil {
		c.fail(r.Where, "to: %s: %v", out.to, err)
		return nil
	}
	return out
}

// moved maps a field's value to the field that the rule writes. The mapping is planned
// later.
func (c *compiler) moved(s scope, r rules.Rule, found map[string]any, below *marks, out *rule) *mapping {
	dst := s.dst.at(out.to)
	if out.toKey {
		dst = &marks{free: true}
	}
	m := &mapping{schema: out.schema}
	c.later = append(c.later, func() {
		planned, err := c.plan(found, out.schema, below, dst, r.Where, out.path.String(), false)
		if err != nil {
			c.fail(r.Where, "from %s to %s: %v", r.From, r.To, err)
			return
		}
		*m, below.copied = *planned, true
	})
	return m
}

// simple reports whether a text that parses as a path cannot be another expression.
func simple(text string) bool { return !strings.ContainsAny(text, "-[") }

func (c *compiler) checkKind(r rules.Rule, kind string) error {
	if r.Kind == "" || r.Kind == kind || r.Kind == "object" && kind == structural.Any {
		return nil
	}
	return fmt.Errorf("kind: %s is %s in %s, not %s", r.From, structural.Article(kind), c.from, structural.Article(r.Kind))
}

// typeAt follows a path in a type.
func typeAt(t cel.Type, path rules.Path) cel.Type {
	for _, s := range path {
		var ok bool
		if s.Element || s.Each {
			t, ok = t.Element()
		} else {
			t, ok = t.Field(s.Key)
		}
		if !ok {
			return cel.Type{}
		}
	}
	return t
}
