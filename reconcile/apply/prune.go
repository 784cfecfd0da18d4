package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/webhook"
)

// goneWait is how long a pass waits for objects with finalizers to go. After that it
// leaves objects that they may need to a later pass.
const goneWait = 5 * time.Second

// prune deletes the objects that are not desired any more, round by round. Objects
// are still members while they are being deleted: the inventory drops a kind only
// after a look at the cluster finds none. So a delete that is refused, or that this
// process does not live to see, is tried again. A container is deleted only after it
// was seen to hold nothing that stays. early selects the prunes that come before
// Services and workloads are applied.
func (x *execution) prune(ctx context.Context, early bool) error {
	var missing map[string][]*Result
	if !early {
		missing = x.missing()
		if err := x.awaitSuccessors(ctx); err != nil {
			return err
		}
	}
	var there []blocker
	var todo []*Result
	for i := range x.results {
		if r := &x.results[i]; r.Step.Object == nil && r.Step.Early == early && (r.Step.Action == plan.Prune || r.Step.Action == plan.Wait) {
			todo = append(todo, r)
		}
	}
	for len(todo) > 0 {
		// The plan has them in the order of pruning.
		batch, rest := cut(todo, func(s *plan.Step) int { return s.Round })
		var ready []*Result
		for _, r := range batch {
			if m := x.replacement(missing, r); m != nil && r.Step.Action == plan.Prune {
				r.Outcome, r.Reason = Skipped, fmt.Sprintf("kept until the rest is applied: %s: %s", m.Step.ID, x.because(m))
				if m.Outcome == Pending {
					r.Outcome = Pending
				}
				continue
			}
			if until := cmp.Or(x.untaken(r.Step), x.postponed(r, there)); until != "" {
				r.Outcome, r.Reason = Pending, "waits until "+until
				continue
			}
			if why := x.converting(r.Step); why != "" {
				r.Outcome, r.Reason = Pending, why
				continue
			}
			ready = append(ready, r)
		}
		ready, err := x.withoutFull(ctx, ready)
		if err != nil {
			return err
		}
		if err := x.each(ctx, ready, x.delete); err != nil {
			return err
		}
		left, err := x.awaitGone(ctx, ready)
		if err != nil {
			return err
		}
		there = append(there, x.remaining(batch, left)...)
		if batch[0].Step.Stage == plan.Custom && len(rest) > 0 && rest[0].Step.Stage != plan.Custom {
			found, err := x.awaitDependents(ctx, rest, there)
			if err != nil {
				return err
			}
			there = append(there, found...)
		}
		todo = rest
	}
	return nil
}

// blocker is an object that is still there, and what the prunes wait for that it may need;
// until completes "waits until …".
type blocker struct {
	step  *plan.Step
	until string
}

// postponed returns what a prune waits for; "" if it waits for nothing.
func (x *execution) postponed(r *Result, there []blocker) string {
	if r.Step.Action != plan.Prune {
		return ""
	}
	i := slices.IndexFunc(there, func(b blocker) bool { return x.needs.Of(b.step, r.Step) })
	if i < 0 {
		return ""
	}
	return there[i].until
}

// remaining returns the objects of a batch that should be gone, and that may need later
// ones: those left, which are on their way, and custom resources and webhook configurations,
// since the objects after them may include their controller or their server. An object that
// names others needs these, whatever it is.
func (x *execution) remaining(batch, left []*Result) []blocker {
	var there []blocker
	for _, r := range batch {
		s := r.Step
		custom := (s.Stage == plan.Custom || s.Stage == plan.Admission) && !plan.Holds(s.ID)
		switch {
		case slices.Contains(left, r) && r.Outcome == Pending:
			there = append(there, blocker{s, fmt.Sprintf("%s is gone, which %s", s.ID, r.Reason)})
		case slices.Contains(left, r), s.Action == plan.Prune && r.Outcome != Done && (custom || len(s.Needs) > 0):
			there = append(there, blocker{s, fmt.Sprintf("%s is gone, which is still there: %s", s.ID, x.because(r))})
		}
	}
	return there
}

