package namespaces

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/etcd/registry"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
)

// remove removes an object that is no longer declared: first its namespace in etcd, by its policy, then
// the Secrets and ConfigMaps. trouble is why the etcd cannot be used.
func (p *pass) remove(ctx context.Context, t *task, trouble error) error {
	if trouble != nil {
		return fmt.Errorf("what it has in etcd is not removed yet: %w", trouble)
	}
	w, err := p.wanted(ctx, t)
	if err != nil {
		return err
	}
	has, err := p.has(w)
	if err != nil {
		return fmt.Errorf("what it has in etcd is not removed yet: %w", err)
	}
	p.withdraw(t)
	if has {
		gone, err := p.removeKeys(ctx, t, w)
		if err != nil || !gone {
			return err
		}
	}
	for _, id := range t.written {
		if err := p.delete(ctx, id, t.uids[id]); err != nil {
			return err
		}
	}
	return p.unfinalize(ctx, t)
}

// has reports whether a namespace in etcd has to be removed with an object: it must be the object's own,
// and active or already being deleted. Retained keys must not be deleted because somebody creates and
// deletes an object of that name, and a namespace of another cluster of that name holds nothing up. The
// error says why that is unknown.
func (p *pass) has(w admin.Wanted) (bool, error) {
	if why := p.damaged[w.ID]; why != nil {
		return false, why
	}
	there, known := p.there[w.ID]
	return known && there.State != registry.Retained && there.Owner.UID == w.UID, nil
}

// left reports whether a declared object's namespace is still being removed: it was not declared in between,
// and the object of before is gone, or the etcd was restored from a snapshot of then.
func (p *pass) left(t *task) bool {
	there, known := p.there[p.id(t)]
	return known && there.State == registry.Deleting && there.Owner.UID == p.cluster
}

// finish continues such a removal. Once that has ended, the namespace is made anew.
func (p *pass) finish(ctx context.Context, t *task) error {
	w, err := p.wanted(ctx, t)
	if err != nil {
		return err
	}
	p.withdraw(t)
	gone, err := p.removeKeys(ctx, t, w)
	if gone {
		p.next(t, p.now.Add(goingPause))
	}
	return err
}

// removeKeys removes a part of an object's namespace in etcd, and reports whether nothing is left to do.
func (p *pass) removeKeys(ctx context.Context, t *task, w admin.Wanted) (gone bool, err error) {
	how, there := admin.Retain, p.there[w.ID]
	if there.State == registry.Deleting {
		how = admin.Delete // continue it
	} else if deletes, err := p.deletes(ctx, t); err != nil {
		return false, err
	} else if deletes {
		how = admin.Delete
	}
	removal, err := p.cfg.Etcd.Admin.Remove(ctx, w, how)
	if err != nil {
		return false, err
	}
	if removal.Done {
		p.Log.Info("an etcd namespace was removed", "namespace", w.ID.String(), "keys", string(how))
		return true, nil
	}
	s := new(state)
	s.prefix, s.counted, s.keys = there.Prefix, true, removal.Left
	s.set(readyCondition, false, removing, prose.Agree(int(removal.Left), "key is not gone yet", "keys are not gone yet"))
	p.next(t, p.now.Add(goingPause))
	return false, p.show(ctx, t, s)
}

// deletes reports whether the policy that was declared last is to delete the keys. A daemon that has not
// seen the declaration trusts the object, if nobody but gitopsd has set the policy there.
func (p *pass) deletes(ctx context.Context, t *task) (bool, error) {
	if t.known.deletes != nil {
		return *t.known.deletes, nil
	}
	tree, meta, err := p.Client.Get(ctx, namespaceType, t.object())
	if err != nil {
		return false, err
	}
	return manifest.Text(tree, "spec", "deletion") == string(admin.Delete) && onlyOurs(meta.ManagedFields), nil
}

// onlyOurs reports whether gitopsd applied the policy of an object, and nobody else set it.
func onlyOurs(entries []metav1.ManagedFieldsEntry) bool {
	ours := false
	for _, e := range entries {
		var fields struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if e.FieldsV1 == nil || json.NewDecoder(bytes.NewReader(e.FieldsV1.GetRawBytes())).Decode(&fields) != nil || fields.Spec["f:deletion"] == nil {
			continue
		}
		if e.Manager != kube.FieldManager || e.Operation != metav1.ManagedFieldsOperationApply {
			return false
		}
		ours = true
	}
	return ours
}

// delete deletes a Secret or ConfigMap that was written for an object.
func (p *pass) delete(ctx context.Context, id manifest.ID, uid string) error {
	_, _, err := p.Client.Delete(ctx, typeOf(id), id, uid)
	if kube.IsStale(err) {
		return nil
	}
	return err
}

// finalize adds the finalizer to an object.
func (p *pass) finalize(ctx context.Context, t *task) error {
	if t.finalized {
		return nil
	}
	return p.finalizers(ctx, t, append(slices.Clone(t.meta.Finalizers), manifest.EtcdKeysFinalizer))
}

// unfinalize removes the finalizer from an object.
func (p *pass) unfinalize(ctx context.Context, t *task) error {
	return p.finalizers(ctx, t, slices.DeleteFunc(slices.Clone(t.meta.Finalizers), func(f string) bool { return f == manifest.EtcdKeysFinalizer }))
}

func (p *pass) finalizers(ctx context.Context, t *task, list []string) error {
	err := p.Client.Patch(ctx, namespaceType, t.object(),
		map[string]any{"metadata": map[string]any{"finalizers": list, "uid": t.meta.UID}}, t.meta.ResourceVersion)
	if kube.ClassOf(err) == kube.NotFound {
		return nil
	}
	return err
}
