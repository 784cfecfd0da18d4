package managed

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"gitopsd.dev/reconcile/kube"
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

// TakeOver makes one entry of ours, the last, out of the former owners' and ours.
// It returns nil when there is nothing to take over. The fields are read as
// those of apiVersion, in which the object is about to be applied.
func TakeOver(meta *metav1.ObjectMeta, apiVersion string) ([]metav1.ManagedFieldsEntry, error) {
	var kept []metav1.ManagedFieldsEntry
	ours := &fieldpath.Set{}
	taken := false
	for i := range meta.ManagedFields {
		e := &meta.ManagedFields[i]
		set, err := fieldsOf(e)
		if err != nil {
			return nil, fmt.Errorf("metadata.managedFields of %s cannot be read: %w", e.Manager, err)
		}
		switch {
		case e == Own(meta):
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

// WithoutLeftovers is what an object looks like after it was taken over and
// applied: given its metadata before, and what a dry run of applying it alone
// answers. What the former owner had, nobody else has and we do not render is
// gone.
func WithoutLeftovers(before, applied *metav1.ObjectMeta, tree map[string]any, apiVersion string) (map[string]any, error) {
	entries, err := TakeOver(before, apiVersion)
	if err != nil || entries == nil {
		return tree, err
	}
	last := len(entries) - 1
	left, err := fieldsOf(&entries[last])
	if err != nil {
		return nil, err
	}
	for i := range entries {
		e := &entries[i]
		if i == last {
			e = Own(applied) // what we render
		}
		theirs, err := fieldsOf(e)
		if err != nil {
			return nil, err
		}
		left = left.Difference(theirs)
	}
	rest, _ := without(tree, left).(map[string]any)
	return rest, nil
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
