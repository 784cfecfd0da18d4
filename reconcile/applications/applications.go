// Package applications runs KubernetesApplications: it places each on a KubernetesTarget
// of its namespace, applies its objects to the target's cluster, and writes their state back.
// It makes no difference whether an application comes from a repository or from kubectl: both
// are objects of a home (reconcile/home).
//
// An application is a unit of work like a cluster's manifests: reconcile/unit plans and
// applies it, with an inventory of its own in the target's cluster. The inventory's name
// contains the application's UID, so that no other application of the same name, or of
// another hub, takes over its objects.
//
// applications.go is the controller: it reads applications, places them, and gives each to a
// worker. target.go reads targets. settle.go delays placements until everything has arrived
// that belongs together. worker.go is a worker's loop, attempt.go one attempt, and remove.go
// deletes objects in a cluster. link.go connects to targets. status.go writes the status,
// mirror.go copies the status of remote objects, decision.go writes PlacementDecisions,
// around.go finds applications that contain each other, and preview.go shows in a plan where
// applications will be placed.
//
// render/application reads applications, render/target/placement decides where they run,
// and reconcile/target keeps targets and their connection Secrets. This package reads only
// the labels, the condition Ready and the Secret of a target.
//
// What is durable when: the placement of an application is in its status, and then in an
// annotation with the finalizer, before the first object is applied to the target's cluster.
// When an application moves, status.leftTargetRefs lists the former target before anything
// is applied to the new one, and until the objects in the former one are gone. A daemon that
// was killed anywhere goes on from these.
package applications

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/turn"
	"gitopsd.dev/render/application"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/target/placement"
)

// Config configures a [Controller]. All fields except Claims, Timeout and Mirror are required.
type Config struct {
	// Connect returns a client for the cluster of a connection Secret, and sends no request.
	// name is for errors, which quote no value of the Secret. as is the ServiceAccount to
	// impersonate there; may be nil.
	Connect func(name string, secret map[string]any, as *kube.ServiceAccount) (*kube.Client, error)
	// Claims are the kinds whose objects become targets. The Secrets that they name are
	// connections.
	Claims []manifest.GroupKind
	// Fleet owns the inventories.
	Fleet apply.Fleet
	// Turns bounds the clusters that are worked on at a time.
	Turns *turn.Turns
	// Timeout bounds one attempt at an application; 0 means 10 minutes.
	Timeout time.Duration
	// Mirror is the interval at which the status of remote objects is read if nothing else
	// happens; 0 means 30 seconds.
	Mirror time.Duration
}

// Defaults of [Config].
const (
	defaultTimeout = 10 * time.Minute
	defaultMirror  = 30 * time.Second
)

// The kinds that are followed in a home.
var (
	applicationKind = home.Kind{GroupKind: manifest.Application}
	targetKind      = home.Kind{GroupKind: manifest.Target}
	decisionKind    = home.Kind{GroupKind: manifest.PlacementDecision, Versions: true}
)

// Controller runs the applications of one home; it is a [home.Controller].
type Controller struct {
	cfg     Config
	apps    map[string]*known // by UID
	targets map[manifest.ID]*target
	workers map[string]*worker // by UID
	running sync.WaitGroup
	// decisions reports whether the home serves the API of PlacementDecisions.
	decisions bool
	// settling is when placements began to wait, by namespace.
	settling map[string]time.Time
}

// known is an application as it was read last.
type known struct {
	meta *metav1.PartialObjectMetadata
	// made is madeOf at that time.
	made string
	app  *application.Application
	// err is the error in its fields.
	err error
	// seen is when it was read first, and status and version its status and resourceVersion then.
	seen    time.Time
	status  map[string]any
	version string
	// decision is where it runs.
	decision placement.Decision
	// contains are the applications among its objects.
	contains []manifest.ID
}

