package apply

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/health"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/errgroup"
)

// State is how an object is doing.
type State string

// The states of objects. A ready object has no Health.
const (
	// ReadyState: it is ready.
	ReadyState State = "Current"
	// InProgress: a controller is at work.
	InProgress State = "InProgress"
	// FailedState: a controller gave up, or reports that it cannot go on.
	FailedState State = "Failed"
	// Terminating: the object is being deleted.
	Terminating State = "Terminating"
	// Missing: the object does not exist.
	Missing State = "NotFound"
	// UnknownState: the state could not be read, or no rule can judge the object.
	UnknownState State = "Unknown"
)

// Health is an object that is not ready, or that no rule can judge, and why.
type Health struct {
	ID    manifest.ID
	State State
	// Package is the value of the object's manifest.PackageLabel.
	Package string
	// Reason is the object's own reason, and Rule the rule of package health that judged
	// it; empty if none did.
	Reason, Rule string
	// Advice is what to do about it; empty if that is not known.
	Advice string
	// Until is when the state ends although nothing changes; zero for never.
	Until time.Time
	// Passes: nothing waits for the object, as the plan's Gating has it.
	Passes bool
}

// ended reports whether the state may have changed by itself.
func (h Health) ended(now time.Time) bool { return !h.Until.IsZero() && !now.Before(h.Until) }

// statusless are kinds that are ready as soon as they exist.
var statusless = []manifest.GroupKind{
	manifest.ConfigMap, manifest.Secret, manifest.ServiceAccount, manifest.Namespace, {Kind: "LimitRange"},
	{Kind: "Endpoints"},
	{Group: manifest.GroupDiscovery, Kind: "EndpointSlice"},
	manifest.CRD, // applying waits for it
	{Group: manifest.GroupNetworking, Kind: "NetworkPolicy"}, {Group: manifest.GroupNetworking, Kind: "IngressClass"},
	{Group: manifest.GroupStorage, Kind: "StorageClass"}, {Group: manifest.GroupScheduling, Kind: "PriorityClass"},
}

func hasStatus(gk schema.GroupKind) bool {
	return gk.Group != manifest.GroupRBAC && gk.Group != manifest.GroupAdmission && !slices.Contains(statusless, manifest.GroupKind(gk))
}

// judged reports whether an object can be anything but ready once it exists: most
// Services need no list.
func judged(o *manifest.Object) bool {
	if o.ID().Is(manifest.Service) {
		return manifest.Text(o.Tree(), "spec", "type") == "LoadBalancer"
	}
	return hasStatus(kindOf(o.ID()))
}

// Health lists the desired objects of a plan that are not ready, ordered by ID,
// without those that the plan leaves to somebody else. It costs one list of members
// for each kind that has a status, or, while the kind is followed, one request for
// each object that was written to; and one list of pods for each workload that is
// not ready.
func (a *Applier) Health(ctx context.Context, p *plan.Plan) ([]Health, error) {
	return a.health(ctx, p, p)
}

// health is Health of the steps of p. defining is the plan in which the
// definitions of their types may be.
func (a *Applier) health(ctx context.Context, p, defining *plan.Plan) ([]Health, error) {
	a.judgeBy(&defining.Gating)
	wanted := make(map[schema.GroupKind][]*manifest.Object)
	var all []Health
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Finished != nil {
			if s.Finished.Failed {
				all = append(all, Health{ID: s.ID, State: FailedState, Package: s.Package, Reason: s.Finished.Text(), Passes: !defining.Gating.Waits(s.ID, s.Package)})
			}
			continue
		}
		if tended(s) && (judged(s.Object) || defining.Gating.Rules.Has(manifest.GroupKind(kindOf(s.ID)))) {
			wanted[kindOf(s.ID)] = append(wanted[kindOf(s.ID)], s.Object)
		}
	}
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	for gk, objects := range wanted {
		g.Go(func() error {
			list, err := a.kindHealth(gctx, gk, objects, defining)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, list...)
			return err
		})
	}
	err := g.Wait()
	all = withRollbacks(all, p, &defining.Gating)
	slices.SortFunc(all, func(x, y Health) int { return x.ID.Compare(y.ID) })
	return all, err
}

// tended reports whether a step is about a desired object that the plan does not leave to
// somebody else.
func tended(s *plan.Step) bool {
	return s.Object != nil && (s.Action.Writes() || s.Action == plan.Unchanged || s.Action == plan.Wait)
}

// judgeBy has all objects judged again if the rules have changed.
func (a *Applier) judgeBy(g *plan.Gating) {
	key := g.Key()
	a.mu.Lock()
	defer a.mu.Unlock()
	if key == a.gating {
		return
	}
	a.gating = key
	for _, s := range a.kinds {
		s.stirred, s.touched = true, nil
	}
}

