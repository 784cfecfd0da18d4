package apply

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/errgroup"
)

// State is how an object is doing, in kstatus' words.
type State string

// The states of objects that are not ready. A ready object has no Health.
const (
	// InProgress: a controller is at work.
	InProgress State = State(status.InProgressStatus)
	// FailedState: a controller gave up, or reports that it cannot go on.
	FailedState State = State(status.FailedStatus)
	// Terminating: the object is being deleted.
	Terminating State = State(status.TerminatingStatus)
	// Missing: the object does not exist.
	Missing State = State(status.NotFoundStatus)
	// UnknownState: the state could not be read.
	UnknownState State = State(status.UnknownStatus)
)

// Health is an object that is not ready, and why.
type Health struct {
	ID    manifest.ID
	State State
	// Package is the value of the object's manifest.PackageLabel.
	Package string
	// Reason is the controller's message.
	Reason string
}

// statusless are kinds that are ready as soon as they exist.
var statusless = []manifest.GroupKind{
	manifest.ConfigMap, manifest.Secret, manifest.ServiceAccount, manifest.Namespace, {Kind: "LimitRange"},
	manifest.Service, {Kind: "Endpoints"},
	{Group: manifest.GroupDiscovery, Kind: "EndpointSlice"},
	manifest.CRD, // applying waits for it
	{Group: manifest.GroupNetworking, Kind: "NetworkPolicy"}, {Group: manifest.GroupNetworking, Kind: "IngressClass"},
	{Group: manifest.GroupStorage, Kind: "StorageClass"}, {Group: manifest.GroupScheduling, Kind: "PriorityClass"},
}

func hasStatus(gk schema.GroupKind) bool {
	return gk.Group != manifest.GroupRBAC && gk.Group != manifest.GroupAdmission && !slices.Contains(statusless, manifest.GroupKind(gk))
}

// Health lists the desired objects of a plan that are not ready, ordered by ID,
// without those that the plan leaves to somebody else. It costs one list of members
// for each kind that has a status, or, while the kind is followed, one request for
// each object that was written to; and one list of pods for each workload that is
// not ready.
func (a *Applier) Health(ctx context.Context, p *plan.Plan) ([]Health, error) {
	wanted := make(map[schema.GroupKind][]*manifest.Object)
	for i := range p.Steps {
		s := &p.Steps[i]
		mine := s.Object != nil && (s.Action.Writes() || s.Action == plan.Unchanged || s.Action == plan.Wait)
		if gk := kindOf(s.ID); mine && hasStatus(gk) {
			wanted[gk] = append(wanted[gk], s.Object)
		}
	}
	var mu sync.Mutex
	var all []Health
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	for gk, objects := range wanted {
		g.Go(func() error {
			list, err := a.kindHealth(gctx, gk, objects)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, list...)
			return err
		})
	}
	err := g.Wait()
	slices.SortFunc(all, func(x, y Health) int { return x.ID.Compare(y.ID) })
	return all, err
}

func (a *Applier) kindHealth(ctx context.Context, gk schema.GroupKind, objects []*manifest.Object) (list []Health, err error) {
	known, touched, all := a.recallHealth(gk)
	defer func() {
		if err != nil {
			a.stir(gk) // any of them may have been missed
		}
	}()
	l := &healthLook{
		gk: gk, health: make(map[manifest.ID]Health), packages: make(map[manifest.ID]sources.Digest),
		selectors: make(map[manifest.ID]string), again: make(map[manifest.ID]bool),
	}
	for _, o := range objects {
		if !all && !touched[o.ID()] {
			if i := slices.IndexFunc(known, func(h Health) bool { return h.ID == o.ID() }); i >= 0 {
				list = append(list, known[i])
			}
			continue
		}
		l.health[o.ID()] = Health{ID: o.ID(), State: Missing, Package: o.Label(manifest.PackageLabel), Reason: "it is not there"}
		if o.ID().Is(manifest.Packages...) {
			l.packages[o.ID()] = packageOf(o.Tree()).Digest
		}
	}
	if len(l.health) > 0 {
		if err := a.lookAtHealth(ctx, l, objects[0].APIVersion(), all); err != nil {
			return nil, err
		}
	}
	for _, h := range l.health {
		if h.State != State(status.CurrentStatus) {
			list = append(list, h)
		}
	}
	slices.SortFunc(list, func(x, y Health) int { return x.ID.Compare(y.ID) })
	if err := a.blamePods(ctx, list, l); err != nil {
		return nil, err
	}
	a.rememberHealth(gk, list, l.again)
	return list, nil
}

