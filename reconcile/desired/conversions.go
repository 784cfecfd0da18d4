package desired

import (
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources/lockfile"
)

// lockConversions writes the digests of the clusters' conversion rules into the lock. A
// definition that could not be rendered keeps its line, as the cluster keeps the definition.
func (s *State) lockConversions() {
	for _, c := range s.Clusters {
		if c.Err != nil {
			continue
		}
		var now []lockfile.Conversion
		for name, v := range c.Conversions {
			now = append(now, lockfile.Conversion{Cluster: c.Name, Definition: name, Digest: v.Set.Digest()})
		}
		for _, before := range s.Lock.Conversions(c.Name) {
			if c.Conversions[before.Definition] == nil && c.keeps(before.Definition) {
				now = append(now, before)
			}
		}
		s.Lock.Convert(c.Name, now)
	}
}

// keeps reports whether a definition that is not rendered may still be desired.
func (c *Unit) keeps(definition string) bool {
	id := manifest.CRD.ID("", definition)
	return !c.Remove && c.Objects.Get(id) == nil && (c.Bare || len(c.Incomplete) > 0 || c.Keeps(id, ""))
}
