package compat

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// Severity rates a change, or all changes together, for the users of a type. Severities
// are ordered.
type Severity int

const (
	// Identical: nothing differs.
	Identical Severity = iota
	// Documentation: only documentation differs.
	Documentation
	// Compatible: everything that worked still works.
	Compatible
	// Breaking: something that worked may fail.
	Breaking
)

var severities = [...]string{"identical", "documentation", "compatible", "breaking"}

func (s Severity) String() string { return severities[s] }

// MarshalText writes the severity's name.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Parties is a set of parties that a change concerns.
type Parties uint8

const (
	// StoredObjects exist already: they may become invalid or unreadable, or lose fields.
	StoredObjects Parties = 1 << iota
	// Writers create and change objects: people, Git, other controllers.
	Writers
	// Readers get, list and watch objects, kubectl among them.
	Readers
	// Controllers reconcile objects of the type.
	Controllers

	everybody = StoredObjects | Writers | Readers | Controllers
)

var parties = [...]string{"stored objects", "writers", "readers", "controllers"}

// Names returns the names of the parties in the set.
func (p Parties) Names() []string {
	names := []string{}
	for i, n := range parties {
		if p&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return names
}

func (p Parties) String() string { return strings.Join(p.Names(), ", ") }

// MarshalJSON writes the list of names.
func (p Parties) MarshalJSON() ([]byte, error) { return json.Marshal(p.Names()) }

// Finding is one change to a type. Findings are comparable.
type Finding struct {
	// Name is stable: allowances refer to it. The catalogue in doc.go has all names.
	Name     string   `json:"name"`
	Severity Severity `json:"severity"`
	// Version is the version of the API that it concerns; empty for all. "v1 -> v2" is
	// about an object written in v1 and read in v2.
	Version string `json:"version,omitempty"`
	// Path is the field that it concerns, from the object's root:
	// ".spec.subnets[*].cidr". "[*]" is any element of a list, "{*}" any value
	// of a map, "(anyOf 1)" the second branch of the field's anyOf, and names
	// are as in package field. It is empty for findings that are not about a field.
	Path string `json:"path,omitempty"`
	// Breaks are the parties that may break. A compatible finding may name readers and
	// controllers that may not expect new values.
	Breaks Parties `json:"breaks"`
	// Detail is "old -> new", with "none" for an absent value.
	Detail string `json:"detail,omitempty"`
	// Advice is one line of advice.
	Advice string `json:"advice,omitempty"`
}

// String returns the finding in one line, without the advice.
func (f Finding) String() string {
	var b strings.Builder
	b.WriteString(f.Severity.String() + " " + f.Name)
	for _, s := range []string{f.Version, f.Path} {
		if s != "" {
			b.WriteString(" " + s)
		}
	}
	if f.Detail != "" {
		b.WriteString(": " + f.Detail)
	}
	if f.Breaks != 0 {
		b.WriteString(" (" + f.Breaks.String() + ")")
	}
	return b.String()
}

// Report is the outcome of one comparison.
type Report struct {
	// Severity is the highest severity of the findings. Without findings it is
	// Documentation if the specs differ, and else Identical.
	Severity Severity
	// Retyped is set if the digest of a type differs, or only one of the definitions has
	// the type. Each such type has a finding.
	Retyped bool
	// Findings by severity, highest first, then by version, path and name.
	Findings []Finding
}

// Options are facts about the cluster, for [Compare].
type Options struct {
	// StoredVersions is the live definition's status.storedVersions; the default is the
	// status of the old definition. If both are empty, objects are assumed to be in the
	// storage version, and perhaps in any removed version.
	StoredVersions []string
}

// Compare lists the changes between two definitions of one type, and the parties that
// each breaks. Both are CustomResourceDefinitions, or CompositeResourceDefinitions.
// old is nil if the type is added, and new if it is removed. Compare changes neither.
//
// It fails if the API server could not decode a definition (see [types.Of]), if a
// definition defines no type, or if the two have different kinds. Otherwise the error is
// the context's.
func Compare(ctx context.Context, old, new map[string]any, opts Options) (Report, error) {
	oldTypes, err := digests(old)
	if err != nil {
		return Report{}, fmt.Errorf("the old definition: %w", err)
	}
	newTypes, err := digests(new)
	if err != nil {
		return Report{}, fmt.Errorf("the new definition: %w", err)
	}
	for _, d := range []struct {
		object map[string]any
		types  []types.Type
	}{{old, oldTypes}, {new, newTypes}} {
		if d.object != nil && len(d.types) == 0 {
			return Report{}, fmt.Errorf("%v defines no type: want a %s or %s with versions", d.object["kind"], manifest.CRD.Kind, manifest.XRD.Kind)
		}
	}
	if old != nil && new != nil && old["kind"] != new["kind"] {
		return Report{}, fmt.Errorf("a %v cannot be compared with a %v", old["kind"], new["kind"])
	}
	c := comparison{shared: &shared{expressions: make(map[string]cel.Expression)}}
	least := Identical
	retyped := !slices.Equal(oldTypes, newTypes)
	switch {
	case retyped:
		before, after := read(old), read(new)
		c.definitions(ctx, before, after, opts)
		if err := ctx.Err(); err != nil {
			return Report{}, err // not all was compared
		}
		c.spellings(before, after, oldTypes, newTypes)
	case !reflect.DeepEqual(old["spec"], new["spec"]):
		least = Documentation
		c.rules(read(old), read(new))
	}
	r := c.report(least)
	r.Retyped = retyped
	return r, nil
}

// digests returns the types of a definition, sorted; none if it is nil.
func digests(definition map[string]any) ([]types.Type, error) {
	if definition == nil {
		return nil, nil
	}
	return types.Sorted(definition)
}

// spellings reports types with different digests and no other finding: both definitions
// mean the same, written in two ways.
func (c *comparison) spellings(old, new *definition, oldTypes, newTypes []types.Type) {
	for _, a := range oldTypes {
		for _, b := range newTypes {
			if a.Version != b.Version || a.Kind != b.Kind || a.Digest == b.Digest {
				continue
			}
			if slices.ContainsFunc(c.findings, func(f Finding) bool { return f.Version == "" || f.Version == a.Version }) {
				continue
			}
			path, detail := "", "written in another way"
			if o, n := old.version(a.Version), new.version(a.Version); o != nil && n != nil {
				path, detail = spelling("", o.Schema, n.Schema)
			}
			c.add(Finding{Name: "spelling-changed", Severity: Compatible, Version: a.Version, Path: path, Detail: detail})
		}
	}
}

// spelling finds a place where two schemas are written differently.
func spelling(path string, old, new node) (where, detail string) {
	for _, inner := range []struct {
		old, new map[string]any
		element  func(name string) string
	}{
		{manifest.Mapping(old, "properties"), manifest.Mapping(new, "properties"), func(name string) string { return field.Key(name).String() }},
		{node{"items": old["items"]}, node{"items": new["items"]}, func(string) string { return "[*]" }},
		{node{"values": old["additionalProperties"]}, node{"values": new["additionalProperties"]}, func(string) string { return "{*}" }},
	} {
		for _, name := range names(inner.old, inner.new) {
			o, inOld := inner.old[name].(map[string]any)
			n, inNew := inner.new[name].(map[string]any)
			if inOld && inNew && schemaForm(o) != schemaForm(n) {
				return spelling(path+inner.element(name), o, n)
			}
		}
	}
	for _, keyword := range names(old, new) {
		if o, n := (node{keyword: old[keyword]}), (node{keyword: new[keyword]}); schemaForm(o) != schemaForm(n) {
			return path, keyword + ": " + changed(orDefault(old[keyword], ""), orDefault(new[keyword], ""))
		}
	}
	return path, "written in another way"
}

// comparison collects findings.
type comparison struct {
	*shared
	findings []Finding
}

// shared is what the walks of one comparison share.
type shared struct {
	// expressions has the expressions that were read, by their text.
	expressions map[string]cel.Expression
	// tried counts the work of trying branches, on defaults and on each other; see maxTried.
	tried int
}

// read reads an expression once, and not after the context's end.
func (s *shared) read(ctx context.Context, text string) cel.Expression {
	e, known := s.expressions[text]
	if !known && ctx.Err() == nil {
		e = cel.Read(text)
		s.expressions[text] = e
	}
	return e
}

// walk returns a walk that shares what the comparison has read, and has its own findings.
func (c *comparison) walk(version string, narrows Parties, oldKeeps, newKeeps bool) walk {
	return walk{comparison: comparison{shared: c.shared}, version: version, narrows: narrows, oldKeeps: oldKeeps, newKeeps: newKeeps}
}

// add adds a finding with the catalogue's advice.
func (c *comparison) add(f Finding) {
	if f.Advice == "" {
		f.Advice = adviceOn(f)
	}
	c.findings = append(c.findings, f)
}

func (c *comparison) report(least Severity) Report {
	slices.SortStableFunc(c.findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Name, b.Name))
	})
	r := Report{Severity: least, Findings: slices.Compact(c.findings)}
	if len(r.Findings) > 0 {
		r.Severity = r.Findings[0].Severity
	}
	return r
}

// changed returns a detail.
func changed(old, new any) string { return show(old) + " -> " + show(new) }

// absent is a missing value in a detail.
type absent struct{}

// maxShown limits a value in a detail, in bytes.
const maxShown = 160

func show(v any) string {
	text := "none"
	switch v := v.(type) {
	case absent:
	case string:
		text = v
	default:
		j, err := json.Marshal(v)
		if err != nil {
			return err.Error()
		}
		text = string(j)
	}
	if len(text) > maxShown {
		text = strings.ToValidUTF8(text[:maxShown], "") + "…"
	}
	return text
}
