package applications

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/render/manifest"
)

// remove deletes the application's objects everywhere, and then its finalizer.
func (w *worker) remove(ctx context.Context, j *job) result {
	if !j.finalized || w.removed {
		return result{again: longestPause} // others have finalizers on it, or it is about to go
	}
	s := w.status.next(j.app)
	s.state = deleting
	if err := w.publish(ctx, s); err != nil {
		return w.fail(j, err)
	}
	s = w.status.next(j.app)
	remote, end, err := w.turn(ctx)
	if err != nil {
		return result{failed: true}
	}
	var waits []string
	stays := false
	for _, p := range s.places() {
		why, stay := w.empty(remote, j, p, "")
		if why != "" {
			waits = append(waits, why)
		}
		stays = stays || stay
	}
	end()
	if ctx.Err() != nil {
		return result{failed: true}
	}
	if len(waits) > 0 {
		message := strings.Join(waits, "; ")
		s.set(syncedCondition, false, deleting, message)
		s.set(readyCondition, false, deleting, message)
		return w.end(ctx, j, s, result{failed: true, problems: []problem.Problem{trouble(j.app, message)}})
	}
	err = w.mark(ctx, "")
	if err != nil && kube.ClassOf(err) != kube.NotFound {
		return w.fail(j, err)
	}
	w.removed = true
	if !stays {
		w.log.Info("its objects are gone")
	}
	return result{again: longestPause}
}

// retreat is what came of leaving clusters. While nothing changes, it is tried again when due.
type retreat struct {
	job *job
	// why some objects are not deleted yet; empty if all are.
	why string
	// failures counts those in a row with this job.
	failures int
	due      time.Time
}

// next returns the retreat after another try.
func (r retreat) next(j *job, why string) retreat {
	switch {
	case why == "":
		return retreat{}
	case r.job != j:
		r.failures = 0
	}
	n := r.failures + 1
	return retreat{job: j, why: why, failures: n, due: time.Now().Add(pause(n))}
}

// leave deletes the application's objects in the clusters that it has left. It returns why some
// are not deleted yet; empty if all are. now is the connection to where it runs.
func (w *worker) leave(ctx context.Context, j *job, s *state, now *link) string {
	inventory, err := now.Inventory(ctx)
	if err != nil || inventory == "" {
		return "" // the next attempt says what is wrong
	}
	var staying []site
	var waits []string
	for _, p := range s.left {
		switch why, stay := w.empty(ctx, j, p, inventory); {
		case why != "":
			staying, waits = append(staying, p), append(waits, why)
		case stay:
			s.lose(p.cluster)
		}
	}
	s.left = staying
	s.tellLost(j)
	return strings.Join(waits, "; ")
}

// empty deletes the application's objects in a place. It returns why they are not deleted yet.
// If stay is true, no connection leads there any more, and they stay.
//
// If the application has left the place, inventory is the one where it runs. If that is in the
// same cluster, nothing is deleted. Otherwise inventory is empty.
//
// If the target does not exist, the objects stay, unless it went together with the application.
// Then a connection that this process still has is tried once.
func (w *worker) empty(ctx context.Context, j *job, p site, inventory string) (why string, stay bool) {
	name := p.target
	if inventory != "" && p.cluster.inventory == inventory { // its target may be gone, too
		w.drop(name)
		return "", false
	}
	t := j.targets[name]
	var l *link
	var err error
	if t != nil {
		l, err = w.connect(ctx, j.app, t)
	}
	if l == nil {
		l = w.links[name]
	}
	gone := l == nil || t == nil && inventory != ""
	if !gone && t == nil {
		together, err := w.together(ctx, j, name)
		if err != nil {
			return fmt.Sprintf("target %s is gone, and it is not known whether its namespace is being deleted, too: %s", name, problem.Message(err)), false
		}
		gone = !together
	}
	switch {
	case l == nil && t != nil:
		return fmt.Sprintf("%s; to leave its objects in that cluster, delete the target", problem.Message(err)), false
	case gone:
		w.abandon(j, name, "its target is gone")
		return "", true
	}
	if now, known := l.identity(ctx); known && p.cluster.differs(now) {
		if inventory == "" && t != nil && now != (identity{}) {
			return fmt.Sprintf("target %s leads to another cluster than the one that has its objects (the UID of the namespace kube-system there, or of the inventory: %s); connect the target to that cluster again, or delete the target to leave its objects there", name, p.cluster), false
		}
		w.abandon(j, name, "its target leads to another cluster, or the inventory there is gone")
		return "", true
	}
	if inventory != "" {
		there, err := l.Inventory(ctx)
		switch {
		case err != nil:
			return fmt.Sprintf("target %s, which it has left: %s", name, problem.Message(err)), false
		case there == inventory:
			w.drop(name)
			return "", false
		}
	}
	o := w.delete(ctx, j, l)
	if o.Denied && t != nil {
		if err := w.renew(ctx, j.app.Namespace, t); err != nil {
			w.log.Warn("no other connection could be asked for", "target", name, "error", err)
		}
	}
	switch {
	case ctx.Err() != nil:
		return "it is interrupted", false
	case o.Phase == status.Ready:
		w.drop(name)
		return "", false
	case t == nil && o.Phase != status.Leaving:
		w.orphan(j, name, o.Message)
		return "", true
	}
	var objects []string
	for _, p := range o.Problems {
		objects = append(objects, p.Object+": "+p.Reason)
	}
	message := fmt.Sprintf("target %s: %s", name, o.Message)
	if len(objects) > 0 {
		message += ": " + prose.Some(objects, mostTold)
	}
	if o.Phase == status.Unreachable {
		message += "; to leave its objects in that cluster, delete the target"
	}
	return message, false
}