func (a *Applier) kindHealth(ctx context.Context, gk schema.GroupKind, objects []*manifest.Object, defining *plan.Plan) (list []Health, err error) {
	known, touched, all := a.recallHealth(gk)
	defer func() {
		if err != nil {
			a.stir(gk) // any of them may have been missed
		}
	}()
	l := &healthLook{
		gk: gk, now: time.Now(), gating: &defining.Gating, health: make(map[manifest.ID]Health), packages: make(map[manifest.ID]sources.Digest),
		selectors: make(map[manifest.ID]string), again: make(map[manifest.ID]bool), finished: make(map[manifest.ID]plan.Finished),
	}
	before := make(map[manifest.ID]Health, len(known))
	ended := 0
	for _, h := range known {
		before[h.ID] = h
		if h.ended(l.now) {
			ended++
		}
	}
	all = all || ended > fewTouched
	for _, o := range objects {
		if !all && !touched[o.ID()] {
			h, ok := before[o.ID()]
			if !ok {
				continue
			}
			if !h.ended(l.now) {
				list = append(list, h)
				continue
			}
		}
		pkg := o.Label(manifest.PackageLabel)
		l.health[o.ID()] = Health{ID: o.ID(), State: Missing, Package: pkg, Reason: "it is not there", Passes: !l.gating.Waits(o.ID(), pkg)}
		if o.ID().Is(manifest.Packages...) {
			l.packages[o.ID()] = packageOf(o.Tree()).Digest
		}
	}
	if len(l.health) > 0 {
		if err := a.lookAtHealth(ctx, l, objects[0].APIVersion(), defining, all); err != nil {
			return nil, err
		}
	}
	for _, h := range l.health {
		if h.State != ReadyState {
			list = append(list, h)
		}
	}
	slices.SortFunc(list, func(x, y Health) int { return x.ID.Compare(y.ID) })
	a.noteFinished(l.finished)
	if err := a.blamePods(ctx, list, l); err != nil {
		return nil, err
	}
	a.rememberHealth(gk, list, l.again)
	return list, nil
}

// healthLook is a look at objects of one kind.
type healthLook struct {
	gk     schema.GroupKind
	t      *health.Type   // nil if nothing is known of it
	rules  *health.Custom // of a live definition that is not in the plan; may be nil
	now    time.Time
	gating *plan.Gating
	health map[manifest.ID]Health // of the objects looked at
	// packages that Crossplane installs, and selectors of workloads that are not ready.
	packages  map[manifest.ID]sources.Digest
	selectors map[manifest.ID]string
	// again are objects whose health may change without a write to them.
	again map[manifest.ID]bool
	// finished are the Jobs looked at; zero for those that have not finished.
	finished map[manifest.ID]plan.Finished
}

