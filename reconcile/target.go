package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/checkpoint"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/render"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
)

// maxProblems bounds what an outcome lists; the count is complete.
const maxProblems = 50

// target is a Target that is a Kubernetes cluster.
type target struct {
	cluster *kube.Client
	applier *apply.Applier
	log     *slog.Logger
}

// NewTarget makes the target of a connected cluster of a fleet, and owns the
// connection.
func NewTarget(cluster *kube.Client, fleet apply.Fleet, log *slog.Logger) (Target, error) {
	applier, err := apply.New(apply.Config{Cluster: cluster, Fleet: fleet, Log: log})
	if err != nil {
		return nil, err
	}
	return &target{cluster: cluster, applier: applier, log: log.With("cluster", cluster.Name())}, nil
}

func (t *target) Close() { t.cluster.Close() }

func (t *target) Follow(ctx context.Context, notify func()) { t.applier.Follow(ctx, notify) }

// PlanOptions are the options of a plan for a cluster: the same for the daemon
// and for `gitopsd plan`, so that one does what the other prints.
func PlanOptions(want *desired.Unit) (apply.PlanOptions, error) {
	opts := apply.PlanOptions{
		Options: plan.Options{
			Keeps: want.Keeps, Order: want.Order(), ReportDrift: want.Spec.Drift == clusters.Report, RemoveAll: want.Remove,
			Inactive: packageTypes(want.Inactive), Delegated: packageTypes(want.Delegated),
		},
		Commit: want.Commit, Allowed: want.Allows, FindType: want.FindType,
	}
	if want.Err != nil {
		opts.RenderFailed = want.Err.Error()
	}
	if v := want.Annotations[plan.AllowPruneAnnotation]; v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			return opts, fmt.Errorf("%s: %s on cluster %s: %q is not a number of objects", "clusters.yaml", plan.AllowPruneAnnotation, want.Name, v)
		}
		opts.AllowPrune = n
	}
	if v := want.Annotations[plan.AdoptAnnotation]; v != "" {
		var err error
		if opts.Adopt, err = plan.ParseAdopt(v); err != nil {
			return opts, fmt.Errorf("%s: %s on cluster %s: %w", "clusters.yaml", plan.AdoptAnnotation, want.Name, err)
		}
	}
	return opts, nil
}

func packageTypes(rendered []render.PackageType) []plan.PackageType {
	list := make([]plan.PackageType, len(rendered))
	for i, t := range rendered {
		list[i] = plan.PackageType{Definition: t.Definition, Kind: schema.GroupKind{Group: t.Group, Kind: t.Kind}, Package: t.Package}
	}
	return list
}

// Deletions take their time: a cluster that is to be emptied is looked at so often
// in one attempt.
const (
	emptyRounds = 10
	emptyPause  = time.Second
)

func (t *target) Apply(ctx context.Context, want *desired.Unit) (o Outcome) {
	o = t.apply(ctx, want)
	defer func() { o.Notes = t.applier.Polled() }()
	underWay := func() bool {
		return o.Phase == status.Leaving && o.Actions[string(plan.Prune)]+o.Actions[string(plan.Wait)] > 0
	}
	for round := 1; round < emptyRounds && underWay(); round++ {
		select {
		case <-ctx.Done():
			return o
		case <-time.After(emptyPause):
		}
		o = t.apply(ctx, want)
	}
	return o
}

func (t *target) apply(ctx context.Context, want *desired.Unit) Outcome {
	opts, err := PlanOptions(want)
	if err != nil {
		return Outcome{Phase: status.Failed, Message: err.Error()}
	}
	p, err := t.applier.Plan(ctx, want.Objects, opts)
	if err != nil {
		return failed(err)
	}
	p = Executed(want, p)
	o := Outcome{Phase: status.Ready, Actions: make(map[string]int), Packages: make(map[string]string)}
	for _, s := range p.Steps {
		o.Actions[string(s.Action)]++
	}
	report, err := t.applier.Apply(ctx, p)
	faults, waits := t.results(report, &o)
	if err != nil {
		o.Phase, o.Message = failed(err).Phase, problem.Message(err)
		return o
	}
	unhealthy, err := t.applier.Health(ctx, p)
	if err != nil {
		o.Phase, o.Message = failed(err).Phase, problem.Message(err)
		return o
	}
	broken := 0
	for _, h := range unhealthy {
		state := status.Progressing
		if h.State == apply.FailedState {
			state = status.Failed
			broken++
		} else {
			waits++
		}
		o.note(t.about(h.Package, h.ID.String(), cmp.Or(h.Reason, string(h.State))), state)
	}
	switch {
	case want.Remove && len(p.Steps)+len(p.Unreadable) == 0:
		o.Message = "nothing of gitopsd's is left in it; take its document out of " + sources.RegistryFile
	case want.Remove && len(p.Steps) == 0:
		o.Phase = status.Leaving
		o.Message = "it is being emptied (" + clusters.RemoveAnnotation + "); nothing is known of " + prose.Agree(len(p.Unreadable), "kind that it may hold objects of", "kinds that it may hold objects of")
	case want.Remove:
		o.Phase, o.Message = status.Leaving, "it is being emptied ("+clusters.RemoveAnnotation+"); "+prose.Agree(len(p.Steps), "object is not gone yet", "objects are not gone yet")
	case faults > 0 || !want.Complete():
		o.Phase = status.Failed
		o.Message = fmt.Sprintf("%d of %s could not be brought to what is wanted", faults, prose.Count(len(p.Steps), "object"))
		switch {
		case faults > 0:
		case len(want.Incomplete) > 0:
			o.Message = prose.Agree(len(want.Incomplete), "package has errors", "packages have errors")
		default:
			o.Message = prose.Agree(len(want.Faults), "manifest has errors", "manifests have errors")
		}
	case broken > 0:
		o.Phase, o.Message = status.Failed, prose.Agree(broken, "object was applied and has failed", "objects were applied and have failed")
	case waits > 0:
		o.Phase, o.Message = status.Progressing, prose.Agree(waits, "object is not ready yet", "objects are not ready yet")
	case len(o.Problems) == 0:
		o.Checkpoint = t.applier.Checkpoint(p)
	}
	return o
}

