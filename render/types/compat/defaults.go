package compat

import (
	"cmp"
	"context"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/manifest"
)

// The API server fills in defaults whenever it reads an object from a request or from
// etcd: those of the version of the request, or of the version that the object is stored in,
// before it converts. So a default changes objects that nobody writes. Only checks outside
// the field can make them invalid: the API server has checked the default by the field's own
// schema.

// around is the place that contains an element, with both schemas of the place.
type around struct {
	place    place
	old, new node
	// element is the name of a field, "[*]" or "{*}".
	element string
}

func (w *walk) defaults(ctx context.Context, p place, old, new node) {
	o, n := old["default"], new["default"]
	switch {
	case o == nil && n != nil && p.around != nil && w.checksOf(ctx, p.around).always[p.around.element]:
		// Every stored object has the field.
		w.other(p, "default-added", Compatible, 0, changed(absent{}, n))
		w.retyped = true // the object without the field is smaller: more of them fit in a request
	case o == nil && n != nil:
		w.defaulted(ctx, p, "default-added", absent{}, n, straight)
	case o != nil && n == nil:
		w.defaulted(ctx, p, "default-removed", o, absent{}, reversed)
	case o != nil && !equalData(o, n):
		w.defaulted(ctx, p, "default-changed", o, n, either)
	}
}

// newDefault reports the default of a new field if it is not filled in, or if checks outside
// the field may refuse existing objects because of it.
func (w *walk) newDefault(ctx context.Context, p place, field node) {
	d := field["default"]
	if d == nil {
		return
	}
	if w.unfilled {
		w.other(p, "default-added", Breaking, Readers|Controllers, changed(absent{}, d)+", which objects stored in the other version lack")
		return
	}
	if why := w.notedBy(ctx, p.around, d, straight); why != "" {
		w.other(p, "default-added", Breaking, StoredObjects|Writers, changed(absent{}, d)+", which may not suit "+why)
	}
}

// defaulted reports a change of a default. presence is the effect on objects that leave
// the field out: they gain it (straight), lose it (reversed) or get another value
// (either).
func (w *walk) defaulted(ctx context.Context, p place, name string, old, new any, presence polarity) {
	breaks, detail := Writers|Readers|Controllers, changed(old, new)
	if why := w.notedBy(ctx, p.around, new, presence); why != "" {
		breaks |= StoredObjects
		detail += ", which may not suit " + why
	}
	w.other(p, name, Breaking, breaks, detail)
}

// checks are the checks of a place that defaults in it are compared with. They are read
// once, since each default in the place asks for them.
type checks struct {
	// always are the fields that the old schema requires, required those of the new one.
	always, required map[string]bool
	// rules are the texts of the new schema's rules.
	rules   []string
	byField *cel.Index
	// branches are those of the new schema, for each of branchKeywords.
	branches [][]node
}

// checksOf returns the checks of a place.
func (w *walk) checksOf(ctx context.Context, in *around) *checks {
	if c := w.checks[in.place.path]; c != nil {
		return c
	}
	c := &checks{always: setOf(in.old, "required"), required: setOf(in.new, "required")}
	var expressions []cel.Expression
	for _, r := range rulesOf(in.new) {
		c.rules = append(c.rules, manifest.Text(r, "rule"))
		expressions = append(expressions, w.read(ctx, manifest.Text(r, "rule")))
	}
	c.byField = cel.NewIndex(expressions)
	for _, b := range branchKeywords {
		c.branches = append(c.branches, b.of(in.new))
	}
	if w.checks == nil {
		w.checks = make(map[string]*checks)
	}
	w.checks[in.place.path] = c
	return c
}

func setOf(s node, keyword string) map[string]bool {
	set := make(map[string]bool)
	for _, v := range manifest.Texts(s, keyword) {
		set[v] = true
	}
	return set
}

