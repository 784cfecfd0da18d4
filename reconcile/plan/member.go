package plan

import (
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/render/manifest"
)

// Which objects are ours.
//
// Objects are copied with their labels and annotations: by `kubectl get -o yaml |
// sed | kubectl apply`, by a restore into another namespace, by controllers that
// put an object into every namespace, or its labels on another. Some copies keep
// metadata.managedFields too. A copy is somebody else's, so a label or an entry of
// managedFields is no proof: manifest.AppliedAnnotation is bound to one object of one
// inventory. The binding is a hash, so that no text replacement fits it to the
// copy, and leaves the UID out: an object that is restored under its own name is
// ours again.

// Inventory is the set of objects that gitopsd applied to a cluster.
type Inventory struct {
	// ID is the ApplySet's, the value of the members' PartOfLabel.
	ID string
	// FieldManager is the name under which members were applied.
	FieldManager string
	// Namespace holds the inventory itself. It stays even if it is not desired any
	// more.
	Namespace string
}

// Membership is whether a live object belongs to an inventory.
type Membership int

// The memberships.
const (
	// Foreign: it is not ours, whatever its labels and annotations.
	Foreign Membership = iota
	// Unsure: it has our label and the unbound record of an older gitopsd, and
	// metadata.managedFields do not show that we applied it.
	Unsure
	// Member: we applied it.
	Member
)

// Applied returns the value of a member's manifest.AppliedAnnotation: the digest of
// the desired object, a dot, and the binding to this object. If the object was
// completed, a dot and the digest of the object as it was rendered follow.
func (inv Inventory) Applied(o *manifest.Object) string {
	applied := string(o.Hash()) + "." + inv.binding(o.ID())
	if r := o.Rendered(); r != o {
		applied += "." + string(r.Hash())
	}
	return applied
}

// record is a parsed manifest.AppliedAnnotation.
type record struct {
	// applied and rendered are digests of the object as it was applied, and as it
	// was rendered. They differ if it was completed.
	applied, rendered string
	// binding is empty in the records of an older gitopsd.
	binding string
}

func parseRecord(text string) record {
	parts := strings.SplitN(text, ".", 3)
	r := record{applied: parts[0], rendered: parts[0]}
	if len(parts) > 1 {
		r.binding = parts[1]
	}
	if len(parts) > 2 {
		r.rendered = parts[2]
	}
	return r
}

// binding is a hash over the inventory and the object's group, kind, namespace
// and name.
func (inv Inventory) binding(id manifest.ID) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{inv.ID, id.Group, id.Kind, id.Namespace, id.Name}, "\x00")))
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// Membership tells members from copies. If the annotation is missing, or from an older
// gitopsd, our entry in metadata.managedFields decides.
func (inv Inventory) Membership(id manifest.ID, meta *metav1.ObjectMeta) Membership {
	if meta.Labels[PartOfLabel] != inv.ID || inv.isParent(id) {
		return Foreign
	}
	r := parseRecord(meta.Annotations[manifest.AppliedAnnotation])
	switch {
	case r.binding == inv.binding(id):
		return Member
	case r.binding != "":
		return Foreign
	case inv.applied(meta):
		return Member
	case r.applied != "":
		return Unsure
	}
	return Foreign
}

// isParent reports whether an object is an inventory's own, this one's or another's. An
// older gitopsd took such an object up if a manifest had its name.
func (inv Inventory) isParent(id manifest.ID) bool {
	return id.Namespace == inv.Namespace && id.Is(manifest.ConfigMap) && strings.HasPrefix(id.Name, manifest.InventoryPrefix)
}

// Owns reports whether an object is the inventory's, even if somebody removed its label,
// or belongs to another inventory that adopt names as a source. A copy is not the
// inventory's.
func (inv Inventory) Owns(id manifest.ID, meta *metav1.ObjectMeta, adopt []string) bool {
	switch set := meta.Labels[PartOfLabel]; set {
	case inv.ID:
		return inv.Membership(id, meta) != Foreign
	case "":
		return parseRecord(meta.Annotations[manifest.AppliedAnnotation]).binding == inv.binding(id)
	default:
		return slices.Contains(adopt, applySetSource+"/"+set)
	}
}

// Unlabelled describes the lost label of an object that is the inventory's otherwise, and
// has no other owner; "" for any other object. If it is desired, its label is a field as any
// other: [Options].ReportDrift is about it too. If it is not, it was released.
func (inv Inventory) Unlabelled(id manifest.ID, meta *metav1.ObjectMeta) string {
	if meta.Labels[PartOfLabel] != "" || !inv.Owns(id, meta, nil) || claimant(meta, inv).text != "" {
		return ""
	}
	return "somebody removed its label " + PartOfLabel + ": " + inv.ID
}

// made reports whether gitopsd made an object that is not in the inventory: it lost its
// label, or is another inventory's of gitopsd.
func (inv Inventory) made(id manifest.ID, meta *metav1.ObjectMeta) bool {
	of := inv
	if set := meta.Labels[PartOfLabel]; set != "" {
		of.ID = set
	}
	r := parseRecord(meta.Annotations[manifest.AppliedAnnotation])
	return r.binding == of.binding(id) || r.binding == "" && inv.applied(meta)
}

// AsApplied reports whether a live object is what its record says that the field manager
// applied, and nobody else wrote to it. It is false, too, if the API server filled in fields.
func AsApplied(tree map[string]any, manager string) bool {
	meta := manifest.Mapping(tree, "metadata")
	managers := manifest.List(meta, "managedFields")
	adopted := manifest.Text(meta, "annotations", manifest.AdoptedAnnotation) != "" // by an update
	for _, e := range managers {
		entry, _ := e.(map[string]any)
		if manifest.Text(entry, "manager") != manager || !adopted && manifest.Text(entry, "operation") != string(metav1.ManagedFieldsOperationApply) {
			return false
		}
	}
	for _, path := range [][]string{
		{"creationTimestamp"}, {"generation"}, {"managedFields"}, {"resourceVersion"}, {"uid"},
		{"labels", PartOfLabel}, {"annotations", manifest.AppliedAnnotation}, {"annotations", manifest.AdoptedAnnotation},
	} {
		tree = manifest.Without(tree, append([]string{"metadata"}, path...)...)
	}
	for _, key := range []string{"labels", "annotations"} {
		if len(manifest.Mapping(tree, "metadata", key)) == 0 {
			tree = manifest.Without(tree, "metadata", key)
		}
	}
	o, err := manifest.New(tree, manifest.Origin{})
	return err == nil && len(managers) > 0 && parseRecord(manifest.Text(meta, "annotations", manifest.AppliedAnnotation)).applied == string(o.Hash())
}

// applied reports whether we are among the managers that applied the object, or the
// original of a copy.
func (inv Inventory) applied(meta *metav1.ObjectMeta) bool {
	return slices.ContainsFunc(meta.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == inv.FieldManager && m.Operation == metav1.ManagedFieldsOperationApply && m.Subresource == ""
	})
}
