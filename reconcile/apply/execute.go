package apply

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources/errgroup"
)

// Outcome is the result of a step in one word.
type Outcome string

// The outcomes.
const (
	// Done: the step was executed.
	Done Outcome = "done"
	// Left: the plan leaves the object as it is (unchanged, conflict, refused,
	// held, wait).
	Left Outcome = "left"
	// Failed: the API server did not accept the request; see Err.
	Failed Outcome = "failed"
	// Skipped: not tried, because a dependency does not exist; see Reason.
	Skipped Outcome = "skipped"
	// Pending: under way, or waiting for something that needs no action; see Reason. A
	// later pass continues.
	Pending Outcome = "pending"
)

// Result is the result of one step.
type Result struct {
	Step    *plan.Step
	Outcome Outcome
	// Err is why it Failed.
	Err error
	// Reason is why it was Skipped or is Pending.
	Reason string
	// Warnings are the API server's, for people.
	Warnings []string

	// moves: the step's CRD was applied with the conversion webhook that it had; see
	// moveConversions.
	moves bool
}

// notTried is the Reason of a step that the pass did not reach.
const notTried = "not tried"

// Report has the results of a plan.
type Report struct {
	// Results of the plan's steps, in the plan's order.
	Results []Result
}

// Count returns the number of results with the outcome.
func (r *Report) Count(o Outcome) int {
	n := 0
	for i := range r.Results {
		if r.Results[i].Outcome == o {
			n++
		}
	}
	return n
}

// execution is one run of Apply.
type execution struct {
	*Applier
	plan    *plan.Plan
	needs   *plan.Needs
	results []Result
	desired []*manifest.Object // the plan's
	// looked is the inventory that the plan was made from.
	looked *parent
	// defined are the kinds that CRDs of this plan define, and whether this run
	// wrote them.
	defined map[schema.GroupKind]*Result
	spaces  map[string]*Result // the plan's Namespaces
	// deferred are results that wait for their dependencies.
	deferred []*Result
	// backends ends the wait for the servers of webhooks and conversions, and for controllers
	// that succeed others, of all together.
	backends *cutoff
	// converters ends the wait for the workload that converts objects by rules.
	converters *cutoff
	// hooks ends the wait for API servers to ask new webhooks.
	hooks *cutoff
	// unready are the controllers that are not ready, of packages that take over from others.
	unready map[string]blocker
	// held are the packages that get no more writes in this pass, with the reason.
	held map[string]string
	// repinning is set once a pin was compared with digests from before this run for
	// longer than an API server may lag: no other object waits for that.
	repinning atomic.Bool
}

// Apply executes a plan that Plan made, and reports on every step. The error is
// about the cluster as a whole: steps that were not tried because of it are
// Skipped. Failures of single steps are only in the report.
func (a *Applier) Apply(ctx context.Context, p *plan.Plan) (*Report, error) {
	x := &execution{
		Applier: a, plan: p, needs: plan.NewNeeds(p.Steps, p.Successors), looked: a.parent, results: make([]Result, len(p.Steps)),
		defined: make(map[schema.GroupKind]*Result), spaces: make(map[string]*Result), backends: new(cutoff), converters: new(cutoff), hooks: new(cutoff),
		held: make(map[string]string), unready: make(map[string]blocker),
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		r := &x.results[i]
		r.Step, r.Outcome = s, Left
		if s.Action.Writes() {
			r.Outcome, r.Reason = Skipped, notTried
		}
		if s.Object == nil {
			continue
		}
		x.desired = append(x.desired, s.Object)
		if s.ID.Is(manifest.Namespace) {
			x.spaces[s.ID.Name] = r
		}
		for _, gvk := range plan.Defines(s.Object) {
			x.defined[gvk.GroupKind()] = r
		}
	}
	report := &Report{Results: x.results}
	defer func() { x.tally(time.Now()) }()
	if !p.HasChanges() {
		if err := x.awaitSuccessors(ctx); err != nil {
			return report, err
		}
		return report, x.settle(ctx)
	}
	kinds, spaces := x.scope(func(*Result) bool { return true })
	err := x.claim(ctx, kinds, spaces)
	if kube.ClassOf(err) == kube.WebhookFailed {
		err = x.claimBlocked(ctx, kinds, spaces, err)
	}
	if err != nil {
		return report, err
	}
	for stage := plan.Definitions; stage <= plan.Custom; stage++ {
		if stage == plan.Settings {
			if err := x.prune(ctx, true); err != nil {
				return report, err
			}
		}
		if err := x.stage(ctx, stage); err != nil {
			return report, err
		}
	}
	if err := x.dependents(ctx); err != nil {
		return report, err
	}
	if err := x.moveConversions(ctx); err != nil {
		return report, err
	}
	if err := x.reclaim(ctx); err != nil {
		return report, err
	}
	if err := x.prune(ctx, false); err != nil {
		return report, err
	}
	return report, x.settle(ctx)
}

