// Package rules reads documents of conversion rules. Rules may be spelled in several
// ways; [Parse] accepts all and returns one form.
//
// A document has one of these kinds:
//
//	APIConversionRules  apis.kcp.dev/v1alpha1
//	APIConversion       apis.kcp.io/v1alpha1
//
// Its spec has hub, the name of a version, and conversions. Each conversion names two
// versions and has rules:
//
//	from: v1, to: v2, rules: […]           a list of rules
//	from: v1, to: v2, rule: …, field: …    the entry is itself one rule
//	version: v2, fromHub: […], toHub: […]  two lists, from the hub and to it
//
// A rule names the field that it reads and the field that it writes:
//
//	from: v1.spec.a, to: spec.b
//	rule: self.spec.a, field: spec.b
//	field: spec.a, destination: spec.b     or to; transformation is CEL about the field
//
// itemRules are rules for the elements of a list or map: self is the element, and key is
// its key in a map; they write to item, item.field or key. Paths may also name elements:
// spec.colors[i].name.
//
// ruleSets has named lists of rules for elements, and a rule with use applies one
// instead of itemRules. Rule sets are for elements of open schemas, which may contain
// elements of the same kind.
//
// A path may begin with self or the version's name, which both mean the object. So if a
// version v1 has a field v1, the path of the field is self.v1.
//
// In an expression, the version's name is the whole object, and self is the object or
// the element. The whole object is source if CEL does not accept the name. Expressions may
// use the functions of the API server's expressions, json.marshal and json.unmarshal. An
// empty optional result is absent. If no field that an expression reads is there, the
// result is only written if its parent exists.
//
// Package conversion resolves paths and expressions in schemas.
package rules

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Document is one document in normal form.
type Document struct {
	// Hub is empty if the document sets none.
	Hub   string
	Pairs []Pair
	// Sets are the rule sets by name; rules refer to them with Use.
	Sets map[string][]Rule
}

// Pair has the rules of a document for converting from one version to another.
type Pair struct {
	From, To string
	Rules    []Rule
	// Preserve and Drop are fields of From, and Derive fields of To.
	Preserve, Drop, Derive []Field
}

// Field is a path, and its place in the document.
type Field struct {
	Where string
	Path  Path
}

// Rule writes one field.
type Rule struct {
	// Where is the place in the document: "conversions[0].rules[1]".
	Where string
	// From is a path with the name that it starts from, or an expression.
	From string
	// Transform is an expression about the value of From, which is then a path;
	// empty if there is none.
	Transform string
	// To is a path in the target object. In rules for items its first step is "item", or
	// the path is "key".
	To Path
	// Kind is the kind that From must have: "list", "map" or "object", or empty.
	Kind string
	// Items are the rules for elements; nil if there are none.
	Items []Rule
	// Use names a rule set to use instead of Items.
	Use string
}

// Label names the schema or CRD that a document belongs to, if its own name does not.
const Label = "apis.kcp.dev/apiresourceschema"

// Kinds of documents, by apiVersion.
var kinds = map[string]string{
	manifest.APIConversionRules.APIVersion("v1alpha1"): manifest.APIConversionRules.Kind,
	manifest.APIConversion.APIVersion("v1alpha1"):      manifest.APIConversion.Kind,
}

// Is reports whether a document claims to be conversion rules.
func Is(tree map[string]any) bool {
	return slices.Contains(manifest.ConversionRules, manifest.KindOf(tree))
}

// Belongs reports whether the document has conversion rules for the schema or CRD of
// that name.
func Belongs(tree map[string]any, name string) bool { return Is(tree) && Subject(tree) == name }

// Subject returns the name of the schema or CRD that a document of rules belongs to.
func Subject(tree map[string]any) string {
	if label, ok := manifest.Mapping(tree, "metadata", "labels")[Label]; ok && label != nil {
		name, _ := label.(string)
		return name
	}
	return manifest.Text(tree, "metadata", "name")
}