// missing returns the objects that could not be applied, by package ("" for plain
// manifests): the replacement of an object must exist before the object goes.
func (x *execution) missing() map[string][]*Result {
	missing := make(map[string][]*Result)
	for i := range x.results {
		r := &x.results[i]
		s := r.Step
		if s.Object == nil {
			continue
		}
		switch {
		case r.Outcome == Failed, r.Outcome == Skipped, r.Outcome == Pending,
			s.Action == plan.Conflict, s.Action == plan.Refused, x.awaited(s):
			missing[s.Package] = append(missing[s.Package], r)
		}
	}
	return missing
}

// replacement returns a missing object that may replace a pruned one; nil if there is none.
func (x *execution) replacement(missing map[string][]*Result, r *Result) *Result {
	for _, pkg := range x.needs.Replacers(r.Step.Package) {
		if i := slices.IndexFunc(missing[pkg], func(m *Result) bool { return x.needs.Replaced(m.Step, r.Step) }); i >= 0 {
			return missing[pkg][i]
		}
	}
	return nil
}

// registered returns why a workload or a Service must not change yet: it would no longer
// serve a webhook configuration of its package that still exists. It returns "" if it may
// change.
func (x *execution) registered(s *plan.Step) string {
	if s.Stage != plan.Workloads && !s.ID.Is(manifest.Service) || s.Package == "" {
		return ""
	}
	for i := range x.results {
		if r := &x.results[i]; r.Step.Early && r.Step.Package == s.Package && r.Outcome != Done && r.Step.Action != plan.Held {
			return fmt.Sprintf("waits until %s is gone: %s", r.Step.ID, x.because(r))
		}
	}
	return ""
}

// awaited reports whether a step only waits until its object is filled in, with a CA
// bundle. A webhook configuration that nothing would serve is not awaited.
func (x *execution) awaited(s *plan.Step) bool {
	return s.Action == plan.Held && s.UID == "" && webhook.Unserved(x.desired, s.Object) == ""
}

func (x *execution) delete(ctx context.Context, r *Result) error {
	s := r.Step
	if s.Action == plan.Wait {
		return nil
	}
	left, err := x.deleteStep(ctx, s)
	if errors.Is(err, errLeft) {
		r.Outcome, r.Reason = Skipped, "kept: "+errLeft.Error()
		return nil
	}
	if err != nil {
		return x.fail(r, err)
	}
	if s.ID.Is(manifest.CRD) {
		_, group, _ := strings.Cut(s.ID.Name, ".")
		x.cluster.Forget(group)
	}
	r.Outcome, r.Reason = Done, ""
	if left != nil {
		r.Outcome, r.Reason = Pending, going(left)
	}
	return nil
}

// errLeft is why an object is not deleted or taken over: somebody removed its label, gave it
// to another inventory, or created it again.
var errLeft = errors.New("it left the inventory after the plan was made")

// deleteStep deletes the object of a step, and returns its metadata if it still exists;
// nil if it is gone. If a member has left the inventory, the error is errLeft.
func (a *Applier) deleteStep(ctx context.Context, s *plan.Step) (left *metav1.ObjectMeta, err error) {
	t, err := a.cluster.Kind(ctx, s.ID.Group, s.ID.Kind)
	if err == nil {
		var meta *metav1.PartialObjectMetadata
		if meta, err = a.deleteMember(ctx, t, s); meta != nil {
			left = &meta.ObjectMeta
		}
	}
	switch kube.ClassOf(err) {
	case kube.NoSuchType:
		// The CRD was deleted meanwhile, and the object with it; or it exists and
		// does not serve the type any more, or in another version.
		if now, again := a.cluster.Kind(ctx, s.ID.Group, s.ID.Kind); again == nil && now != t {
			return a.deleteStep(ctx, s)
		}
		if why := a.withdrawn(ctx, kindOf(s.ID)); why != nil {
			return nil, why
		}
		err = nil
	}
	switch {
	case err != nil:
		return nil, err
	case left == nil:
		a.gone(s.ID, s.UID)
	default:
		a.goes(t, s.ID, left)
	}
	return left, nil
}

// deleteTries bounds how often an object is read again because somebody else writes to it.
// After that it is deleted in whatever state it is: it was a member a moment ago.
const deleteTries = 5

