package conversion

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/conversion/stash"
	"gitopsd.dev/render/conversion/structural"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// Set is the compiled rules of one CustomResourceDefinition. It is immutable and
// safe for concurrent use.
type Set struct {
	name     string
	group    string
	kind     string
	hub      string
	versions []string
	// declared are all versions of the definition, also those that are not converted.
	declared []string
	schemas  map[string]map[string]any
	pairs    map[[2]string]*pair
	sets     map[string][]rules.Rule
	digest   string
	warnings []string
}

// Name returns the name of the CustomResourceDefinition, "widgets.example.io".
func (s *Set) Name() string { return s.name }

// Versions returns the versions that the set converts, in the order of the definition.
// A version is left out if it is neither served nor stored and no document names it.
func (s *Set) Versions() []string { return s.versions }

// Hub returns the version through which pairs without rules of their own are
// converted; empty if no document sets one.
func (s *Set) Hub() string { return s.hub }

// Schema returns the openAPIV3Schema of a version, nil if there is none. It must not
// be changed.
func (s *Set) Schema(version string) map[string]any { return s.schemas[version] }

// Digest identifies the set: "h1:" and the SHA-256, in base64, of its schemas and rules.
// The order and spelling of rules do not change it, nor do descriptions in schemas.
func (s *Set) Digest() string { return s.digest }

// Warnings returns sentences about risks for some objects: fields that are kept in the
// stash, since they are preserved or only expressions read them, and that have no limit of
// size, are of the status, or are in a list without keys.
func (s *Set) Warnings() []string { return s.warnings }

// mostErrors limits how many errors of a definition's rules are reported.
const mostErrors = 20

// joined joins errors, each text once.
func joined(errs []error) error {
	seen := make(map[string]bool)
	all := slices.DeleteFunc(errs, func(err error) bool {
		again := seen[err.Error()]
		seen[err.Error()] = true
		return again
	})
	if more := len(all) - mostErrors; more > 0 {
		all = append(all[:mostErrors:mostErrors], fmt.Errorf("and %d more errors in these rules", more))
	}
	return errors.Join(all...)
}

// Compile compiles the rules of a CustomResourceDefinition. All documents must belong
// to it; see [Belongs]. The error joins the first errors found, each with document,
// conversion, rule and field path.
func Compile(definition map[string]any, documents []Document) (*Set, error) {
	d := types.Read(definition)
	s := &Set{name: manifest.Text(definition, "metadata", "name"), group: d.Group, kind: d.Names.Kind,
		schemas: map[string]map[string]any{}, pairs: map[[2]string]*pair{}, sets: map[string][]rules.Rule{}}
	for _, v := range d.Versions() {
		s.versions = append(s.versions, v.Name)
	}
	if len(s.versions) == 0 {
		return nil, fmt.Errorf("%s: the definition has no versions", s.name)
	}
	said, errs := s.read(documents)
	if len(errs) > 0 {
		return nil, joined(errs)
	}
	s.versions, s.declared = nil, s.versions
	for _, v := range d.Versions() {
		if !v.Served && !v.Storage && !s.named(said, v.Name) {
			continue
		}
		if v.Schema == nil {
			return nil, fmt.Errorf("%s: version %s has no schema; conversion rules need one in every version", s.name, v.Name)
		}
		s.versions = append(s.versions, v.Name)
		s.schemas[v.Name] = v.Schema
	}
	for _, from := range s.versions {
		for _, to := range s.versions {
			key, back := [2]string{from, to}, [2]string{to, from}
			through := s.hub != "" && from != s.hub && to != s.hub && said[key] == nil && said[back] == nil
			if from == to || through {
				continue
			}
			place := "rules"
			if len(documents) > 0 {
				place = documents[0].Origin.String()
			}
			p, problems := s.pair(from, to, place, said[key], said[back])
			errs = append(errs, problems...)
			s.pairs[key] = p
		}
	}
	if len(errs) > 0 {
		return nil, joined(errs)
	}
	for key, p := range s.pairs {
		p.back = s.pairs[[2]string{key[1], key[0]}]
	}
	for _, p := range s.pairs {
		p.route = routeOf(p.root, p.back.root, p)
	}
	s.digest = s.sum(said)
	return s, nil
}

