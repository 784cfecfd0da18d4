package verify

import (
	"slices"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
)

// composesBetween names the composed types that differ between sides, in themselves or in
// what acts on them, and the settings of Functions that differ. Each such type also has its
// own finding.
func composesBetween(all []here, sides []*side) []string {
	of := func(s *side) *behaviour.Identity {
		i := slices.IndexFunc(all, func(h here) bool { return h.cluster == s.Clusters[0] })
		if all[i].Behaviour == nil || all[i].Behaviour.Workload != (manifest.ID{}) {
			return new(behaviour.Identity)
		}
		return all[i].Behaviour
	}
	var types, settings []string
	for _, s := range sides[1:] {
		a, b := of(sides[0]), of(s)
		types = append(types, behaviour.Differing(a.Composes, b.Composes)...)
		settings = append(settings, behaviour.Differing(a.Settings, b.Settings)...)
	}
	var lines []string
	add := func(what string, names []string) {
		if len(names) > 0 {
			slices.Sort(names)
			lines = append(lines, what+": "+prose.Some(slices.Compact(names), 8))
		}
	}
	add("composed types that differ", types)
	add("settings that differ", settings)
	return lines
}
