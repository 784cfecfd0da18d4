package compat

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/version"

	"gitopsd.dev/render/types"
)

// disagreements compares the versions of a definition without conversion: an object that
// is valid in one must be valid in the others, and keep its fields. Disagreements that
// existed before are not reported, unless the storage version changes: fields that were
// only hidden are lost then.
func (c *comparison) disagreements(ctx context.Context, old, new *definition, stored storage) {
	known := map[Finding]bool{}
	if !old.Converts {
		for _, f := range c.disagree(ctx, old, old, stored) {
			known[f] = true
		}
	}
	for _, f := range c.disagree(ctx, new, old, stored) {
		if !known[f] {
			c.add(f)
		}
	}
	if s := new.version(new.storageVersion()); s != nil && s.Name != old.storageVersion() {
		for i := range new.versions {
			v := &new.versions[i]
			// The objects that are stored in a version that is not served lose fields, too.
			kept := old.version(v.Name) != nil && stored.may(v.Name)
			if v.Name != s.Name && (v.Served || kept) {
				c.dropped(ctx, new, v, s)
			}
		}
	}
}

// disagree compares the versions that objects may be written in with those that they are
// read or stored in. Objects may also be stored in a version that is no longer served;
// those are compared with the versions that the old definition does not have.
func (c *comparison) disagree(ctx context.Context, d, old *definition, stored storage) []Finding {
	versions := slices.Clone(d.versions)
	slices.SortFunc(versions, func(a, b types.Version) int { return version.CompareKubeAwareVersionStrings(a.Name, b.Name) })
	used := func(v types.Version) bool { return v.Served || v.Storage }
	was := func(v types.Version) bool { return old.version(v.Name) != nil && stored.may(v.Name) }
	meets := func(kept, read types.Version) bool {
		return !used(kept) && was(kept) && used(read) && old.version(read.Name) == nil
	}
	written := func(in, read types.Version) []Finding {
		return c.written(ctx, d, in, read, read.Served && (in.Storage || was(in)))
	}
	var all []Finding
	for i, a := range versions {
		for _, b := range versions[i+1:] {
			if used(a) && used(b) || meets(a, b) {
				all = append(all, written(a, b)...)
			}
			// The reverse only happens on the way to etcd, or from there.
			if used(b) && a.Storage || meets(b, a) {
				all = append(all, written(b, a)...)
			}
		}
	}
	return all
}

// written returns the findings about an object that is written in one version and read in
// another. stored is set if it may be stored in the first.
func (c *comparison) written(ctx context.Context, d *definition, in, read types.Version, stored bool) []Finding {
	var all []Finding
	for _, f := range c.narrowed(ctx, d, in, read, stored) {
		if f.Severity == Breaking {
			f.Advice = advice[VersionsDisagree]
			if f.Name == "default-added" {
				f.Advice = unfilledAdvice
			}
			f.Detail = f.Name + ": " + f.Detail
			f.Name, f.Breaks = VersionsDisagree, everybody
			all = append(all, f)
		}
	}
	return all
}

// narrowed compares two versions of one definition. unfilled is set if objects that are
// stored in the first are read in the second, whose defaults they do not get.
func (c *comparison) narrowed(ctx context.Context, d *definition, in, read types.Version, unfilled bool) []Finding {
	w := c.walk(in.Name+" -> "+read.Name, everybody, d.PreservesUnknownFields, d.PreservesUnknownFields)
	w.unfilled = unfilled
	w.node(ctx, place{root: true}, in.Schema, read.Schema)
	return w.findings
}

// drops are the findings that mean that values are dropped. Limits do not matter for the
// storage version: an object is checked by the version that it is written in.
var drops = []string{
	"field-removed", "pruning-on", "additional-properties-removed", "embedded-resource-removed", "type-changed", "type-narrowed",
}

// VersionsDisagree is the finding that an object of one version is not valid in another,
// loses fields there, or lacks a default, and nothing converts. Its Version is both.
const VersionsDisagree = "versions-disagree"

// StorageVersionDrops is the finding that a new storage version lacks a field of another
// version, and nothing converts. Its Version is both: "v1beta1 -> v1".
const StorageVersionDrops = "storage-version-drops"

// dropped reports fields of a served or stored version that the new storage version lacks.
// New objects lose them at once, existing ones at their next write, which may be the
// storage migration's.
func (c *comparison) dropped(ctx context.Context, d *definition, in, storage *types.Version) {
	for _, f := range c.narrowed(ctx, d, *in, *storage, false) {
		if slices.Contains(drops, f.Name) && f.Severity == Breaking {
			f.Detail = f.Name + ": " + f.Detail
			f.Name, f.Breaks, f.Advice = StorageVersionDrops, everybody, advice[StorageVersionDrops]
			if !in.Served {
				f.Breaks = StoredObjects
			}
			c.add(f)
		}
	}
}
