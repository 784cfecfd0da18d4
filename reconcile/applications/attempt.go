package applications

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/target/claim"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/render/application"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources/clusters"
)

// attempt brings the application's objects to the state of its job.
func (w *worker) attempt(ctx context.Context, j *job) result {
	s := w.status.next(j.app)
	if s.target != j.decision.Target || j.targets[s.target] != nil {
		s.unset(missingCondition)
	}
	switch {
	case j.err != nil:
		s.state = failed
		s.set(syncedCondition, false, "Invalid", j.err.Error())
		s.set(readyCondition, false, "Invalid", j.err.Error())
		s.observed = j.app.Generation
		return w.end(ctx, j, s, result{again: w.cfg.Mirror, problems: []problem.Problem{trouble(j.app, j.err.Error())}})
	case j.decision.Target == "":
		s.state = pending
		s.set(placedCondition, false, "NoTarget", j.decision.Why)
		s.set(readyCondition, false, "NoTarget", j.decision.Why)
		s.observed = j.app.Generation
		return w.end(ctx, j, s, result{again: w.cfg.Mirror, problems: []problem.Problem{trouble(j.app, j.decision.Why)}})
	}
	if err := w.move(ctx, j, s); err != nil {
		return w.fail(j, err)
	}
	if err := w.finalize(ctx, j); err != nil {
		return w.fail(j, err)
	}
	s = w.status.next(j.app)
	r := w.submit(ctx, j, s)
	if err := w.decide(ctx, j); err != nil {
		r.problems = append(r.problems, trouble(j.app, problem.Message(err)))
	}
	return w.end(ctx, j, s, r)
}

// move records the placement of the application, before anything is applied there.
func (w *worker) move(ctx context.Context, j *job, s *state) error {
	to := j.decision.Target
	c := s.condition(placedCondition)
	reason := "Placed"
	if j.decision.Stuck {
		reason = "CannotMove"
	}
	if s.target != to || j.decision.Stuck || !c.true || c.reason != reason {
		s.set(placedCondition, true, reason, "on target "+to+": "+j.decision.Why)
	}
	if s.target != to {
		if s.target != "" && s.leaving(s.target) < 0 {
			s.left = append(s.left, s.site)
		}
		s.site = site{target: to}
		if i := s.leaving(to); i >= 0 { // it comes back
			s.site = s.left[i]
			s.left = slices.Delete(s.left, i, i+1)
		}
		s.state, s.resources = scheduled, nil
		w.log.Info("placed", "target", to, "why", j.decision.Why)
	}
	s.rescheduled = j.app.Rescheduled
	return w.publish(ctx, s)
}

// submit applies the application's objects to its target's cluster, and sets the state.
func (w *worker) submit(ctx context.Context, j *job, s *state) result {
	t := j.targets[s.target]
	if t == nil {
		message := fmt.Sprintf("KubernetesTarget %s does not exist; the objects in its cluster stay as they are: create it again, or move the application with the annotation %s", s.target, manifest.RescheduleAnnotation)
		s.set(missingCondition, true, targetMissing, message)
		s.miss()
		return w.unsynced(j, s, targetMissing, message)
	}
	l, err := w.connect(ctx, j.app, t)
	if err != nil {
		return w.unsynced(j, s, "NotConnected", problem.Message(err))
	}
	before := w.rest
	from := w.render(ctx, j, l)
	rendered := from.rendered
	remote, end, err := w.turn(ctx)
	if err != nil {
		return result{failed: true}
	}
	defer end()
	w.recognise(remote, l, j, s)
	o := l.Apply(remote, from.unit)
	if from != before && o.Actions != nil {
		l.recorded(remote, s)
	}
	submitted := w.record(s, j, rendered, &o)
	if submitted && o.Changed == 0 && o.Phase != status.Failed {
		w.rest = from
	}
	if o.Actions != nil {
		w.mirror(remote, l, rendered, s)
	}
	r := result{changed: o.Changed, again: w.cfg.Mirror, failed: o.Phase == status.Failed || o.Phase == status.Unreachable}
	if !o.Again.IsZero() {
		r.again = max(min(r.again, time.Until(o.Again)), time.Second)
	}
	if len(s.left) > 0 && submitted && o.Phase == status.Ready && ctx.Err() == nil {
		if from != before || !time.Now().Before(w.retreat.due) {
			w.retreat = w.retreat.next(j, w.leave(remote, j, s, l))
		}
		if why := w.retreat.why; why != "" {
			r.again = max(min(r.again, time.Until(w.retreat.due)), time.Second)
			r.problems = append(r.problems, trouble(j.app, why))
		}
	}
	if w.unreachable = o.Phase == status.Unreachable; w.unreachable {
		r.silent = t.name
	}
	if o.Denied {
		if err := w.renew(ctx, j.app.Namespace, t); err != nil {
			r.problems = append(r.problems, trouble(j.app, problem.Message(err)))
		}
	}
	if c := s.condition(syncedCondition); !c.true { // record has set it
		r.problems = append(r.problems, trouble(j.app, c.message))
	}
	return r
}