// healthLook is a look at objects of one kind.
type healthLook struct {
	gk     schema.GroupKind
	health map[manifest.ID]Health // of the objects looked at
	// packages that Crossplane is told to install, and selectors of workloads that
	// are not ready.
	packages  map[manifest.ID]sources.Digest
	selectors map[manifest.ID]string
	// again are objects whose health may change without a write to them.
	again map[manifest.ID]bool
}

// lookAtHealth lists the members of a kind, or gets the objects to look at one by
// one.
func (a *Applier) lookAtHealth(ctx context.Context, l *healthLook, apiVersion string, all bool) error {
	t, err := a.cluster.Type(ctx, apiVersion, l.gk.Kind)
	switch {
	case err != nil:
	case all:
		missing := maps.Clone(l.health)
		opts := kube.ListOptions{Selector: a.set.selector(), Again: func() {
			maps.Copy(l.health, missing)
			clear(l.selectors)
		}}
		err = a.cluster.ListFull(ctx, t, opts, func(tree map[string]any) bool {
			l.take(t, tree)
			return true
		})
	default:
		err = a.askHealth(ctx, l, t)
	}
	if err == nil {
		err = a.verifyPackages(ctx, l)
	}
	if kube.IsClusterWide(err) {
		return err
	}
	if err != nil {
		for id, h := range l.health {
			h.State, h.Reason = UnknownState, err.Error()
			l.health[id], l.again[id] = h, true
		}
	}
	return nil
}

func (a *Applier) askHealth(ctx context.Context, l *healthLook, t kube.Type) error {
	for id := range l.health {
		tree, meta, err := a.cluster.Get(ctx, t, id)
		switch kube.ClassOf(err) {
		case kube.NotFound, kube.NoNamespace:
			continue
		}
		if err != nil {
			return err
		}
		if a.inv.Membership(id, &meta.ObjectMeta) != plan.Foreign {
			l.take(t, tree)
		}
	}
	return nil
}

// take assesses an object, if it is to be looked at.
func (l *healthLook) take(t kube.Type, tree map[string]any) {
	u := &unstructured.Unstructured{Object: tree}
	id := t.ID(u.GetNamespace(), u.GetName())
	h, ok := l.health[id]
	if !ok {
		return
	}
	h.State, h.Reason = assess(u)
	l.health[id] = h
	if hasPods(l.gk) && h.State != State(status.CurrentStatus) {
		l.selectors[id] = selectorOf(u)
	}
}

// recallHealth returns what is known of a followed kind, and which objects were
// written to since. all reports whether every object must be looked at.
func (a *Applier) recallHealth(gk schema.GroupKind) (known []Health, touched map[manifest.ID]bool, all bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.kinds[gk]
	if s == nil {
		return nil, nil, true
	}
	// Reset now: the look that follows sees earlier writes, and later ones are
	// noted again.
	touched, all = s.touched, s.stirred || !s.followed
	s.touched, s.stirred = nil, false
	return slices.Clone(s.unready), touched, all
}

// stir makes the next look assess all objects of a kind again.
func (a *Applier) stir(gk schema.GroupKind) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.kinds[gk]; s != nil {
		s.stirred, s.touched = true, nil
	}
}

func (a *Applier) rememberHealth(gk schema.GroupKind, list []Health, again map[manifest.ID]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.kinds[gk]; s != nil {
		s.unready = list
		s.touch(slices.Collect(maps.Keys(again))...)
	}
}

func assess(u *unstructured.Unstructured) (State, string) {
	gk := u.GroupVersionKind().GroupKind()
	switch {
	case u.GetDeletionTimestamp() != nil:
	case slices.Contains(manifest.Packages, manifest.GroupKind(gk)):
		return packageHealth(u)
	case manifest.GroupKind(gk) == manifest.XRD:
		return definitionHealth(u)
	}
	r, err := status.Compute(u)
	if err != nil {
		return UnknownState, fmt.Sprintf("its status cannot be read: %v", err)
	}
	return State(r.Status), r.Message
}
