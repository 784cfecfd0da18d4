package apply

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources/errgroup"
)

// fewNew is how many new objects of a kind are read one by one; for more, a list of
// the kind is cheaper.
const fewNew = 4

// view is the result of a look at the cluster.
type view struct {
	// desired are the objects in the form that can be applied.
	desired *manifest.Set
	live    plan.Live
}

// look reads the desired objects and the inventory's objects from the cluster. It
// costs one metadata list for each kind: of members only, but of the whole kind
// before the inventory holds it for the first time.
func (a *Applier) look(ctx context.Context, desired *manifest.Set) (*view, error) {
	p, err := a.readParent(ctx)
	if err != nil {
		return nil, err
	}
	v := &view{live: plan.Live{
		Objects: make(map[manifest.ID]*metav1.ObjectMeta), Drifted: make(map[manifest.ID]string), Disputed: make(map[manifest.ID]string),
		Unserved: make(map[schema.GroupVersionKind]string), Unreadable: make(map[schema.GroupKind]string),
		Namespaced: make(map[schema.GroupVersionKind]bool),
		Rollbacks:  make(map[manifest.ID]plan.Rollback),
		Contents:   make(map[manifest.ID][]plan.Content), ContentsUnknown: make(map[manifest.ID]string),
		Accounts: make(map[manifest.ID][]string), Finished: make(map[manifest.ID]plan.Finished), Successors: plan.ParseSuccessors(p.successors),
	}}
	types, unserved, err := a.types(ctx, v, desired, p)
	if err != nil {
		return nil, err
	}
	if v.desired, v.live.Ambiguous, err = normalize(desired, v.live.Namespaced); err != nil {
		return nil, problem.In(a.cluster.Name(), err)
	}
	wanted := make(map[schema.GroupKind][]manifest.ID)
	for _, o := range v.desired.All() {
		gk := kindOf(o.ID())
		if t, ok := types[gk]; ok && t.Namespaced == (o.ID().Namespace != "") {
			wanted[gk] = append(wanted[gk], o.ID())
		}
	}
	a.abandon(types)
	list := func(ctx context.Context, t kube.Type) (objects, error) {
		gk := groupKind(t)
		found, err := a.list(ctx, t, wanted[gk], p.kinds[gk])
		if kube.ClassOf(err) != kube.NoSuchType {
			return found, err
		}
		// Another version may be served by now.
		if t, err = a.cluster.Kind(ctx, gk.Group, gk.Kind); err != nil {
			return nil, err
		}
		return a.list(ctx, t, wanted[gk], p.kinds[gk])
	}
	if err := eachKind(ctx, maps.Values(types), list, func(t kube.Type, found objects, err error) {
		switch gk := groupKind(t); {
		case err == nil:
			maps.Copy(v.live.Objects, found)
		case kube.ClassOf(err) == kube.NoSuchType:
			v.unserve(gk, err)
			unserved = append(unserved, gk)
		default:
			v.live.Unreadable[gk] = err.Error()
			// Its objects may exist, in another version.
			maps.DeleteFunc(v.live.Unserved, func(gvk schema.GroupVersionKind, _ string) bool { return gvk.GroupKind() == gk })
		}
	}); err != nil {
		return nil, err
	}
	if err := a.findHidden(ctx, v, p, unserved); err != nil {
		return nil, err
	}
	if !p.exists && a.remembersMembers() {
		a.log.Warn("the inventory's parent object is missing, and is created again from the objects in the cluster",
			"parent", a.set.parent.String())
		p.partial = true
	}
	if p.partial {
		if err := a.recover(ctx, v, p, types); err != nil {
			return nil, err
		}
	}
	if err := a.rollBack(ctx, v); err != nil {
		return nil, err
	}
	if err := a.findDrift(ctx, v); err != nil {
		return nil, err
	}
	a.findDisputes(v, time.Now())
	a.followAll()
	return v, nil
}

