package conversion

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sort"
	"strings"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// pair converts one way between two versions.
type pair struct {
	from, to string
	root     *mapping
	// seen are the schemas of what conversions may change, and ignored the fields of
	// from that are never stashed: dropped on purpose, or computed by the pair back.
	seen, seenTo map[string]any
	ignored      *marks
	back         *pair
}

// mapping converts a value of one schema to one of another.
type mapping struct {
	kind shape
	// schema is the target's.
	schema map[string]any
	// fields are copied from an object's fields of the same name, each by its mapping.
	fields []shared
	// rules write fields of an object, or all of an element.
	rules []*rule
	// item converts elements and values; not lists and maps of anything.
	item *mapping
	// skip are the keys of a map that rules read or write.
	skip map[string]bool
	// rest is set for objects with fields that neither schema has: they are copied.
	rest bool
}

type shape int

const (
	leaf      shape = iota // as it is
	object                 // by fields and rules
	list                   // to a list, each element
	values                 // to a map, each value
	mapToList              // in the order of the keys
	listToMap              // the first of those with one key
)

type shared struct {
	name    string
	mapping *mapping
}

// rule is a compiled rule. It reads a path, and then transforms it or maps it; or it
// is an expression.
type rule struct {
	where string
	// label is the field that it writes, from the object on.
	label  string
	origin origin
	path   rules.Path
	fn     *cel.Func
	// transform has self as the value at path.
	transform bool
	mapping   *mapping
	to        rules.Path
	toKey     bool
	schema    map[string]any
	reads     []fieldRead
}

// origin is what a path starts from.
type origin int

const (
	fromSelf origin = iota
	fromRoot
	fromKey
	computed
)

type fieldRead struct {
	origin origin
	path   rules.Path
}

// compiler compiles one pair.
type compiler struct {
	from, to string
	rootType cel.Type
	src, dst *marks
	errs     []error
	// later plans what is copied, once it is known what all rules read and write.
	later []func()
	// sets are rules by name, and compiledSets what became of them.
	sets         map[string][]rules.Rule
	compiledSets map[string]*mapping
}

func (c *compiler) fail(where, format string, args ...any) {
	if where == "" {
		where = "rules"
	}
	c.errs = append(c.errs, fmt.Errorf("%s: %s to %s: "+format, append([]any{where, c.from, c.to}, args...)...))
}

// scope is what rules read from and write to: the object, or elements.
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

var identifier = regexp.MustCompile(`^[a-z_][a-zA-Z0-9_]*$`)

// variables are those of expressions, in the order of [rule.eval].
func (c *compiler) variables(self cel.Type, key bool) []cel.Variable {
	all := []cel.Variable{{Name: "self", Type: self}}
	if identifier.MatchString(c.from) && c.from != "self" && c.from != "key" {
		all = append(all, cel.Variable{Name: c.from, Type: c.rootType})
	} else {
		all = append(all, cel.Variable{Name: "source", Type: c.rootType})
	}
	if key {
		all = append(all, cel.Variable{Name: "key", Type: cel.StringType})
	}
	return all
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
	sort.SliceStable(all, func(i, j int) bool { return comparePaths(all[i].to, all[j].to) < 0 })
	c.later = append(c.later, func() {
		for i := 1; i < len(all); i++ {
			for _, before := range all[:i] {
				c.overlap(before, all[i])
			}
		}
	})
	return all
}

