package conversion

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/exact"
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
	schemas  map[string]map[string]any
	pairs    map[[2]string]*pair
	sets     map[string][]rules.Rule
	digest   string
	warnings []string
}

// Name returns the name of the CustomResourceDefinition, "widgets.example.io".
func (s *Set) Name() string { return s.name }

// Versions returns all versions of the definition, in the order in which it has them.
func (s *Set) Versions() []string { return s.versions }

// Hub returns the version through which pairs without rules of their own are
// converted; empty if no document sets one.
func (s *Set) Hub() string { return s.hub }

// Schema returns the openAPIV3Schema of a version, nil if there is none. It must not
// be changed.
func (s *Set) Schema(version string) map[string]any { return s.schemas[version] }

// Digest identifies what the set does: "h1:" and base64, equal for equal schemas and
// rules in whatever spelling and order.
func (s *Set) Digest() string { return s.digest }

// Warnings are sentences about what may go wrong with some objects: preserved fields
// without a limit of size, and preserved fields of the status.
func (s *Set) Warnings() []string { return s.warnings }

// declared is what all documents say about a pair.
type declared struct {
	rules                  []rules.Rule
	preserve, drop, derive []rules.Field
}

// Compile compiles the rules of a CustomResourceDefinition. All documents must belong
// to it; see [Belongs]. The error joins all that was found, each with document,
// conversion, rule and field path.
func Compile(definition map[string]any, documents []Document) (*Set, error) {
	d := types.Read(definition)
	s := &Set{name: manifest.Text(definition, "metadata", "name"), group: d.Group, kind: d.Names.Kind,
		schemas: map[string]map[string]any{}, pairs: map[[2]string]*pair{}, sets: map[string][]rules.Rule{}}
	for _, v := range d.Versions() {
		if v.Schema == nil {
			return nil, fmt.Errorf("%s: version %s has no schema; conversion rules need one in every version", s.name, v.Name)
		}
		s.versions = append(s.versions, v.Name)
		s.schemas[v.Name] = v.Schema
	}
	if len(s.versions) == 0 {
		return nil, fmt.Errorf("%s: the definition has no versions", s.name)
	}
	said, errs := s.read(documents)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	for _, from := range s.versions {
		for _, to := range s.versions {
			key, back := [2]string{from, to}, [2]string{to, from}
			through := s.hub != "" && from != s.hub && to != s.hub && said[key] == nil && said[back] == nil
			if from == to || through {
				continue
			}
			p, problems := s.pair(from, to, said[key], said[back])
			errs = append(errs, problems...)
			s.pairs[key] = p
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	for key, p := range s.pairs {
		p.back = s.pairs[[2]string{key[1], key[0]}]
	}
	s.digest = s.sum(said)
	return s, nil
}

// read parses the documents and joins what they say about each pair.
func (s *Set) read(documents []Document) (map[[2]string]*declared, []error) {
	said := map[[2]string]*declared{}
	var errs []error
	for _, document := range documents {
		origin := document.Origin.String() + ": "
		parsed, err := rules.Parse(document.Tree)
		if err != nil {
			for _, line := range strings.Split(err.Error(), "\n") {
				errs = append(errs, errors.New(origin+line))
			}
			continue
		}
		known := func(where, version string) bool {
			if slices.Contains(s.versions, version) {
				return true
			}
			errs = append(errs, fmt.Errorf("%s%s: %s has no version %s; it has %s%s", origin, where, s.name, version,
				strings.Join(s.versions, ", "), rules.Meant(version, s.versions)))
			return false
		}
		if parsed.Hub != "" && known("hub", parsed.Hub) {
			if s.hub != "" && s.hub != parsed.Hub {
				errs = append(errs, fmt.Errorf("%shub: is %s, and another document says %s", origin, parsed.Hub, s.hub))
			}
			s.hub = parsed.Hub
		}
		for _, name := range keys(parsed.Sets) {
			if s.sets[name] != nil {
				errs = append(errs, fmt.Errorf("%sruleSets.%s: another document has a set of this name", origin, name))
			}
			s.sets[name] = placed(origin, parsed.Sets[name])
		}
		for _, p := range parsed.Pairs {
			if !known("conversions", p.From) || !known("conversions", p.To) {
				continue
			}
			if p.From == p.To {
				errs = append(errs, fmt.Errorf("%sconversions: from and to are both %s", origin, p.From))
				continue
			}
			key := [2]string{p.From, p.To}
			if said[key] == nil {
				said[key] = &declared{}
			}
			said[key].add(origin, p)
		}
	}
	return said, errs
}

// placed returns rules whose places have the document's.
func placed(origin string, list []rules.Rule) []rules.Rule {
	if len(list) == 0 {
		return nil
	}
	list = slices.Clone(list)
	for i := range list {
		list[i].Where = origin + list[i].Where
		list[i].Items = placed(origin, list[i].Items)
	}
	return list
}

// add adds a pair of a document.
func (d *declared) add(origin string, p rules.Pair) {
	fields := func(list []rules.Field) []rules.Field {
		list = slices.Clone(list)
		for i := range list {
			list[i].Where = origin + list[i].Where
		}
		return list
	}
	d.rules = rules.Merge(append(d.rules, placed(origin, p.Rules)...))
	d.preserve = append(d.preserve, fields(p.Preserve)...)
	d.drop = append(d.drop, fields(p.Drop)...)
	d.derive = append(d.derive, fields(p.Derive)...)
}

// pair compiles one way between two versions. back is what is said of the other way.
func (s *Set) pair(from, to string, said, back *declared) (*pair, []error) {
	if said == nil {
		said = &declared{}
	}
	if back == nil {
		back = &declared{}
	}
	rootType := cel.ObjectType(s.schemas[from])
	c := &compiler{from: from, to: to, rootType: rootType, src: &marks{}, dst: &marks{}, sets: s.sets}
	p := &pair{from: from, to: to, seen: visible(s.schemas[from]), seenTo: visible(s.schemas[to]), ignored: c.src}
	mark := func(list []rules.Field, schema map[string]any, version string, set func(*marks)) {
		for _, f := range list {
			if _, err := in(schema, f.Path, version); err != nil {
				c.fail(f.Where, "%v", err)
				continue
			}
			set(c.src.at(f.Path))
		}
	}
	mark(said.preserve, p.seen, from, func(m *marks) { m.preserve = true })
	mark(said.drop, p.seen, from, func(m *marks) { m.drop = true })
	mark(back.derive, p.seen, from, func(m *marks) { m.derived = true })
	for _, f := range said.preserve {
		if f.Path[0].Key == "status" {
			s.warnings = append(s.warnings, fmt.Sprintf("%s: %s of %s is kept in an annotation of the objects in version %s; whoever may write these can change it there, without a right to write their status",
				f.Where, f.Path, from, to))
		}
		if schema, err := in(p.seen, f.Path, from); err == nil {
			if at := unbounded(schema, f.Path.String()); at != "" {
				s.warnings = append(s.warnings, fmt.Sprintf("%s: %s of %s has no limit of size; an object in which it has more than %d bytes loses it in version %s. Give it maxLength, maxItems or maxProperties",
					f.Where, at, from, maxStash, to))
			}
		}
	}
	for _, r := range back.rules {
		path, err := rules.ParsePath(r.From)
		reads := err == nil && len(path) > 1 && (path[0].Key == "self" || path[0].Key == to) && r.Transform == "" && r.Items == nil
		if reads {
			c.src.at(r.To).from = path[1:].String()
		}
	}
	root := scope{self: rootType, schema: rootType.Schema(), target: p.seenTo, src: c.src, dst: c.dst}
	compiled := c.rules(root, said.rules)
	for _, r := range back.rules {
		// A label or annotation that the way back writes is not the author's.
		if m := c.src.at(r.To); len(r.To) == 3 && r.To[0].Key == "metadata" && m.read {
			m.claimed = true
		}
	}
	if len(c.errs) > 0 {
		return nil, c.errs
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
	p.root = planned
	return p, nil
}

// sum returns the digest.
func (s *Set) sum(said map[[2]string]*declared) string {
	var pairs []any
	for _, from := range s.versions {
		for _, to := range s.versions {
			if d := said[[2]string{from, to}]; d != nil {
				pairs = append(pairs, []any{from, to, ruleForms(d.rules, from), fieldForms(d.preserve), fieldForms(d.drop), fieldForms(d.derive)})
			}
		}
	}
	schemas := map[string]any{}
	for version, schema := range s.schemas {
		schemas[version] = schema
	}
	sets := map[string]any{}
	for name, list := range s.sets {
		sets[name] = ruleForms(list, "")
	}
	text, err := exact.Encode([]any{s.name, s.group, s.kind, s.hub, pairs, sets, schemas})
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return "h1:" + base64.StdEncoding.EncodeToString(sum[:])
}

// ruleForms are the rules in an order of their own: theirs makes no difference, nor
// whether the object is called self or by its version.
func ruleForms(list []rules.Rule, version string) []any {
	forms := map[string]any{}
	for _, r := range list {
		from := r.From
		if path, err := rules.ParsePath(from); err == nil {
			if path[0].Key == version {
				path[0].Key = "self"
			}
			from = path.String()
		}
		// In elements self is another.
		form := []any{from, r.Transform, r.To.String(), ruleForms(r.Items, ""), r.Use}
		text, _ := exact.Encode(form)
		forms[string(text)] = form
	}
	all := []any{}
	for _, text := range keys(forms) {
		all = append(all, forms[text])
	}
	return all
}

func fieldForms(list []rules.Field) []any {
	forms := map[string]bool{}
	for _, f := range list {
		forms[f.Path.String()] = true
	}
	all := []any{}
	for _, text := range keys(forms) {
		all = append(all, text)
	}
	return all
}

// Belongs reports whether a document is conversion rules for the definition or
// APIResourceSchema of that name, by the document's name or its label.
func Belongs(tree map[string]any, name string) bool { return rules.Belongs(tree, name) }

// Convert converts an object to a version. The object is of the definition's kind, in
// one of its versions, with the values that [Decode] or [sources.DecodeYAML] return.
// It is not changed, and the converted object may share parts of it. The error says
// why the object or the version is none of the set's; no value of a field makes one.
func (s *Set) Convert(object map[string]any, to string) (converted map[string]any, report Report, err error) {
	group, from := manifest.GroupVersion(manifest.Text(object, "apiVersion"))
	kind := manifest.Text(object, "kind")
	if group != s.group || kind != s.kind {
		return nil, report, fmt.Errorf("the object is a %s of %s; want a %s of %s", kind, manifest.Text(object, "apiVersion"), s.kind, s.group)
	}
	for _, version := range []string{from, to} {
		if !slices.Contains(s.versions, version) {
			return nil, report, fmt.Errorf("%s has no version %s; it has %s", s.name, version, strings.Join(s.versions, ", "))
		}
	}
	way := []string{from, to}
	switch {
	case from == to:
		return object, report, nil
	case s.pairs[[2]string{from, to}] == nil:
		way = []string{from, s.hub, to}
	}
	budget := &cel.Budget{}
	defer budget.Done()
	for i := range way[1:] {
		object = s.pairs[[2]string{way[i], way[i+1]}].convert(object, budget, &report)
	}
	return object, report, nil
}

// convert converts by one pair, restores what the stash has of the target, and stashes
// what the target does not hold.
func (p *pair) convert(object map[string]any, budget *cel.Budget, report *Report) map[string]any {
	kept, garbage := readStash(object)
	if garbage != "" {
		report.Ignored = append(report.Ignored, Note{From: p.from, To: p.to, Path: stashPath.String(), Err: garbage})
	}
	object = p.withoutNull(object)
	note := func(e entry, why string) Note {
		return Note{From: p.from, To: p.to, Path: e.path.String(), Bytes: e.size(), Err: why}
	}
	out, failed := p.forward(object, budget)
	report.Failed = append(report.Failed, failed...)
	if entries := kept[p.to]; len(entries) > 0 {
		restored, fresh, stale := p.restore(out, object, entries, budget)
		for _, e := range fresh {
			report.Restored = append(report.Restored, note(e, ""))
		}
		for i, e := range entries {
			if why, ok := stale[i]; ok {
				report.Stale = append(report.Stale, note(e, why))
			}
		}
		out = restored
	}
	for _, e := range kept[p.from] {
		report.Stale = append(report.Stale, note(e, "the object is in this version already"))
	}
	delete(kept, p.from)
	delete(kept, p.to)
	back, _ := p.back.forward(out, budget)
	next := stash{p.from: differences(p.seen, object, back, p.ignored, nil)}
	for version, entries := range kept {
		next[version] = entries
	}
	dropped := next.write(out)
	for _, e := range next[p.from] {
		report.Stashed = append(report.Stashed, note(e, ""))
	}
	for _, version := range keys(dropped) {
		for _, e := range dropped[version] {
			n := note(e, "")
			n.From = version
			report.Dropped = append(report.Dropped, n)
		}
	}
	return out
}

// withoutNull returns the object without null where its schema allows none: that is
// absent. An expression that reads it would fail.
func (p *pair) withoutNull(object map[string]any) map[string]any {
	if !hasNull(object) {
		return object
	}
	out, _ := known(p.seen, object).(map[string]any)
	for _, name := range []string{"apiVersion", "kind", "metadata"} {
		if v, ok := object[name]; ok {
			out[name] = v
		}
	}
	return out
}

func hasNull(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		for _, child := range v {
			if hasNull(child) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, hasNull)
	}
	return false
}
