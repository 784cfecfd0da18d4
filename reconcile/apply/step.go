package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/pins"
)

// apply applies one object.
func (x *execution) apply(ctx context.Context, r *Result) error {
	s := r.Step
	outcome, why, err := x.blocked(ctx, s)
	if err != nil {
		return x.fail(r, err)
	}
	if why != "" {
		r.Outcome, r.Reason = outcome, why
		return nil
	}
	if x.hasLeft(s) {
		r.Outcome, r.Reason = Pending, changedSince
		return nil
	}
	if s.Found {
		if err := x.mark(ctx, s); err != nil {
			return x.failOrWait(r, err)
		}
	}
	if s.Adopt || s.Reclaim != plan.ReclaimNothing {
		if err := x.takeOver(ctx, s); err != nil {
			return x.failOrWait(r, err)
		}
	}
	if s, err = x.asConverted(ctx, r); err != nil {
		return x.fail(r, err)
	}
	now := precondition{uid: s.UID}
	if s.UID == "" {
		now.version = noVersion
	}
	t, answer, err := x.write(ctx, s, now)
	switch {
	case s.UID != "":
	case kube.ClassOf(err) == kube.Changed:
		t, answer, err = x.join(ctx, t, s, err)
	case mentionsVersion(err):
		t, answer, err = x.write(ctx, s, precondition{})
	}
	if err != nil && replaceable(s, err) {
		var going string
		if going, err = x.remove(ctx, s); err == nil && going != "" {
			r.Outcome, r.Reason = Pending, going
			return nil
		}
		if err == nil {
			t, answer, err = x.write(ctx, s, precondition{})
		}
	}
	if err != nil {
		return x.failOrWait(r, err)
	}
	x.done(r, t, s.Object, answer)
	return nil
}

// done notes that a step's object was applied in this form.
func (x *execution) done(r *Result, t kube.Type, o *manifest.Object, answer *kube.Applied) {
	r.Outcome, r.Reason, r.Warnings = Done, "", answer.Warnings
	x.wrote(t, o, &answer.Meta.ObjectMeta)
	if o.ID().Is(manifest.CRD) {
		for _, gvk := range plan.Defines(o) {
			x.cluster.Forget(gvk.Group)
		}
	}
}

// failOrWait is like fail, but leaves a step pending whose object changed since the plan, or
// whose type or version is to come.
func (x *execution) failOrWait(r *Result, err error) error {
	s, definer := r.Step, x.defined[kindOf(r.Step.ID)]
	switch {
	case errors.Is(err, errLeft):
		r.Outcome, r.Reason = Pending, changedSince
	case kube.ClassOf(err) == kube.Changed:
		r.Outcome, r.Reason = Pending, changedSince+": "+kube.MessageOf(err)
	case kube.ClassOf(err) != kube.NoSuchType:
		return x.fail(r, err)
	case s.Awaits != "":
		r.Outcome, r.Reason = Pending, "its type is not there yet: "+s.Awaits
	case definer != nil && definer.Outcome == Pending:
		r.Outcome, r.Reason = Pending, fmt.Sprintf("its version is not there yet: %s: %s", definer.Step.ID, x.because(definer))
	default:
		return x.fail(r, err)
	}
	return nil
}

// blocked returns the outcome of a step that cannot be applied yet, and why; "" if it can.
// It waits a while for controllers and webhooks that the step needs.
func (x *execution) blocked(ctx context.Context, s *plan.Step) (outcome Outcome, why string, err error) {
	if unknown := s.Object.Unknown(); len(unknown) > 0 {
		return Pending, "not known yet: " + prose.Some(unknown, 3), nil
	}
	if why := x.held[s.Package]; why != "" && !s.Drift {
		return Pending, why, nil
	}
	if outcome, why := x.unmet(s); why != "" {
		return outcome, why, nil
	}
	why = x.registered(s)
	if why == "" && s.Converts && !s.Refilled { // a new CA bundle suits the rules that it has
		why, err = x.awaitConverter(ctx)
	}
	if why == "" && err == nil && s.Stage == plan.Admission {
		why, err = x.awaitBackends(ctx, s)
	}
	if why == "" && err == nil && s.Stage == plan.Custom && s.UID == "" {
		why, err = x.unguarded(ctx, s)
	}
	return Pending, why, err
}