// moment is how long before its application a target may be deleted and still count as deleted
// together with it.
const moment = 2 * time.Second

// together reports whether a target that does not exist was deleted together with its
// application, by one command or one commit, or with their namespace. It was not if the status
// has said that the objects stay.
func (w *worker) together(ctx context.Context, j *job, name string) (bool, error) {
	c := w.status.condition(missingCondition)
	if name != w.status.target || !c.true {
		return true, nil
	}
	if since, err := time.Parse(time.RFC3339, c.since); err == nil && j.deleted.Sub(since) <= moment {
		return true, nil
	}
	t, err := w.home.Type(ctx, "v1", manifest.Namespace.Kind)
	if err != nil {
		return false, err
	}
	meta, err := w.home.GetMetadata(ctx, t, manifest.Namespace.ID("", w.app.Namespace))
	return err == nil && meta.DeletionTimestamp != nil, err
}

// delete deletes the application's objects through a connection.
func (w *worker) delete(ctx context.Context, j *job, l *link) unit.Outcome {
	u := w.bare(j)
	u.Objects, _ = manifest.NewSet(nil) // nothing is defined twice
	u.Remove = true
	o := l.Apply(ctx, u)
	w.unreachable = o.Phase == status.Unreachable
	return o
}

// abandon ends the connection to a cluster where objects may be left, and logs that.
func (w *worker) abandon(j *job, name, why string) {
	w.drop(name)
	w.log.Warn("objects of the application may be left in the cluster of a target", "target", name, "reason", why, "to find them", w.find(j))
}

// mostKinds bounds the kinds that find names.
const mostKinds = 20

// find returns the command that shows what an application has left in a cluster. It names the
// kinds, those of the templates and of the last status, since `kubectl get all` shows few. The
// inventory has those of earlier templates, too.
func (w *worker) find(j *job) string {
	var kinds []string
	for _, r := range w.status.resources {
		kinds = append(kinds, r.id.GroupKind().String())
	}
	for _, r := range j.app.Resources {
		group, _ := manifest.GroupVersion(manifest.Text(r.Template, "apiVersion"))
		kinds = append(kinds, manifest.GroupKind{Group: group, Kind: manifest.Text(r.Template, "kind")}.String())
		if len(r.Secrets) > 0 {
			kinds = append(kinds, manifest.Secret.String())
		}
	}
	kinds = slices.DeleteFunc(kinds, func(kind string) bool { return kind == "" }) // of a resource that was never rendered
	slices.Sort(kinds)
	kinds = slices.Compact(kinds)
	list := cmp.Or(strings.Join(kinds[:min(len(kinds), mostKinds)], ","), "KIND")
	return fmt.Sprintf("kubectl get %s -A -l %s=%s; all kinds are in the annotations of %s", list, plan.PartOfLabel, apply.SetID(w.id.String()), manifest.ConfigMap.ID(apply.Namespace, manifest.InventoryPrefix+w.id.String()))
}

// orphanTold is how long the status of the home tells of objects that an application should
// have taken along; API servers keep Events for as long.
const orphanTold = time.Hour

// orphan is abandon for objects that should have been deleted. No object is left that could say
// so, hence the status of the home does for a while.
func (w *worker) orphan(j *job, name, why string) {
	w.abandon(j, name, why)
	p := trouble(j.app, fmt.Sprintf("it was deleted together with target %s, and its objects in that cluster may be left: %s", name, why))
	p.Advice = "delete them there (" + w.find(j) + "), and next time the application before its target"
	w.mu.Lock()
	defer w.mu.Unlock()
	w.orphans, w.orphaned = append(w.orphans, p), time.Now()
}

// orphansNow returns what is to be told of a worker whose application is gone, and until when;
// none if that is over.
func (w *worker) orphansNow(now time.Time) (orphans []problem.Problem, until time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if until = w.orphaned.Add(orphanTold); !now.Before(until) {
		return nil, time.Time{}
	}
	return slices.Clone(w.orphans), until
}