// Parse reads a document. The error joins all faults, one in each line, which begins with
// its place in spec.
func Parse(tree map[string]any) (Document, error) {
	p := &parser{}
	apiVersion := manifest.Text(tree, "apiVersion")
	want, ok := kinds[apiVersion]
	if kind := manifest.Text(tree, "kind"); !ok {
		p.fail("apiVersion", "%q is not known; conversion rules have apis.kcp.dev/v1alpha1", apiVersion)
	} else if kind != want {
		p.fail("kind", "%q is not known in %s; want %s", kind, apiVersion, want)
	}
	if manifest.Text(tree, "metadata", "name") == "" {
		p.fail("metadata.name", "is missing; name the APIResourceSchema or CRD that the rules belong to")
	}
	p.known("", tree, "apiVersion", "kind", "metadata", "spec")
	d := Document{}
	if spec, ok := p.mapping("spec", tree["spec"]); ok {
		p.known("spec", spec, "hub", "conversions", "ruleSets")
		p.hub = p.text("spec.hub", spec["hub"])
		d.Hub = p.hub
		if spec["ruleSets"] != nil {
			sets, _ := p.mapping("spec.ruleSets", spec["ruleSets"])
			p.sets = map[string][]Rule{}
			for _, name := range slices.Sorted(maps.Keys(sets)) {
				p.sets[name] = p.items(&Pair{}, "ruleSets."+name, sets[name])
			}
		}
		if spec["conversions"] == nil {
			p.fail("spec.conversions", "is missing")
		}
		for i, entry := range p.list("spec.conversions", spec["conversions"]) {
			p.entry(fmt.Sprintf("conversions[%d]", i), entry)
		}
	}
	d.Pairs, d.Sets = p.pairs, p.sets
	uses := map[string]bool{}
	var used func(list []Rule)
	used = func(list []Rule) {
		for _, r := range list {
			uses[r.Use] = true
			if _, ok := d.Sets[r.Use]; r.Use != "" && !ok {
				p.fail(r.Where+".use", "there is no %q under ruleSets%s", r.Use, sources.Meant(r.Use, slices.Sorted(maps.Keys(d.Sets))))
			}
			used(r.Items)
		}
	}
	for _, pair := range d.Pairs {
		used(pair.Rules)
	}
	for _, name := range slices.Sorted(maps.Keys(d.Sets)) {
		used(d.Sets[name])
	}
	for _, name := range slices.Sorted(maps.Keys(d.Sets)) {
		if !uses[name] {
			p.fail("ruleSets."+name, "no rule has use: %s; remove the set, or use it", name)
		}
	}
	return d, errors.Join(p.errs...)
}

// mostRules limits the rules of a document. Compiling each takes time and memory.
const mostRules = 2000

type parser struct {
	hub   string
	sets  map[string][]Rule
	pairs []Pair
	count int // of rules
	errs  []error
}

func (p *parser) fail(where, format string, args ...any) {
	text := where + ": " + fmt.Sprintf(format, args...)
	p.errs = append(p.errs, errors.New(strings.ReplaceAll(text, "\n", " ")))
}

// known records an error for each key of m that is not among keys.
func (p *parser) known(where string, m map[string]any, keys ...string) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(keys, k) {
			at := k
			if where != "" {
				at = where + "." + k
			}
			p.fail(at, "is not a field here%s", sources.Meant(k, keys))
		}
	}
}

func (p *parser) mapping(where string, v any) (map[string]any, bool) {
	m, ok := v.(map[string]any)
	if !ok {
		p.fail(where, "want a mapping, have %s", described(v))
	}
	return m, ok
}

func (p *parser) list(where string, v any) []any {
	list, ok := v.([]any)
	if !ok && v != nil {
		p.fail(where, "want a list, have %s", described(v))
	}
	return list
}

// text returns a string; empty for an absent one.
func (p *parser) text(where string, v any) string {
	s, ok := v.(string)
	if !ok && v != nil {
		p.fail(where, "want a string, have %s", described(v))
	}
	return s
}

func described(v any) string {
	switch v := v.(type) {
	case nil:
		return "nothing"
	case map[string]any:
		return "a mapping"
	case []any:
		return "a list"
	default:
		return fmt.Sprintf("%v", v)
	}
}

// entry reads one element of conversions.
func (p *parser) entry(where string, v any) {
	m, ok := p.mapping(where, v)
	if !ok {
		return
	}
	if m["version"] != nil || m["fromHub"] != nil || m["toHub"] != nil {
		p.hubEntry(where, m)
		return
	}
	pair := Pair{From: p.text(where+".from", m["from"]), To: p.text(where+".to", m["to"])}
	for _, side := range []struct{ key, version string }{{"from", pair.From}, {"to", pair.To}} {
		if side.version == "" {
			p.fail(where+"."+side.key, "is missing; name a version")
		} else if strings.ContainsAny(side.version, ".[ ") {
			p.fail(where+"."+side.key, "%q is not a version; the fields of rules stand below rules, or in rule and field", side.version)
		}
	}
	p.known(where, m, "from", "to", "rules", "preserve", "drop", "derive", "rule", "field", "destination", "transformation", "itemRules", "kind")
	if m["rule"] != nil || m["field"] != nil || m["destination"] != nil || m["transformation"] != nil || m["itemRules"] != nil {
		one := map[string]any{}
		for _, key := range []string{"rule", "field", "destination", "transformation", "itemRules", "kind"} {
			if m[key] != nil {
				one[key] = m[key]
			}
		}
		p.rule(&pair, where, one)
	}
	p.rules(&pair, where+".rules", m["rules"])
	pair.Preserve = p.fields(pair.From, where+".preserve", m["preserve"])
	pair.Drop = p.fields(pair.From, where+".drop", m["drop"])
	pair.Derive = p.fields(pair.To, where+".derive", m["derive"])
	p.add(pair)
}