// rest is the input of an attempt that left nothing to do. While nothing changes, the next
// attempt uses it again, and sends no request.
type rest struct {
	job      *job
	link     *link
	rendered *application.Rendered
	unit     *desired.Unit
}

// credentials are the labels of Secrets that must not be copied to any cluster, and
// clusterSecret is the type of those that Cluster API writes.
var credentials = []string{manifest.ConnectionLabel, manifest.ClusterLabel, manifest.PullSecretLabel, manifest.ClusterProfileLabel}

const clusterSecret = "cluster.x-k8s.io/secret"

// render returns the input of an attempt.
func (w *worker) render(ctx context.Context, j *job, l *link) *rest {
	before := w.rest
	w.rest = nil
	if before != nil && before.job == j && before.link == l {
		return before
	}
	connections := make(map[string]string)
	for name, t := range j.targets {
		connections[t.secret] = name
	}
	claims := sync.OnceValues(func() (map[string]manifest.ID, error) { return w.claims(ctx, j.app.Namespace) })
	rendered := j.app.Render(func(name string) (map[string]any, error) {
		// Whoever may write applications need not have the right to read credentials.
		if of, ok := connections[name]; ok {
			return nil, fmt.Errorf("%s is the connection to target %s, and goes to no cluster; name another Secret", manifest.Secret.ID(j.app.Namespace, name), of)
		}
		tree, meta, err := w.secret(ctx, j.app.Namespace, name)
		if err != nil {
			return nil, err
		}
		if manifest.Text(tree, "type") == clusterSecret || slices.ContainsFunc(credentials, func(label string) bool { return meta.Labels[label] != "" }) {
			return nil, fmt.Errorf("%s holds credentials of a cluster or of gitopsd, and goes to no cluster; name another Secret", manifest.Secret.ID(j.app.Namespace, name))
		}
		// A claim exists before its Secret, so it is read after that.
		claims, err := claims()
		if err != nil {
			return nil, fmt.Errorf("%s may be the connection of a claim: %s", manifest.Secret.ID(j.app.Namespace, name), problem.Message(err))
		}
		if of, ok := claims[name]; ok {
			return nil, fmt.Errorf("%s is the connection to the cluster of %s, and goes to no cluster; name another Secret", manifest.Secret.ID(j.app.Namespace, name), of)
		}
		return tree, nil
	})
	if rendered.Objects.Get(w.app) != nil {
		if err := w.other(ctx, l); err != nil {
			rendered.Refuse(w.app, err)
		}
	}
	for _, id := range j.around {
		if rendered.Objects.Get(id) != nil && w.atHome(ctx, l) {
			rendered.Refuse(id, loop(id))
		}
	}
	return &rest{job: j, link: l, rendered: rendered, unit: w.unit(j, rendered)}
}

// claims returns the claims of a namespace by the Secrets that they name, whether their clusters
// are there or not. A kind that gitopsd may not list makes no target.
func (w *worker) claims(ctx context.Context, namespace string) (map[string]manifest.ID, error) {
	by := make(map[string]manifest.ID)
	for _, kind := range w.cfg.Claims {
		err := list(ctx, w.home, kind, namespace, func(id manifest.ID, tree map[string]any) {
			if id.Namespace == namespace { // its kind is not cluster-wide
				by[claim.SecretOf(kind, tree)] = id
			}
		})
		if err != nil && kube.ClassOf(err) != kube.Forbidden {
			return nil, err
		}
	}
	return by, nil
}