// lookAtHealth lists the members of a kind, or gets the objects to look at one by
// one.
func (a *Applier) lookAtHealth(ctx context.Context, l *healthLook, apiVersion string, defining *plan.Plan, all bool) error {
	t, err := a.cluster.Type(ctx, apiVersion, l.gk.Kind)
	if err == nil {
		l.t, l.rules, err = a.healthType(ctx, t, defining)
	}
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

// askHealth gets the objects to look at. One that cannot be read is unknown. The error is
// about the cluster as a whole.
func (a *Applier) askHealth(ctx context.Context, l *healthLook, t kube.Type) error {
	for id, h := range l.health {
		tree, meta, err := a.cluster.Get(ctx, t, id)
		switch {
		case kube.IsMissing(err):
			continue
		case kube.IsClusterWide(err):
			return err
		case err != nil:
			h.State, h.Reason = UnknownState, err.Error()
			l.health[id], l.again[id] = h, true
			continue
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
	assess(&h, u, l.t, l.rules, l.gating, l.now)
	l.health[id] = h
	if id.Is(manifest.Job) {
		l.finished[id] = finishedOf(tree)
	}
	if hasPods(l.gk) && h.State != ReadyState {
		l.selectors[id] = selectorOf(u)
	}
}

// recallHealth returns the unhealthy objects of a followed kind as last judged, and the
// objects written to since then. all reports whether every object must be judged again.
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

// assess judges an object. live are the rules of a definition that is not in the
// plan; may be nil.
func assess(h *Health, u *unstructured.Unstructured, t *health.Type, live *health.Custom, g *plan.Gating, now time.Time) {
	gk := manifest.GroupKind(u.GroupVersionKind().GroupKind())
	switch {
	case u.GetDeletionTimestamp() != nil:
		h.State, h.Reason = Terminating, "it is being deleted"
		return
	case slices.Contains(manifest.Packages, gk):
		h.State, h.Reason = packageHealth(u)
		return
	case gk == manifest.XRD:
		h.State, h.Reason = definitionHealth(u)
		return
	}
	rules := g.Rules
	if live.Has(gk) { // a definition's own rule comes first
		rules = live
	}
	v := health.Rules{Custom: rules.Of}.Of(u.Object, t, now)
	h.Reason, h.Rule, h.Until = v.Reason, v.Rule, v.Until
	switch v.Status {
	case health.Failed:
		h.State = FailedState
	case health.InProgress:
		h.State = InProgress
	case health.Healthy:
		h.State = ReadyState
	default:
		h.State = UnknownState
		// A rule with an error does not open a gate.
		h.Passes = h.Passes || !g.UnknownUnready && !rules.Has(gk)
	}
}

// definitions are CustomResourceDefinitions.
var definitions = kube.Type{
	Group: manifest.CRD.Group, Version: "v1", Kind: manifest.CRD.Kind, Resource: "customresourcedefinitions",
}

// definitionAge is how long a definition that is not in the plan is known, for health and
// for pins, as its changes are not seen.
const definitionAge = 2 * time.Minute

// healthType returns the type that an object's health is judged by; nil if it has no
// definition that can be read. The rule of a definition that is not in the plan is
// returned too.
func (a *Applier) healthType(ctx context.Context, t kube.Type, p *plan.Plan) (*health.Type, *health.Custom, error) {
	if manifest.BuiltIn(t.Group) {
		return nil, nil, nil
	}
	gk := manifest.GroupKind{Group: t.Group, Kind: t.Kind}
	gvk := schema.GroupVersionKind{Group: t.Group, Version: t.Version, Kind: t.Kind}
	if tree := definitionOf(p, gk); tree != nil {
		return a.rememberType(gvk, health.NewType(tree, t.Version), nil, time.Now()), nil, nil
	}
	a.mu.Lock()
	known, ok := a.healthTypes[gvk]
	rules := a.healthRules[gk]
	fresh := time.Since(a.healthRead[gvk]) < definitionAge
	a.mu.Unlock()
	if ok && fresh {
		return known, rules, nil
	}
	tree, err := a.cluster.Definition(ctx, t.Group, t.Kind)
	if kube.ClassOf(err) == kube.Forbidden { // perhaps only to read XRDs
		tree, _, err = a.cluster.Get(ctx, definitions, manifest.CRD.ID("", t.Resource+"."+t.Group))
	}
	switch class := kube.ClassOf(err); {
	case err == nil && tree != nil:
	case class == kube.Forbidden && ok:
		// What is known stays, and is not asked for in each look.
		return a.rememberType(gvk, known, rules, time.Now()), rules, nil
	case err == nil, class == kube.NotFound, class == kube.Forbidden:
		// An aggregated API server serves it, or it cannot be read: the object alone decides.
		return a.rememberType(gvk, nil, nil, time.Now()), nil, nil
	case ok:
		return known, rules, nil // until it can be read again
	default:
		return nil, nil, err // an object must not count as ready because its type is not known
	}
	rules = new(health.Custom)
	_ = rules.AddAnnotated(tree) // verdicts report its errors
	return a.rememberType(gvk, health.NewType(tree, t.Version), rules, time.Now()), rules, nil
}

// definitionOf returns the definition of a kind that is in a plan.
func definitionOf(p *plan.Plan, kind manifest.GroupKind) map[string]any {
	for i := range p.Steps {
		s := &p.Steps[i] // its name is <plural>.<group>
		if s.Object == nil || !s.ID.Is(manifest.Definitions...) || !strings.HasSuffix(s.ID.Name, "."+kind.Group) {
			continue
		}
		if tree := s.Object.Tree(); types.Read(tree).Defines(kind) {
			return tree
		}
	}
	return nil
}

// rememberType notes the type that objects are judged by, for later looks and checkpoints.
// read is when its definition was read.
func (a *Applier) rememberType(gvk schema.GroupVersionKind, t *health.Type, rules *health.Custom, read time.Time) *health.Type {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.healthTypes == nil {
		a.healthTypes = make(map[schema.GroupVersionKind]*health.Type)
		a.healthRules = make(map[manifest.GroupKind]*health.Custom)
		a.healthRead = make(map[schema.GroupVersionKind]time.Time)
	}
	a.healthRead[gvk] = read
	a.healthTypes[gvk], a.healthRules[manifest.GroupKind(gvk.GroupKind())] = t, rules
	return t
}