// notedBy names a check outside a field in the new schema that may refuse objects when
// the field's presence changes; empty if there is none.
func (w *walk) notedBy(ctx context.Context, in *around, value any, presence polarity) string {
	var all []string // the path from the root to the field
	for a := in; a != nil; a = a.place.around {
		all = append(all, a.element)
	}
	slices.Reverse(all)
	for n := len(all) - 1; in != nil; in, n = in.place.around, n-1 {
		path, inner := all[n:], n == len(all)-1
		where := cmp.Or(in.place.path, "the object")
		s, c := in.new, w.checksOf(ctx, in)
		_, kept, _ := rest(s, w.newKeeps)
		limit, limited := number(s, "maxProperties")
		least, _ := number(s, "minProperties")
		switch {
		case s["enum"] != nil:
			return "the enum of " + where
		case inner && limited && presence == straight && (kept || float64(len(manifest.Mapping(s, "properties"))) > limit):
			return "the maxProperties of " + where
		case inner && least > 0 && presence == reversed:
			return "the minProperties of " + where
		case inner && presence == reversed && c.required[path[0]]:
			return "that it is required"
		case manifest.Text(s, "x-kubernetes-list-type") == "set", len(path) == 2 && slices.Contains(manifest.Texts(s, "x-kubernetes-list-map-keys"), last(path)):
			return "that elements of " + where + " are not repeated"
		}
		for i, b := range branchKeywords {
			for _, branch := range c.branches[i] {
				if w.notes(branch, path, value, b.under(presence)) {
					if w.tried > maxTried {
						return "a branch around it: there are too many to try"
					}
					return "the " + b.keyword + " of " + where
				}
			}
		}
		if i, ok := c.byField.First(last(path)); ok {
			return "the rule " + show(c.rules[i]) + " of " + where
		}
	}
	return ""
}

func last(path []string) string { return path[len(path)-1] }

// branchKeyword is a keyword with schemas that check the same value as the schema that
// has the keyword.
type branchKeyword struct {
	keyword string
	of      func(node) []node
	under   func(polarity) polarity
}

var branchKeywords = []branchKeyword{
	{"allOf", func(s node) []node { return branchesOf(s, "allOf") }, func(p polarity) polarity { return p }},
	{"anyOf", func(s node) []node { return branchesOf(s, "anyOf") }, func(p polarity) polarity { return p }},
	{"oneOf", func(s node) []node { return branchesOf(s, "oneOf") }, func(polarity) polarity { return either }},
	{"not", func(s node) []node {
		if not := manifest.Mapping(s, "not"); not != nil {
			return []node{not}
		}
		return nil
	}, polarity.flipped},
}

// maxTried limits the branches that are tried on the defaults of a definition, since each
// default is tried on each branch around it: with the cost of building a validator, some
// seconds.
const (
	maxTried      = 1_000_000
	validatorCost = 100 // for each value in the schema
)

// notes reports whether a check may refuse more objects when the presence of the
// value at path changes. It is true beyond maxTried.
func (w *walk) notes(s node, path []string, value any, presence polarity) bool {
	required := manifest.List(s, "required")
	w.tried += 1 + len(required)
	if w.tried > maxTried || s["enum"] != nil {
		return true
	}
	name := path[0]
	inside, named := manifest.Mapping(s, "properties")[name].(map[string]any)
	if !named {
		inside, _ = s["additionalProperties"].(map[string]any)
	}
	if name == "[*]" {
		inside = manifest.Mapping(s, "items")
	}
	if len(path) == 1 {
		least, _ := number(s, "minProperties")
		switch {
		case presence != straight && (least > 0 || slices.Contains(required, any(name))),
			presence != reversed && (s["maxProperties"] != nil || s["additionalProperties"] == false && !named),
			inside != nil && w.mayRefuse(inside, value, presence):
			return true
		}
	} else if inside != nil && w.notes(inside, path[1:], value, presence) {
		return true
	}
	for _, b := range branchKeywords {
		for _, branch := range b.of(s) {
			if w.notes(branch, path, value, b.under(presence)) {
				return true
			}
		}
	}
	return false
}

// mayRefuse reports whether a check of a field may fail when the presence of its value
// changes. For values other than scalars it may, since they may have defaults in them.
func (w *walk) mayRefuse(s node, value any, presence polarity) bool {
	switch value.(type) {
	case string, bool, int64, float64:
	default:
		return true
	}
	if w.tried += validatorCost * values(s); w.tried > maxTried {
		return true
	}
	internal, err := internalSchema(s)
	if err != nil {
		return true
	}
	v, _, err := validation.NewSchemaValidator(internal)
	if err != nil {
		return true
	}
	accepted := len(validation.ValidateCustomResource(nil, value, v)) == 0
	return presence == either || accepted != (presence == straight)
}

// values counts the values in a value, itself included.
func values(v any) int {
	n := 1
	switch v := v.(type) {
	case map[string]any:
		for _, inner := range v {
			n += values(inner)
		}
	case []any:
		for _, inner := range v {
			n += values(inner)
		}
	}
	return n
}
