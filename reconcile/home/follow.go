package home

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources/errgroup"
)

// A kind that cannot be followed is listed again after a pause: firstPause, doubled with
// each failure in a row up to Config.Absent. A watch that lasted for less than brief counts
// as a failure: something between here and the API server cuts it.
const (
	firstPause = time.Second
	brief      = 5 * time.Second
)

// follow keeps the listing of a kind up to date until ctx ends.
func (h *Home) follow(ctx context.Context, kind Kind) {
	for failures := 0; ctx.Err() == nil; {
		began := time.Now()
		err := h.watch(ctx, kind)
		if ctx.Err() != nil {
			return
		}
		if err == nil && time.Since(began) >= brief {
			failures = 0
			continue
		}
		failures++
		if err != nil {
			h.unknown(kind, err)
		}
		d := min(firstPause<<min(failures-1, 10), h.cfg.Absent)
		if kube.Sleep(ctx, d+rand.N(d/10+1)) != nil {
			return
		}
	}
}

// watch lists a kind, and follows it until the API server ends the watch.
func (h *Home) watch(ctx context.Context, kind Kind) (err error) {
	defer func() {
		if p := recover(); p != nil {
			recovered := errgroup.Recovered(p)
			h.cfg.Log.Error(recovered.Error()+" in a watch; the daemon goes on", "kind", kind.Kind, "stack", string(recovered.Stack))
			err = recovered
		}
	}()
	defer func() { err = h.verified(ctx, kind, err) }()
	c := h.cfg.Client
	t, err := c.Kind(ctx, kind.Group, kind.Kind)
	if err != nil {
		c.Forget(kind.Group) // it may be served by the next time
		return err
	}
	objects := make(map[manifest.ID]*metav1.PartialObjectMetadata)
	opts := kube.ListOptions{Selector: kind.Selector, Again: func() { clear(objects) }}
	version, err := c.List(ctx, t, opts, func(m *metav1.PartialObjectMetadata) bool {
		objects[kind.ID(m.Namespace, m.Name)] = kind.slim(m)
		return true
	})
	if err != nil {
		return err
	}
	h.replace(kind, objects)
	for {
		began := time.Now()
		err := c.Watch(ctx, t, "", kind.Selector, version, func(e kube.Event) {
			version = e.Meta.ResourceVersion
			if !e.Progress {
				h.saw(kind, e)
			}
		})
		switch {
		case kube.ClassOf(err) == kube.Expired:
			return nil // it is listed anew
		case err != nil || time.Since(began) < brief:
			return err
		}
	}
}

// slim drops what no controller needs, since every object of a kind is kept.
func (k Kind) slim(m *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
	m.ManagedFields = nil
	if k.Versions {
		m.ObjectMeta = metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}
	}
	return m
}

// replace replaces the listing of a kind.
func (h *Home) replace(kind Kind, objects map[manifest.ID]*metav1.PartialObjectMetadata) {
	h.mu.Lock()
	l := h.listings[kind]
	news := !l.tried || l.err != nil || len(objects) != len(l.objects)
	for id, m := range objects {
		before := l.objects[id]
		news = news || before == nil || before.UID != m.UID || before.ResourceVersion != m.ResourceVersion
	}
	l.tried, l.err, l.objects = true, nil, objects
	h.mu.Unlock()
	if news {
		h.wake(kind)
	}
}

// saw applies an event to the listing of a kind, unless a list has a newer state.
func (h *Home) saw(kind Kind, e kube.Event) {
	id := kind.ID(e.Meta.Namespace, e.Meta.Name)
	h.mu.Lock()
	l := h.listings[kind]
	before := l.objects[id]
	if before != nil {
		if c, _ := resourceversion.CompareResourceVersion(e.Meta.ResourceVersion, before.ResourceVersion); c < 0 {
			h.mu.Unlock()
			return
		}
	}
	if e.Deleted {
		delete(l.objects, id)
	} else {
		l.objects[id] = kind.slim(e.Meta)
	}
	h.mu.Unlock()
	h.wake(kind)
}

// verified returns err, or an error of no class if err takes the kind for one that the cluster
// does not serve, and nothing confirms that: something in front of the API server may have
// answered. To believe it would be to take all objects of the kind for deleted.
func (h *Home) verified(ctx context.Context, kind Kind, err error) error {
	h.mu.Lock()
	absent := kube.ClassOf(h.listings[kind].err) == kube.NoSuchType
	h.mu.Unlock()
	if absent || kube.ClassOf(err) != kube.NoSuchType {
		return err
	}
	gk := schema.GroupKind(kind.GroupKind)
	hidden, unclear := h.cfg.Client.Hidden(ctx, []schema.GroupKind{gk})
	switch why := hidden[gk]; {
	case unclear != nil:
		return fmt.Errorf("%s (that is not known: %s)", problem.Message(err), problem.Message(unclear))
	case why != "":
		return fmt.Errorf("%s (%s)", problem.Message(err), why)
	}
	return err
}

// unknown notes why a kind cannot be followed. It drops the listing, which may be out of
// date.
func (h *Home) unknown(kind Kind, err error) {
	h.mu.Lock()
	l := h.listings[kind]
	news := !l.tried || l.err == nil || l.err.Error() != err.Error()
	l.tried, l.err, l.objects = true, err, nil
	h.mu.Unlock()
	if news {
		h.wake(kind)
	}
}

// wake wakes the controllers that follow a kind.
func (h *Home) wake(kind Kind) {
	for _, l := range h.loops {
		if slices.Contains(l.Kinds(), kind) {
			l.wake()
		}
	}
}

// listed reports whether all kinds that a controller follows were listed, or failed to be.
func (h *Home) listed(l *loop) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !slices.ContainsFunc(l.Kinds(), func(k Kind) bool { return !h.listings[k].tried })
}