// New makes a Controller.
func New(c Config) (*Controller, error) {
	if c.Connect == nil || c.Turns == nil || c.Fleet.Name == "" {
		return nil, errors.New("applications: Connect, Turns and Fleet are required")
	}
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	c.Mirror = cmp.Or(c.Mirror, defaultMirror)
	return &Controller{cfg: c, apps: make(map[string]*known), targets: make(map[manifest.ID]*target), workers: make(map[string]*worker), settling: make(map[string]time.Time)}, nil
}

// Name implements [home.Controller].
func (c *Controller) Name() string { return "applications" }

// Kinds implements [home.Controller].
func (c *Controller) Kinds() []home.Kind {
	return []home.Kind{applicationKind, targetKind, home.Secrets, decisionKind}
}

// Reconcile implements [home.Controller]. It decides placements and hands each
// application to its worker, and waits for no target's cluster.
func (c *Controller) Reconcile(ctx context.Context, v *home.View) (time.Time, error) {
	apps, err := objects(v, applicationKind)
	if err != nil {
		return time.Time{}, err
	}
	var errs []error
	var unread map[string]bool
	if len(apps) > 0 {
		if unread, err = c.readTargets(ctx, v); err != nil && len(unread) == 0 {
			return time.Time{}, err
		}
		errs = append(errs, err, c.readApplications(ctx, v, apps))
	} else {
		clear(c.apps)
	}
	switch _, err := v.Objects(decisionKind); {
	case err == nil:
		c.decisions = true
	case kube.ClassOf(err) == kube.NoSuchType:
		c.decisions = false
	case kube.ClassOf(err) == kube.Forbidden && c.profiles(): // the home has them
		c.decisions = true
		v.Report(problem.Problem{Object: strings.ToLower(manifest.PlacementDecision.Kind) + "." + manifest.PlacementDecision.Group, Reason: "placements are written but not kept, since they cannot be followed; allow the account to list and watch them: " + problem.Message(err)})
	} // after another error it is as it was
	byNamespace := make(map[string][]*known)
	for _, meta := range apps {
		if k := c.apps[string(meta.UID)]; k != nil {
			byNamespace[meta.Namespace] = append(byNamespace[meta.Namespace], k)
		}
	}
	var again time.Time
	for namespace, all := range byNamespace {
		if unread[namespace] {
			continue // placements need all targets
		}
		targets := c.targetsOf(namespace, all)
		until := c.settle(namespace, all, targets, time.Now())
		if !until.IsZero() && (again.IsZero() || until.Before(again)) {
			again = until
		}
		place(namespace, all, targets, !until.IsZero())
		connections := fmt.Sprintf("%q", connections(targets))
		for _, k := range all {
			if !until.IsZero() && k.open() && k.decision.Why == "" {
				continue // it gets a job once it is decided
			}
			w := c.worker(ctx, v, k)
			j, err := newJob(v, k, targets, connections, w.places(), c.decisions, c.around(k))
			if err != nil {
				errs = append(errs, err)
				continue
			}
			w.saw(k.meta.ResourceVersion)
			w.give(j)
		}
	}
	maps.DeleteFunc(c.settling, func(namespace string, _ time.Time) bool { return len(byNamespace[namespace]) == 0 })
	for uid, w := range c.workers {
		k := c.apps[uid]
		if k == nil {
			w.quit()
			orphans, until := w.orphansNow(time.Now())
			if len(orphans) == 0 {
				delete(c.workers, uid)
				continue
			}
			for _, p := range orphans {
				v.Report(p)
			}
			if again.IsZero() || until.Before(again) {
				again = until
			}
			continue
		}
		for _, p := range w.troubles() {
			v.ReportOn(manifest.Application.ID(k.meta.Namespace, k.meta.Name), p)
		}
	}
	return again, errors.Join(errs...)
}

// Close implements [home.Controller]. Applications stay as they are.
func (c *Controller) Close() {
	for _, w := range c.workers {
		w.quit()
	}
	c.running.Wait()
}

// objects returns the objects of a kind; none if the cluster does not serve it.
func objects(v *home.View, kind home.Kind) ([]*metav1.PartialObjectMetadata, error) {
	list, err := v.Objects(kind)
	if kube.ClassOf(err) == kube.NoSuchType {
		return nil, nil
	}
	return list, err
}

