package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/apply/managed"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/rollback"
	"gitopsd.dev/render/manifest"
)

// mostRevisions is how many ReplicaSets of a controller are read.
const mostRevisions = 100

// revision is a decision about a controller's Deployment, valid as long as its record
// stays. It saves requests.
type revision struct {
	record   rollback.Record
	settled  bool
	template map[string]any // that it is rolled back to; nil if it is not
	// made: this process made the record; since is when it first saw it in the cluster.
	made  bool
	since time.Time
}

// controllerOf reports whether a desired object is the Deployment of a package's
// controller.
func controllerOf(o *manifest.Object) bool {
	return o.ID().Is(manifest.Deployment) && o.ID().Namespace == Namespace && o.Label(manifest.PackageLabel) != ""
}

// rollBack gives the Deployments of packages' controllers that did not get ready their
// previous pod template. It sends no request for a revision that is known to be ready, or
// is the first.
func (a *Applier) rollBack(ctx context.Context, v *view) error {
	var objects []*manifest.Object
	for i, o := range v.desired.All() {
		meta := v.live.Objects[o.ID()]
		if !controllerOf(o) || meta == nil || meta.DeletionTimestamp != nil || a.inv.Membership(o.ID(), meta) != plan.Member {
			continue
		}
		applied := meta.Annotations[manifest.AppliedAnnotation]
		d, due, err := a.decideRollback(ctx, o, applied == a.inv.Applied(o), time.Now())
		if err != nil {
			return err
		}
		completed, err := d.Apply(o)
		if err != nil {
			return err
		}
		r := plan.Rollback{Done: d.Template != nil, Why: d.Stays, Due: due}
		switch {
		case r.Done:
			r.Why = d.Text(o)
			r.Refilled = "rolled back: " + r.Why
		case !d.Unknown:
			r.Refilled = "applied as declared: nothing records that it was rolled back"
		}
		v.live.Rollbacks[o.ID()] = r
		if completed == o {
			continue
		}
		if objects == nil {
			objects = slices.Clone(v.desired.All())
		}
		objects[i] = completed
	}
	if objects != nil {
		v.desired, _ = manifest.NewSet(objects) // of the same identities
	}
	return nil
}

// decideRollback decides about one Deployment, and reads as much as that takes.
// applied reports whether it was applied last as it was rendered. due is when to decide
// again although nothing changes; zero for never. The error is about the cluster as a
// whole.
func (a *Applier) decideRollback(ctx context.Context, o *manifest.Object, applied bool, now time.Time) (d rollback.Decision, due time.Time, err error) {
	id := o.ID()
	known := rollback.Known{Record: a.rollbackRecord(id), Applied: applied}
	made, since := false, now
	switch r, ok := a.revisions[id]; {
	case ok && r.record == known.Record:
		known.Settled, known.Template, made = r.settled, r.template, r.made
		if !r.since.IsZero() {
			since = r.since
		}
	case ok && known.Record == rollback.Record{}:
		// Somebody asked to try the same again, perhaps before the previous template got
		// ready.
		known.Before = r.record.Ready
	}
	var deadline time.Time
	for {
		d = rollback.Decide(o, known)
		switch d.Need {
		case rollback.TheDeployment:
			var meta *metav1.PartialObjectMetadata
			if known.Deployment, meta, err = a.getLive(ctx, o); err == nil {
				known.Foreign = managed.Foreign(&meta.ObjectMeta, "spec", "template")
				deadline = since.Add(rollback.Deadline(known.Deployment))
				known.Overdue = made && !now.Before(deadline)
			}
			switch {
			case kube.IsClusterWide(err) || ctx.Err() != nil:
				return d, due, err
			case kube.ClassOf(err) == kube.NotFound:
				known.Deployment = map[string]any{}
			case err != nil:
				a.log.Debug("whether a controller got ready is not known", "object", id.String(), "error", err)
				// A new revision waits: without a record of what was ready before it, it would
				// count as that itself.
				unknown := known.Record.Failed != "" || known.Record.Revision != rollback.Revision(o) && kube.ClassOf(err) != kube.Forbidden
				return rollback.Decision{Record: known.Record, Unknown: unknown}, due, nil
			}
		case rollback.TheRevisions:
			if known.Revisions, err = a.revisionsOf(ctx, o); err != nil {
				return d, due, err
			}
		default:
			r := revision{record: d.Record, settled: d.Settled, template: d.Template, made: made, since: since}
			if d.Record != known.Record { // it is yet to be written
				r.made, r.since = true, time.Time{}
			}
			a.revisions[id] = r
			if made && d.Unmeasured && !known.Overdue {
				due = deadline
			}
			return d, due, nil
		}
	}
}

