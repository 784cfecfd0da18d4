package compat

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// walk compares two schemas of one version, keyword by keyword and place by
// place.
type walk struct {
	comparison
	version string
	// narrows are the parties that break if values are no longer accepted.
	narrows Parties
	// statusApart is set if status is a subresource, which only controllers write.
	statusApart bool
	// oldKeeps and newKeeps are set if the definition preserves unknown fields everywhere
	// (spec.preserveUnknownFields).
	oldKeeps, newKeeps bool
	// unfilled is set if objects are read in the version of the new schema that are stored in
	// the version of the old one.
	unfilled bool
	// pending holds the new rules, each with the indices of its findings.
	pending map[ruleAt][]int
	// retyped is set if rules must be compiled though none of these may be new: see
	// retypes.
	retyped bool
	// checks has the checks of places, by path.
	checks map[string]*checks
}

// polarity is the effect of a narrower schema on the object that has it.
type polarity int

const (
	// straight: a narrower schema accepts fewer objects.
	straight polarity = iota
	// reversed, under not: a narrower schema accepts more objects.
	reversed
	// either, under oneOf: any change may do both.
	either
)

// flipped returns the polarity under not.
func (p polarity) flipped() polarity {
	switch p {
	case straight:
		return reversed
	case reversed:
		return straight
	}
	return either
}

// place is a position of the walk in a schema.
type place struct {
	path     string
	polarity polarity
	// root is set for the schema of the whole object.
	root bool
	// nested is set inside allOf, anyOf, oneOf and not, where a schema checks
	// values and does not define fields.
	nested bool
	// around is the place that contains this one; nil for the root, and inside allOf,
	// anyOf, oneOf and not.
	around *around
}

func (p place) at(element string) place {
	p.path, p.root, p.around = p.path+element, false, nil
	return p
}

func (p place) branch(keyword string, i int, pol polarity) place {
	p = p.at("(" + keyword)
	if i >= 0 {
		p.path += " " + strconv.Itoa(i)
	}
	p.path, p.nested, p.polarity = p.path+")", true, pol
	return p
}

// direction is the effect of a change on the set of values that a schema accepts.
type direction int

const (
	narrower direction = iota + 1
	wider
	// neither: some values are no longer accepted, and others are now.
	neither
)

func (d direction) under(p polarity) direction {
	switch {
	case d == neither || p == either:
		return neither
	case p == reversed:
		return narrower + wider - d
	}
	return d
}

// presence reports a constraint that only one of two schemas has. The result reports
// whether both have it.
func (w *walk) presence(p place, name string, inOld, inNew bool, old, new any) (both bool) {
	switch {
	case !inOld && inNew:
		w.limit(p, name+"-added", narrower, absent{}, new)
	case inOld && !inNew:
		w.limit(p, name+"-removed", wider, old, absent{})
	}
	return inOld && inNew
}

// limit reports a change of the accepted values.
func (w *walk) limit(p place, name string, d direction, old, new any) {
	f := Finding{Name: name, Severity: Breaking, Version: w.version, Path: p.path, Breaks: w.narrows, Detail: changed(old, new)}
	if w.statusApart && (p.path == ".status" || strings.HasPrefix(p.path, ".status.")) {
		f.Breaks = f.Breaks&^Writers | Controllers
	}
	if d.under(p.polarity) == wider {
		f.Severity, f.Breaks = Compatible, surprised[name]
	}
	w.add(f)
}

// surprised has the parties that may not expect values that were refused before.
var surprised = map[string]Parties{
	"enum-value-added": Readers | Controllers, "enum-removed": Readers | Controllers,
	"required-removed": Readers | Controllers, "nullable-added": Readers | Controllers,
}

// other reports a change that does not only concern the accepted values.
func (w *walk) other(p place, name string, s Severity, breaks Parties, detail string) {
	w.add(Finding{Name: name, Severity: s, Version: w.version, Path: p.path, Breaks: breaks, Detail: detail})
}