// overlap refuses a field that two rules write.
func (c *compiler) overlap(a, b *rule) {
	if a.toKey || b.toKey {
		if a.toKey && b.toKey {
			c.fail(b.where, "key is written by %s too", a.where)
		}
		return
	}
	n := min(len(a.to), len(b.to))
	if comparePaths(a.to[:n], b.to[:n]) != 0 {
		return
	}
	if len(a.to) == len(b.to) {
		c.fail(b.where, "%s is written by %s too", b.to, a.where)
	} else if a.mapping == nil || a.mapping.kind != object {
		c.fail(b.where, "%s is part of %s, which %s writes", b.to, a.to, a.where)
	}
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
	if s.item {
		if r.To[0].Key == "key" {
			if s.target == nil || kindOf(s.target) != kindMap {
				c.fail(r.Where, "to: key: the target has no keys; it is a list")
				return nil
			}
			out.toKey = true
			out.schema = map[string]any{"type": "string"}
		}
		out.to = r.To[1:]
		out.label = s.path
		for _, step := range out.to {
			out.label = field.Join(out.label, field.Key(step.Key))
		}
	} else if out.to[0].Key == "apiVersion" || out.to[0].Key == "kind" {
		c.fail(r.Where, "to: %s is the version's, and is written by itself", out.to)
		return nil
	} else if out.to[0].Key == "metadata" && (len(out.to) != 3 || out.to[1].Key != "labels" && out.to[1].Key != "annotations" || out.to[2].Key == manifest.ConversionStashAnnotation) {
		c.fail(r.Where, `to: %s: of metadata only labels and annotations can be written: metadata.annotations["example.org/name"]`, out.to)
		return nil
	}
	target := s.target
	if s.item {
		target = element(s.target)
	}
	if !out.toKey {
		schema, err := in(target, out.to, c.to)
		if err != nil {
			c.fail(r.Where, "to: %v", err)
			return nil
		}
		for i, step := range out.to {
			if of, err := in(target, out.to[:i], c.to); step.Element && err == nil && kindOf(of) != kindList {
				c.fail(r.Where, "to: %s: the schema does not say that %s is a list", r.To, out.to[:i])
				return nil
			}
		}
		out.schema = schema
		s.dst.at(out.to).written = r.Where
	}
	if plain := c.plain(s, r, out); plain != nil || out.origin != computed {
		return plain
	}
	return c.expression(s, r, out)
}

// plain compiles a rule that reads a path; nil with out.origin computed if it is an
// expression.
func (c *compiler) plain(s scope, r rules.Rule, out *rule) *rule {
	out.origin = computed
	path, err := rules.ParsePath(r.From)
	if err != nil {
		return nil
	}
	schema, typ, src := s.schema, s.self, s.src
	switch first := path[0].Key; {
	case first == "self":
		out.origin = fromSelf
	case first == c.from:
		out.origin, schema, typ, src = fromRoot, c.rootType.Schema(), c.rootType, c.src
	case first == "key" && s.key && len(path) == 1:
		out.origin, schema, typ, src = fromKey, map[string]any{"type": "string"}, cel.StringType, &marks{free: true}
	default:
		return nil
	}
	out.path = path[1:]
	found, err := in(schema, out.path, c.from)
	if err != nil {
		out.origin = computed
		if r.Transform != "" || simple(r.From) {
			out.origin = fromSelf
			c.fail(r.Where, "from: %v", err)
		}
		return nil
	}
	typ = c.typeAt(typ, out.path)
	below := src.at(out.path)
	if whole := !slices.ContainsFunc(out.path, func(s rules.Step) bool { return s.Element }); whole {
		below.claimed = true
	} else {
		src.partial(out.path)
	}
	if r.Transform != "" {
		out.transform = true
		fn, ok := c.compile(r.Where, r.Transform, typ, s.key)
		if !ok {
			return nil
		}
		out.fn = fn
		c.read(s, fn, false)
		if err := assignable(fn.Result(), out.schema); err != nil {
			c.fail(r.Where, "to: %s: %v", out.to, err)
			return nil
		}
		return out
	}
	if err := c.checkKind(r, kindOf(found)); err != nil {
		c.fail(r.Where, "%v", err)
		return nil
	}
	if r.Use != "" {
		out.mapping = c.use(r, found, out)
	} else if r.Items != nil {
		out.mapping = c.items(s, r, found, typ, below, out)
	} else {
		dst := s.dst.at(out.to)
		if out.toKey {
			dst = &marks{free: true}
		}
		out.mapping = &mapping{schema: out.schema}
		c.later = append(c.later, func() {
			planned, err := c.plan(found, out.schema, below, dst, r.Where, out.path.String(), false)
			if err != nil {
				c.fail(r.Where, "from %s to %s: %v", r.From, r.To, err)
				return
			}
			*out.mapping = *planned
		})
	}
	if out.mapping == nil {
		return nil
	}
	return out
}

// simple reports whether an expression can be nothing but a path.
func simple(text string) bool { return !strings.ContainsAny(text, "-[") }

func (c *compiler) checkKind(r rules.Rule, kind string) error {
	if r.Kind == "" || r.Kind == kind || r.Kind == "object" && kind == kindAny {
		return nil
	}
	return fmt.Errorf("kind: %s is %s in %s, not %s", r.From, article(kind), c.from, article(r.Kind))
}

