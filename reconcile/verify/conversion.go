package verify

import (
	"cmp"
	"maps"
	"slices"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// conversion compares live conversions of a type's objects with the rendered rules, and the
// rules of clusters with each other. Rules belong to a schema: clusters with different
// schemas are not compared.
func (c *comparison) conversion(id manifest.ID, all []here) {
	problems, rules := newPartition(), make(map[string]*partition)
	for _, h := range all {
		switch {
		case h.pending || h.Live == nil || h.Rendered == nil || !slices.Equal(h.Rendered, h.Live):
			continue // it has another finding
		case h.Converted != "":
			problems.add(string(ConversionDrifted)+" "+h.Converted, h.cluster, "asks "+h.Converted, nil)
			continue
		}
		sum := types.Sum(h.Live)
		if rules[sum] == nil {
			rules[sum] = newPartition()
		}
		what := "no conversion rules"
		if h.Conversion != "" {
			what = cmp.Or(h.Source, origin(h.Definition)) + " with conversion rules"
		}
		rules[sum].add(h.Conversion, h.cluster, what, patched(h.Patches, h.cluster))
	}
	c.reportEach(id, problems)
	for _, sum := range slices.Sorted(maps.Keys(rules)) {
		sides := rules[sum].ordered()
		if len(sides) < 2 {
			continue
		}
		for _, s := range sides {
			s.hash = Brief(s.key)
		}
		c.report(ConversionDiffers, id, sides)
	}
}
