package upgrade

import (
	"maps"
	"slices"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources"
)

// Misfit are conversion rules that do not fit a version of a package.
type Misfit struct {
	// Definition is the name of the CustomResourceDefinition, and Clusters are the clusters
	// with the rules.
	Definition string   `json:"definition"`
	Clusters   []string `json:"clusters"`
	// Error has a line for each fault, with its file and line.
	Error string `json:"error"`
}

// misfits returns the conversion rules of clusters that do not fit a version of their package,
// by cluster and definition. Definitions that a cluster patches are left out: its plan checks
// them.
func (p *Versions) misfits(state *desired.State, pkg *sources.Package) []Misfit {
	var all []Misfit
	defined := definitions(pkg)
	for _, cluster := range p.Clusters {
		c := state.Get(cluster)
		for _, name := range slices.Sorted(maps.Keys(c.Conversions)) {
			v := c.Conversions[name]
			tree := defined[compat.SetKey{Kind: manifest.CRD.Kind, Name: name}]
			if tree == nil || v.Before.Origin().Package.Ref.Repository != p.Repository || c.Patched[v.Before.ID()] != nil {
				continue
			}
			_, err := conversion.Compile(tree, v.Documents)
			if err == nil {
				continue
			}
			m := Misfit{Definition: name, Clusters: []string{cluster}, Error: err.Error()}
			i := slices.IndexFunc(all, func(o Misfit) bool { return o.Definition == m.Definition && o.Error == m.Error })
			if i < 0 {
				all = append(all, m)
			} else {
				all[i].Clusters = append(all[i].Clusters, cluster)
			}
		}
	}
	return all
}
