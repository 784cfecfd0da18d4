package desired

import (
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/target"
	"gitopsd.dev/sources/clusters"
)

// publications returns the publications of a cluster, and those to its namespaces. A cluster
// that is being emptied is not published.
func publications(r *clusters.Registry, name string) []target.Publication {
	var all []target.Publication
	for _, c := range r.Clusters {
		if c.Remove {
			continue
		}
		for _, p := range c.Spec.Publish {
			if c.Name != name && p.Cluster != name {
				continue
			}
			all = append(all, target.Publication{
				Home: p.Cluster, Cluster: c.Name, Namespace: p.Namespace, Role: p.Role,
				Automatic: p.Target == clusters.Automatic, Labels: c.Labels, Line: p.Line,
			})
		}
	}
	return all
}

// keepPublished keeps the targets in the cluster, and their definitions, while the registry has
// errors: a document with errors may publish a cluster to it.
func (cl *Unit) keepPublished() {
	rendered := cl.Keeps
	cl.Keeps = func(id manifest.ID, pkg string) bool {
		return id.Is(target.Target) || target.Defines(id) || rendered(id, pkg)
	}
}
