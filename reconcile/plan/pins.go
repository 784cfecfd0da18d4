package plan

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/pins"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
)

var pinForm = regexp.MustCompile(`^h1:[A-Za-z0-9+/]{43}=$`)

// isTypeDigest reports whether a string has the form of a digest of types or behaviours.
func isTypeDigest(s string) bool { return pinForm.MatchString(s) }

// Mismatch is a pin that differs from the type that its object would be applied as.
type Mismatch struct {
	// Type is the object's, in the version that it is written in.
	Type schema.GroupVersionKind
	// Pinned and Have are the digests of the pinned type, and of the type that the
	// cluster has once the plan is executed.
	Pinned, Have string
	// Known is where the pinned type was found, as in "cluster dev"; empty if only
	// its digest is known.
	Known string
	// Findings are the differences from the pinned type to the cluster's, in the object's
	// version.
	Findings []compat.Finding
}

// LiveDefinition is the CRD or XRD of a kind as the cluster has it. The zero value
// stands for a kind without a definition.
type LiveDefinition struct {
	Tree map[string]any
	// Err is why it could not be read.
	Err error
}

// FindType returns a definition with a type of the given digest, and where it was found;
// nil if there is none.
type FindType func(gvk schema.GroupVersionKind, digest string) (definition map[string]any, where string)

// PinnedKinds returns the kinds that CheckPins needs live definitions of: the kinds of
// pinned objects, unless the plan has the definition and changes neither it nor the
// object.
func PinnedKinds(p *Plan) []schema.GroupKind {
	definers := definers(p)
	var kinds []schema.GroupKind
	for i := range p.Steps {
		s := &p.Steps[i]
		if !pinned(s) {
			continue
		}
		gk := kindOf(s.ID)
		d := definers[gk]
		if d != nil && d.Action == Unchanged && s.Action == Unchanged || d != nil && d.Action == Create || slices.Contains(kinds, gk) {
			continue
		}
		kinds = append(kinds, gk)
	}
	return kinds
}

// CheckPins refuses the objects that are pinned to another type than the cluster will
// have when they are applied: the type that this plan installs, or else the live one. It
// also holds the digests that the API server compares pins with, while their definition
// is not applied. Kinds that are not in live, and that the plan does not define, are left
// to the API server.
func CheckPins(ctx context.Context, p *Plan, live map[schema.GroupKind]LiveDefinition, find FindType, reportDrift bool) {
	holdPolicies(p)
	c := pinCheck{definers: definers(p), live: live, find: find, reportDrift: reportDrift, known: make(map[schema.GroupKind]*settled)}
	for i := range p.Steps {
		if s := &p.Steps[i]; pinned(s) {
			c.check(ctx, s)
		}
	}
}

// pinned reports whether a step is about a pinned object that exists or will exist.
func pinned(s *Step) bool {
	return s.Object != nil && s.Object.Annotation(manifest.PinAnnotation) != "" &&
		(s.Action == Create || s.Action == Configure || s.Action == Unchanged)
}

// definers finds the steps of the desired definitions. If a kind has an XRD and a
// CRD, it is the XRD: Crossplane makes the CRD from it.
func definers(p *Plan) map[schema.GroupKind]*Step {
	found := make(map[schema.GroupKind]*Step)
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Object == nil {
			continue
		}
		for _, gvk := range Defines(s.Object) {
			if d := found[gvk.GroupKind()]; d == nil || !d.ID.Is(manifest.XRD) {
				found[gvk.GroupKind()] = s
			}
		}
	}
	return found
}

type pinCheck struct {
	definers    map[schema.GroupKind]*Step
	live        map[schema.GroupKind]LiveDefinition
	find        FindType
	reportDrift bool
	known       map[schema.GroupKind]*settled
}

// settled is the definition of a kind once the plan is executed.
type settled struct {
	tree  map[string]any
	types []types.Type
	err   error
	// unknown: the definition is not known, and nothing is reported.
	unknown bool
}

// settle returns the definition of a kind once the plan is executed.
func (c *pinCheck) settle(gk schema.GroupKind) *settled {
	if s := c.known[gk]; s != nil {
		return s
	}
	s := new(settled)
	c.known[gk] = s
	live, seen := c.live[gk]
	d := c.definers[gk]
	switch {
	case d != nil && d.Action.Writes() && !(d.Drift && c.reportDrift), d != nil && d.Action == Unchanged && !seen:
		s.tree = d.Object.Tree()
	case !seen:
		s.unknown = true
		return s
	case live.Err != nil:
		s.err = live.Err
		return s
	default:
		s.tree = live.Tree
	}
	if s.tree != nil {
		s.types, s.err = types.Of(s.tree)
	}
	return s
}

