package apply

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"golang.org/x/sync/errgroup"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// State is how an object is doing, in kstatus' words.
type State string

// The states of objects that are not as they should be. An object that is has no
// Health.
const (
	// InProgress: a controller is at work.
	InProgress State = State(status.InProgressStatus)
	// FailedState: a controller gave up, or says it cannot go on.
	FailedState State = State(status.FailedStatus)
	// Terminating: the object is being deleted.
	Terminating State = State(status.TerminatingStatus)
	// Missing: the object is not there.
	Missing State = State(status.NotFoundStatus)
	// UnknownState: its state could not be found out.
	UnknownState State = State(status.UnknownStatus)
)

// Health is an object that is not ready, and why.
type Health struct {
	ID    manifest.ID
	State State
	// Package is the value of the object's plan.PackageLabel.
	Package string
	// Reason is the controller's message.
	Reason string
}

// statusless are kinds that are ready as soon as they are there.
var statusless = []schema.GroupKind{
	{Kind: "ConfigMap"}, {Kind: "Secret"}, {Kind: "ServiceAccount"}, {Kind: "Namespace"}, {Kind: "LimitRange"},
	{Kind: "Service"}, {Kind: "Endpoints"},
	{Group: "discovery.k8s.io", Kind: "EndpointSlice"},
	{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}, // applying waits for it
	{Group: "networking.k8s.io", Kind: "NetworkPolicy"}, {Group: "networking.k8s.io", Kind: "IngressClass"},
	{Group: "storage.k8s.io", Kind: "StorageClass"}, {Group: "scheduling.k8s.io", Kind: "PriorityClass"},
}

func hasStatus(gk schema.GroupKind) bool {
	return gk.Group != "rbac.authorization.k8s.io" && gk.Group != "admissionregistration.k8s.io" && !slices.Contains(statusless, gk)
}

// Health lists the objects that a plan wants and that are not ready, ordered by
// ID, without those that the plan leaves to somebody else. It costs one list of
// members for each kind that has a status, and one of pods for a workload that is
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
	defer func() {
		if err != nil {
			a.stir(gk) // nobody knows what was missed
		}
	}()
	if known, ok := a.recallHealth(gk); ok {
		return slices.DeleteFunc(known, func(h Health) bool {
			return !slices.ContainsFunc(objects, func(o *manifest.Object) bool { return o.ID() == h.ID })
		}), nil
	}
	health := make(map[manifest.ID]Health, len(objects))
	packages := make(map[manifest.ID]sources.Digest)
	selectors := make(map[manifest.ID]string)
	for _, o := range objects {
		health[o.ID()] = Health{ID: o.ID(), State: Missing, Package: o.Label(plan.PackageLabel), Reason: "it is not there"}
		if isDelegated(o.ID()) {
			packages[o.ID()] = packageOf(o.Tree()).Digest
		}
	}
	t, err := a.cluster.Type(ctx, objects[0].APIVersion(), gk.Kind)
	if err == nil {
		err = a.cluster.ListFull(ctx, t, kube.ListOptions{Selector: a.set.selector()}, func(tree map[string]any) bool {
			u := &unstructured.Unstructured{Object: tree}
			id := t.ID(u.GetNamespace(), u.GetName())
			if h, ok := health[id]; ok {
				h.State, h.Reason = assess(u)
				health[id] = h
				if hasPods(gk) && h.State != State(status.CurrentStatus) {
					selectors[id] = selectorOf(u)
				}
			}
			return true
		})
	}
	complete := err == nil
	if complete {
		complete, err = a.verifyPackages(ctx, health, packages)
	}
	if kube.IsClusterWide(err) {
		return nil, err
	}
	for _, h := range health {
		if err != nil {
			h.State, h.Reason = UnknownState, err.Error()
		}
		if h.State != State(status.CurrentStatus) {
			list = append(list, h)
		}
	}
	slices.SortFunc(list, func(x, y Health) int { return x.ID.Compare(y.ID) })
	told, err := a.blamePods(ctx, list, selectors)
	if err != nil {
		return nil, err
	}
	a.rememberHealth(gk, list, complete && told)
	return list, nil
}

// recallHealth returns what was found of a kind that is followed, if nothing was
// written since.
func (a *Applier) recallHealth(gk schema.GroupKind) ([]Health, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.kinds[gk]
	if s == nil || !s.followed {
		return nil, false
	}
	if s.stirred {
		// From here on: the list that follows sees what has been written, and
		// what is written later stirs it again.
		s.stirred = false
		return nil, false
	}
	return slices.Clone(s.unready), true
}

// stir has the health of a kind's objects looked at again.
func (a *Applier) stir(gk schema.GroupKind) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.kinds[gk]; s != nil {
		s.stirred = true
	}
}

func (a *Applier) rememberHealth(gk schema.GroupKind, list []Health, complete bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.kinds[gk]; s != nil {
		s.unready = list
		s.stirred = s.stirred || !complete
	}
}

func assess(u *unstructured.Unstructured) (State, string) {
	gk := u.GroupVersionKind().GroupKind()
	switch {
	case u.GetDeletionTimestamp() != nil:
	case isDelegated(manifest.ID{Group: gk.Group, Kind: gk.Kind}):
		return packageHealth(u)
	case plan.IsXRD(manifest.ID{Group: gk.Group, Kind: gk.Kind}):
		return definitionHealth(u)
	}
	r, err := status.Compute(u)
	if err != nil {
		return UnknownState, fmt.Sprintf("its status cannot be read: %v", err)
	}
	return State(r.Status), r.Message
}