// pair compiles the conversion from one version to another. said are the entries of the
// documents for it, and back those for the opposite direction; both may be nil. Errors
// without a rule have place then.
func (s *Set) pair(from, to, place string, said, back *declared) (*pair, []error) {
	said, back = cmp.Or(said, &declared{}), cmp.Or(back, &declared{})
	rootType := cel.ObjectType(s.schemas[from])
	c := &compiler{from: from, to: to, place: cmp.Or(said.place, back.place, place), rootType: rootType, src: &marks{}, dst: &marks{}, sets: s.sets, named: nameable(from)}
	p := &pair{from: from, to: to, group: s.group, kind: s.kind, declared: s.declared, seen: structural.Visible(s.schemas[from]), seenTo: structural.Visible(s.schemas[to])}
	c.say(said.preserve, p.seen, func(m *marks) { m.preserve = true })
	c.say(said.drop, p.seen, func(m *marks) { m.drop = true })
	c.say(back.derive, p.seen, func(m *marks) { m.derived = true })
	for _, f := range said.preserve {
		if c.src.lost(f.Path) {
			c.fail(f.Where, "%s is under preserve, and it or a field around it is under drop or derive; remove it from one of them", f.Path)
		}
		s.warnings = append(s.warnings, p.doubts(f, "")...)
	}
	for _, r := range back.rules {
		path, err := rules.ParsePath(r.From)
		if err == nil && len(path) > 1 && (path[0].Key == "self" || path[0].Key == to) && r.Transform == "" && r.Items == nil {
			c.src.at(r.To).from = path[1:].String()
		}
	}
	root := scope{self: rootType, schema: rootType.Schema(), target: p.seenTo, src: c.src, dst: c.dst}
	compiled := c.rules(root, said.rules)
	for _, r := range back.rules {
		// A label or annotation that the pair back writes is not copied as well.
		if m := c.src.at(r.To); len(r.To) == 3 && r.To[0].Key == "metadata" && m.read {
			m.claimed = true
		}
	}
	if len(c.errs) > 0 {
		return nil, c.errs
	}
	for _, f := range said.derive {
		if !c.dst.writes(f.Path) {
			c.fail(f.Where, "no rule writes %s of %s, and so nothing derives it; add a rule, or have {from: %s, to: %s} drop it, which loses it on purpose", f.Path, to, to, from)
		}
	}
	for _, plan := range c.later {
		plan()
	}
	planned, err := c.plan(p.seen, p.seenTo, c.src, c.dst, "", "", true)
	if err != nil {
		c.fail("", "%v", err)
	}
	if len(c.errs) > 0 {
		if len(said.rules)+len(back.rules) == 0 && s.hub == "" && len(s.versions) > 2 {
			c.fail("", "no rules convert these versions; set hub to convert through a third")
		}
		return nil, c.errs
	}
	planned.rules = compiled
	for _, f := range c.src.lossy(nil) {
		s.warnings = append(s.warnings, p.doubts(f, ", unless the rules compute it back")...)
	}
	p.root, p.ignored = planned, c.src.ignored()
	return p, nil
}

// say marks the listed fields of the source.
func (c *compiler) say(list []rules.Field, schema map[string]any, set func(*marks)) {
	for _, f := range list {
		if _, err := structural.In(schema, f.Path, c.from); err != nil {
			c.fail(f.Where, "%v%s", err, namesake(schema, c.from))
			continue
		}
		set(c.src.at(f.Path))
	}
}

// doubts returns the warnings about a field that is kept in the stash, unless something is
// the case.
func (p *pair) doubts(f rules.Field, unless string) (warnings []string) {
	if f.Path[0].Key == "status" {
		warnings = append(warnings, fmt.Sprintf("%s: %s of %s is kept in an annotation of the objects in version %s%s; whoever may write these can change it there, without a right to write their status",
			f.Where, f.Path, p.from, p.to, unless))
	}
	for i, s := range f.Path {
		list, err := structural.In(p.seen, f.Path[:i], p.from)
		if !s.Each || err != nil || structural.Kind(list) != structural.List || len(manifest.Texts(list, "x-kubernetes-list-map-keys")) > 0 {
			continue
		}
		warnings = append(warnings, fmt.Sprintf("%s: %s of %s is in a list without keys; if any of its items changes in version %s, all of them lose it%s. Give %s x-kubernetes-list-type: map and x-kubernetes-list-map-keys",
			f.Where, f.Path, p.from, p.to, unless, f.Path[:i]))
	}
	// The API server limits annotations.
	if schema, err := structural.In(p.seen, f.Path, p.from); err == nil && f.Path[0].Key != "metadata" {
		if at := structural.Unbounded(schema, f.Path.String()); at != "" {
			warnings = append(warnings, fmt.Sprintf("%s: %s of %s has no limit of size; an object in which it has more than %d bytes loses it in version %s%s. Give it maxLength, maxItems or maxProperties",
				f.Where, at, p.from, stash.MaxBytes, p.to, unless))
		}
	}
	return warnings
}

// Belongs reports whether a document has conversion rules for the definition or
// APIResourceSchema of that name, by the document's name or its label.
func Belongs(tree map[string]any, name string) bool { return rules.Belongs(tree, name) }