// One of several API servers may not know a kind yet that was installed a moment ago, or
// compare pins with the digests that it had then.
const (
	freshKindPause    = 200 * time.Millisecond
	freshKindAttempts = 5
)

// changedSince is why a step is left to the next pass.
const changedSince = "it changed after the plan was made; the next pass looks at it again"

// noVersion is a resourceVersion that no object has: etcd's before the first write. An apply
// with it creates an object, and changes none.
const noVersion = "1"

// mentionsVersion reports whether a server refuses noVersion. A server of an aggregated API
// may create objects by another API, which takes no resourceVersion.
func mentionsVersion(err error) bool {
	switch kube.ClassOf(err) {
	case kube.Invalid, kube.Server, kube.Refused:
		return strings.Contains(strings.ToLower(kube.MessageOf(err)), "resourceversion")
	}
	return false
}

// precondition is what the live object must have for a write; its empty fields are none. If it
// has something else, the error is of class Changed.
type precondition struct{ uid, version string }

// write applies the object of a step.
func (x *execution) write(ctx context.Context, s *plan.Step, must precondition) (kube.Type, *kube.Applied, error) {
	tree := x.member(s.Object).Tree()
	if must.version != "" {
		tree = manifest.With(tree, must.version, "metadata", "resourceVersion")
	}
	if must.uid != "" {
		tree = manifest.With(tree, must.uid, "metadata", "uid")
	}
	body := manifest.AppendJSON(nil, tree)
	definer := x.defined[kindOf(s.ID)]
	for attempt := 1; ; attempt++ {
		t, err := x.cluster.Type(ctx, s.Object.APIVersion(), s.ID.Kind)
		if err == nil {
			var answer *kube.Applied
			answer, err = x.cluster.Apply(ctx, t, s.ID, body, kube.ApplyOptions{Force: s.Force})
			if err == nil {
				return t, answer, nil
			}
		}
		fresh := kube.ClassOf(err) == kube.NoSuchType && definer != nil && definer.Outcome == Done
		late := x.repinned(err)
		if late && attempt == freshKindAttempts {
			x.repinning.Store(true)
		}
		if !fresh && (!late || x.repinning.Load()) || attempt == freshKindAttempts {
			return t, nil, err
		}
		if err := kube.Sleep(ctx, freshKindPause<<(attempt-1)); err != nil {
			return t, nil, err
		}
		x.cluster.Forget(s.ID.Group)
	}
}

// join applies an object that was to be created, to one that somebody has created since the
// plan. It returns changed if that one has an owner, so that the next plan decides.
// Controllers create some objects for everybody, such as a namespace's ServiceAccount. If
// there is none, the server means something else by its answer, and is asked without a
// precondition.
func (x *execution) join(ctx context.Context, t kube.Type, s *plan.Step, changed error) (kube.Type, *kube.Applied, error) {
	now, err := x.cluster.GetMetadata(ctx, t, s.ID)
	switch {
	case kube.IsMissing(err):
		return x.write(ctx, s, precondition{})
	case err != nil:
		return t, nil, err
	case now.DeletionTimestamp != nil || x.inv.Claimed(&now.ObjectMeta) != "":
		return t, nil, changed
	}
	return x.write(ctx, s, precondition{uid: string(now.UID)})
}

// repinned reports whether a policy for pins refused an object although the digests in it are
// those of the plan, which has already compared the pin: an API server looks at changed policies
// every second.
func (x *execution) repinned(err error) bool {
	e, ok := errors.AsType[*kube.Error](err)
	if !ok || e.Class != kube.Refused || !pins.Policy(e.Webhook) {
		return false
	}
	for i := range x.results { // of earlier batches, which no other goroutine writes any more
		if s := x.results[i].Step; s.Object != nil && pins.Of(s.Object) && (s.Action == plan.Unchanged || s.Action.Writes() && x.results[i].Outcome == Done) {
			return true
		}
	}
	return false
}

