package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/cmd/gitopsd/preview"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
)

// against compares with another revision.
func (p *planner) against(ctx context.Context, fleet *preview.Fleet, state *desired.State) error {
	commit, repo, err := commitOf(p.root, p.options.against)
	if err != nil {
		return fmt.Errorf("--against: %w", err)
	}
	defer repo.Close()
	commit.Subject = p.options.against
	shows := rendering(p.cmd, commit)
	before, err := p.published.ComputePast(ctx, commit)
	shows.stop()
	if errors.Is(err, desired.ErrNoRegistry) {
		before = &desired.State{Registry: new(clusters.Registry)} // the fleet is new since then
	} else if err != nil {
		return fmt.Errorf("--against %s: %w", p.options.against, err)
	}
	for _, fault := range problem.Merge(problem.Of(before.RegistryErr)) {
		fleet.Errors = append(fleet.Errors, fmt.Sprintf("at %s: %s", p.options.against, fault))
	}
	none, _ := manifest.NewSet(nil)
	var comparer plan.Comparer
	for _, c := range state.Clusters {
		cp := shown(c, p.options.registry.local)
		old := before.Get(c.Name)
		how, err := unit.PlanOptions(c)
		switch {
		case c.Err != nil:
			cp.Err = problem.Message(c.Err)
		case err != nil:
			cp.Err = err.Error()
		case old == nil && !before.Registry.Removed(c.Name):
			// The daemon may have applied the cluster before the error came in.
			cp.Err = fmt.Sprintf("at %s: %s has errors, and may register this cluster", p.options.against, sources.RegistryFile)
		case old == nil:
			if cp.Plan, err = comparer.Between(ctx, c.Name, none, c.Objects, how, c.Allows, find(ctx, c)); err != nil {
				return err
			}
			plan.CheckControllers(cp.Plan, controllers(ctx, c, nil))
		case old.Err != nil:
			cp.Err = fmt.Sprintf("at %s: %v", p.options.against, old.Err)
		default:
			cp.Before = packageNames(old)
			maps.DeleteFunc(cp.Before, func(name, _ string) bool {
				return cp.Packages[name] == "" && c.Keeps != nil && c.Keeps(manifest.ID{}, name)
			})
			if cp.Plan, err = comparer.Between(ctx, c.Name, old.Objects, c.Objects, how, c.Allows, find(ctx, c, old)); err != nil {
				return err
			}
			plan.CheckControllers(cp.Plan, controllers(ctx, c, old))
			for _, name := range old.Incomplete {
				fleet.Notes = append(fleet.Notes, fmt.Sprintf("cluster %s: package %s has errors at %s, so that its objects look new here; the cluster may have them", c.Name, name, p.options.against))
			}
		}
		if cp.Plan != nil {
			cp.Plan.Notes = unit.Notes(c, nil, unit.EtcdUnknown)
			if err := plan.CheckConversions(ctx, cp.Plan, c.Conversions, c.Proofs); err != nil {
				return err
			}
			plan.HoldIncomplete(cp.Plan)
			if c.LineOf != nil {
				cp.Plan.Locate(c.LineOf)
			}
		}
		fleet.Clusters = append(fleet.Clusters, cp)
	}
	fleet.Notes = append(fleet.Notes, planNotes(fleet)...)
	for _, c := range before.Clusters {
		if state.Registry.Removed(c.Name) && c.Objects != nil {
			fleet.Notes = append(fleet.Notes, leaves(c.Cluster, prose.Agree(c.Objects.Len(), "object stays", "objects stay")))
		}
	}
	return nil
}

// leaves returns a note on a cluster that is no longer registered. Of its document only the name
// may be known.
func leaves(c clusters.Cluster, stay string) string {
	note := fmt.Sprintf("cluster %s leaves the registry: %s in place; to remove them, keep the document with the annotation %s: %[1]s until that is done", c.Name, stay, clusters.RemoveAnnotation)
	if served := c.Spec.Served(); len(served) > 0 {
		note += "; the daemon serves nothing for it any more, and its API servers need that: withdraw " + strings.Join(served, " and ") + " before"
	}
	return note
}

// find returns a function that finds a type in the states of some clusters.
func find(ctx context.Context, all ...*desired.Unit) plan.FindType {
	return func(gvk schema.GroupVersionKind, digest string) (map[string]any, string) {
		for _, c := range all {
			if definition, where := c.FindType(ctx, gvk, digest); definition != nil {
				return definition, where
			}
		}
		return nil, ""
	}
}

// controllers returns how to find what acts on a cluster's types. Other behaviours are looked
// up in old, the cluster's earlier state, which may be nil, and in both fleets.
func controllers(ctx context.Context, c, old *desired.Unit) plan.Controllers {
	return plan.Controllers{Of: c.Behaviour, Find: func(gk schema.GroupKind, digest string) (*behaviour.Identity, string) {
		if old != nil {
			if definition := old.Definition(gk.WithVersion("")); definition != nil {
				if i, err := old.Behaviour(definition); err == nil && i != nil && i.Digest() == digest {
					return i, "this cluster until now"
				}
			}
		}
		if i, where := c.FindBehaviour(ctx, gk, digest); i != nil || old == nil {
			return i, where
		}
		return old.FindBehaviour(ctx, gk, digest)
	}}
}
