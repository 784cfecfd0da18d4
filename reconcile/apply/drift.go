package apply

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"golang.org/x/sync/errgroup"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// How drift is told.
//
// Who writes a field with another value takes it from those who applied it, and
// who removes it takes it from everybody: that is what server-side apply keeps
// metadata.managedFields for. So an object is as it was applied for as long as
// our entry there covers every field that was applied, and no value needs to be
// read. What others add is theirs, and no drift.
//
// Our entry can lack a field without drift: an empty list that merges with the
// elements of others is owned by nobody. Such an object is looked at once, by a
// dry run of applying it: when that would leave our entry as it is, there is
// nothing to correct. What was found to be fine is remembered by a fingerprint
// of the metadata that changes whenever somebody other than a status writer
// writes.

// fingerprint stands for the metadata of an object at one moment. It is
// comparable within one process.
type fingerprint uint64

var seed = maphash.MakeSeed()

// fingerprintOf leaves out what status writers change. Where the kind has no
// generation, the times of the managers' writes tell that something was
// written, and where it has no status either, so does resourceVersion.
func fingerprintOf(t kube.Type, m *metav1.ObjectMeta) fingerprint {
	var h maphash.Hash
	h.SetSeed(seed)
	put := func(parts ...string) {
		for _, s := range parts {
			h.WriteString(s)
			h.WriteByte(0)
		}
	}
	put(string(m.UID), fmt.Sprint(m.Generation))
	if m.Generation == 0 && !t.HasStatus {
		put(m.ResourceVersion)
	}
	for _, values := range []map[string]string{m.Labels, m.Annotations} {
		for _, k := range slices.Sorted(maps.Keys(values)) {
			put(k, values[k])
		}
		put("")
	}
	for _, o := range m.OwnerReferences {
		put(string(o.UID))
	}
	for i := range m.ManagedFields {
		e := &m.ManagedFields[i]
		if e.Subresource == "status" {
			continue
		}
		put(e.Manager, string(e.Operation), e.Subresource, e.APIVersion)
		if e.Time != nil {
			put(e.Time.UTC().String())
		}
		if e.FieldsV1 != nil {
			h.Write(e.FieldsV1.GetRawBytes())
		}
	}
	return fingerprint(h.Sum64())
}

// findDrift looks at the members that are applied as wanted, and notes those
// that are not so any more.
func (a *Applier) findDrift(ctx context.Context, v *view) error {
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	for _, o := range v.desired.All() {
		id := o.ID()
		meta := v.live.Objects[id]
		if meta == nil || meta.DeletionTimestamp != nil || meta.Labels[plan.PartOfLabel] != a.set.id ||
			meta.Annotations[plan.AppliedAnnotation] != string(o.Hash()) {
			continue
		}
		print, fine := a.isFine(id)
		if fine {
			continue
		}
		missing := unowned(o, meta)
		if len(missing) == 0 {
			a.approve(id, print)
			continue
		}
		g.Go(func() error {
			drifted, err := a.verify(gctx, o, meta)
			if err != nil {
				return err
			}
			if !drifted {
				a.approve(id, print)
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			v.live.Drifted[id] = blame(missing, meta)
			return nil
		})
	}
	return g.Wait()
}

// verify asks the API server what applying the object once more would change.
// When it cannot say, the evidence stands.
func (a *Applier) verify(ctx context.Context, o *manifest.Object, meta *metav1.ObjectMeta) (drifted bool, err error) {
	t, err := a.cluster.Type(ctx, o.APIVersion(), o.ID().Kind)
	if err == nil {
		var answer *kube.Applied
		answer, err = a.cluster.Apply(ctx, t, o.ID(), a.member(o).AppendJSON(nil), kube.ApplyOptions{Force: true, DryRun: true})
		if err == nil {
			before, now := ownEntry(meta), ownEntry(&answer.Meta.ObjectMeta)
			return before == nil || now == nil || !bytes.Equal(before.FieldsV1.GetRawBytes(), now.FieldsV1.GetRawBytes()), nil
		}
	}
	if kube.IsClusterWide(err) {
		return false, err
	}
	a.log.Debug("a dry run that would have verified drift failed", "cluster", a.cluster.Name(), "object", o.ID().String(), "error", err)
	return true, nil
}

// ownEntry is the managed-fields entry of our applies, nil if there is none.
func ownEntry(m *metav1.ObjectMeta) *metav1.ManagedFieldsEntry {
	for i := range m.ManagedFields {
		e := &m.ManagedFields[i]
		if e.Manager == kube.FieldManager && e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == "" && e.FieldsV1 != nil {
			return e
		}
	}
	return nil
}

// unowned lists the fields of an object that our managed-fields entry does not
// cover.
func unowned(o *manifest.Object, meta *metav1.ObjectMeta) []fieldpath.Path {
	set := &fieldpath.Set{}
	entry := ownEntry(meta)
	if entry == nil || set.FromJSON(bytes.NewReader(entry.FieldsV1.GetRawBytes())) != nil {
		return []fieldpath.Path{{}}
	}
	c := coverage{}
	for k, v := range o.Tree() {
		switch k {
		case "apiVersion", "kind", "status":
		case "metadata":
			// Name and namespace are nobody's, and what controllers of the API
			// server's own keep cannot be applied.
			m, _ := v.(map[string]any)
			for _, k := range []string{"labels", "annotations", "finalizers", "ownerReferences"} {
				if v, ok := m[k]; ok {
					c.field(set.Children.Descend(fieldpath.FieldNameElement("metadata")), fieldpath.MakePathOrDie("metadata"), k, v)
				}
			}
		default:
			c.field(set, nil, k, v)
		}
	}
	return c.missing
}

// coverage compares an object with a set of owned fields.
type coverage struct {
	missing []fieldpath.Path
}

// field checks a map's field k with value v, where set is what is owned of the
// map.
func (c *coverage) field(set *fieldpath.Set, path fieldpath.Path, k string, v any) {
	if v == nil {
		return // null is not applied
	}
	c.under(set, path, fieldpath.FieldNameElement(k), v)
}

func (c *coverage) under(set *fieldpath.Set, path fieldpath.Path, e fieldpath.PathElement, v any) {
	children, descends := set.Children.Get(e)
	path = append(path[:len(path):len(path)], e)
	switch {
	case descends:
		c.value(children, path, v)
	case !set.Members.Has(e):
		c.missing = append(c.missing, path)
	}
}

// value checks a value of which some parts are owned one by one; an atomic one
// is owned as a whole, and does not get here.
func (c *coverage) value(set *fieldpath.Set, path fieldpath.Path, v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, field := range v {
			c.field(set, path, k, field)
		}
	case []any:
		c.list(set, path, v)
	}
}

