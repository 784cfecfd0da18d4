package apply

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/health"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources/errgroup"
)

// Checkpoint is the state of an inventory after a pass that left nothing to do:
// everything was applied, healthy and undisputed. If the cluster is in the same state
// later, and the desired objects have not changed, there is nothing to do, and
// [Applier.AtRest] reports so without computing them. It is plain data, which another
// process can read back.
type Checkpoint struct {
	// Kinds of the members, ordered by group and kind.
	Kinds []KindCheckpoint `json:"kinds"`
	// Namespaces that the inventory's parent names, ordered.
	Namespaces []string `json:"namespaces,omitempty"`
}

// KindCheckpoint is the state of the members of one kind.
type KindCheckpoint struct {
	Type    kube.Type `json:"type"`
	Members int       `json:"members"`
	// Print is a hash over the members' names and fingerprints.
	Print string `json:"print"`
	// Judged reports whether a member of the kind can be unhealthy.
	Judged bool `json:"judged,omitempty"`
	// Health is the type that the members' health was judged by.
	Health *health.Type `json:"health,omitempty"`
	// Ruled reports whether health was judged by rules that only a plan has.
	Ruled bool `json:"ruled,omitempty"`
}

// Checkpoint returns the state of the cluster after a plan was executed, and the caller
// has verified that everything is healthy. It returns nil if the members alone cannot
// show that nothing is left to do: an object is not known to be as it was applied, the
// plan leaves a difference in place, a field is not known yet, an object is pinned to a
// type that others define, or a package is left to Crossplane.
func (a *Applier) Checkpoint(p *plan.Plan) *Checkpoint {
	if a.parent == nil || !a.parent.exists || len(a.pinned) > 0 || len(p.Unreadable) > 0 {
		return nil
	}
	wanted := 0
	canFail, ruled := make(map[schema.GroupKind]bool), make(map[schema.GroupKind]bool)
	for i := range p.Steps {
		switch s := &p.Steps[i]; {
		case !s.Action.Writes() && s.Action != plan.Unchanged || s.ID.Is(manifest.Packages...):
			return nil
		case s.Object != nil && len(s.Object.Unknown()) > 0:
			return nil
		case s.Finished != nil: // it is no member any more
		case s.Object != nil:
			wanted++
			gk := kindOf(s.ID)
			if own := p.Gating.Rules.Has(manifest.GroupKind(gk)); own || judged(s.Object) {
				canFail[gk] = true
				ruled[gk] = own || p.Gating.UnknownUnready
			}
		}
	}
	c := &Checkpoint{Namespaces: slices.Sorted(maps.Keys(a.parent.namespaces))}
	a.mu.Lock()
	defer a.mu.Unlock()
	for gk := range a.parent.kinds {
		s := a.kinds[gk]
		if s == nil {
			return nil
		}
		for _, m := range s.members {
			if !m.fine {
				return nil
			}
		}
		wanted -= len(s.members)
		of, known := a.healthTypes[gk.WithVersion(s.t.Version)]
		if canFail[gk] && !known && !manifest.BuiltIn(gk.Group) {
			return nil // health was judged in another version
		}
		c.Kinds = append(c.Kinds, KindCheckpoint{Type: s.t, Members: len(s.members), Print: s.print(), Judged: canFail[gk],
			Ruled:  ruled[gk] || a.healthRules[manifest.GroupKind(gk)].Has(manifest.GroupKind(gk)),
			Health: of})
	}
	if wanted != 0 {
		return nil // somebody else's, or gone again
	}
	slices.SortFunc(c.Kinds, func(x, y KindCheckpoint) int {
		return cmp.Or(cmp.Compare(x.Type.Group, y.Type.Group), cmp.Compare(x.Type.Kind, y.Type.Kind))
	})
	return c
}

