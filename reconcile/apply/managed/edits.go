package managed

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"gitopsd.dev/render/manifest"
)

// Edits by hand.
//
// A field that somebody adds to an object of ours is theirs, and applying leaves
// it. That is right for controllers, which need their fields. But nobody maintains
// what people add with kubectl, and it stays after its reason is forgotten; so does
// a field that left the repository but that kubectl applied too. So the fields of
// people's tools become ours before we apply, which removes what the repository does
// not have. Exceptions are
//
//   - subresources: `kubectl scale` of replicas that the repository does not name;
//   - operations, which are not configuration: a restart, a cordon, an allowance, the
//     record that an object was adopted;
//   - the fields of before-first-apply, the API server's name for everybody who wrote
//     before metadata.managedFields were cleared, unless we own them too: those would
//     stay after they leave the repository.

// people are the field managers of kubectl's commands, and of other tools with
// which people edit objects. Plugins of kubectl have names of their own, and operate
// objects that their controllers reconcile.
var people = []string{
	"kubectl", "kubectl.exe", "kubectl-annotate", "kubectl-autoscale", "kubectl-client-side-apply", "kubectl-create",
	"kubectl-edit", "kubectl-expose", "kubectl-label", "kubectl-last-applied", "kubectl-patch", "kubectl-replace",
	"kubectl-rollout", "kubectl-run", "kubectl-scale", "kubectl-set", "kubectl-taint", "oc", "oc.exe",
	"k9s",        // derailed/k9s
	"node-fetch", // Lens
	"Mozilla",    // browsers: the consoles of Rancher and OpenShift
}

// everybody is the API server's name for the writers of an object that had no
// managedFields when it was first applied.
const everybody = "before-first-apply"

func byHand(e *metav1.ManagedFieldsEntry) bool {
	return e.Subresource == "" && e.FieldsV1 != nil && slices.Contains(people, e.Manager)
}

// Edited reports whether [FindEdits] may find anything.
func Edited(meta *metav1.ObjectMeta) bool {
	return slices.ContainsFunc(meta.ManagedFields, func(e metav1.ManagedFieldsEntry) bool { return byHand(&e) || e.Manager == everybody })
}

// edited returns the fields in an entry that people own. ours are our own fields.
func edited(kind schema.GroupKind, e *metav1.ManagedFieldsEntry, set, ours *fieldpath.Set) *fieldpath.Set {
	switch {
	case e.Manager == everybody && e.Subresource == "":
		return set.Intersection(ours)
	case !byHand(e):
		return &fieldpath.Set{}
	}
	left := &fieldpath.Set{}
	set.Iterate(func(p fieldpath.Path) {
		if operation(kind, p) {
			left.Insert(p.Copy())
		}
	})
	if left.Empty() {
		return set
	}
	part := &fieldpath.Set{}
	set.Iterate(func(p fieldpath.Path) {
		if !touches(left, p) {
			part.Insert(p.Copy())
		}
	})
	return part
}

// operation reports whether people set a field to operate an object, not to
// configure it.
func operation(kind schema.GroupKind, p fieldpath.Path) bool {
	last := p[len(p)-1].FieldName
	switch {
	case kind == schema.GroupKind{Kind: "Node"}: // cordoned and tainted by hand
		return true
	case p[0].FieldName != nil && *p[0].FieldName == "status":
		return true
	case last != nil && *last == "kubectl.kubernetes.io/restartedAt": // removing it restarts once more
		return true
	}
	return adopted.Has(p) || p.Equals(fieldpath.MakePathOrDie("metadata", "annotations", manifest.AllowPruneAnnotation))
}

// Edits are the fields of an object of ours that people own.
type Edits struct {
	added  map[string][]string // fields that we do not apply, by field manager
	shared bool                // people own fields that are ours as well
}

// FindEdits finds the fields that people own in an object that was applied as o. A
// field of o that is not ours any more is [Lost]; applying takes it back.
func FindEdits(o *manifest.Object, meta *metav1.ObjectMeta) Edits {
	var found Edits
	if !Edited(meta) {
		return found
	}
	ours, err := fieldsOf(Own(meta))
	if err != nil {
		return found // applying writes our entry again
	}
	added, others := make(map[string]*fieldpath.Set), &fieldpath.Set{}
	for i := range meta.ManagedFields {
		e := &meta.ManagedFields[i]
		set, err := fieldsOf(e)
		if err != nil || e == Own(meta) {
			continue
		}
		part := edited(kindOf(o), e, set, ours)
		others = others.Union(set.Difference(part))
		part.Iterate(func(p fieldpath.Path) {
			switch {
			case ours.Has(p):
				found.shared = true
			case touches(ours, p), has(o.Tree(), p):
			default:
				if added[e.Manager] == nil {
					added[e.Manager] = &fieldpath.Set{}
				}
				added[e.Manager].Insert(p.Copy())
			}
		})
	}
	for manager, set := range added {
		set.Iterate(func(p fieldpath.Path) {
			for i := 1; i < len(p); i++ {
				if set.Has(p[:i]) {
					return // goes with what it is in
				}
			}
			if !touches(others, p) {
				if found.added == nil {
					found.added = make(map[string][]string)
				}
				found.added[manager] = append(found.added[manager], pathOf(p).String())
			}
		})
	}
	return found
}

// has reports whether a value has the field or item at a path.
func has(v any, p fieldpath.Path) bool {
	for _, e := range p {
		switch of := v.(type) {
		case map[string]any:
			if e.FieldName == nil {
				return false
			}
			if v = of[*e.FieldName]; v == nil {
				return false // null is not applied
			}
		case []any:
			i := slices.IndexFunc(of, func(item any) bool { return matches(e, item, false) })
			if i < 0 {
				return false
			}
			v = of[i]
		default:
			return false
		}
	}
	return true
}

// Shared reports whether people own fields that we own too: these would stay after
// they leave the repository.
func (e Edits) Shared() bool { return e.shared }

// Text describes the added fields and the tools that added them; "" for none.
func (e Edits) Text() string { return strings.Join(byManager(e.added, "added by"), "; ") }