// node compares two schemas at one place. A nil schema accepts everything and
// defines no fields.
func (w *walk) node(ctx context.Context, p place, old, new node) {
	if ctx.Err() != nil {
		return
	}
	if !w.types(p, old, new) {
		// Objects without the field, and with null, get the default whatever its type.
		w.absence(ctx, p, old, new)
		return
	}
	w.format(ctx, p, old, new)
	w.enum(p, old, new)
	w.bounds(p, old, new)
	w.pattern(p, old, new)
	w.required(p, old, new)
	w.absence(ctx, p, old, new)
	w.flag(p, "uniqueItems", "unique-items", narrower, old, new)
	w.embedded(p, old, new)
	if !p.nested {
		w.topology(p, old, new)
	}
	w.validations(ctx, p, old, new)
	w.fields(ctx, p, old, new)
	w.items(ctx, p, old, new)
	w.branches(ctx, p, old, new)
}

// absence compares what becomes of a field that is null or absent.
func (w *walk) absence(ctx context.Context, p place, old, new node) {
	w.flag(p, "nullable", "nullable", wider, old, new)
	if !p.nested {
		w.defaults(ctx, p, old, new)
	}
}

// anyType is the type of a schema that names none.
const anyType = "any"

// typesOf returns the set of JSON types that a schema accepts.
func typesOf(s node) []string {
	switch t := manifest.Text(s, "type"); {
	case t == "number":
		return []string{"integer", "number"}
	case t != "":
		return []string{t}
	case manifest.Truth(s, "x-kubernetes-int-or-string"):
		return []string{"integer", "string"}
	}
	return []string{anyType}
}

func typeName(s node) string {
	switch {
	case manifest.Text(s, "type") != "":
		return manifest.Text(s, "type")
	case manifest.Truth(s, "x-kubernetes-int-or-string"):
		return "integer or string"
	}
	return anyType
}

// covers reports whether the types a include all of b.
func covers(a, b []string) bool {
	return a[0] == anyType || !slices.ContainsFunc(b, func(t string) bool { return !slices.Contains(a, t) })
}

// types compares the types, and reports whether the rest of the schemas can be
// compared.
func (w *walk) types(p place, old, new node) bool {
	o, n := typesOf(old), typesOf(new)
	detail := changed(typeName(old), typeName(new))
	switch {
	case slices.Equal(o, n):
		return true
	case p.nested && covers(n, o):
		w.limit(p, "type-widened", wider, typeName(old), typeName(new))
	case p.nested && covers(o, n):
		w.limit(p, "type-narrowed", narrower, typeName(old), typeName(new))
	case covers(n, o):
		// A client that decodes the old type fails on the new one.
		w.other(p, "type-widened", Breaking, Readers|Controllers, detail)
	case covers(o, n):
		w.other(p, "type-narrowed", Breaking, everybody, detail)
		return o[0] != anyType
	default:
		w.other(p, "type-changed", Breaking, everybody, detail)
		return false
	}
	return true
}

// flag compares a boolean keyword; d is the effect of setting it.
func (w *walk) flag(p place, keyword, name string, d direction, old, new node) {
	switch o, n := manifest.Truth(old, keyword), manifest.Truth(new, keyword); {
	case !o && n:
		w.limit(p, name+"-added", d, absent{}, true)
	case o && !n:
		w.limit(p, name+"-removed", narrower+wider-d, true, absent{})
	}
}

// topology compares how server-side apply merges lists and maps.
func (w *walk) topology(p place, old, new node) {
	o, n := orDefault(old["x-kubernetes-list-type"], "atomic"), orDefault(new["x-kubernetes-list-type"], "atomic")
	if o != n {
		w.other(p, "list-type-changed", Breaking, w.narrows|Writers|Controllers, changed(o, n))
	} else if removed, added := difference(manifest.Texts(old, "x-kubernetes-list-map-keys"), manifest.Texts(new, "x-kubernetes-list-map-keys")); len(removed)+len(added) > 0 {
		w.other(p, "list-map-keys-changed", Breaking, w.narrows|Writers|Controllers, changed(old["x-kubernetes-list-map-keys"], new["x-kubernetes-list-map-keys"]))
	}
	o, n = orDefault(old["x-kubernetes-map-type"], "granular"), orDefault(new["x-kubernetes-map-type"], "granular")
	if o != n {
		w.other(p, "map-type-changed", Breaking, Writers|Controllers, changed(o, n))
	}
}