func (p *parser) hubEntry(where string, m map[string]any) {
	p.known(where, m, "version", "fromHub", "toHub")
	version := p.text(where+".version", m["version"])
	switch {
	case version == "":
		p.fail(where+".version", "is missing; name the version that is converted from the hub and to it")
		return
	case p.hub == "":
		p.fail(where, "fromHub and toHub need spec.hub, the version that they mean")
		return
	case version == p.hub:
		p.fail(where+".version", "%q is the hub itself", version)
		return
	}
	from, to := Pair{From: p.hub, To: version}, Pair{From: version, To: p.hub}
	p.rules(&from, where+".fromHub", m["fromHub"])
	p.rules(&to, where+".toHub", m["toHub"])
	p.add(from)
	p.add(to)
}

// add adds a pair, or joins it with an earlier pair of the same versions.
func (p *parser) add(pair Pair) {
	for i := range p.pairs {
		if have := &p.pairs[i]; have.From == pair.From && have.To == pair.To {
			have.Rules = Merge(append(have.Rules, pair.Rules...))
			have.Preserve = append(have.Preserve, pair.Preserve...)
			have.Drop = append(have.Drop, pair.Drop...)
			have.Derive = append(have.Derive, pair.Derive...)
			return
		}
	}
	pair.Rules = Merge(pair.Rules)
	p.pairs = append(p.pairs, pair)
}

func (p *parser) fields(version, where string, v any) []Field {
	var all []Field
	for i, item := range p.list(where, v) {
		at := fmt.Sprintf("%s[%d]", where, i)
		text := p.text(at, item)
		path, err := ParsePath(text)
		if err != nil {
			p.fail(at, "%v", err)
			continue
		}
		all = append(all, Field{Where: at, Path: unrooted(path, version)})
	}
	return all
}

// unrooted returns the path without self or the version's name at its start.
func unrooted(p Path, version string) Path {
	if first := p[0]; !first.Element && !first.Each && (first.Key == version || first.Key == "self") && len(p) > 1 {
		return p[1:]
	}
	return p
}

func (p *parser) rules(pair *Pair, where string, v any) {
	for i, item := range p.list(where, v) {
		at := fmt.Sprintf("%s[%d]", where, i)
		if m, ok := p.mapping(at, item); ok {
			p.rule(pair, at, m)
		}
	}
}

func (p *parser) rule(pair *Pair, where string, m map[string]any) {
	if r, ok := p.one(pair, where, m, false); ok {
		pair.Rules = append(pair.Rules, r)
	}
}

// one reads a rule in any spelling. item says that it is among itemRules.
func (p *parser) one(pair *Pair, where string, m map[string]any, item bool) (Rule, bool) {
	if p.count++; p.count > mostRules {
		if p.count == mostRules+1 {
			p.fail(where, "is one rule more than the %d that a document may have", mostRules)
		}
		return Rule{}, false
	}
	before := len(p.errs)
	p.known(where, m, "from", "to", "rule", "field", "destination", "transformation", "kind", "itemRules", "use")
	read := make(map[string]string)
	for _, key := range []string{"from", "to", "rule", "field", "destination", "transformation", "kind"} {
		if literal, ok := m[key].(map[string]any); ok && key == "transformation" {
			p.fail(where+".transformation", "is a YAML mapping; CEL is a string: write '%s'", literalText(literal))
			continue
		}
		read[key] = strings.TrimSpace(p.text(where+"."+key, m[key]))
	}
	r := Rule{Where: where, Transform: read["transformation"], Kind: read["kind"]}
	to := ""
	switch {
	case read["destination"] != "" && read["to"] != "":
		p.fail(where, "has both to and destination; they mean the same")
	case read["from"] != "" && read["rule"] != "":
		p.fail(where, "has both from and rule; they mean the same")
	case read["from"] != "" && read["field"] == "", read["rule"] != "" && read["field"] == "":
		r.From, to = read["from"]+read["rule"], read["to"]+read["destination"]
	case read["from"] != "" || read["rule"] != "":
		// field is the target beside an expression.
		if read["to"]+read["destination"] != "" {
			p.fail(where, "field is the target beside rule or from, and the source beside to or destination; it cannot be both")
		}
		r.From, to = read["from"]+read["rule"], read["field"]
	case read["field"] != "":
		path, err := ParsePath(read["field"])
		if err != nil {
			p.fail(where+".field", "%v", err)
			break
		}
		r.From, to = rootedText(path, pair.From), read["to"]+read["destination"]
	default:
		p.fail(where, "reads nothing: from, rule or field is missing")
	}
	if len(p.errs) > before {
		return r, false
	}
	if to == "" {
		p.fail(where, "writes nothing: to is missing")
		return r, false
	}
	path, err := ParsePath(to)
	if err != nil {
		p.fail(where+".to", "%v", err)
		return r, false
	}
	r.To = unrooted(path, pair.To)
	if first := path[0].Key; item && first != "item" && (first != "key" || len(path) > 1) {
		p.fail(where+".to", "%q: rules for items write to item, item.<field> or key; did you mean item.%s?", to, to)
	}
	if r.Kind != "" && !slices.Contains([]string{"list", "map", "object"}, r.Kind) {
		p.fail(where+".kind", "%q is none of list, map and object%s", r.Kind, sources.Meant(r.Kind, []string{"list", "map", "object"}))
	}
	if m["itemRules"] != nil {
		if r.Transform != "" {
			p.fail(where, "has both transformation and itemRules")
		}
		r.Items = p.items(pair, where+".itemRules", m["itemRules"])
	}
	if r.Use = p.text(where+".use", m["use"]); r.Use != "" && (r.Items != nil || r.Transform != "") {
		p.fail(where, "has use beside itemRules or transformation")
	}
	if len(p.errs) > before {
		return r, false
	}
	r, err = nested(r, read["field"] != "" && read["from"]+read["rule"] == "")
	if err != nil {
		p.fail(where, "%v", err)
		return r, false
	}
	return r, true
}

