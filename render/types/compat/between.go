package compat

import (
	"slices"

	"k8s.io/apimachinery/pkg/version"

	"gitopsd.dev/render/types"
)

// disagreements compares versions side by side without a conversion: an object that
// is valid in one must be valid in the other, and keep its fields. Disagreements that
// existed before are not reported, unless the storage version changes: then fields
// that were only hidden are lost.
func (c *comparison) disagreements(old, new *definition, stored storage) {
	known := map[Finding]bool{}
	if !old.Converts {
		for _, f := range disagree(old, old, stored) {
			known[f] = true
		}
	}
	for _, f := range disagree(new, old, stored) {
		if !known[f] {
			c.add(f)
		}
	}
	if s := new.version(new.storageVersion()); s != nil && s.Name != old.storageVersion() {
		for i := range new.versions {
			if v := &new.versions[i]; v.Served && v.Name != s.Name {
				c.dropped(new, v, s)
			}
		}
	}
}

// disagree compares the versions that objects may be written in with those that
// they are read or stored in. Objects that were stored in a version which is not
// served now matter to versions that the old definition does not have: what
// becomes of them in the others is said of these.
func disagree(d, old *definition, stored storage) []Finding {
	versions := slices.Clone(d.versions)
	slices.SortFunc(versions, func(a, b types.Version) int { return version.CompareKubeAwareVersionStrings(a.Name, b.Name) })
	used := func(v types.Version) bool { return v.Served || v.Storage }
	meets := func(kept, read types.Version) bool {
		return !used(kept) && old.version(kept.Name) != nil && stored.may(kept.Name) && used(read) && old.version(read.Name) == nil
	}
	var all []Finding
	for i, a := range versions {
		for _, b := range versions[i+1:] {
			if used(a) && used(b) || meets(a, b) {
				all = append(all, written(d, a, b)...)
			}
			// Back again only on the way to etcd, or from there.
			if used(b) && a.Storage || meets(b, a) {
				all = append(all, written(d, b, a)...)
			}
		}
	}
	return all
}

// written is what breaks when an object written in one version is read in
// another.
func written(d *definition, in, read types.Version) []Finding {
	var all []Finding
	for _, f := range narrowed(d, in, read) {
		if f.Severity == Breaking {
			f.Detail = f.Name + ": " + f.Detail
			f.Name, f.Breaks, f.Advice = "versions-disagree", everybody, advice["versions-disagree"]
			all = append(all, f)
		}
	}
	return all
}

// narrowed compares two versions of one definition.
func narrowed(d *definition, in, read types.Version) []Finding {
	w := walk{version: in.Name + " -> " + read.Name, narrows: everybody, oldKeeps: d.PreservesUnknownFields, newKeeps: d.PreservesUnknownFields}
	w.node(place{root: true}, in.Schema, read.Schema)
	return w.findings
}

// drops are the findings whose values a schema does not keep. Limits are no
// matter on the way to etcd: an object is checked by the version that it is
// written in.
var drops = []string{
	"field-removed", "pruning-on", "additional-properties-removed", "embedded-resource-removed", "type-changed", "type-narrowed",
}

// dropped is about the version that objects are stored in from now on: what it
// does not have is gone from objects written in another, new ones at once and
// existing ones at their next write.
func (c *comparison) dropped(d *definition, in, storage *types.Version) {
	for _, f := range narrowed(d, *in, *storage) {
		if slices.Contains(drops, f.Name) && f.Severity == Breaking {
			f.Detail = f.Name + ": " + f.Detail
			f.Name, f.Breaks, f.Advice = "storage-version-drops", everybody, advice["storage-version-drops"]
			c.add(f)
		}
	}
}
