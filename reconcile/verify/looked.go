package verify

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
)

// Looked counts what was compared. An object that several clusters have under one name counts
// once.
type Looked struct {
	// Definitions are types with their schemas.
	Definitions int `json:"definitions"`
	// Controllers are workloads with their images, arguments, environment and pods.
	Controllers int `json:"controllers"`
	// ConfigMaps and Secrets are those that the controllers refer to. Rights counts the
	// controllers with compared rights.
	ConfigMaps int `json:"configMaps"`
	Secrets    int `json:"secrets"`
	Rights     int `json:"rights"`
	// Composed are composite types with their Compositions and Functions.
	Composed int `json:"composed"`
	// Admission are the webhooks and policies that match any of the types.
	Admission int `json:"admission"`
}

// String returns the counts in a sentence without a full stop.
func (l Looked) String() string {
	parts := []string{prose.Agree(l.Definitions, "definition", "definitions")}
	if l.Controllers > 0 {
		text := prose.Count(l.Controllers, "controller") + " with image, arguments and environment"
		if l.ConfigMaps > 0 {
			text += ", " + prose.Count(l.ConfigMaps, manifest.ConfigMap.Kind)
		}
		if l.Secrets > 0 {
			text += ", " + prose.Count(l.Secrets, manifest.Secret.Kind)
		}
		if l.Rights > 0 {
			text += ", and rights"
		}
		parts = append(parts, text)
	}
	if l.Composed > 0 {
		parts = append(parts, "the Compositions and Functions of "+prose.Count(l.Composed, "type"))
	}
	if l.Admission > 0 {
		parts = append(parts, prose.Agree(l.Admission, "webhook or policy", "webhooks and policies"))
	}
	return strings.Join(parts, "; ")
}

// Omission is something that was left out of the comparison in a cluster.
type Omission struct {
	Cluster string `json:"cluster"`
	// What is the object: "Secret team/credentials".
	What   string `json:"what"`
	Reason string `json:"reason"`
	// Unknown reports whether it could not be read, so that it may hide a difference.
	Unknown bool `json:"unknown"`
}

// looked counts what was compared.
func (c *comparison) looked() Looked {
	var l Looked
	workloads, configs, secrets, rights := make(map[manifest.ID]bool), make(map[string]bool), make(map[string]bool), make(map[manifest.ID]bool)
	for i := range c.clusters {
		cl := &c.clusters[i]
		for id, w := range cl.Controllers {
			if w.Unread || cl.Unread {
				continue
			}
			workloads[id] = true
			if w.Rights.Read {
				rights[id] = true
			}
			count := func(objects map[string]bool, parts []behaviour.Part) {
				for _, p := range parts {
					if name, _, _ := strings.Cut(p.Name, " key "); p.Value != behaviour.Elsewhere && p.Value != behaviour.Certificates {
						objects[id.Namespace+" "+name] = true
					}
				}
			}
			count(configs, w.ConfigMaps.Parts)
			count(secrets, w.Secrets.Parts)
		}
	}
	for id, t := range c.types {
		live, composed := false, false
		for i := range c.clusters {
			d := c.clusters[i].Definitions[id]
			live = live || d != nil && d.Live != nil
			composed = composed || d != nil && d.Composed != nil
		}
		if live {
			l.Definitions++
		}
		if composed && t.acted {
			l.Composed++
		}
	}
	l.Controllers, l.ConfigMaps, l.Secrets, l.Rights = len(workloads), len(configs), len(secrets), len(rights)
	l.Admission = len(c.admitted)
	return l
}

// omissions returns what was left out, sorted and without duplicates.
func (c *comparison) omissions() []Omission {
	all := append([]Omission{}, c.uncompared...)
	for i := range c.clusters {
		cl := &c.clusters[i]
		for _, o := range cl.Omitted {
			o.Cluster = cl.Name
			all = append(all, o)
		}
		for _, w := range cl.Controllers {
			for _, name := range w.Added {
				all = append(all, Omission{Cluster: cl.Name, What: "container " + name + " in pods of " + w.Wanted.String(), Reason: "the workload does not have it; a webhook or a person added it to the pods"})
			}
			for _, name := range w.Wanted.PerCluster {
				all = append(all, Omission{Cluster: cl.Name, What: name + " of " + w.Wanted.String(), Reason: "every cluster has its own, by " + manifest.PerClusterAnnotation})
			}
		}
		for _, p := range c.parameters[cl.Name] {
			all = append(all, Omission{Cluster: cl.Name, What: p, Reason: "parameters of policies are not compared"})
		}
	}
	slices.SortFunc(all, func(a, b Omission) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.What, b.What), cmp.Compare(a.Reason, b.Reason))
	})
	return slices.Compact(all)
}

// verified returns the result of a comparison without findings in words.
func (r *Report) verified() string {
	blind := slices.ContainsFunc(r.Omitted, func(o Omission) bool { return o.Unknown })
	what := "no difference"
	if len(r.Clusters) == 1 {
		what = "as the repository declares"
	}
	switch n := r.Types - r.DefinitionOnly; {
	case blind:
		return what + " in what could be read"
	case r.DefinitionOnly == 0:
		return "verified, " + what
	case n == 0:
		return what + ", in definition only"
	default:
		return fmt.Sprintf("%s; %d verified, %d in definition only", what, n, r.DefinitionOnly)
	}
}
