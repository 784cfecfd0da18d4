package plan

import (
	"cmp"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
)

// Controllers finds the behaviours behind types.
type Controllers struct {
	// Of returns the behaviour of the types that a desired definition defines, as
	// rendered; nil if nothing is declared. It fails if the definition names a controller
	// that is not rendered.
	Of func(definition *manifest.Object) (*behaviour.Identity, error)
	// Find returns a behaviour of the kind with the given digest elsewhere, and where it
	// was found; nil if there is none. May be nil.
	Find func(kind schema.GroupKind, digest string) (i *behaviour.Identity, where string)
}

// ControllerMismatch is a pin that differs from the behaviour behind its object's
// type.
type ControllerMismatch struct {
	Kind schema.GroupKind
	// Pinned and Have are the digests of the pinned behaviour, and of the one that is
	// rendered for the cluster.
	Pinned, Have string
	// Known is where the pinned behaviour was found, as in "cluster dev"; empty if
	// only its digest is known.
	Known string
	// Differences are the differences from the pinned behaviour to the cluster's.
	Differences []behaviour.Difference
}

// CheckControllers refuses the objects that are pinned to another behaviour than the
// rendered one of their types. It also refuses a pin that cannot be checked. Call it
// after CheckPins: an object may be refused for both reasons.
func CheckControllers(p *Plan, known Controllers) {
	if known.Of == nil {
		return
	}
	var found map[schema.GroupKind]*Step
	var steps map[manifest.ID]*Step
	behind := make(map[manifest.ID]func() (*behaviour.Identity, error))
	of := known.Of
	known.Of = func(definition *manifest.Object) (*behaviour.Identity, error) {
		once := behind[definition.ID()]
		if once == nil {
			once = sync.OnceValues(func() (*behaviour.Identity, error) { return of(definition) })
			behind[definition.ID()] = once
		}
		return once()
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Object == nil || behaviour.Pin(s.Object) == "" || s.Pin == nil && s.Action != Create && s.Action != Configure && s.Action != Unchanged {
			continue
		}
		if found == nil {
			found, steps = definers(p), make(map[manifest.ID]*Step, len(p.Steps))
			for i := range p.Steps {
				steps[p.Steps[i].ID] = &p.Steps[i]
			}
		}
		if reason := checkController(s, found, steps, known); reason != "" {
			if s.Pin != nil {
				reason = s.Reason + "; and " + reason
			}
			s.Action, s.Reason = Refused, reason
		}
	}
}

// checkController returns why an object must be refused; "" if its pin is right.
func checkController(s *Step, definers map[schema.GroupKind]*Step, steps map[manifest.ID]*Step, known Controllers) string {
	pin := behaviour.Pin(s.Object)
	gk := kindOf(s.ID)
	if !isTypeDigest(pin) {
		return fmt.Sprintf("%s: %q is no digest of a behaviour: want h1: and 44 characters of base64, as `gitopsd types pin --behaviour` writes them%s", manifest.ControllerAnnotation, pin, s.Object.Origin().InPackage())
	}
	what := fmt.Sprintf("pinned to the controller %s of %s", pin, gk)
	d := definers[gk]
	if d == nil {
		return fmt.Sprintf("%s, which cannot be compared: no package and no manifest of this cluster defines the type; declare it, or remove the annotation %s", what, manifest.ControllerAnnotation)
	}
	have, err := known.Of(d.Object)
	switch {
	case err != nil:
		return fmt.Sprintf("%s, which cannot be compared: %v", what, err)
	case have == nil:
		return fmt.Sprintf("%s, which cannot be compared: nothing declares what acts on the type here; name the workload by the annotation %s of %s, or remove this pin", what, manifest.ControllerAnnotation, d.ID)
	}
	late := notApplied(have, d, steps)
	switch digest := have.Digest(); {
	case late != nil && s.Action == Unchanged:
		return "" // the cluster keeps what it has, and so does the object
	case digest == pin && late != nil && late.Rollback.Done:
		return fmt.Sprintf("%s, which is rolled back here: %s", what, late.Rollback.Why)
	case digest == pin && late != nil:
		return fmt.Sprintf("%s, which is not applied here: %s is %s: %s", what, late.ID, late.Action, cmp.Or(late.Reason, "see there"))
	case digest == pin:
		return ""
	default:
		m := &ControllerMismatch{Kind: gk, Pinned: pin, Have: digest}
		if known.Find != nil {
			var was *behaviour.Identity
			if was, m.Known = known.Find(gk, pin); was != nil {
				m.Differences = behaviour.Differences(was, have)
			} else {
				m.Known = ""
			}
		}
		s.Controller = m
		return m.reason()
	}
}

// notApplied returns a step of a behaviour's objects, or of its definition, that does not
// apply the rendered object; nil if all do.
func notApplied(i *behaviour.Identity, definer *Step, steps map[manifest.ID]*Step) *Step {
	parts := []manifest.ID{definer.ID}
	if i.Workload != (manifest.ID{}) {
		parts = append(parts, i.Workload)
	}
	for _, c := range i.Compositions {
		parts = append(parts, manifest.Composition.ID("", c.Name))
	}
	for _, id := range parts {
		if s := steps[id]; s != nil && (s.Action == Refused || s.Action == Conflict || s.Rollback.Done) {
			return s
		}
	}
	return nil
}

// reason describes the mismatch in one line.
func (m *ControllerMismatch) reason() string {
	pinned, differences := fmt.Sprintf("the controller %s of %s", m.Pinned, m.Kind), behaviour.Summary(m.Differences, maxShownFindings)
	return pinReason(pinned, m.Known, m.Have, differences, "controller")
}
