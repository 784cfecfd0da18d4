package unit

import (
	"context"
	"fmt"
	"slices"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/render"
	"gitopsd.dev/render/composition"
	"gitopsd.dev/render/manifest"
)

// Notes returns what cannot work in a unit's Compositions, though nothing fails to
// apply: objects of composite types will not be made as they are meant. serves reports
// whether the cluster serves a kind that nothing in the repository defines; nil if the
// cluster is not asked.
func Notes(want *desired.Unit, serves func(apiVersion, kind string) bool) []string {
	if want.Objects == nil || want.Remove {
		return nil
	}
	has := func(list []render.PackageType, kind manifest.GroupKind) int {
		return slices.IndexFunc(list, func(t render.PackageType) bool { return t.Group == kind.Group && t.Kind == kind.Kind })
	}
	var notes []string
	for _, f := range composition.Check(want.Objects, composition.Known{
		Delegated: func(kind manifest.GroupKind) bool { return has(want.Delegated, kind) >= 0 },
		Inactive: func(kind manifest.GroupKind) string {
			i := has(want.Inactive, kind)
			if i < 0 {
				return ""
			}
			return fmt.Sprintf("name %s in spec.activate of a ManagedResourceActivationPolicy (package %s is installed by type)", want.Inactive[i].Definition.Name, want.Inactive[i].Package)
		},
	}) {
		if f.Kind != "" && (!want.Complete() || len(want.Incomplete) > 0 || serves != nil && serves(f.APIVersion, f.Kind)) {
			continue // a package with errors may define it, or the cluster has it from elsewhere
		}
		notes = append(notes, f.String())
	}
	return notes
}

// notes returns the unit's notes with what its cluster serves.
func (c *Connection) notes(ctx context.Context, want *desired.Unit) []string {
	return Notes(want, func(apiVersion, kind string) bool {
		_, err := c.client.Type(ctx, apiVersion, kind)
		return err == nil
	})
}
