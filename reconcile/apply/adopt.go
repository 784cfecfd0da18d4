package apply

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
)

// Taking an object over.
//
// Applying an object by force makes us an owner of every field that we render.
// What the former owner put there besides, its tracking labels, annotations and
// owner references above all, would stay for ever, since nobody removes what
// nobody owns, and an owner reference would even have the object deleted with
// the former owner. So the former owner's entries in metadata.managedFields
// become ours first: applying then removes what we do not render. Entries of
// controllers, which have their fields for good reason, stay.

// deployers are the field managers, or the beginnings of their names, of tools
// that put objects into clusters for people.
var deployers = []string{
	"kubectl", "before-first-apply", "helm", "Helm", "kustomize-controller", "helm-controller", "flux", "argocd",
	"crossplane", "apiextensions.crossplane.io", "pkg.crossplane.io", "kapp", "Terraform", "HashiCorp", "pulumi",
	"fleet", "carvel", "before-ssa",
}

// formerly says that an entry is the former owner's: a deployer's, or that of
// whoever wrote the owner reference of a controller.
func formerly(e *metav1.ManagedFieldsEntry, set *fieldpath.Set) bool {
	if e.Subresource != "" || e.FieldsV1 == nil {
		return false
	}
	for _, name := range deployers {
		if strings.HasPrefix(e.Manager, name) {
			return true
		}
	}
	return touches(set, fieldpath.MakePathOrDie("metadata", "ownerReferences"))
}

// merged makes one entry of ours out of the former owners'. It returns nil when
// there is nothing to take over.
func merged(meta *metav1.ObjectMeta, apiVersion string) ([]metav1.ManagedFieldsEntry, error) {
	var kept []metav1.ManagedFieldsEntry
	ours := &fieldpath.Set{}
	taken := false
	for i := range meta.ManagedFields {
		e := &meta.ManagedFields[i]
		set := &fieldpath.Set{}
		if e.FieldsV1 != nil {
			if err := set.FromJSON(bytes.NewReader(e.FieldsV1.GetRawBytes())); err != nil {
				return nil, fmt.Errorf("metadata.managedFields of %s cannot be read: %w", e.Manager, err)
			}
		}
		switch {
		case e == ownEntry(meta):
			ours = ours.Union(set)
		case formerly(e, set):
			taken = true
			ours = ours.Union(set)
		default:
			kept = append(kept, *e)
		}
	}
	if !taken {
		return nil, nil
	}
	fields, err := ours.ToJSON()
	if err != nil {
		return nil, err
	}
	now := metav1.Now()
	return append(kept, metav1.ManagedFieldsEntry{
		Manager: kube.FieldManager, Operation: metav1.ManagedFieldsOperationApply, APIVersion: apiVersion,
		Time: &now, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(string(fields)),
	}), nil
}

// takeOver makes the former owner's fields ours. A process that ends after it
// leaves an object that has our entry and not our label, which is taken into the
// inventory by the next pass.
func (a *Applier) takeOver(ctx context.Context, s *plan.Step) error {
	t, err := a.cluster.Type(ctx, s.Object.APIVersion(), s.ID.Kind)
	if err != nil {
		return err
	}
	meta, err := a.cluster.GetMetadata(ctx, t, s.ID)
	if kube.ClassOf(err) == kube.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	// All entries are converted to the version of the one that is applied.
	entries, err := merged(&meta.ObjectMeta, s.Object.APIVersion())
	if err != nil || entries == nil {
		return err
	}
	slices.SortFunc(entries, func(x, y metav1.ManagedFieldsEntry) int { return strings.Compare(x.Manager, y.Manager) })
	return a.cluster.SetManagedFields(ctx, t, s.ID, entries, meta.ResourceVersion)
}

// withoutLeftovers is what an object looks like after it was taken over and
// applied, given what a dry run of applying it alone answers: what the former
// owner had, nobody else has and we do not render is gone.
func withoutLeftovers(before *metav1.ObjectMeta, answer *kube.Applied, apiVersion string) (map[string]any, error) {
	entries, err := merged(before, apiVersion)
	if err != nil || entries == nil {
		return answer.Tree, err
	}
	left := &fieldpath.Set{}
	if err := left.FromJSON(bytes.NewReader(entries[len(entries)-1].FieldsV1.GetRawBytes())); err != nil {
		return nil, err
	}
	rendered := ownEntry(&answer.Meta.ObjectMeta)
	for i := range entries {
		e := &entries[i]
		if i == len(entries)-1 {
			e = rendered
		}
		if e == nil || e.FieldsV1 == nil {
			continue
		}
		set := &fieldpath.Set{}
		if err := set.FromJSON(bytes.NewReader(e.FieldsV1.GetRawBytes())); err != nil {
			return nil, err
		}
		left = left.Difference(set)
	}
	tree, _ := without(answer.Tree, left).(map[string]any)
	return tree, nil
}

// without copies a value without the fields of a set.
func without(v any, set *fieldpath.Set) any {
	switch v := v.(type) {
	case map[string]any:
		kept := make(map[string]any, len(v))
		for k, field := range v {
			e := fieldpath.FieldNameElement(k)
			children, descends := set.Children.Get(e)
			if descends {
				field = without(field, children)
			}
			if set.Members.Has(e) && (!descends || empty(field)) {
				continue
			}
			kept[k] = field
		}
		return kept
	case []any:
		return slices.DeleteFunc(slices.Clone(v), func(item any) bool {
			gone := false
			set.Members.Iterate(func(e fieldpath.PathElement) { gone = gone || matches(e, item, false) })
			return gone
		})
	}
	return v
}

func empty(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}
