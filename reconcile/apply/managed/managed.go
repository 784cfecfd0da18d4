// Package managed reads and writes metadata.managedFields, where the API server
// records the owners of an object's fields (server-side apply, KEP-555).
//
//   - [Find] finds drift without reading a value (lost.go): applied fields that are
//     not ours any more.
//   - [FindEdits] finds what people added to an object by hand (edits.go).
//   - [TakeOver] makes the fields of former owners ours, and [WithoutLeftovers]
//     returns the object after that (takeover.go).
//   - [Foreign] and [ImageSetBy] find fields of others, for rollbacks and reports.
//
// It is pure, and the only user of structured-merge-diff. reconcile/apply sends
// the requests.
package managed

import (
	"bytes"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
)

// Own returns the entry of our applies; nil if there is none.
func Own(m *metav1.ObjectMeta) *metav1.ManagedFieldsEntry {
	for i := range m.ManagedFields {
		e := &m.ManagedFields[i]
		if e.Manager == kube.FieldManager && e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == "" && e.FieldsV1 != nil {
			return e
		}
	}
	return nil
}

// OwnSame reports whether we own the same fields in both, and at least one.
func OwnSame(a, b *metav1.ObjectMeta) bool {
	x, y := Own(a), Own(b)
	return x != nil && y != nil && bytes.Equal(x.FieldsV1.GetRawBytes(), y.FieldsV1.GetRawBytes())
}

// Owns reports whether a field of an object is ours.
func Owns(m *metav1.ObjectMeta, path ...string) bool {
	set, err := fieldsOf(Own(m))
	return err == nil && touches(set, fieldpath.MakePathOrDie(manifest.FromTexts(path)...))
}

// Foreign reports whether others own something under a field of an object. It ignores the
// annotation by which kubectl restarts pods.
func Foreign(m *metav1.ObjectMeta, path ...string) bool {
	under := fieldpath.MakePathOrDie(manifest.FromTexts(path)...)
	for i := range m.ManagedFields {
		e := &m.ManagedFields[i]
		if e.Manager == kube.FieldManager {
			continue // admission's changes to our requests are updates under our name
		}
		set, err := fieldsOf(e)
		if err != nil {
			return true
		}
		found := false
		set.Leaves().Iterate(func(p fieldpath.Path) {
			found = found || len(p) >= len(under) && p[:len(under)].Equals(under) && !restart(p)
		})
		if found {
			return true
		}
	}
	return false
}

// ImageSetBy returns the field manager that set the image of a container in the pod
// template of a workload, and when. Of several that set the same image, it is the last one
// that is not gitopsd. ours reports whether gitopsd applied the image and nobody else set
// it; without a record, manager is "", too. List is containers or initContainers.
func ImageSetBy(m *metav1.ObjectMeta, list, container string) (manager string, at time.Time, ours bool) {
	path := fieldpath.MakePathOrDie("spec", "template", "spec", list, fieldpath.KeyByFields("name", container), "image")
	applied := false
	for i := range m.ManagedFields {
		e := &m.ManagedFields[i]
		set, err := fieldsOf(e)
		if err != nil || e.Subresource != "" || !touches(set, path) {
			continue
		}
		if e == Own(m) {
			applied = true
			continue
		}
		var when time.Time
		if e.Time != nil {
			when = e.Time.UTC()
		}
		if manager == "" || when.After(at) {
			manager, at = e.Manager, when
		}
	}
	return manager, at, applied && manager == ""
}

func restart(p fieldpath.Path) bool {
	last := p[len(p)-1].FieldName
	return last != nil && (*last == "kubectl.kubernetes.io/restartedAt" || *last == "annotations")
}

// fieldsOf decodes the fields of an entry.
func fieldsOf(e *metav1.ManagedFieldsEntry) (*fieldpath.Set, error) {
	set := &fieldpath.Set{}
	if e == nil || e.FieldsV1 == nil {
		return set, nil
	}
	return set, set.FromJSON(bytes.NewReader(e.FieldsV1.GetRawBytes()))
}

// touches reports whether the set holds the path or something under it.
func touches(set *fieldpath.Set, path fieldpath.Path) bool {
	if len(path) == 0 {
		return true
	}
	for _, e := range path[:len(path)-1] {
		next, ok := set.Children.Get(e)
		if !ok {
			return false
		}
		set = next
	}
	last := path[len(path)-1]
	_, under := set.Children.Get(last)
	return under || set.Members.Has(last)
}