func (w *walk) required(p place, old, new node) {
	removed, added := difference(manifest.Texts(old, "required"), manifest.Texts(new, "required"))
	for _, name := range removed {
		w.limit(p.at(field.Key(name).String()), "required-removed", wider, "required", "optional")
	}
	for _, name := range added {
		at := p.at(field.Key(name).String())
		if !p.nested && manifest.Mapping(manifest.Mapping(new, "properties"), name)["default"] != nil {
			// The default is filled in before the check, so writers may leave the field
			// out.
			w.other(at, "required-added", Compatible, 0, changed("optional", "required, with a default"))
			continue
		}
		w.limit(at, "required-added", narrower, "optional", "required")
	}
}

// keepsUnknown reports whether a schema keeps fields that it does not define.
func keepsUnknown(s node) bool { return manifest.Truth(s, "x-kubernetes-preserve-unknown-fields") }

// preserving is the schema of an unknown field that is kept unchanged.
var preserving = node{"x-kubernetes-preserve-unknown-fields": true}

// rest returns the schema of the fields that a schema does not name. kept is false if they
// are dropped, and refused is true if they are errors. keeps reports whether the
// definition preserves them everywhere.
func rest(s node, keeps bool) (schema node, kept, refused bool) {
	switch v := s["additionalProperties"].(type) {
	case bool:
		if v {
			return node{}, true, false
		}
		return nil, false, true
	case map[string]any:
		return v, true, false
	}
	if keeps || keepsUnknown(s) {
		return preserving, true, false
	}
	return nil, false, false
}