// settle narrows the inventory to objects that are desired or still exist.
func (x *execution) settle(ctx context.Context) error {
	p, err := x.readParent(ctx)
	if err != nil {
		return err
	}
	kinds, spaces := x.scope(func(r *Result) bool {
		return r.Step.Object != nil || r.Outcome != Done
	})
	for gk := range x.plan.Unreadable {
		if p.kinds[gk] {
			// Members that cannot be seen may exist anywhere.
			kinds[gk] = true
			maps.Copy(spaces, p.namespaces)
		}
	}
	x.keepNew(p, kinds, spaces)
	if len(kinds) == 0 {
		return x.removeParent(ctx)
	}
	return x.narrow(ctx, kinds, spaces)
}

// keepNew keeps kinds and namespaces that another process added to the inventory after
// the look that the plan is based on: this process knows nothing about them.
func (x *execution) keepNew(p *parent, kinds map[schema.GroupKind]bool, spaces map[string]bool) {
	if x.looked == nil {
		return
	}
	planned, in := x.scope(func(*Result) bool { return true })
	for gk := range p.kinds {
		if !x.looked.kinds[gk] && !planned[gk] {
			kinds[gk] = true
		}
	}
	for ns := range p.namespaces {
		if !x.looked.namespaces[ns] && !in[ns] {
			spaces[ns] = true
		}
	}
}

// scope returns the kinds and namespaces of the included steps whose objects may be
// members.
func (x *execution) scope(include func(*Result) bool) (map[schema.GroupKind]bool, map[string]bool) {
	kinds, spaces := make(map[schema.GroupKind]bool), make(map[string]bool)
	for i := range x.results {
		r := &x.results[i]
		if s := r.Step; include(r) && (s.Member || s.Action != plan.Conflict && s.Action != plan.Refused) {
			kinds[kindOf(s.ID)] = true
			if s.ID.Namespace != "" {
				spaces[s.ID.Namespace] = true
			}
		}
	}
	return kinds, spaces
}

// stage applies the objects of one stage, batch by batch in the plan's order: Namespaces
// before CRDs, and XRDs before objects of their types.
func (x *execution) stage(ctx context.Context, stage plan.Stage) error {
	var todo []*Result
	for i := range x.results {
		if r := &x.results[i]; r.Step.Stage == stage && r.Step.Object != nil && r.Step.Action.Writes() {
			todo = append(todo, r)
		}
	}
	todo, err := x.startable(ctx, todo)
	if err != nil || len(todo) == 0 {
		return err
	}
	return x.batches(ctx, stage, todo)
}

// batches applies objects of one stage that have no missing dependencies.
func (x *execution) batches(ctx context.Context, stage plan.Stage, todo []*Result) error {
	begun := time.Now()
	for rest := todo; len(rest) > 0; {
		var batch []*Result
		batch, rest = cut(rest, (*plan.Step).Batch)
		batch, err := x.again(ctx, batch)
		if err != nil {
			return err
		}
		if err := x.each(ctx, batch, x.apply); err != nil {
			return err
		}
	}
	if stage == plan.Definitions {
		return x.awaitServed(ctx, todo, begun)
	}
	return nil
}

// cut cuts the results after the first ones that have the same key.
func cut(all []*Result, key func(*plan.Step) int) (first, rest []*Result) {
	n := slices.IndexFunc(all, func(r *Result) bool { return key(r.Step) != key(all[0].Step) })
	if n < 0 {
		n = len(all)
	}
	return all[:n], all[n:]
}

// each calls do for all results, some at a time. The first error of do, which is about
// the whole cluster, ends it.
func (x *execution) each(ctx context.Context, todo []*Result, do func(context.Context, *Result) error) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	var once sync.Once
	var fatal error
	for _, r := range todo {
		g.Go(func() error {
			if gctx.Err() != nil {
				r.Reason = notTried
				return gctx.Err()
			}
			err := do(gctx, r)
			if err != nil {
				once.Do(func() { fatal = err })
			}
			return err
		})
	}
	g.Wait()
	if fatal == nil {
		return ctx.Err()
	}
	for _, r := range todo {
		if r.Outcome == Failed && kube.IsClusterWide(r.Err) {
			r.Outcome, r.Reason, r.Err = Skipped, notTried, nil
		}
	}
	return fatal
}