// worker returns an application's worker, and starts it if there is none.
func (c *Controller) worker(ctx context.Context, v *home.View, k *known) *worker {
	uid := string(k.meta.UID)
	w := c.workers[uid]
	if w == nil {
		w = newWorker(c.cfg, v, k)
		c.workers[uid] = w
		ctx, w.quit = context.WithCancel(context.WithoutCancel(ctx)) // beyond this call
		c.running.Go(func() { w.run(ctx) })
	}
	return w
}

// madeOf returns a text that changes when the application must be read again. A write to the
// status does not change it.
func madeOf(meta *metav1.PartialObjectMetadata) string {
	text := strconv.FormatInt(meta.Generation, 10)
	for _, name := range []string{manifest.RescheduleAnnotation, manifest.AllowPruneAnnotation, manifest.AdoptAnnotation} {
		text += fmt.Sprintf(" %q", meta.Annotations[name])
	}
	return text
}

// readApplications reads the applications that changed. One that cannot be read stays known as
// it was.
func (c *Controller) readApplications(ctx context.Context, v *home.View, metas []*metav1.PartialObjectMetadata) error {
	there := make(map[string]bool, len(metas))
	todo := make(map[string]*metav1.PartialObjectMetadata)
	for _, meta := range metas {
		uid := string(meta.UID)
		there[uid] = true
		if k := c.apps[uid]; k != nil && k.made == madeOf(meta) {
			k.meta = meta
			continue
		}
		todo[uid] = meta
	}
	for uid := range c.apps {
		if !there[uid] {
			delete(c.apps, uid)
		}
	}
	if len(todo) == 0 {
		return nil
	}
	t, err := v.Client.Kind(ctx, manifest.Application.Group, manifest.Application.Kind)
	if err != nil {
		return err
	}
	var errs []error
	for _, meta := range todo {
		tree, now, err := v.Client.Get(ctx, t, applicationKind.ID(meta.Namespace, meta.Name))
		switch {
		case kube.ClassOf(err) == kube.NotFound: // an event comes
		case err != nil:
			errs = append(errs, err)
		case now.UID == meta.UID:
			c.read(now, tree, v.Reserves(meta.Namespace))
		}
	}
	return errors.Join(errs...)
}

// read stores an application. Its placement is taken from before, since its worker may not have
// written that yet. An application in a reserved namespace gets an error.
func (c *Controller) read(meta *metav1.PartialObjectMetadata, tree map[string]any, reserved bool) {
	k := &known{meta: meta, made: madeOf(meta), seen: time.Now()}
	k.app, k.err = application.Read(tree)
	if reserved && k.err == nil {
		k.err = application.Reserved(meta.Namespace)
	}
	k.contains = contained(k.app)
	if before := c.apps[string(meta.UID)]; before != nil {
		k.app.Placed, k.app.Rescheduled, k.app.Left = before.app.Placed, before.app.Rescheduled, before.app.Left
		k.seen, k.status, k.version, k.decision = before.seen, before.status, before.version, before.decision
	} else {
		k.status, k.version = manifest.Mapping(tree, "status"), meta.ResourceVersion
	}
	c.apps[string(meta.UID)] = k
}

// place decides where the applications of a namespace run. While the namespace settles, no
// target is chosen.
func place(namespace string, all []*known, targets map[string]*target, settling bool) {
	var open []placement.Application
	for _, k := range all {
		p := k.app.Placement()
		switch {
		case k.meta.DeletionTimestamp != nil, settling && k.open():
			continue
		case k.err != nil && p.Placed == "":
			k.decision = placement.Decision{Why: "it is not placed while it has errors"}
			continue
		case k.err != nil:
			p.Ref, p.Moves = "", false
		}
		open = append(open, p)
	}
	var list []placement.Target
	for _, t := range targets {
		list = append(list, placement.Target{Name: t.name, Labels: t.labels, Unready: t.unready, Silent: t.silent})
	}
	decisions := placement.Decide(namespace, open, list)
	for _, k := range all {
		d, ok := decisions[k.app.Name]
		if !ok || k.meta.DeletionTimestamp != nil {
			continue
		}
		if d.Target != "" && d.Target == k.decision.Target && !d.Stuck && !d.New {
			d.Why = k.decision.Why // the reason of its placement
		}
		k.decision = d
		// The worker has k.app, too.
		app := *k.app
		app.Placed = d.Target
		if !d.Stuck && d.Target != "" && k.err == nil { // with errors it does not move
			app.Rescheduled = app.Reschedule
		}
		k.app = &app
	}
}