// typeAt follows a path in a type.
func (c *compiler) typeAt(t cel.Type, path rules.Path) cel.Type {
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

// items compiles rules for elements.
func (c *compiler) items(s scope, r rules.Rule, schema map[string]any, typ cel.Type, src *marks, out *rule) *mapping {
	m := &mapping{schema: out.schema}
	from, to := kindOf(schema), kindOf(out.schema)
	switch [2]string{from, to} {
	case [2]string{kindList, kindList}:
		m.kind = list
	case [2]string{kindMap, kindMap}:
		m.kind = values
	case [2]string{kindMap, kindList}:
		m.kind = mapToList
	case [2]string{kindList, kindMap}:
		m.kind = listToMap
	default:
		c.fail(r.Where, "itemRules: %s is %s in %s, and %s is %s in %s; both must be lists or maps", r.From, article(from), c.from, r.To, article(to), c.to)
		return nil
	}
	elem, _ := typ.Element()
	inner := scope{self: elem, schema: element(schema), key: from == kindMap, target: out.schema, item: true, path: out.label + "[]",
		src: src.each(), dst: s.dst.at(out.to).each()}
	var keyed []rules.Rule
	for _, item := range r.Items {
		if len(item.To) == 1 && item.To[0].Key == "key" {
			keyed = append(keyed, item)
		}
	}
	if m.kind == listToMap && len(keyed) == 0 {
		c.fail(r.Where, "itemRules: %s is a map, and no rule says what the key is: add {from: self.<field>, to: key}", r.To)
		return nil
	}
	before := len(c.errs)
	compiled := c.rules(inner, r.Items)
	if len(c.errs) > before {
		return nil
	}
	if len(compiled) == 1 && len(compiled[0].to) == 0 && !compiled[0].toKey {
		m.item = &mapping{kind: object, schema: element(out.schema), rules: compiled}
		c.later = append(c.later, func() { c.cover(element(schema), inner.src, r.Where, out.path.String()+"[]") })
		return m
	}
	m.item = &mapping{kind: object, schema: element(out.schema)}
	c.later = append(c.later, func() {
		planned, err := c.plan(element(schema), element(out.schema), inner.src, inner.dst, r.Where, out.path.String()+"[]", true)
		if err == nil && planned.kind == object {
			*m.item = *planned
		} else {
			c.cover(element(schema), inner.src, r.Where, out.path.String()+"[]")
		}
		m.item.rules = compiled
	})
	return m
}

// anything is the schema of elements that a set of rules is for.
var anything = map[string]any{"x-kubernetes-preserve-unknown-fields": true}

// use returns the mapping of a list by a set of rules, which is compiled once: it may
// use itself.
func (c *compiler) use(r rules.Rule, schema map[string]any, out *rule) *mapping {
	for _, side := range []struct {
		schema        map[string]any
		name, version string
	}{{schema, r.From, c.from}, {out.schema, r.To.String(), c.to}} {
		free := kindOf(side.schema) == kindAny
		if kindOf(side.schema) == kindList {
			free = element(side.schema) == nil || kindOf(element(side.schema)) == kindAny
		}
		if !free {
			c.fail(r.Where, "use: %s is %s in %s, and ruleSets are for fields whose schema is open (x-kubernetes-preserve-unknown-fields); write itemRules", side.name, article(kindOf(side.schema)), side.version)
			return nil
		}
	}
	m := &mapping{kind: list, schema: out.schema, item: c.compiledSets[r.Use]}
	if m.item != nil {
		return m
	}
	m.item = &mapping{kind: object, schema: anything, rest: true}
	if c.compiledSets == nil {
		c.compiledSets = map[string]*mapping{}
	}
	c.compiledSets[r.Use] = m.item
	inner := scope{schema: anything, target: map[string]any{"type": "array", "items": anything}, item: true,
		path: out.label + "[]", src: &marks{}, dst: &marks{}}
	m.item.rules = c.rules(inner, c.sets[r.Use])
	item := m.item
	c.later = append(c.later, func() {
		if planned, err := c.plan(anything, anything, inner.src, inner.dst, r.Where, inner.path, true); err == nil {
			planned.rules = item.rules
			*item = *planned
		}
	})
	return m
}

// expression compiles a rule that computes.
func (c *compiler) expression(s scope, r rules.Rule, out *rule) *rule {
	fn, ok := c.compile(r.Where, r.From, s.self, s.key)
	if !ok {
		return nil
	}
	out.fn = fn
	out.reads = c.read(s, fn, true)
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

// maxShown is how much of an expression an error repeats.
const maxShown = 200

func (c *compiler) compile(where, text string, self cel.Type, key bool) (*cel.Func, bool) {
	s, err := cel.NewScope(c.variables(self, key)...)
	if err != nil {
		c.fail(where, "%v", err)
		return nil, false
	}
	fn, err := s.Compile(text)
	if err != nil {
		hint := ""
		if quoted, ok := cel.Quoted(text); ok {
			hint = "; keys are quoted: write '" + quoted + "'"
		} else if strings.Contains(err.Error(), "undeclared reference to 'key'") {
			hint = "; key is there for the values of a map: read spec.colors[key], for example"
		}
		if runes := []rune(text); len(runes) > maxShown {
			text = string(runes[:maxShown]) + "…"
		}
		c.fail(where, "%s: %v%s", text, err, hint)
		return nil, false
	}
	return fn, true
}

// read marks what an expression reads. self is the scope's, or a field's value.
func (c *compiler) read(s scope, fn *cel.Func, self bool) []fieldRead {
	var all []fieldRead
	for _, r := range fn.Reads() {
		var path rules.Path
		for _, f := range r.Fields {
			path = append(path, rules.Step{Key: f})
		}
		switch {
		case r.Variable == "key":
			all = append(all, fieldRead{origin: fromKey})
		case r.Variable != "self":
			c.src.at(path).read = true
			all = append(all, fieldRead{fromRoot, path})
		case self:
			s.src.at(path).read = true
			all = append(all, fieldRead{fromSelf, path})
		}
	}
	return all
}

// assignable returns why a result never fits a field.
func assignable(t cel.Type, schema map[string]any) error {
	want, have := kindOf(schema), t.Kind()
	ok := false
	switch have {
	case "dyn":
		return nil
	case "string":
		ok = want == kindString || want == kindIntOrString
	case "int":
		ok = want == kindInteger || want == kindNumber || want == kindIntOrString
	case "double":
		ok = want == kindNumber
	case "bool":
		ok = want == kindBoolean
	case "null_type", "null":
		ok = nullable(schema)
	case "list":
		if ok = want == kindList; ok {
			elem, _ := t.Element()
			if err := assignable(elem, element(schema)); err != nil {
				return fmt.Errorf("in each element, %w", err)
			}
		}
	case "map":
		ok = want == kindMap || want == kindObject
		if want == kindMap {
			elem, _ := t.Element()
			if err := assignable(elem, element(schema)); err != nil {
				return fmt.Errorf("in each value, %w", err)
			}
		}
	case "object":
		if ok = want == kindObject; ok {
			if err := subtype(t.Schema(), schema); err != nil {
				return err
			}
		} else {
			ok = want == kindMap
		}
	}
	if ok || want == kindAny && (schema["type"] == nil || have == "map" || have == "object") {
		return nil
	}
	hint := ""
	switch {
	case want == kindString && (have == "int" || have == "double" || have == "bool"):
		hint = "; string(…) makes one"
	case want == kindInteger && (have == "string" || have == "double"):
		hint = "; int(…) makes one"
	case want == kindString && have == "google.protobuf.Duration", want == kindString && have == "google.protobuf.Timestamp":
		hint = "; string(…) makes one"
	case want == kindNumber && have == "string":
		hint = "; double(…) makes one"
	}
	return fmt.Errorf("want %s, and the expression gives %s%s", article(want), t, hint)
}

// subtype returns why objects of one schema never fit another.
func subtype(from, to map[string]any) error {
	a, b := kindOf(from), kindOf(to)
	switch {
	case b == kindAny || a == kindAny:
		return nil
	case a == kindObject && b == kindObject:
		for _, name := range keys(manifest.Mapping(from, "properties")) {
			have, want := manifest.Mapping(from, "properties", name), manifest.Mapping(to, "properties", name)
			if want == nil {
				return fmt.Errorf("the expression gives an object with %s, which is no field here", name)
			}
			if err := subtype(have, want); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	case a == b && (a == kindList || a == kindMap):
		return subtype(element(from), element(to))
	case !moves(a, b):
		return fmt.Errorf("want %s, have %s", article(b), article(a))
	}
	return nil
}

// moves reports whether every value of one kind is one of another.
func moves(from, to string) bool {
	return from == to || to == kindAny || to == kindNumber && from == kindInteger ||
		to == kindIntOrString && (from == kindString || from == kindInteger)
}

// plan returns how values of one schema become those of another by copying, without
// what rules read or write.
func (c *compiler) plan(from, to map[string]any, src, dst *marks, where, path string, top bool) (*mapping, error) {
	a, b := kindOf(from), kindOf(to)
	m := &mapping{schema: to}
	switch {
	case a == kindObject && b == kindObject, a == kindAny && b == kindAny && (top || src.any() || dst.any()):
		m.kind = object
		if m.rest = a == kindAny; m.rest {
			m.skip = skipped(src, dst)
		}
		c.object(m, from, to, src, dst, where, path)
		return m, nil
	case a == kindList && b == kindList:
		m.kind = list
	case a == kindMap && b == kindMap:
		m.kind = values
		m.skip = skipped(src, dst)
	case moves(a, b):
		m.kind = leaf
		return m, nil
	default:
		return nil, fmt.Errorf("it is %s in %s and %s in %s; write a rule that converts it", article(a), c.from, article(b), c.to)
	}
	if element(from) == nil || element(to) == nil {
		m.kind = leaf
		return m, nil
	}
	item, err := c.plan(element(from), element(to), src.under(eachMark), dst.child(eachMark), where, path+"[]", false)
	if err != nil {
		return nil, fmt.Errorf("in each element, %w", err)
	}
	m.item = item
	return m, nil
}

func skipped(src, dst *marks) map[string]bool {
	skip := map[string]bool{}
	for _, m := range []*marks{src, dst} {
		for name, child := range m.children {
			if name != eachMark && (child.claimed || child.written != "" || child.drop) {
				skip[name] = true
			}
		}
	}
	return skip
}

// object plans an object's fields, and reports those that nothing converts.
func (c *compiler) object(m *mapping, from, to map[string]any, src, dst *marks, where, path string) {
	have, want := manifest.Mapping(from, "properties"), manifest.Mapping(to, "properties")
	names := maps.Clone(have)
	if m.rest { // with the fields that rules name
		if names == nil {
			names = map[string]any{}
		}
		for _, marked := range []*marks{src, dst} {
			for name := range marked.children {
				if name != eachMark {
					names[name] = nil
				}
			}
		}
	}
	for _, name := range keys(names) {
		s, d := src.under(name), dst.child(name)
		at := name
		if path != "" {
			at = path + "." + name
		}
		schema, target := manifest.Mapping(have, name), manifest.Mapping(want, name)
		free := schema == nil
		if m.rest {
			schema, target = child(from, name), child(to, name)
		}
		if target != nil && !s.claimed && !s.part && !s.drop && d.written == "" {
			before := len(c.errs)
			inner, err := c.plan(schema, target, s, d, where, at, false)
			if err == nil {
				m.fields = append(m.fields, shared{name, inner})
				continue
			}
			if len(c.errs) > before {
				continue
			}
			if !covered(schema, s) {
				c.fail(where, "%s: %v", at, err)
			}
			continue
		}
		if !free {
			c.cover(schema, s, where, at)
		}
	}
}

// cover reports the fields of a schema that nothing reads.
func (c *compiler) cover(schema map[string]any, s *marks, where, path string) {
	if covered(schema, s) {
		return
	}
	if kindOf(schema) == kindObject && s.any() {
		fields := manifest.Mapping(schema, "properties")
		for _, name := range keys(fields) {
			c.cover(manifest.Mapping(fields, name), s.under(name), where, path+"."+name)
		}
		return
	}
	c.fail(where, "%s of %s is lost: nothing reads it; %s", path, c.from, c.remedy(path, s))
}

func covered(schema map[string]any, s *marks) bool {
	if s.kept() || s.claimed || s.drop {
		return true
	}
	fields := manifest.Mapping(schema, "properties")
	if kindOf(schema) != kindObject || len(fields) == 0 {
		return false
	}
	for name := range fields {
		if !covered(manifest.Mapping(fields, name), s.under(name)) {
			return false
		}
	}
	return true
}

// remedy is what to write so that a field is converted.
func (c *compiler) remedy(path string, s *marks) string {
	if s.from != "" {
		return fmt.Sprintf("add the rule {from: %s.%s, to: %s}", c.from, path, s.from)
	}
	if s.part {
		return fmt.Sprintf("rules read only some of its elements: add preserve: [%s], which keeps the others", path)
	}
	return fmt.Sprintf("add a rule {from: %s.%s, to: <field of %s>}, or preserve: [%s], which keeps and restores it, or drop: [%s], which loses it on purpose", c.from, path, c.to, path, path)
}