// other returns an error if the object of the application's kind and name in the target's
// cluster is, or may be, the application itself. It would overwrite its own spec, and its
// deletion would wait for itself.
func (w *worker) other(ctx context.Context, l *link) error {
	t, err := l.client.Kind(ctx, w.app.Group, w.app.Kind)
	if err == nil {
		var meta *metav1.PartialObjectMetadata
		if meta, err = l.client.GetMetadata(ctx, t, w.app); err == nil && string(meta.UID) == w.uid {
			return fmt.Errorf("%s is this application itself, which cannot be one of its own objects; remove the template, or choose another name", w.app)
		}
	}
	switch kube.ClassOf(err) {
	case "", kube.NotFound, kube.NoSuchType, kube.NoNamespace:
		return nil
	}
	return fmt.Errorf("%s may be this application itself: %s", w.app, problem.Message(err))
}

// turn waits for the turn of a cluster, and returns the context for requests there.
func (w *worker) turn(ctx context.Context) (remote context.Context, end func(), err error) {
	turn, err := w.cfg.Turns.Take(ctx, w.unreachable || w.slow, func(bool) {})
	if err != nil {
		return nil, nil, err
	}
	remote, cancel := context.WithTimeout(kube.WithPace(ctx, turn.Pace()), w.cfg.Timeout)
	return remote, func() {
		cancel()
		w.slow = turn.End()
	}, nil
}

// unit returns the application as a unit of work. While a resource has an error, nothing is
// pruned: its earlier object is not known.
func (w *worker) unit(j *job, rendered *application.Rendered) *desired.Unit {
	u := w.bare(j)
	u.Objects = rendered.Objects
	for name, err := range rendered.Faults {
		u.Faults = append(u.Faults, problem.Problem{Object: name, Reason: err.Error()})
	}
	if len(rendered.Faults) > 0 {
		u.Keeps = func(manifest.ID, string) bool { return true }
	}
	return u
}

// bare returns the unit of work without objects.
func (w *worker) bare(j *job) *desired.Unit {
	u := &desired.Unit{ID: w.id, Cluster: clusters.Cluster{Name: w.id.Cluster}, Declaration: "KubernetesApplication " + j.app.String()}
	u.Annotations = map[string]string{manifest.AllowPruneAnnotation: j.app.AllowPrune, manifest.AdoptAnnotation: j.app.Adopt}
	return u
}

// Reasons of conditions.
const (
	// notSubmitted: an object is not as it is declared.
	notSubmitted = "NotSubmitted"
	// targetMissing: the target does not exist, and the objects in its cluster stay.
	targetMissing = "TargetMissing"
)

// mostTold bounds the objects in a condition's message.
const mostTold = 3

// record sets the state of the resources after an attempt, and reports whether all are
// submitted.
func (w *worker) record(s *state, j *job, rendered *application.Rendered, o *unit.Outcome) bool {
	before := *s
	s.resources = nil
	applied := len(rendered.Faults) == 0
	var told []string
	for _, r := range j.app.Resources {
		now := before.resource(r.Name)
		ids := rendered.Of[r.Name]
		if err := rendered.Faults[r.Name]; err != nil {
			now.state, now.message = failed, clip(err.Error(), mostReason)
			told = append(told, "resource "+r.Name+": "+now.message)
		} else if o.Actions != nil { // otherwise there was no plan
			object := rendered.Objects.Get(ids[0])
			now = resource{name: r.Name, id: ids[0], apiVersion: object.APIVersion(), state: submitted, remote: now.remote}
			for _, id := range ids {
				u, unsettled := o.Unsettled[id]
				if !unsettled && id.Namespace != "" { // its kind may be cluster-wide
					u, unsettled = o.Unsettled[id.GroupKind().ID("", id.Name)]
				}
				if !unsettled {
					continue
				}
				now.message = u.Reason
				if id != ids[0] {
					now.message = id.String() + ": " + u.Reason
				}
				now.message = clip(now.message, mostReason)
				told = append(told, "resource "+r.Name+": "+now.message)
				if !u.Applied {
					applied = false
					now.state, now.remote = scheduled, nil
					if u.Failed {
						now.state = failed
					}
					break
				}
			}
		}
		s.resources = append(s.resources, now)
	}
	s.count()
	message := o.Message
	if len(told) > 0 && !o.Ended {
		message = prose.Some(told, mostTold)
	}
	switch {
	case o.Actions == nil:
		s.set(syncedCondition, false, string(o.Phase), o.Message)
	case !applied:
		s.set(syncedCondition, false, notSubmitted, message)
	default:
		s.set(syncedCondition, true, "Submitted", w.kept(o))
	}
	applied = applied && o.Actions != nil
	reason := string(o.Phase)
	if o.Phase == status.Ready && !applied { // something is held
		reason = notSubmitted
	}
	s.set(readyCondition, applied && o.Phase == status.Ready, reason, message)
	s.observed = j.app.Generation
	return applied
}

