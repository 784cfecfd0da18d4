package compat

import (
	"cmp"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/manifest"
)

// The API server fills in defaults whenever it reads an object from a request or from
// etcd. So a default changes objects that nobody writes. Only checks outside the field can
// make them invalid: the API server has checked the default by the field's own schema.

// around is the place that contains an element, with both schemas of the place.
type around struct {
	place    place
	old, new node
	// element is the name of a field, "[*]" or "{*}".
	element string
}

func (w *walk) defaults(p place, old, new node) {
	o, n := old["default"], new["default"]
	always := p.around != nil && slices.Contains(manifest.Texts(p.around.old, "required"), p.around.element)
	switch {
	case o == nil && n != nil && always:
		// Every stored object has the field.
		w.other(p, "default-added", Compatible, 0, changed(absent{}, n))
	case o == nil && n != nil:
		w.defaulted(p, "default-added", absent{}, n, straight)
	case o != nil && n == nil:
		w.defaulted(p, "default-removed", o, absent{}, reversed)
	case o != nil && !equalData(o, n):
		w.defaulted(p, "default-changed", o, n, either)
	}
}

// newDefault reports the default of a new field if checks outside the field may refuse
// existing objects because of it.
func (w *walk) newDefault(p place, field node) {
	d := field["default"]
	if d == nil {
		return
	}
	if why := notedBy(p.around, d, straight, w.newKeeps); why != "" {
		w.other(p, "default-added", Breaking, StoredObjects|Writers, changed(absent{}, d)+", which may not suit "+why)
	}
}

// defaulted reports a change of a default. presence is the effect on objects that leave
// the field out: they gain it (straight), lose it (reversed) or get another value
// (either).
func (w *walk) defaulted(p place, name string, old, new any, presence polarity) {
	breaks, detail := Writers|Readers|Controllers, changed(old, new)
	if why := notedBy(p.around, new, presence, w.newKeeps); why != "" {
		breaks |= StoredObjects
		detail += ", which may not suit " + why
	}
	w.other(p, name, Breaking, breaks, detail)
}

// notedBy names a check outside a field in the new schema that may refuse objects when
// the field's presence changes; empty if there is none.
func notedBy(in *around, value any, presence polarity, keeps bool) string {
	var path []string
	for inner := true; in != nil; in, inner = in.place.around, false {
		path = append([]string{in.element}, path...)
		where := cmp.Or(in.place.path, "the object")
		s := in.new
		_, kept, _ := rest(s, keeps)
		limit, limited := number(s, "maxProperties")
		least, _ := number(s, "minProperties")
		switch {
		case s["enum"] != nil:
			return "the enum of " + where
		case inner && limited && presence == straight && (kept || float64(len(manifest.Mapping(s, "properties"))) > limit):
			return "the maxProperties of " + where
		case inner && least > 0 && presence == reversed:
			return "the minProperties of " + where
		case inner && presence == reversed && slices.Contains(manifest.Texts(s, "required"), path[0]):
			return "that it is required"
		case manifest.Text(s, "x-kubernetes-list-type") == "set", slices.Contains(manifest.Texts(s, "x-kubernetes-list-map-keys"), last(path)) && len(path) == 2:
			return "that elements of " + where + " are not repeated"
		}
		for _, b := range branchKeywords {
			for _, branch := range b.of(s) {
				if notes(branch, path, value, b.under(presence)) {
					return "the " + b.keyword + " of " + where
				}
			}
		}
		for _, r := range rulesOf(s) {
			if cel.Read(manifest.Text(r, "rule")).Names(last(path)) {
				return "the rule " + show(manifest.Text(r, "rule")) + " of " + where
			}
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

// notes reports whether a check may refuse more objects when the presence of the
// value at path changes.
func notes(s node, path []string, value any, presence polarity) bool {
	if s["enum"] != nil {
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
		case presence != straight && (least > 0 || slices.Contains(manifest.Texts(s, "required"), name)),
			presence != reversed && (s["maxProperties"] != nil || s["additionalProperties"] == false && !named),
			inside != nil && mayRefuse(inside, value, presence):
			return true
		}
	} else if inside != nil && notes(inside, path[1:], value, presence) {
		return true
	}
	for _, b := range branchKeywords {
		for _, branch := range b.of(s) {
			if notes(branch, path, value, b.under(presence)) {
				return true
			}
		}
	}
	return false
}

// mayRefuse reports whether a check of a field may fail when the presence of its value
// changes. For values other than scalars it may, since they may have defaults in them.
func mayRefuse(s node, value any, presence polarity) bool {
	switch value.(type) {
	case string, bool, int64, float64:
	default:
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