// recover finds the members of kinds that are not desired, after somebody deleted the
// parent, which named these kinds, or edited their list.
func (a *Applier) recover(ctx context.Context, v *view, p *parent, known map[schema.GroupKind]kube.Type) error {
	all, err := a.cluster.All(ctx)
	if err != nil {
		return err
	}
	if len(all.Stale) > 0 {
		a.log.Warn("members of kinds without desired objects are not found while their API does not answer", "apis", strings.Join(all.Stale, ", "))
	}
	others := slices.DeleteFunc(all.Types, func(t kube.Type) bool { _, ok := known[groupKind(t)]; return ok })
	list := func(ctx context.Context, t kube.Type) (objects, error) { return a.list(ctx, t, nil, true) }
	err = eachKind(ctx, slices.Values(others), list, func(t kube.Type, found objects, err error) {
		switch gk := groupKind(t); {
		case err != nil && kube.ClassOf(err) != kube.NoSuchType:
			v.live.Unreadable[gk] = err.Error()
			if kube.ClassOf(err) != kube.Forbidden { // nothing was applied without this right
				p.kinds[gk] = true
			}
		case len(found) > 0:
			maps.Copy(v.live.Objects, found)
			p.kinds[gk], known[gk] = true, t
		}
	})
	p.partial = err != nil || len(all.Stale) > 0
	a.abandon(known)
	return err
}

// objects are metadata of objects.
type objects = map[manifest.ID]*metav1.ObjectMeta