func (c *pinCheck) check(ctx context.Context, s *Step) {
	gvk := schema.FromAPIVersionAndKind(s.Object.APIVersion(), s.ID.Kind)
	pin := s.Object.Annotation(manifest.PinAnnotation)
	refuse := func(format string, args ...any) {
		s.Action, s.Reason = Refused, fmt.Sprintf(format, args...)
	}
	if !isTypeDigest(pin) {
		refuse("%s: %q is no type digest: want h1: and 44 characters of base64, as `gitopsd types pin` writes them%s", manifest.PinAnnotation, pin, s.Object.Origin().InPackage())
		return
	}
	at := c.settle(gvk.GroupKind())
	if at.unknown {
		return
	}
	name := gvk.GroupVersion().String() + " " + gvk.Kind
	switch {
	case at.err != nil:
		refuse("pinned to %s %s, which cannot be compared with this cluster's type: %v", name, pin, at.err)
		return
	case at.tree == nil:
		refuse("pinned to %s %s, which no CRD defines in this cluster: only the types of CRDs and XRDs have digests; remove the annotation %s", name, pin, manifest.PinAnnotation)
		return
	}
	have := digestOf(at.types, gvk)
	if have == "" || have == pin {
		return // a version that is not there is the API server's to refuse
	}
	m := &Mismatch{Type: gvk, Pinned: pin, Have: have}
	c.explain(ctx, m, at.tree)
	d := c.definers[gvk.GroupKind()]
	if d != nil && s.Action != Create && digestOf(d.Before, gvk) == pin {
		d.Unpinned = append(d.Unpinned, s.ID)
	}
	s.Pin = m
	refuse("%s", m.reason())
}

func digestOf(all []types.Type, gvk schema.GroupVersionKind) string {
	for _, t := range all {
		if t.Version == gvk.Version && t.Kind == gvk.Kind {
			return t.Digest
		}
	}
	return ""
}

// explain adds the differences, if the pinned type is known anywhere.
func (c *pinCheck) explain(ctx context.Context, m *Mismatch, have map[string]any) {
	var was map[string]any
	if live := c.live[m.Type.GroupKind()]; live.Tree != nil {
		if all, err := types.Of(live.Tree); err == nil && digestOf(all, m.Type) == m.Pinned {
			was, m.Known = live.Tree, "this cluster until now"
		}
	}
	if was == nil && c.find != nil {
		was, m.Known = c.find(m.Type, m.Pinned)
	}
	if was == nil {
		m.Known = ""
		return
	}
	report, err := compat.Compare(ctx, was, have, compat.Options{})
	if err != nil {
		return // a claim of an XRD against a CRD: two digests are all there is to say
	}
	for _, f := range report.Findings {
		if f.Version == "" || f.Version == m.Type.Version {
			m.Findings = append(m.Findings, f)
		}
	}
}

// reason describes the mismatch in one line.
func (m *Mismatch) reason() string {
	var differences []string
	for _, f := range m.Findings {
		differences = append(differences, strings.TrimSpace(f.Name+" "+f.Path))
	}
	text := prose.Some(differences, maxShownFindings)
	if text == "" && m.Known != "" {
		text = "they do not differ in fields of this version"
	}
	return pinReason(fmt.Sprintf("%s %s %s", m.Type.GroupVersion(), m.Type.Kind, m.Pinned), m.Known, m.Have, text, "type")
}

// pinReason describes a pin that differs from the cluster. known is where the pinned thing
// was found, and differences are those from it; thing is a type or a controller.
func pinReason(pinned, known, have, differences, thing string) string {
	if known != "" {
		pinned += " (" + known + ")"
	}
	switch {
	case differences != "":
		differences = ": " + differences
	case known == "":
		differences = "; how they differ is not known, since no cluster and no package of the repository has the pinned " + thing
	}
	return fmt.Sprintf("pinned to %s, which is %s here%s; bring the cluster to that %s, or renew the pin with `gitopsd types pin --update`", pinned, have, differences, thing)
}

// holdPolicies holds the policies for pins (render/pins) while their definition is not applied:
// its type stays as it is, and so must the digests that the API server compares pins with. A
// package's policies are refused with the package.
func holdPolicies(p *Plan) {
	var late []*Step
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Object != nil && s.Package == "" && s.ID.Is(manifest.Definitions...) && (s.Action == Refused || s.Action == Conflict) {
			late = append(late, s)
		}
	}
	if len(late) == 0 {
		return
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Object == nil || s.Package != "" || !pins.Of(s.Object) || !s.Action.Writes() {
			continue
		}
		for _, d := range late {
			if pins.Has(s.Object, d.Object) {
				s.Action, s.Reason = Held, fmt.Sprintf("it has the digests of %s, which is %s", d.ID, d.Action)
			}
		}
	}
}