// job is the desired state of an application, for its worker. It is immutable.
type job struct {
	app *application.Application
	err error
	// deleting reports whether the application is to go, deleted is since when, and finalized
	// reports whether it carries the finalizer. placed is its manifest.PlacedAnnotation.
	deleting, finalized bool
	deleted             time.Time
	placed              string
	decision            placement.Decision
	// targets are those of the namespace, by name.
	targets map[string]*target
	// decisions reports whether the home serves PlacementDecisions, and follows whether it
	// can be watched for them. decided then is the resourceVersion of the application's;
	// empty if there is none.
	decisions, follows bool
	decided            string
	// around are the applications that contain this one, directly or through others.
	around []manifest.ID
	// of identifies the application, its placement and the connections to its targets. key
	// identifies everything that its worker uses.
	of, key string
}

// newJob makes the job of an application that may have objects in places. connections
// identifies the connection Secrets of the targets.
func newJob(v *home.View, k *known, targets map[string]*target, connections string, places []string, decisions bool, around []manifest.ID) (*job, error) {
	j := &job{
		app: k.app, err: k.err, deleting: k.meta.DeletionTimestamp != nil, decision: k.decision, targets: targets, decisions: decisions, around: around,
		finalized: slices.Contains(k.meta.Finalizers, manifest.RemoteObjectsFinalizer),
		placed:    k.meta.Annotations[manifest.PlacedAnnotation],
	}
	if j.deleting {
		j.deleted = k.meta.DeletionTimestamp.Time
	}
	j.of = fmt.Sprintf("%s %v %q", k.made, j.deleting, j.decision.Target)
	places = append(slices.Clone(places), j.decision.Target)
	slices.Sort(places)
	for _, name := range slices.Compact(places) {
		if t := targets[name]; t != nil {
			j.of += " " + t.key()
		}
	}
	if meta, err := v.Object(decisionKind, k.app.Namespace, k.app.Name); err == nil {
		if j.follows = true; meta != nil {
			j.decided = meta.ResourceVersion
		}
	}
	var key strings.Builder
	fmt.Fprintf(&key, "%s %v %q %v %s %v", j.of, j.finalized, j.placed, j.decisions, j.decided, j.around)
	if j.decision.Target == "" || j.decision.Stuck {
		key.WriteString(" " + j.decision.Why)
	}
	seen := make(map[string]bool)
	for _, r := range k.app.Resources {
		for _, name := range r.Secrets {
			if len(seen) == 0 {
				key.WriteString(" " + connections)
			}
			if seen[name] {
				continue
			}
			seen[name] = true
			meta, err := v.Object(home.Secrets, k.app.Namespace, name)
			if err != nil {
				return nil, err
			}
			version := "none"
			if meta != nil {
				version = meta.ResourceVersion
			}
			fmt.Fprintf(&key, " %s=%s", name, version)
		}
	}
	j.key = key.String()
	return j, nil
}

// connections returns the names of the targets' connection Secrets, sorted.
func connections(targets map[string]*target) []string {
	var names []string
	for _, t := range targets {
		names = append(names, t.secret)
	}
	slices.Sort(names)
	return names
}

// trouble returns a problem of an application for the status of its home, which is short however
// much the application or its namespace has.
func trouble(app *application.Application, reason string) problem.Problem {
	return problem.Problem{Object: manifest.Application.ID(app.Namespace, app.Name).String(), Reason: clip(reason, mostReason)}
}
