package desired

import (
	"context"
	"fmt"

	"gitopsd.dev/render/kustomize"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// patches returns a cluster's own patches for kustomize.
func patches(cl *Unit) []kustomize.Patch {
	var all []kustomize.Patch
	for _, p := range cl.Spec.Patches {
		patch := kustomize.Patch{Patch: p.Patch}
		if t := p.Target; t != nil {
			patch.Target = &kustomize.Selector{Group: t.Group, Version: t.Version, Kind: t.Kind, Name: t.Name, Namespace: t.Namespace,
				LabelSelector: t.LabelSelector, AnnotationSelector: t.AnnotationSelector}
		}
		all = append(all, patch)
	}
	return all
}

// PatchesOf names the annotation for immutable fields, the conversion rules, and the cluster's
// own patches that changed view(object): "gitopsd.dev/immutable
// (clusters/prod/widgets.yaml:1)", "spec.patches[0] (clusters.yaml:12)", with the line where
// the document starts. It returns no patches if all of them together did not change the view.
// Each patch is applied to the object alone.
func (c *Unit) PatchesOf(ctx context.Context, id manifest.ID, view func(*manifest.Object) string) []string {
	var names []string
	if f, ok := c.Frozen[id]; ok && view(f.Before) != view(f.After) {
		names = append(names, fmt.Sprintf("%s (%s)", manifest.ImmutableAnnotation, f.By))
	}
	if v := c.Conversions[id.Name]; v != nil && v.Definition.ID() == id && view(v.Before) != view(v.Definition) {
		for _, d := range v.Documents {
			names = append(names, fmt.Sprintf("conversion rules (%s)", d.Origin))
		}
	}
	before := c.Patched[id]
	if before == nil || view(before) == view(c.Objects.Get(id)) {
		return names
	}
	for i, p := range patches(c) {
		one, err := kustomize.NewPatches([]kustomize.Patch{p})
		if err != nil {
			continue // rendering reports it
		}
		after, err := one.Apply(ctx, []*manifest.Object{before})
		if err != nil || len(after) != 1 {
			continue // it is for another object
		}
		if view(after[0]) != view(before) {
			names = append(names, fmt.Sprintf("spec.patches[%d] (%s:%d)", i, sources.RegistryFile, c.Line))
		}
		before = after[0]
	}
	return names
}
