package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
)

// Containers (Namespaces, CRDs, XRDs, packages of Crossplane) are looked into again
// right before they are deleted. The plan may be minutes old by then, and the
// deletion of an object inside may have been refused or held back: deleting the
// container asks admission about none of its contents.

// withoutFull returns the results that can be deleted. The others get their contents as
// the reason.
func (x *execution) withoutFull(ctx context.Context, batch []*Result) ([]*Result, error) {
	var full []*Result
	for _, r := range batch {
		if r.Step.Action == plan.Prune && plan.Holds(r.Step.ID) {
			full = append(full, r)
		}
	}
	look := x.newLook()
	kept := make([]bool, len(full))
	err := x.each(ctx, full, func(ctx context.Context, r *Result) error {
		keeps, err := x.keepFull(ctx, look, r)
		kept[slices.Index(full, r)] = keeps
		return err
	})
	return slices.DeleteFunc(slices.Clone(batch), func(r *Result) bool {
		i := slices.Index(full, r)
		return i >= 0 && kept[i]
	}), err
}

// keepFull keeps one object if it holds others.
func (x *execution) keepFull(ctx context.Context, look *contentsLook, r *Result) (bool, error) {
	still := x.stillMembers(ctx, r.Step.ID)
	if r.Step.WithContents && len(still) == 0 {
		return false, nil
	}
	deadline := time.Now().Add(goneWait)
	for wait := pollFirst; ; wait = min(2*wait, pollLongest) {
		found, err := x.contents(ctx, look, r, still)
		if kube.IsClusterWide(err) || ctx.Err() != nil {
			return true, err
		}
		gone := x.leaving(found)
		staying := plan.Staying(found, gone)
		if r.Step.WithContents {
			staying = slices.DeleteFunc(staying, func(c plan.Content) bool { return still[c.ID] == nil })
		}
		switch {
		case len(staying) > 0:
			r.Outcome, r.Reason = Skipped, "kept: it holds "+x.explain(staying, still)
			return true, nil
		case err != nil:
			r.Outcome, r.Reason = Skipped, fmt.Sprintf("kept: its contents are not known: %v", err)
			return true, nil
		case len(found) == 0 || !r.Step.ID.Is(manifest.Packages...):
			return false, nil
		}
		// Crossplane stops the package's controller, which these may need.
		if time.Now().After(deadline) {
			r.Outcome, r.Reason = Pending, fmt.Sprintf("waits until %s is gone", found[0])
			return true, nil
		}
		if err := kube.Sleep(ctx, wait); err != nil {
			return true, err
		}
	}
}

// contents lists an object's contents: all of them if it matters which.
func (x *execution) contents(ctx context.Context, look *contentsLook, r *Result, still map[manifest.ID]*Result) ([]plan.Content, error) {
	gone := x.leaving(nil)
	staying := 0
	return look.inside(ctx, r.Step.ID, func(c plan.Content) bool {
		if len(c.Owners) == 0 && !gone[c.UID] && (!r.Step.WithContents || still[c.ID] != nil) {
			staying++
		}
		return staying < fewContents
	})
}

// leaving returns the UIDs of objects that this run saw go, and of their
// dependents.
func (x *execution) leaving(now []plan.Content) map[string]bool {
	gone := make(map[string]bool)
	for i := range x.results {
		if r := &x.results[i]; r.Step.Object == nil && r.Outcome == Done {
			gone[r.Step.UID] = true
		}
	}
	return x.plan.Leaving(gone, now)
}

// stillMembers returns the objects of the plan that are desired or still exist, and that
// holder may hold.
func (x *execution) stillMembers(ctx context.Context, holder manifest.ID) map[manifest.ID]*Result {
	still := make(map[manifest.ID]*Result)
	for i := range x.results {
		r := &x.results[i]
		if (r.Step.Object != nil || r.Outcome != Done) && x.mayHold(ctx, holder, r.Step) {
			still[r.Step.ID] = r
		}
	}
	return still
}

func (x *execution) mayHold(ctx context.Context, holder manifest.ID, s *plan.Step) bool {
	_, group, _ := strings.Cut(holder.Name, ".")
	switch {
	case holder.Is(manifest.Namespace):
		return s.ID.Namespace == holder.Name
	case holder.Is(manifest.Packages...):
		return plan.StageOf(s.ID) == plan.Custom
	case s.ID.Group != group:
		return false
	case holder.Is(manifest.XRD):
		return true // of its claims, the name is not known
	}
	t, err := x.cluster.Kind(ctx, s.ID.Group, s.ID.Kind)
	return err != nil || t.Resource+"."+t.Group == holder.Name
}

// explain names objects that stay, and why those that should have gone did not.
func (x *execution) explain(staying []plan.Content, still map[manifest.ID]*Result) string {
	var names []string
	for _, c := range staying {
		name := c.String()
		if r := still[c.ID]; r != nil && r.Step.Object == nil {
			name = fmt.Sprintf("%s, which is still there: %s", c.ID, x.because(r))
		}
		names = append(names, name)
	}
	return prose.Some(names, 3)
}

// awaitDependents waits until the garbage collector has deleted the dependents of deleted
// custom resources, if their types go too: the controller for their finalizers may be
// deleted next. It returns those that are still there. It does not wait for dependents of
// objects that are there themselves.
func (x *execution) awaitDependents(ctx context.Context, rest []*Result, there []blocker) ([]blocker, error) {
	owners := make(map[string]bool)
	for _, b := range there {
		owners[b.step.UID] = true
	}
	var dependents []blocker
	look := x.newLook()
	deadline := time.Now().Add(goneWait)
	for _, r := range rest {
		if r.Step.Action != plan.Prune || !r.Step.ID.Is(manifest.CRD) || r.Step.WithContents || x.postponed(r, there) != "" {
			continue
		}
		for wait := pollFirst; ; wait = min(2*wait, pollLongest) {
			found, err := x.contents(ctx, look, r, nil)
			if kube.IsClusterWide(err) || ctx.Err() != nil {
				return nil, err
			}
			leaving, held := x.leaving(found), x.plan.Leaving(owners, found)
			i := slices.IndexFunc(found, func(c plan.Content) bool { return held[c.UID] && !owners[c.UID] })
			late := i >= 0
			if !late {
				i = slices.IndexFunc(found, func(c plan.Content) bool { return !owners[c.UID] && (leaving[c.UID] || c.Deleting != "") })
				late = time.Now().After(deadline)
			}
			if i < 0 {
				break
			}
			if late {
				c := found[i]
				s := &plan.Step{ID: c.ID, UID: c.UID, Stage: plan.Custom, Package: r.Step.Package}
				dependents = append(dependents, blocker{s, fmt.Sprintf("%s is gone", c)})
				break
			}
			if err := kube.Sleep(ctx, wait); err != nil {
				return nil, err
			}
		}
	}
	return dependents, nil
}