// list checks an associative list or a set: each of its elements has an entry.
func (c *coverage) list(set *fieldpath.Set, path fieldpath.Path, list []any) {
	elements := make(map[string]fieldpath.PathElement)
	collect := func(e fieldpath.PathElement) { elements[e.String()] = e }
	set.Members.Iterate(collect)
	set.Children.Iterate(collect)
	// Items that spell out their keys come first, so that one which leaves some
	// to defaults does not take another's entry.
	var vague []any
	for _, item := range list {
		if !c.item(set, path, item, elements, true) {
			vague = append(vague, item)
		}
	}
	for _, item := range vague {
		if !c.item(set, path, item, elements, false) {
			c.missing = append(c.missing, path)
			return
		}
	}
}

// item finds the entry of a list item, takes it from elements, and checks what
// is under it.
func (c *coverage) item(set *fieldpath.Set, path fieldpath.Path, item any, elements map[string]fieldpath.PathElement, exact bool) bool {
	for name, e := range elements {
		if !matches(e, item, exact) {
			continue
		}
		delete(elements, name)
		if e.Key != nil {
			c.under(set, path, e, item)
		}
		return true
	}
	return false
}

// matches says that a path element may stand for a list item. Unless exact, a key
// field that the item leaves to its default matches any value.
func matches(e fieldpath.PathElement, item any, exact bool) bool {
	switch {
	case e.Value != nil:
		return value.Equals(*e.Value, value.NewValueInterface(item))
	case e.Key != nil:
		m, ok := item.(map[string]any)
		for _, f := range *e.Key {
			v, there := m[f.Name]
			if !there && exact || there && !value.Equals(f.Value, value.NewValueInterface(v)) {
				return false
			}
		}
		return ok
	}
	return false
}

// blame says which fields are not ours any more, and whose they are.
func blame(missing []fieldpath.Path, meta *metav1.ObjectMeta) string {
	if len(missing) == 1 && len(missing[0]) == 0 {
		return "the record of our fields is gone from metadata.managedFields"
	}
	by := make(map[string][]string)
	for _, path := range missing {
		name := ""
		for i := range meta.ManagedFields {
			e := &meta.ManagedFields[i]
			if e.FieldsV1 == nil || e.Subresource == "status" || e == ownEntry(meta) {
				continue
			}
			theirs := &fieldpath.Set{}
			if theirs.FromJSON(bytes.NewReader(e.FieldsV1.GetRawBytes())) == nil && touches(theirs, path) {
				name = e.Manager
			}
		}
		by[name] = append(by[name], strings.TrimPrefix(path.String(), "."))
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(by)) {
		fields := by[name]
		slices.Sort(fields)
		text := strings.Join(fields[:min(len(fields), 3)], ", ")
		if len(fields) > 3 {
			text += fmt.Sprintf(" and %d more", len(fields)-3)
		}
		if name == "" {
			parts = append(parts, text+" removed")
		} else {
			parts = append(parts, text+" changed by "+name)
		}
	}
	return strings.Join(parts, "; ")
}

// touches says that the set holds the path or something under it.
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