// fields compares the fields of an object.
func (w *walk) fields(ctx context.Context, p place, old, new node) {
	if p.nested {
		w.nestedFields(ctx, p, old, new)
		return
	}
	oldRest, oldKept, oldRefused := rest(old, w.oldKeeps)
	newRest, newKept, newRefused := rest(new, w.newKeeps)
	o, n := manifest.Mapping(old, "properties"), manifest.Mapping(new, "properties")
	all := names(o, n)
	for _, name := range resourceFields {
		// Fields that the API server sets exist even if no schema names them.
		if implied(p, old, name) != nil && implied(p, new, name) == nil && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	for _, name := range all {
		at := p.at(field.Key(name).String())
		at.around = &around{place: p, old: old, new: new, element: name}
		oldField, inOld := o[name].(map[string]any)
		newField, inNew := n[name].(map[string]any)
		was, is := implied(p, old, name), implied(p, new, name)
		if was != nil || is != nil {
			// The API server keeps these fields, whatever the schema says. If it no longer
			// does, embedded reports the loss.
			if !inOld {
				oldField = was
			}
			if oldField == nil {
				oldField = is
			}
			at.nested = true
			switch {
			case inNew:
			case is != nil:
				newField = is
			case newKept && !onlyPreserves(new):
				newField = newRest
			default:
				continue // the field is kept unchanged, or lost
			}
			w.node(ctx, at, oldField, newField)
			continue
		}
		switch {
		case inOld && inNew:
			w.node(ctx, at, oldField, newField)
		case inOld && newKept:
			w.node(ctx, at, oldField, newRest)
		case inOld:
			w.other(at, "field-removed", Breaking, everybody, changed(typeName(oldField), absent{}))
		case oldKept:
			w.node(ctx, at, oldRest, newField)
		default:
			w.newDefault(ctx, at, newField)
			w.retyped = w.retyped || hasRules(newField)
			w.add(Finding{
				Name: "field-added", Severity: Compatible, Version: w.version, Path: at.path,
				Detail: changed(absent{}, typeName(newField)), Advice: conventions(newField),
			})
		}
	}
	if a, b := keepsUnknown(old) || w.oldKeeps, keepsUnknown(new) || w.newKeeps; a != b && !(oldKept && newKept) {
		if !holdsFields(old) || !holdsFields(new) || w.oldKeeps != w.newKeeps {
			return // nothing is lost, or the definition has a finding for it
		}
		w.pruning(w.version, p.path, b, "x-kubernetes-preserve-unknown-fields: "+changed(a, b))
		return
	}
	switch {
	case oldKept && newKept:
		if !onlyPreserves(old) || !onlyPreserves(new) {
			at := p.at("{*}")
			at.around = &around{place: p, old: old, new: new, element: "{*}"}
			w.node(ctx, at, oldRest, newRest)
		}
	case oldKept:
		w.other(p, "additional-properties-removed", Breaking, everybody, changed(old["additionalProperties"], absent{}))
	case newKept:
		w.other(p, "additional-properties-added", Compatible, Readers|Controllers, changed(absent{}, new["additionalProperties"]))
	case !oldRefused && newRefused:
		w.limit(p, "additional-properties-refused", narrower, "dropped", "refused")
	case oldRefused && !newRefused:
		w.limit(p, "additional-properties-tolerated", wider, "refused", "dropped")
	}
}

// holdsFields reports whether a value can hold fields.
func holdsFields(s node) bool {
	return slices.ContainsFunc(typesOf(s), func(t string) bool { return t == anyType || t == "object" || t == "array" })
}

// onlyPreserves reports whether unknown fields are kept and have no schema.
func onlyPreserves(s node) bool { return keepsUnknown(s) && s["additionalProperties"] == nil }

// resourceFields are the fields that the API server gives every object.
var resourceFields = []string{"apiVersion", "kind", "metadata"}

// implied returns the schema of one of the resourceFields; nil for other fields.
func implied(p place, s node, name string) node {
	if !p.root && !manifest.Truth(s, embeddedResource) {
		return nil
	}
	switch name {
	case "metadata":
		return node{"type": "object"}
	case "apiVersion", "kind":
		return node{"type": "string"}
	}
	return nil
}

// nestedFields compares checks of fields; an absent field is not checked.
func (w *walk) nestedFields(ctx context.Context, p place, old, new node) {
	o, n := manifest.Mapping(old, "properties"), manifest.Mapping(new, "properties")
	for _, name := range names(o, n) {
		oldField, _ := o[name].(map[string]any)
		newField, _ := n[name].(map[string]any)
		w.node(ctx, p.at(field.Key(name).String()), oldField, newField)
	}
	oldRest, _ := old["additionalProperties"].(map[string]any)
	newRest, _ := new["additionalProperties"].(map[string]any)
	if oldRest != nil || newRest != nil {
		w.node(ctx, p.at("{*}"), oldRest, newRest)
	}
	switch o, n := old["additionalProperties"] == false, new["additionalProperties"] == false; {
	case !o && n:
		w.limit(p, "additional-properties-refused", narrower, "accepted", "refused")
	case o && !n:
		w.limit(p, "additional-properties-tolerated", wider, "refused", "accepted")
	}
}

// names returns the keys of both, sorted.
func names(a, b map[string]any) []string {
	all := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(all)
	return slices.Compact(all)
}

func (w *walk) items(ctx context.Context, p place, old, new node) {
	o, n := manifest.Mapping(old, "items"), manifest.Mapping(new, "items")
	if o == nil && n == nil {
		return
	}
	if !p.nested {
		if o == nil {
			o = unchecked(old, w.oldKeeps)
		}
		if n == nil {
			n = unchecked(new, w.newKeeps)
		}
	}
	at := p.at("[*]")
	if !p.nested {
		at.around = &around{place: p, old: old, new: new, element: "[*]"}
	}
	w.node(ctx, at, o, n)
}

// unchecked returns the schema of elements that a schema does not describe.
func unchecked(s node, keeps bool) node {
	if keeps || keepsUnknown(s) {
		return preserving
	}
	return nil
}

// equalData compares defaults and elements of enums as the API server does.
func equalData(a, b any) bool { return form(a) == form(b) }

// form returns the canonical form of data; empty for an absent value.
func form(v any) string {
	if v == (absent{}) {
		return ""
	}
	f, err := types.DataForm(v)
	if err != nil {
		return err.Error() // cannot happen: types.Of has read the value
	}
	return f
}
