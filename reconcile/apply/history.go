package apply

import (
	"slices"
	"strings"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// A CRD or XRD records the digests of its earlier types, the last one first, separated by
// spaces. A change back to one of them is a rollback, and is let through although the types
// get narrower, if it harms no object. So a stale or forged record does no harm: it can only
// allow a change that fits all objects. Copies of a definition are no members, and their
// records are not read.
const (
	// mostPast is how many earlier types are recorded.
	mostPast = 10
	// absent stands for no type: the definition was added to an installed package.
	absent = "none"
)

// past returns the record of a definition that is applied with types of a digest; "" for
// none.
func (a *Applier) past(id manifest.ID, digest string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := a.known(id); m != nil {
		return history(m.types, m.before, digest)
	}
	if a.added[id] {
		return absent
	}
	return ""
}

// history returns the record of a definition whose types change from one digest to
// another; from is "" if it is not known.
func history(from, before, to string) string {
	past := strings.Fields(before)
	if from != "" && from != to {
		past = slices.DeleteFunc(past, func(d string) bool { return d == from || d == to })
		past = slices.Insert(past, 0, from)
	}
	return strings.Join(past[:min(len(past), mostPast)], " ")
}

// findBack marks the steps that bring back types that their definitions had before, and
// notes the definitions that are new in an installed package.
func (a *Applier) findBack(p *plan.Plan, seen *view) {
	installed := make(map[string]bool)
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Package != "" && s.Object != nil && s.UID != "" {
			installed[s.Package] = true
		}
	}
	added := make(map[manifest.ID]bool)
	for i := range p.Steps {
		s := &p.Steps[i]
		if !s.ID.Is(manifest.Definitions...) {
			continue
		}
		if s.Action == plan.Create && installed[s.Package] {
			added[s.ID] = true
		}
		meta := seen.live.Objects[s.ID]
		if meta == nil || a.inv.Membership(s.ID, meta) != plan.Member || s.Action != plan.Configure && s.Action != plan.Prune {
			continue
		}
		to := absent
		if s.Object != nil {
			digest, err := typesDigest(s.Object)
			if err != nil {
				continue
			}
			to = digest
		}
		// The types that were applied last count: others have changed the definition since.
		s.Back = to == meta.Annotations[manifest.TypesAnnotation] || slices.Contains(strings.Fields(meta.Annotations[manifest.HistoryAnnotation]), to)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.added = added
}
