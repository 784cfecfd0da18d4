package apply

import (
	"slices"
	"strings"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// A CRD or XRD records which types it had before: the digests, the last one first, separated by
// spaces. A change that goes back to one of them is a rollback. It may harm nobody, and is
// then let through although the types get narrower. So a record that somebody else wrote,
// or that is stale, lets no harm through: at worst a change passes that no object objects
// to. Copies of a definition are no members, and theirs is not read.
const (
	// mostPast is how many earlier types are recorded.
	mostPast = 10
	// absent stands for no type: the definition was added to an installed package.
	absent = "none"
)

// past returns the record of a definition that is applied with types of a digest; "" for none.
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

// history returns the record of a definition that goes from types with one digest, "" if that is
// not known, to types with another.
func history(from, before, to string) string {
	past := strings.Fields(before)
	if from != "" && from != to {
		past = slices.DeleteFunc(past, func(d string) bool { return d == from || d == to })
		past = slices.Insert(past, 0, from)
	}
	return strings.Join(past[:min(len(past), mostPast)], " ")
}

// findBack notes which steps bring types back that their definitions had before, and which of these
// are new in their package.
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
		s.Back = slices.Contains(strings.Fields(meta.Annotations[manifest.HistoryAnnotation]), to)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.added = added
}