func (t *target) Resume(ctx context.Context, at *checkpoint.Record) Outcome {
	rests, err := t.applier.AtRest(ctx, at.Cluster)
	switch {
	case err != nil:
		return failed(err)
	case !rests:
		return Outcome{Moved: true}
	}
	return Outcome{Phase: status.Ready, Actions: map[string]int{string(plan.Unchanged): at.Objects}, Notes: t.applier.Polled()}
}

// results takes what came of the steps into the outcome.
func (t *target) results(report *apply.Report, o *Outcome) (faults, waits int) {
	if report == nil {
		return 0, 0
	}
	held := heldAlike(report.Results)
	for _, r := range report.Results {
		about := func(reason string) problem.Problem { return t.about(r.Step.Package, r.Step.ID.String(), reason) }
		decided := about(fmt.Sprintf("%s: %s", r.Step.Action, r.Step.Reason))
		for _, w := range r.Warnings {
			t.log.Warn("the API server warns", "object", r.Step.ID.String(), "warning", w)
		}
		switch {
		case r.Outcome == apply.Done:
			if r.Step.Action.Writes() {
				o.Changed++
				t.log.Info(string(r.Step.Action), "object", r.Step.ID.String(), "reason", r.Step.Reason)
			}
		case r.Outcome == apply.Failed:
			faults++
			for _, p := range problem.Of(r.Err) {
				failed := about(p.Reason)
				if p.Object != "" && p.Object != failed.Object { // one that this one needs
					failed.Reason = p.Object + ": " + p.Reason
				}
				failed.Advice = p.Advice
				o.note(failed, status.Failed)
			}
		case r.Outcome == apply.Skipped:
			faults++
			o.note(about(r.Reason), status.Failed)
		case r.Outcome == apply.Pending:
			waits++
			o.note(about(r.Reason), status.Progressing)
		case r.Step.Action == plan.Conflict || r.Step.Action == plan.Refused:
			faults++
			o.note(decided, status.Failed)
		case r.Step.Action == plan.Wait && r.Step.Object != nil:
			waits++
			o.note(decided, status.Progressing)
		case r.Step.Action == plan.Held:
			if alike := held[r.Step.Reason]; alike != nil {
				decided.Object = prose.Some(alike, mostAlike)
				o.note(decided, "")
				held[r.Step.Reason] = nil
			}
		case r.Step.Action == plan.Wait:
			o.note(decided, "")
		}
	}
	return faults, waits
}

// mostAlike is how many objects are named that are held for the same reason.
const mostAlike = 3

// heldAlike lists the objects that are held, by the reason: a guard that stops a
// prune of hundreds says so once.
func heldAlike(results []apply.Result) map[string][]string {
	held := make(map[string][]string)
	for _, r := range results {
		if r.Step.Action == plan.Held {
			held[r.Step.Reason] = append(held[r.Step.Reason], r.Step.ID.String())
		}
	}
	return held
}

// about is a problem with an object of the target's.
func (t *target) about(pkg, object, reason string) problem.Problem {
	return problem.Problem{Cluster: t.cluster.Name(), Package: pkg, Object: object, Reason: reason}
}

// note lists an object at fault, and the state of the package it belongs to; a
// worse state is not overwritten.
func (o *Outcome) note(p problem.Problem, state status.Phase) {
	if len(o.Problems) < maxProblems {
		o.Problems = append(o.Problems, p)
	}
	if p.Package != "" && state != "" && o.Packages[p.Package] != string(status.Failed) {
		o.Packages[p.Package] = string(state)
	}
}

// Executed is the plan as the daemon executes it: where drift is to be reported,
// corrections are held.
func Executed(want *desired.Unit, p *plan.Plan) *plan.Plan {
	if want.Spec.Drift != clusters.Report {
		return p
	}
	q := *p
	q.Steps = slices.Clone(p.Steps)
	for i := range q.Steps {
		if s := &q.Steps[i]; s.Drift {
			s.Action = plan.Held
			s.Reason = "reported, not corrected (spec.drift: report): " + s.Reason
		}
	}
	return &q
}

// failed is the outcome of an error about a cluster as a whole.
func failed(err error) Outcome {
	o := Outcome{Phase: status.Failed, Message: problem.Message(err)}
	var e *kube.Error
	if errors.As(err, &e) && e.ClusterWide() {
		o.Phase = status.Unreachable
	}
	return o
}