// items reads rules for elements.
func (p *parser) items(pair *Pair, where string, v any) []Rule {
	list := p.list(where, v)
	if len(list) == 0 {
		p.fail(where, "has no rules")
	}
	var all []Rule
	for i, v := range list {
		at := fmt.Sprintf("%s[%d]", where, i)
		if m, ok := p.mapping(at, v); ok {
			if inner, ok := p.one(pair, at, m, true); ok {
				all = append(all, inner)
			}
		}
	}
	return Merge(all)
}

func rootedText(path Path, version string) string {
	return append(Path{{Key: "self"}}, unrooted(path, version)...).String()
}

// literalText writes a YAML mapping as a CEL map.
func literalText(m map[string]any) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%q: %v", k, m[k]))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// nested turns a rule with paths to elements, spec.colors[i].name, into a rule with rules
// for items, and a transformation to a map literal into a rule for each key.
//
// field is set if From is written as a field. Otherwise it may be an expression, and
// its brackets are CEL's.
func nested(r Rule, field bool) (Rule, error) {
	from, err := ParsePath(r.From)
	each := func(s Step) bool { return s.Each }
	i, j := -1, slices.IndexFunc(r.To, each)
	if err == nil {
		i = slices.IndexFunc(from, each)
	}
	switch {
	case i < 0 && j < 0, j < 0 && !field:
		return r, nil
	case i >= 0 && j < 0:
		return r, fmt.Errorf("%s reads each element, and %s has no []: add it, %s[] for example", r.From, r.To, r.To)
	case i < 0:
		hint := "; write the field whose elements are read as spec.colors[] or, for a map, spec.colors[key]"
		return r, fmt.Errorf("%s writes elements, and %s reads none%s", r.To, r.From, hint)
	}
	item := func(rest Path, root string) Path { return append(Path{{Key: root}}, rest...) }
	inner := Rule{Where: r.Where, Transform: r.Transform, Kind: r.Kind, Items: r.Items, Use: r.Use,
		From: item(from[i+1:], "self").String(), To: item(r.To[j+1:], "item")}
	outer := Rule{Where: r.Where, From: from[:i].String(), To: r.To[:j]}
	if inner, err = nested(inner, field); err != nil {
		return r, err
	}
	outer.Items = []Rule{inner}
	if inner.Transform != "" && inner.From == "self" {
		outer.Items = literal(inner)
	}
	return outer, nil
}

// literal splits a transformation to a map with constant keys into a rule for each key,
// so that a value that fails leaves the other fields in place.
func literal(r Rule) []Rule {
	fields, ok := cel.Literal(r.Transform)
	if !ok {
		r.From, r.Transform = r.Transform, ""
		return []Rule{r}
	}
	var all []Rule
	for _, f := range fields {
		all = append(all, Rule{Where: r.Where, From: f.Text, To: append(slices.Clone(r.To), Step{Key: f.Name})})
	}
	return all
}

// Merge joins rules for elements that read the same field and write the same field. Paths
// with [] make such rules.
func Merge(list []Rule) []Rule {
	var all []Rule
	for _, r := range list {
		i := slices.IndexFunc(all, func(have Rule) bool {
			return have.Items != nil && r.Items != nil && have.From == r.From && have.To.String() == r.To.String()
		})
		if i < 0 {
			all = append(all, r)
			continue
		}
		all[i].Items = Merge(append(slices.Clone(all[i].Items), r.Items...))
	}
	return all
}