// rollbackRecord returns the record of a member; zero if it has none that counts.
func (a *Applier) rollbackRecord(id manifest.ID) rollback.Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := a.known(id); m != nil {
		return rollback.Parse(m.rollback)
	}
	return rollback.Record{}
}

// revisionsOf reads the ReplicaSets and pods of a controller. The error is about the
// cluster as a whole.
func (a *Applier) revisionsOf(ctx context.Context, o *manifest.Object) (*rollback.Revisions, error) {
	r := new(rollback.Revisions)
	selector := manifest.PackageLabel + "=" + o.Label(manifest.PackageLabel)
	for _, list := range []struct {
		kind manifest.GroupKind
		most int
		to   *[]map[string]any
	}{{manifest.ReplicaSet, mostRevisions, &r.ReplicaSets}, {manifest.Pod, mostAskedPods, &r.Pods}} {
		t, err := a.cluster.Kind(ctx, list.kind.Group, list.kind.Kind)
		if err == nil {
			opts := kube.ListOptions{Namespace: o.ID().Namespace, Selector: selector, Most: list.most, Again: func() { *list.to = nil }}
			err = a.cluster.ListFull(ctx, t, opts, func(tree map[string]any) bool {
				*list.to = append(*list.to, tree)
				return true
			})
		}
		if kube.IsClusterWide(err) || ctx.Err() != nil {
			return nil, err
		}
		if err != nil {
			r.Unread = fmt.Sprintf("its %ss cannot be read: %v", list.kind.Kind, err)
			break
		}
	}
	return r, nil
}

// withRollbacks adds to the health of controllers whether they were rolled back, or why
// not. A controller that was rolled back has failed, whatever its previous revision does:
// the desired one does not run.
func withRollbacks(all []Health, p *plan.Plan, g *plan.Gating) []Health {
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Rollback.Why == "" && s.Rollback.Due.IsZero() || !tended(s) {
			continue
		}
		at := slices.IndexFunc(all, func(h Health) bool { return h.ID == s.ID })
		switch {
		case s.Rollback.Done:
			h := Health{ID: s.ID, State: FailedState, Package: s.Package, Reason: s.Rollback.Why, Advice: rollback.Advice(s.ID), Passes: !g.Waits(s.ID, s.Package)}
			if at < 0 {
				all = append(all, h)
				continue
			}
			if all[at].State != Terminating {
				// A deadline may have been exceeded by the revision that failed.
				why, late := strings.CutPrefix(all[at].Reason, rollback.Exceeded)
				h.Reason += ", which is not ready"
				if !late {
					h.Reason += ": "
				}
				h.Reason += why
			}
			h.Until = all[at].Until
			all[at] = h
		case at >= 0 && s.Rollback.Why != "" && all[at].State == FailedState && strings.HasPrefix(all[at].Reason, rollback.Exceeded):
			all[at].Reason += "; not rolled back: " + s.Rollback.Why
		case at >= 0 && !s.Rollback.Due.IsZero() && (all[at].Until.IsZero() || s.Rollback.Due.Before(all[at].Until)):
			all[at].Until = s.Rollback.Due
		}
	}
	return all
}

// rolledBack returns notes about the controllers that are rolled back.
func rolledBack(p *plan.Plan) []string {
	var notes []string
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Rollback.Done {
			notes = append(notes, fmt.Sprintf("package %s is rolled back: %s; %s", s.Package, s.Rollback.Why, rollback.Advice(s.ID)))
		}
	}
	return notes
}