// eachKind lists kinds, some at a time, and calls note with each result, one at a time.
// The first error about the cluster as a whole ends it.
func eachKind(ctx context.Context, types iter.Seq[kube.Type], list func(context.Context, kube.Type) (objects, error), note func(kube.Type, objects, error)) error {
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	for t := range types {
		g.Go(func() error {
			found, err := list(gctx, t)
			if kube.IsClusterWide(err) {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			note(t, found, err)
			return nil
		})
	}
	return g.Wait()
}

// findHidden notes the inventory's kinds that are not served but may still have
// objects. A kind without a definition has none.
func (a *Applier) findHidden(ctx context.Context, v *view, p *parent, unserved []schema.GroupKind) error {
	unserved = slices.DeleteFunc(unserved, func(gk schema.GroupKind) bool { return !p.kinds[gk] })
	if len(unserved) == 0 {
		return nil
	}
	hidden, err := a.cluster.Hidden(ctx, unserved)
	if kube.IsClusterWide(err) || ctx.Err() != nil {
		return err
	}
	for _, gk := range unserved {
		if err != nil {
			v.live.Unreadable[gk] = fmt.Sprintf("it is not served, and it is not known whether its CRD exists: %v", err)
		} else if why := hidden[gk]; why != "" {
			v.live.Unreadable[gk] = why
		}
	}
	return nil
}

// unserve notes that the cluster stopped serving a kind after its type was looked up.
func (v *view) unserve(gk schema.GroupKind, err error) {
	for _, o := range v.desired.All() {
		if gvk := schema.FromAPIVersionAndKind(o.APIVersion(), o.ID().Kind); gvk.GroupKind() == gk {
			v.live.Unserved[gvk] = err.Error()
		}
	}
}

// types finds the desired kinds and the inventory's, each in one version, the desired one
// if it is served; unserved are kinds of the inventory without a served version.
func (a *Applier) types(ctx context.Context, v *view, desired *manifest.Set, p *parent) (types map[schema.GroupKind]kube.Type, unserved []schema.GroupKind, err error) {
	types = make(map[schema.GroupKind]kube.Type)
	seen := make(map[schema.GroupVersionKind]bool)
	defined := make(map[schema.GroupKind]bool) // by the desired objects
	for _, o := range desired.All() {
		for _, gvk := range plan.Defines(o) {
			defined[gvk.GroupKind()] = true
		}
	}
	for _, o := range desired.All() {
		gvk := schema.FromAPIVersionAndKind(o.APIVersion(), o.ID().Kind)
		if o.ID().Is(manifest.CRD) {
			scopes(v.live.Namespaced, o)
		}
		if seen[gvk] {
			continue
		}
		seen[gvk] = true
		t, err := a.cluster.Type(ctx, o.APIVersion(), gvk.Kind)
		if kube.ClassOf(err) == kube.NoSuchType {
			why := kube.MessageOf(err)
			if !defined[gvk.GroupKind()] {
				why = cmp.Or(a.cluster.Unserved(ctx, o.APIVersion(), gvk.Kind), why)
			}
			// The object may exist in another version.
			if t, err = a.cluster.Kind(ctx, gvk.Group, gvk.Kind); err == nil || kube.ClassOf(err) == kube.NoSuchType {
				v.live.Unserved[gvk] = why
			}
		}
		switch {
		case err == nil && !t.Listable:
			v.live.Unreadable[gvk.GroupKind()] = "objects of this kind cannot be listed, patched and deleted"
		case err == nil:
			types[gvk.GroupKind()] = t
			v.live.Namespaced[gvk] = t.Namespaced
		case kube.ClassOf(err) == kube.NoSuchType:
		case kube.IsClusterWide(err):
			return nil, nil, err
		default:
			v.live.Unreadable[gvk.GroupKind()] = err.Error()
		}
	}
	for gk := range p.kinds {
		if _, ok := types[gk]; ok || v.live.Unreadable[gk] != "" {
			continue
		}
		t, err := a.cluster.Kind(ctx, gk.Group, gk.Kind)
		switch {
		case err == nil && t.Listable:
			types[gk] = t
		case err == nil:
			// It cannot be pruned, and was never applied.
		case kube.ClassOf(err) == kube.NoSuchType:
			unserved = append(unserved, gk)
		case kube.IsClusterWide(err):
			return nil, nil, err
		default:
			v.live.Unreadable[gk] = err.Error()
		}
	}
	return types, unserved, nil
}

// scopes notes whether the kinds that a CRD defines are namespaced.
func scopes(namespaced map[schema.GroupVersionKind]bool, crd *manifest.Object) {
	scoped := types.Read(crd.Tree()).Scope == "Namespaced"
	for _, gvk := range plan.Defines(crd) {
		if _, served := namespaced[gvk]; !served {
			namespaced[gvk] = scoped
		}
	}
}

// list finds the members of one kind, and other objects with the names of desired
// ones. known reports whether the inventory names the kind, so that a list of members
// finds most of them. A followed kind costs no request.
func (a *Applier) list(ctx context.Context, t kube.Type, wanted []manifest.ID, known bool) (objects, error) {
	found := make(objects)
	missing := setOf(wanted)
	if !a.recall(t, found) {
		members := make(objects)
		opts := kube.ListOptions{Again: func() {
			clear(members)
			clear(found)
		}}
		if known {
			opts.Selector = a.set.selector()
		}
		version, err := a.cluster.List(ctx, t, opts, func(m *metav1.PartialObjectMetadata) bool {
			id := t.ID(m.Namespace, m.Name)
			if a.inv.Membership(id, &m.ObjectMeta) != plan.Foreign {
				members[id] = &m.ObjectMeta
				found[id] = &m.ObjectMeta
			} else if missing[id] {
				found[id] = &m.ObjectMeta
			}
			return true
		})
		if err != nil {
			return nil, err
		}
		a.listed(t, members, version)
		if !known {
			return found, nil
		}
	}
	for id := range found {
		delete(missing, id)
	}
	return found, a.inTheWay(ctx, t, missing, found)
}

// inTheWay finds objects with the names of desired ones that are not members.
func (a *Applier) inTheWay(ctx context.Context, t kube.Type, missing map[manifest.ID]bool, found objects) error {
	if len(missing) > fewNew {
		opts := kube.ListOptions{Namespace: commonNamespace(missing), Again: func() {
			maps.DeleteFunc(found, func(id manifest.ID, _ *metav1.ObjectMeta) bool { return missing[id] })
		}}
		_, err := a.cluster.List(ctx, t, opts, func(m *metav1.PartialObjectMetadata) bool {
			if id := t.ID(m.Namespace, m.Name); missing[id] {
				found[id] = &m.ObjectMeta
			}
			return true
		})
		return err
	}
	for id := range missing {
		m, err := a.cluster.GetMetadata(ctx, t, id)
		if kube.IsMissing(err) {
			continue
		}
		if err != nil {
			return err
		}
		found[id] = &m.ObjectMeta
	}
	return nil
}

// get reads an object in the version that the cluster prefers. Errors are those of
// [kube.Client.Kind] and [kube.Client.Get].
func get(ctx context.Context, cluster *kube.Client, id manifest.ID) (map[string]any, *metav1.PartialObjectMetadata, error) {
	t, err := cluster.Kind(ctx, id.Group, id.Kind)
	if err != nil {
		return nil, nil, err
	}
	return cluster.Get(ctx, t, id)
}

// getLive reads the live object of a desired one, in the same version.
func (a *Applier) getLive(ctx context.Context, o *manifest.Object) (map[string]any, *metav1.PartialObjectMetadata, error) {
	t, err := a.cluster.Type(ctx, o.APIVersion(), o.ID().Kind)
	if err != nil {
		return nil, nil, err
	}
	return a.cluster.Get(ctx, t, o.ID())
}

func setOf(ids []manifest.ID) map[manifest.ID]bool {
	set := make(map[manifest.ID]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set
}

// commonNamespace returns the namespace of all objects; "" if they are in several.
func commonNamespace(ids map[manifest.ID]bool) string {
	common, first := "", true
	for id := range ids {
		if !first && id.Namespace != common {
			return ""
		}
		common, first = id.Namespace, false
	}
	return common
}
