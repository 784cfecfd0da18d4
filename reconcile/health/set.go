package health

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// Custom has the rules for kinds of a cluster: those of annotations of definitions, those of
// its registration, and those that are part of gitopsd, in this order of precedence. The zero
// value has only the last ones. A Custom is safe for concurrent use once all rules are added.
type Custom struct {
	own map[manifest.GroupKind]*entry
}

// entry is the rule of a kind.
type entry struct {
	from, text string
	// versions has the rule compiled by the schema of each version, and as "" without a
	// schema.
	versions map[string]*compiledRule
	err      error
}

// Add adds a rule, unless the kind has one already. definition is the kind's CRD or XRD; may be
// nil: then fields are not checked. The rule must fit every served version. If it does not,
// Add returns an error, and the objects of the kind are Unknown for that reason.
func (c *Custom) Add(r Rule, definition map[string]any) error {
	e := &entry{from: r.From, versions: make(map[string]*compiledRule)}
	schemas := schemasOf(definition)
	if len(schemas) == 0 {
		schemas = map[string]map[string]any{"": nil}
	}
	told := make(map[string][]string) // versions by error
	for version, schema := range schemas {
		compiled, err := compileRule(r, schema)
		if err != nil {
			told[err.Error()] = append(told[err.Error()], version)
			continue
		}
		e.versions[version] = compiled
	}
	var errs []error
	for text, versions := range told {
		slices.Sort(versions)
		if len(versions) < len(schemas) {
			text += fmt.Sprintf("\n  in version %s; dyn(self) is not checked", strings.Join(versions, ", "))
		}
		errs = append(errs, errors.New(text))
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	e.err = errors.Join(errs...)
	c.put(r, e)
	return e.err
}

// schemasOf returns the schemas of a CRD's served versions; nil for a version without a schema.
// It returns none for an XRD: Crossplane adds fields to its schemas.
func schemasOf(definition map[string]any) map[string]map[string]any {
	all := make(map[string]map[string]any)
	d := types.Read(definition)
	if d.XRD {
		return all
	}
	for _, v := range d.Versions() {
		if v.Served && v.Name != "" {
			all[v.Name] = v.Schema
		}
	}
	return all
}

// AddAnnotated adds the rule in the annotation of a CRD or XRD, if there is one. The error is
// about the annotation.
func (c *Custom) AddAnnotated(definition map[string]any) error {
	value := manifest.Text(definition, "metadata", "annotations", manifest.HealthAnnotation)
	if value == "" {
		return nil
	}
	d := types.Read(definition)
	expressions, err := parseExpressions(value)
	for _, kind := range []string{d.Names.Kind, d.Claims.Kind} {
		if kind == "" {
			continue
		}
		r := Rule{Kind: manifest.GroupKind{Group: d.Group, Kind: kind}, From: "annotation " + manifest.HealthAnnotation, Expressions: expressions}
		if err != nil {
			c.put(r, &entry{from: r.From, err: err})
		} else {
			err = c.Add(r, definition)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", manifest.HealthAnnotation, err)
	}
	return nil
}

// put sets the rule of a kind, unless it has one.
func (c *Custom) put(r Rule, e *entry) {
	if _, ok := c.own[r.Kind]; ok {
		return
	}
	if c.own == nil {
		c.own = make(map[manifest.GroupKind]*entry)
	}
	// Without From: lines move.
	e.text = fmt.Sprintf("%+v %q", r.Expressions, slices.Sorted(maps.Keys(e.versions)))
	c.own[r.Kind] = e
}

// Has reports whether the kind has a rule that is not part of gitopsd. c may be nil.
func (c *Custom) Has(gk manifest.GroupKind) bool { return c != nil && c.own[gk] != nil }

// Key returns a text that differs between sets of rules that may judge differently.
func (c *Custom) Key() string {
	if c == nil {
		return ""
	}
	var b strings.Builder
	for _, gk := range slices.SortedFunc(maps.Keys(c.own), func(x, y manifest.GroupKind) int { return strings.Compare(x.String(), y.String()) }) {
		e := c.own[gk]
		fmt.Fprintf(&b, "%s %q %q\n", gk, e.text, fmt.Sprint(e.err))
	}
	return b.String()
}

// Of judges an object by the rule for its kind; ok reports whether there is one. It is a
// function for [Rules.Custom]. c may be nil.
func (c *Custom) Of(object map[string]any, _ *Type, now time.Time) (v Verdict, ok bool) {
	apiVersion, _ := object["apiVersion"].(string)
	kind, _ := object["kind"].(string)
	group, version := manifest.GroupVersion(apiVersion)
	gk := manifest.GroupKind{Group: group, Kind: kind}
	if c != nil {
		if e := c.own[gk]; e != nil {
			return e.of(object, version, now), true
		}
	}
	if compiled := shippedFor(gk); compiled != nil {
		// The general rules judge an object that the rule does not fit.
		v = compiled.Of(object, now)
		return v, v.Status != Unknown
	}
	return Verdict{}, false
}

func (e *entry) of(object map[string]any, version string, now time.Time) Verdict {
	if e.err != nil {
		return Verdict{Status: Unknown, Rule: e.from, Reason: "its health rule has an error: " + clip(e.err.Error())}
	}
	compiled := e.versions[version]
	if compiled == nil {
		compiled = e.versions[""]
	}
	if compiled == nil {
		return Verdict{Status: Unknown, Rule: e.from, Reason: fmt.Sprintf("its definition serves no version %q, so that its health rule cannot be asked", version)}
	}
	return compiled.Of(object, now)
}