// deleteMember deletes the object of a step in the state in which it is known to be a
// member: the plan may be minutes old. It returns nil if the object is gone, or a newer one
// has its name.
func (a *Applier) deleteMember(ctx context.Context, t kube.Type, s *plan.Step) (*metav1.PartialObjectMetadata, error) {
	version := a.memberVersion(s)
	for try := 1; ; try++ {
		if version == "" {
			now, err := a.cluster.GetMetadata(ctx, t, s.ID)
			switch {
			case kube.IsMissing(err), err == nil && string(now.UID) != s.UID:
				return nil, nil
			case err != nil:
				return nil, err
			case s.Member && a.inv.Membership(s.ID, &now.ObjectMeta) != plan.Member:
				return nil, errLeft
			}
			version = now.ResourceVersion
		}
		var meta *metav1.PartialObjectMetadata
		var err error
		if try < deleteTries {
			_, meta, err = a.cluster.DeleteUnchanged(ctx, t, s.ID, s.UID, version)
		} else {
			_, meta, err = a.cluster.Delete(ctx, t, s.ID, s.UID)
		}
		if kube.ClassOf(err) != kube.Changed || try > deleteTries {
			return meta, err
		}
		version = ""
	}
}

// going describes an object that is being deleted, with its finalizers.
func going(meta *metav1.ObjectMeta) string {
	if len(meta.Finalizers) == 0 {
		return "is being deleted"
	}
	return "is being deleted, held by finalizer " + strings.Join(meta.Finalizers, ", ")
}

// awaitGone waits for objects that were deleted just now, and returns those that are not
// gone in time. It does not wait for objects that an earlier pass deleted.
func (x *execution) awaitGone(ctx context.Context, batch []*Result) ([]*Result, error) {
	var left []*Result
	for _, r := range batch {
		if r.Outcome == Pending || r.Step.Action == plan.Wait {
			left = append(left, r)
		}
	}
	deadline := time.Now().Add(goneWait)
	for wait := pollFirst; len(left) > 0; wait = min(2*wait, pollLongest) {
		there, err := x.stillThere(ctx, left)
		if err != nil {
			return nil, err
		}
		left = slices.DeleteFunc(left, func(r *Result) bool {
			if there[r.Step.ID] == r.Step.UID {
				return false
			}
			x.gone(r.Step.ID, r.Step.UID)
			r.Outcome, r.Reason = Done, ""
			return true
		})
		fresh := slices.ContainsFunc(left, func(r *Result) bool { return r.Step.Action != plan.Wait })
		if !fresh || time.Now().After(deadline) {
			break
		}
		if err := kube.Sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
	return left, nil
}

// stillThere looks for objects, and returns the UIDs of those that have their names.
// An object that cannot be read counts as existing. Few objects of a kind are read
// one by one, many by a list of members.
func (x *execution) stillThere(ctx context.Context, asked []*Result) (map[manifest.ID]string, error) {
	there := make(map[manifest.ID]string, len(asked))
	byKind := make(map[schema.GroupKind][]*Result)
	for _, r := range asked {
		byKind[kindOf(r.Step.ID)] = append(byKind[kindOf(r.Step.ID)], r)
	}
	for gk, results := range byKind {
		t, err := x.cluster.Kind(ctx, gk.Group, gk.Kind)
		if err == nil && len(results) > fewNew {
			opts := kube.ListOptions{Selector: x.set.selector(), Again: func() {
				maps.DeleteFunc(there, func(id manifest.ID, _ string) bool { return kindOf(id) == gk })
			}}
			_, err = x.cluster.List(ctx, t, opts, func(m *metav1.PartialObjectMetadata) bool {
				there[t.ID(m.Namespace, m.Name)] = string(m.UID)
				return true
			})
		} else if err == nil {
			err = x.askEach(ctx, t, results, there)
		}
		if kube.ClassOf(err) == kube.NoSuchType {
			err = x.withdrawn(ctx, gk)
		}
		switch {
		case err == nil:
		case kube.IsClusterWide(err):
			return nil, err
		default:
			for _, r := range results {
				there[r.Step.ID] = r.Step.UID
			}
		}
	}
	return there, nil
}

func (x *execution) askEach(ctx context.Context, t kube.Type, results []*Result, there map[manifest.ID]string) error {
	for _, r := range results {
		meta, err := x.cluster.GetMetadata(ctx, t, r.Step.ID)
		if kube.IsMissing(err) {
			continue
		}
		if err != nil {
			return err
		}
		there[r.Step.ID] = string(meta.UID)
	}
	return nil
}