// kept names the objects that are no longer declared and stay.
func (w *worker) kept(o *unit.Outcome) string {
	var list []string
	for _, p := range o.Problems {
		if strings.HasPrefix(p.Reason, "held: ") || strings.HasPrefix(p.Reason, "wait: ") {
			list = append(list, p.Object+": "+p.Reason)
		}
	}
	return strings.Join(list[:min(len(list), mostTold)], "; ")
}

// unsynced sets the state of an application with a target that cannot be used.
func (w *worker) unsynced(j *job, s *state, reason, message string) result {
	s.set(syncedCondition, false, reason, message)
	s.set(readyCondition, false, reason, message)
	s.observed = j.app.Generation
	return result{failed: true, problems: []problem.Problem{trouble(j.app, message)}}
}

// end writes the status at the end of an attempt.
func (w *worker) end(ctx context.Context, j *job, s *state, r result) result {
	if err := w.publish(ctx, s); err != nil {
		f := w.fail(j, err)
		r.failed, r.problems = true, append(r.problems, f.problems...)
	}
	return r
}

// fail returns the result after an error of the home.
func (w *worker) fail(j *job, err error) result {
	switch kube.ClassOf(err) {
	case kube.NotFound, kube.Changed, kube.Canceled:
		return result{failed: true} // an event follows
	}
	w.log.Error("an application cannot be kept up to date", "error", err)
	return result{failed: true, problems: []problem.Problem{trouble(j.app, problem.Message(err))}}
}

// finalize puts the finalizer on the application, and the annotation with its target.
func (w *worker) finalize(ctx context.Context, j *job) error {
	placed := j.app.PlacedOn(j.decision.Target)
	if j.finalized && j.placed == placed {
		return nil
	}
	return w.mark(ctx, placed, manifest.RemoteObjectsFinalizer)
}

// mark sets the application's manifest.PlacedAnnotation, and which finalizers of gitopsd's it
// has. An empty annotation is removed.
func (w *worker) mark(ctx context.Context, placed string, finalizers ...string) error {
	t, err := w.home.Kind(ctx, w.app.Group, w.app.Kind)
	if err != nil {
		return err
	}
	meta, err := w.home.GetMetadata(ctx, t, w.app)
	switch {
	case err != nil:
		return err
	case string(meta.UID) != w.uid:
		return errors.New("another application of its name took its place")
	}
	now := append(slices.DeleteFunc(slices.Clone(meta.Finalizers), func(f string) bool { return f == manifest.RemoteObjectsFinalizer }), finalizers...)
	if slices.Equal(now, meta.Finalizers) && meta.Annotations[manifest.PlacedAnnotation] == placed {
		return nil
	}
	annotations := map[string]any{manifest.PlacedAnnotation: nil}
	if placed != "" {
		annotations[manifest.PlacedAnnotation] = placed
	}
	return w.home.Patch(ctx, t, w.app, map[string]any{"metadata": map[string]any{"finalizers": now, "annotations": annotations}}, meta.ResourceVersion)
}
