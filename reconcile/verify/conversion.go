package verify

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// ConverterOf returns the address of a definition's conversion webhook with the API server's
// defaults: a URL, or "service <namespace>/<name>:<port><path>". It leaves out the CA bundle,
// which others fill in. It is empty if no webhook converts, and if the address is left to
// others.
func ConverterOf(definition map[string]any) string {
	spec := manifest.Mapping(definition, "spec", "conversion")
	if manifest.Text(spec, "strategy") != "Webhook" {
		return ""
	}
	client := manifest.Mapping(spec, "webhook", "clientConfig")
	service := manifest.Mapping(client, "service")
	if service == nil {
		return manifest.Text(client, "url")
	}
	service = filled(service, map[string]any{"port": int64(443)})
	return fmt.Sprintf("service %s/%s:%v%s", manifest.Text(service, "namespace"), manifest.Text(service, "name"), service["port"], cmp.Or(manifest.Text(service, "path"), "/"))
}

// conversion compares live conversions of a type's objects with the rendered ones, and the
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