// print is a hash over the members, in the order of their IDs.
func (s *kindState) print() string {
	h := sha256.New()
	for _, id := range slices.SortedFunc(maps.Keys(s.members), manifest.ID.Compare) {
		h.Write(append([]byte(id.Namespace+"\x00"+id.Name+"\x00"), s.members[id].print[:]...))
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// AtRest reports whether the cluster is in the state of a checkpoint, and healthy. It
// changes nothing. Like Plan it costs one metadata list for each kind that is not
// followed yet, and one more list for each kind with a status; the next Plan reuses these
// lists. The error is about the cluster as a whole; with any other trouble the cluster is
// not at rest, and Plan reports it.
func (a *Applier) AtRest(ctx context.Context, c *Checkpoint) (bool, error) {
	p, err := a.readParent(ctx)
	if kube.IsClusterWide(err) {
		return false, err
	}
	if err != nil || !c.describes(p) {
		return false, nil
	}
	same, err := a.allKinds(ctx, c, a.looksSame)
	a.followAll()
	if !same || err != nil {
		return false, err
	}
	// After the watches began: they notice what becomes unready from here on.
	return a.allKinds(ctx, c, a.isHealthy)
}

// allKinds reports whether holds returns true for all kinds.
func (a *Applier) allKinds(ctx context.Context, c *Checkpoint, holds func(context.Context, KindCheckpoint) (bool, error)) (bool, error) {
	var not atomic.Bool
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	for _, k := range c.Kinds {
		g.Go(func() error {
			ok, err := holds(gctx, k)
			if err != nil || !ok {
				not.Store(true)
			}
			if kube.IsClusterWide(err) || ctx.Err() != nil {
				return err
			}
			return nil
		})
	}
	err := g.Wait()
	return err == nil && !not.Load(), err
}

// describes reports whether the parent has the checkpoint's kinds and namespaces.
func (c *Checkpoint) describes(p *parent) bool {
	kinds, namespaces := make(map[schema.GroupKind]bool), make(map[string]bool)
	for _, k := range c.Kinds {
		kinds[groupKind(k.Type)] = true
	}
	for _, ns := range c.Namespaces {
		namespaces[ns] = true
	}
	return p.exists && !p.partial && maps.Equal(kinds, p.kinds) && maps.Equal(namespaces, p.namespaces)
}

// looksSame lists the members of a kind, unless it is followed.
func (a *Applier) looksSame(ctx context.Context, k KindCheckpoint) (bool, error) {
	if !a.follows(k.Type) {
		members := make(map[manifest.ID]*metav1.ObjectMeta, k.Members)
		opts := kube.ListOptions{Selector: a.set.selector(), Again: func() { clear(members) }}
		version, err := a.cluster.List(ctx, k.Type, opts, func(m *metav1.PartialObjectMetadata) bool {
			if id := k.Type.ID(m.Namespace, m.Name); a.inv.Membership(id, &m.ObjectMeta) != plan.Foreign {
				members[id] = &m.ObjectMeta
			}
			return true
		})
		if err != nil {
			return false, err
		}
		a.listed(k.Type, members, version)
	}
	return a.approveAll(k), nil
}

// isHealthy reports whether the members of a kind are healthy. It reads them only
// if something was written since the last time.
func (a *Applier) isHealthy(ctx context.Context, k KindCheckpoint) (bool, error) {
	gk := groupKind(k.Type)
	if !k.Judged {
		return true, nil
	}
	if unready, touched, all := a.recallHealth(gk); !all && len(touched) == 0 {
		return !slices.ContainsFunc(unready, func(h Health) bool { return !h.Passes }), nil
	}
	if k.Ruled {
		a.stir(gk)
		return false, nil
	}
	// For the next checkpoint. The next look reads a definition that is not in the plan.
	a.rememberType(gk.WithVersion(k.Type.Version), k.Health, nil, time.Time{})
	ready, now := true, time.Now()
	var passing []Health // that are not ready, and hold nothing up
	// Until a list starts over, it has handed out only objects that hold nothing up.
	opts := kube.ListOptions{Selector: a.set.selector(), Again: func() { passing = nil }}
	err := a.cluster.ListFull(ctx, k.Type, opts, func(tree map[string]any) bool {
		u := &unstructured.Unstructured{Object: tree}
		id := k.Type.ID(u.GetNamespace(), u.GetName())
		if !a.remembers(id) {
			return true // a copy, which is somebody else's
		}
		h := Health{ID: id, Package: u.GetLabels()[manifest.PackageLabel]}
		assess(&h, u, k.Health, nil, new(plan.Gating), now)
		ready = h.State == ReadyState || h.Passes
		if h.State != ReadyState {
			passing = append(passing, h)
		}
		return ready
	})
	slices.SortFunc(passing, func(x, y Health) int { return x.ID.Compare(y.ID) })
	a.rememberHealth(gk, passing, nil)
	if err != nil || !ready {
		a.stir(gk) // Plan looks again, and reports the trouble
	}
	return ready, err
}

// Unjudged lists the objects that no rule can judge and that count as ready, as they
// were when last looked at, ordered by ID.
func (a *Applier) Unjudged() []manifest.ID {
	a.mu.Lock()
	defer a.mu.Unlock()
	var ids []manifest.ID
	for _, s := range a.kinds {
		for _, h := range s.unready {
			if h.Passes && h.State == UnknownState {
				ids = append(ids, h.ID)
			}
		}
	}
	slices.SortFunc(ids, manifest.ID.Compare)
	return ids
}

func (a *Applier) follows(t kube.Type) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.kinds[groupKind(t)]
	return s != nil && s.followed
}

// approveAll notes that the members of a kind are as they were applied, if they
// look as they did when the checkpoint was made.
func (a *Applier) approveAll(k KindCheckpoint) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.kinds[groupKind(k.Type)]
	if s == nil || len(s.members) != k.Members || s.print() != k.Print {
		return false
	}
	for _, m := range s.members {
		if m.full != nil && m.full.DeletionTimestamp != nil {
			return false
		}
		m.approve()
	}
	return true
}
