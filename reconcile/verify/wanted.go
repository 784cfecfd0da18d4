package verify

import (
	"context"
	"fmt"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// Repository computes the facts that follow from the repository, one cluster after the other.
// It caches the types that clusters share. The zero value is ready to use, by one goroutine
// at a time.
type Repository struct {
	types map[*manifest.Object][]types.Type
}

// Wanted returns the facts about a cluster's rendered objects. Its problems are
// gaps.
func (r *Repository) Wanted(ctx context.Context, c *desired.Unit) Facts {
	w := Facts{Name: c.Name, Definitions: make(map[manifest.ID]*Definition), Controllers: make(map[manifest.ID]*Controller)}
	for _, p := range c.Problems() {
		w.Gap(p)
	}
	if c.Err != nil {
		w.Unread = true // live types could not be compared with anything
		return w
	}
	source := make(map[string]string)
	for _, p := range c.Packages {
		source[p.Declaration.Name] = p.Pin.Ref.Repository + " " + p.Pin.Ref.Version()
		if replaces := p.Replacement(); replaces != "" {
			source[p.Declaration.Name] += ", " + replaces
		}
	}
	index := behaviour.NewIndex(c.Objects, c.Packages)
	for _, o := range c.Objects.All() {
		id := o.ID()
		switch {
		case id.Is(manifest.Definitions...):
			r.definition(ctx, c, &w, index, o, source)
		case id.Is(manifest.Webhooks...), id.Is(manifest.AdmissionPolicies...):
			form := admissionForm(o.Tree())
			w.Webhooks = append(w.Webhooks, Webhook{
				ID: id, Package: o.Label(manifest.PackageLabel), Rendered: hash(form), Missing: true,
				// A bundle that gitopsd fills in is not in the rendered object.
				Held: o.Annotation(manifest.InjectCAAnnotation) == "" && plan.Unready(o) != "",
			})
		}
	}
	return w
}

// Gap adds the reason why something could not be verified; nothing if err is nil.
func (c *Facts) Gap(err error) {
	for _, p := range problem.Of(err) {
		c.Gaps = append(c.Gaps, p.WithoutCluster().String())
	}
}

func (r *Repository) definition(ctx context.Context, c *desired.Unit, w *Facts, index *behaviour.Index, o *manifest.Object, source map[string]string) {
	all, err := r.typesOf(o)
	if err != nil {
		w.Gap(fmt.Errorf("%s: %w", o.Origin(), err))
		return
	}
	defined := types.Read(o.Tree())
	d := &Definition{ID: o.ID(), Kind: defined.Names.Kind, Group: defined.Group, Rendered: all, Package: o.Label(manifest.PackageLabel)}
	d.Resources, d.Scope = Resources(defined)
	d.Source = source[d.Package]
	d.Patches = c.PatchesOf(ctx, o.ID(), func(o *manifest.Object) string {
		all, err := r.typesOf(o)
		if err != nil {
			return err.Error()
		}
		return types.Sum(all)
	})
	d.Conversion, d.Converter = conversion.Rules(o.Tree()), ConverterOf(o.Tree())
	w.Definitions[o.ID()] = d
	if d.Behaviour, err = index.Of(o); err != nil {
		d.Misnamed = true
		w.Gap(err)
		return
	}
	if d.Behaviour != nil && d.Behaviour.Workload == (manifest.ID{}) && o.ID().Is(manifest.CRD) {
		d.Behaviour = nil // conversion rules alone: no program acts on the objects
	}
	if d.Behaviour == nil || d.Behaviour.Workload == (manifest.ID{}) || w.Controllers[d.Behaviour.Workload] != nil {
		return
	}
	workload := c.Objects.Get(d.Behaviour.Workload)
	w.Controllers[d.Behaviour.Workload] = &Controller{
		Wanted: d.Behaviour,
		Source: source[workload.Label(manifest.PackageLabel)],
		Idle:   manifest.Mapping(workload.Tree(), "spec")["replicas"] == int64(0),
		Patches: c.PatchesOf(ctx, workload.ID(), func(o *manifest.Object) string {
			return behaviour.Workload(o).Digest()
		}),
	}
}

func (r *Repository) typesOf(o *manifest.Object) ([]types.Type, error) {
	if all, known := r.types[o]; known {
		return all, nil
	}
	all, err := types.Sorted(o.Tree())
	if err != nil {
		return nil, err
	}
	if r.types == nil {
		r.types = make(map[*manifest.Object][]types.Type)
	}
	r.types[o] = all
	return all, nil
}

// Resources returns the plural names of a definition's types, and their scope if they
// have one.
func Resources(d types.Definition) (plurals []string, scope string) {
	plurals = []string{d.Names.Plural}
	if d.Claims.Kind != "" {
		return append(plurals, d.Claims.Plural), ""
	}
	if d.Scope == "LegacyCluster" {
		return plurals, "Cluster"
	}
	return plurals, d.Scope
}