// fail records an error, and returns it if it concerns the whole cluster.
func (x *execution) fail(r *Result, err error) error {
	if e, ok := errors.AsType[*kube.Error](err); ok && e.Immutable() && r.Step.Force {
		err = &problem.Error{Err: err, Advice: plan.Anew(r.Step.ID)}
	}
	if why := x.trapped(r.Step.ID, err); why != "" {
		err = &problem.Error{Err: err, Advice: why}
	}
	if r.Step.Drift && kube.ClassOf(err) == kube.Invalid {
		// If somebody changed a Service's port, the merged Service has both ports.
		err = &problem.Error{Err: err, Advice: r.Step.Reason + ", which conflicts with the desired object: undo it in the cluster"}
	}
	r.Outcome, r.Err, r.Reason = Failed, err, ""
	// A request that exceeded its own deadline concerns its object alone; if the
	// pass ends, the error is Canceled.
	if kube.IsClusterWide(err) || kube.ClassOf(err) == "" && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return err
	}
	return nil
}

// trapped returns advice about an object that a webhook without an answer refuses, if the
// webhook's server is in the object's namespace and may need the object to start; ""
// otherwise.
func (x *execution) trapped(id manifest.ID, err error) string {
	e, ok := errors.AsType[*kube.Error](err)
	if !ok || e.Class != kube.WebhookFailed || id.Namespace == "" {
		return ""
	}
	for _, o := range x.desired {
		if !o.ID().Is(manifest.Webhooks...) {
			continue
		}
		for _, w := range manifest.List(o.Tree(), "webhooks") {
			hook, _ := w.(map[string]any)
			if hook["name"] == e.Webhook && manifest.Text(hook, "clientConfig", "service", "namespace") == id.Namespace {
				return fmt.Sprintf("its server is in the same namespace; if it needs this object to come up, delete the configuration, which is registered again once the server is ready, and have it leave out the namespace: kubectl delete %s %s",
					strings.ToLower(o.ID().Kind), o.ID().Name)
			}
		}
	}
	return ""
}

// unmet describes a dependency of a step that does not exist, with the outcome for the
// step: Pending if the dependency is to come. It returns "" if all exist.
func (x *execution) unmet(s *plan.Step) (Outcome, string) {
	// An older version of the object, or somebody else's, counts as existing.
	missing := func(r *Result) bool {
		return r != nil && (r.Step.Action == plan.Wait || r.Outcome != Done && r.Step.UID == "")
	}
	outcome := func(r *Result) Outcome {
		if r.Outcome == Pending {
			return Pending
		}
		return Skipped
	}
	if r := x.spaces[s.ID.Namespace]; s.ID.Namespace != "" && missing(r) {
		return outcome(r), fmt.Sprintf("its namespace is not there: %s", x.because(r))
	}
	if r := x.defined[kindOf(s.ID)]; missing(r) {
		return outcome(r), fmt.Sprintf("its type is not there: %s: %s", r.Step.ID, x.because(r))
	}
	if r := x.stale(s); r != nil {
		return outcome(r), fmt.Sprintf("it has the digests of %s, which is as it was: %s", r.Step.ID, x.because(r))
	}
	return "", ""
}

// stale returns a definition that is refused or that this run could not write, if the
// step has its digests, which the API server compares pins with; nil if there is none.
func (x *execution) stale(s *plan.Step) *Result {
	if s.Object == nil || !pins.Of(s.Object) {
		return nil
	}
	for i := range x.results {
		r := &x.results[i]
		if r.Step.Object == nil || !r.Step.ID.Is(manifest.Definitions...) || r.Step.Action != plan.Refused && (!r.Step.Action.Writes() || r.Outcome == Done) {
			continue
		}
		if pins.Has(s.Object, r.Step.Object) {
			return r
		}
	}
	return nil
}

// because returns why a step was not done.
func (x *execution) because(r *Result) string {
	switch {
	case r.Err != nil:
		return kube.MessageOf(r.Err)
	case r.Reason == notTried:
		return "comes first"
	case r.Reason != "":
		return r.Reason
	}
	return r.Step.Reason
}

// kindOf returns the kind of an object, without its version.
func kindOf(id manifest.ID) schema.GroupKind { return schema.GroupKind(id.GroupKind()) }
