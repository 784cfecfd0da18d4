package managed

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
)

// Taking an object over.
//
// Applying an object by force makes us an owner of every field that we render. The
// former owner's other fields, above all its tracking labels, annotations and owner
// references, would stay forever, since nobody removes what nobody owns; an owner
// reference would even delete the object with the former owner. So the former
// owner's entries in metadata.managedFields become ours first: applying then removes
// what we do not render. Entries of controllers, which need their fields, stay.

// deployers are the field managers, or the beginnings of their names, of tools
// that put objects into clusters for people.
var deployers = []string{
	"kubectl", "before-first-apply", "helm", "Helm", "kustomize-controller", "helm-controller", "flux", "argocd",
	"crossplane", manifest.GroupComposites, manifest.GroupPackages, "kapp", "Terraform", "HashiCorp", "pulumi",
	"fleet", "carvel", "before-ssa",
}

// Owners are the owners whose fields are taken over.
type Owners int

const (
	// Deployers are tools that put objects into clusters, and whoever wrote a
	// controller's owner reference: for an object that was theirs.
	Deployers Owners = iota
	// Tools are Deployers without People.
	Tools
	// People are those who edit an object of ours; see [FindEdits].
	People
	// Sharers are People, but only for fields that we own too.
	Sharers
)

// adopted is the record that an object was adopted. It is never ours: applying would remove it.
var adopted = fieldpath.NewSet(fieldpath.MakePathOrDie("metadata", "annotations", manifest.AdoptedAnnotation))

// part returns the fields of an entry that are taken over. ours are our own fields.
func (w Owners) part(kind schema.GroupKind, e *metav1.ManagedFieldsEntry, set, ours *fieldpath.Set) *fieldpath.Set {
	switch {
	case e.Subresource != "" || e.FieldsV1 == nil:
	case w == People:
		return edited(kind, e, set, ours)
	case w == Sharers:
		return edited(kind, e, set, ours).Intersection(ours)
	case touches(set, fieldpath.MakePathOrDie("metadata", "ownerReferences")):
		return set
	case w == Tools && byHand(e):
	case slices.ContainsFunc(deployers, func(name string) bool { return strings.HasPrefix(e.Manager, name) }):
		return set
	}
	return &fieldpath.Set{}
}

// TakeOver merges the former owners' entries into ours, which becomes the last one. It
// returns nil if there is nothing to take over. It reads the fields as those of the
// version in which o is about to be applied.
func TakeOver(o *manifest.Object, meta *metav1.ObjectMeta, from Owners) ([]metav1.ManagedFieldsEntry, error) {
	var kept []metav1.ManagedFieldsEntry
	own := Own(meta)
	before, err := fieldsOf(own)
	if err != nil {
		before = &fieldpath.Set{} // applying writes our entry again
	}
	ours, taken := before, false
	for i := range meta.ManagedFields {
		e := &meta.ManagedFields[i]
		if e == own {
			continue
		}
		set, err := fieldsOf(e)
		if err != nil {
			return nil, fmt.Errorf("metadata.managedFields of %s cannot be read: %w", e.Manager, err)
		}
		part := from.part(kindOf(o), e, set, before).Difference(adopted)
		if part.Empty() {
			kept = append(kept, *e)
			continue
		}
		taken = true
		ours = ours.Union(part)
		if rest := set.Difference(part); !rest.Empty() {
			left := *e
			if left.FieldsV1, err = encode(rest); err != nil {
				return nil, err
			}
			kept = append(kept, left)
		}
	}
	if !taken {
		return nil, nil
	}
	fields, err := encode(ours)
	if err != nil {
		return nil, err
	}
	now := metav1.Now()
	return append(kept, metav1.ManagedFieldsEntry{
		Manager: kube.FieldManager, Operation: metav1.ManagedFieldsOperationApply, APIVersion: o.APIVersion(),
		Time: &now, FieldsType: "FieldsV1", FieldsV1: fields,
	}), nil
}

func encode(set *fieldpath.Set) (*metav1.FieldsV1, error) {
	text, err := set.ToJSON()
	if err != nil {
		return nil, err
	}
	return metav1.NewFieldsV1(string(text)), nil
}

func kindOf(o *manifest.Object) schema.GroupKind {
	return schema.GroupKind(o.ID().GroupKind())
}

// WithoutLeftovers returns an object as it will be after it was taken over and applied:
// without the fields that only the former owners have, and that we do not render. before
// is its metadata before, and applied and tree are the answer to a dry run of the apply
// alone.
func WithoutLeftovers(o *manifest.Object, before, applied *metav1.ObjectMeta, tree map[string]any, from Owners) (map[string]any, error) {
	entries, err := TakeOver(o, before, from)
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
		left = left.Difference(withParents(theirs))
	}
	rest, _ := without(tree, left).(map[string]any)
	return rest, nil
}

// withParents returns a set with the fields of the set and their parents: a mapping does
// not go with one of its owners while another one has a field in it.
func withParents(set *fieldpath.Set) *fieldpath.Set {
	all := fieldpath.NewSet()
	set.Iterate(func(p fieldpath.Path) {
		for n := range p {
			all.Insert(p[:n+1])
		}
	})
	return all
}

// without returns a copy of a value without the fields of a set.
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
		var kept []any
		for _, item := range v {
			gone := false
			set.Members.Iterate(func(e fieldpath.PathElement) { gone = gone || matches(e, item, false) })
			if gone {
				continue
			}
			left := item
			set.Children.Iterate(func(e fieldpath.PathElement) {
				if children, ok := set.Children.Get(e); ok && matches(e, item, false) {
					left = without(left, children)
				}
			})
			kept = append(kept, left)
		}
		return kept
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
