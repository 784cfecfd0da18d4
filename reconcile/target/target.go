// Package target keeps KubernetesTargets in a home. A target that refers to a registered
// cluster gets a connection Secret with a token that is replaced before it expires. The
// condition Ready of every target reports whether its cluster can be used.
//
// The registration of a cluster alone decides which namespaces get a connection
// (clusters.Publication): whoever can make targets in a namespace gets no more than was
// published to it. The account of the connections is rendered into the published cluster
// (render/target), and is pruned with the publication. This package requests its tokens.
//
// decide.go decides on a target, and is pure. target.go goes through all targets, grant.go
// makes connections to clusters, secret.go writes Secrets, and condition.go writes statuses.
// Package connection reads and writes the content of the Secrets, and package claim makes
// targets of clusters that others provision.
package target

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/kube/kubeconfig"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/target"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/errgroup"
)

// Clusters connects to registered clusters.
type Clusters interface {
	// Connect returns a client of a cluster. It fails if the credentials of the
	// registration cannot be read or are refused.
	Connect(ctx context.Context, c clusters.Cluster) (*kube.Client, error)
	// Entry returns the kubeconfig entry of the registration. Errors are those of Connect.
	Entry(ctx context.Context, c clusters.Cluster) (*kubeconfig.Entry, error)
	// Version returns the version of these credentials, if that is known without a
	// request.
	Version(c clusters.Cluster) (version string, known bool)
}

// Config configures a [Controller].
type Config struct {
	// Clusters connects to registered clusters; required.
	Clusters Clusters
	// Lifetime is the requested lifetime of tokens; 0 means DefaultLifetime. API servers give
	// none below 10 minutes, and may choose another.
	Lifetime time.Duration
	// Accept decides what kubeconfigs in Secrets of teams may hold, and Reach which addresses
	// they may have. Names are resolved, and their addresses checked, only when a connection
	// is made.
	Accept kubeconfig.Accept
	Reach  kubeconfig.Reach
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Lifetimes of tokens.
const (
	DefaultLifetime = time.Hour
	minLifetime     = 10 * time.Minute
)

// othersPause is the pause before a Secret name that others use is tried again. waitPause is
// the pause before the state of a cluster is checked again, which costs no request.
const (
	othersPause = time.Minute
	waitPause   = 5 * time.Second
)

// A target that failed is tried again after firstRetry, and ever later up to lastRetry.
const (
	firstRetry = time.Second
	lastRetry  = 2 * time.Minute
)

// renewLimit bounds how long a cluster that is left alone otherwise is waited for in a pass, for the whole home
// waits, too. After a failure it is asked again after renewPause, on a full minute, so that the targets of a cluster
// wait together.
const (
	renewLimit = 5 * time.Second
	renewPause = 2 * time.Minute
)

// parallel bounds the clusters that are asked for tokens at a time.
const parallel = 8

var (
	targets = home.Kind{GroupKind: target.Target}

	targetType = kube.Type{Group: target.Group, Version: target.Version, Kind: target.Target.Kind, Resource: "kubernetestargets", Namespaced: true, HasStatus: true}
	secretType = kube.Type{Version: "v1", Kind: manifest.Secret.Kind, Resource: "secrets", Namespaced: true}
)

// Controller keeps the targets of a home. It is a [home.Controller].
type Controller struct {
	cfg Config
	// known are the targets by UID.
	known map[string]*known
}

// known is the state of a target that is kept between passes, so that a pass over an unchanged
// home sends no request.
type known struct {
	meta *metav1.PartialObjectMetadata
	// spec was read at generation; 0 if it was not read yet.
	generation int64
	spec       spec
	// shown is the condition that the target has, at this version of it.
	shown   condition
	version string
	// held is its connection Secret, and brought the one that others brought.
	held    held
	brought brought
	// from is the version of the cluster's credentials that held was made with.
	from string
	// retry is when it is tried again after failures in a row, and failure the text of the
	// last one.
	retry    time.Time
	failures int
	failure  string
	// renewal is when a connection is renewed again after a failure, if its cluster is left
	// alone otherwise; zero for at once. overdue is the text of the failure.
	renewal time.Time
	overdue string
	// rest is when a Secret name that others use is tried again, unless the target changes
	// earlier.
	rest time.Time
}

// New makes a Controller. The error is about the configuration.
func New(c Config) (*Controller, error) {
	if c.Clusters == nil {
		return nil, errors.New("target: Clusters is required")
	}
	c.Lifetime = cmp.Or(c.Lifetime, DefaultLifetime)
	if c.Lifetime < minLifetime {
		return nil, fmt.Errorf("tokens that are valid for %s: API servers give none below %s", c.Lifetime, minLifetime)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Controller{cfg: c, known: make(map[string]*known)}, nil
}

// Name implements [home.Controller].
func (c *Controller) Name() string { return "targets" }

// Kinds implements [home.Controller].
func (c *Controller) Kinds() []home.Kind { return []home.Kind{targets, home.Secrets} }

// Close implements [home.Controller].
func (c *Controller) Close() {}

// pass is one call of Reconcile.
type pass struct {
	*Controller
	*home.View
	now time.Time

	mu    sync.Mutex
	again time.Time
}

// Reconcile implements [home.Controller].
func (c *Controller) Reconcile(ctx context.Context, v *home.View) (time.Time, error) {
	all, err := v.Objects(targets)
	if kube.ClassOf(err) == kube.NoSuchType {
		clear(c.known)
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	if _, err := v.Objects(home.Secrets); err != nil {
		return time.Time{}, err
	}
	p := &pass{Controller: c, View: v, now: c.cfg.Now()}
	there := make(map[string]bool)
	byCluster := make(map[string][]*known)
	for _, meta := range all {
		uid := string(meta.UID)
		there[uid] = true
		k := c.known[uid]
		if k == nil {
			k = new(known)
			c.known[uid] = k
		}
		k.meta = meta
		if k.generation != meta.Generation || k.version != meta.ResourceVersion {
			if err := p.read(ctx, k); err != nil {
				if kube.IsClusterWide(err) || ctx.Err() != nil {
					return time.Time{}, err
				}
				p.failed(k, err)
				continue
			}
		}
		if k.generation == 0 {
			continue // it is gone, or another of its name is there
		}
		byCluster[k.spec.cluster] = append(byCluster[k.spec.cluster], k)
	}
	for uid, k := range c.known {
		if there[uid] {
			continue
		}
		// The garbage collector would delete it later.
		if err := p.remove(ctx, k); kube.IsClusterWide(err) || ctx.Err() != nil {
			return time.Time{}, err
		} else if err != nil {
			v.Log.Warn("the Secret of a target that is gone is left to the garbage collector", "error", err)
		}
		delete(c.known, uid)
	}
	// Targets of one cluster are kept one after the other, so that a cluster that does not
	// answer is waited for once.
	var group errgroup.Group
	group.SetLimit(parallel)
	for name, of := range byCluster {
		group.Go(func() error { return p.keep(ctx, name, of) })
	}
	err = group.Wait()
	if p.again.IsZero() {
		return time.Time{}, err
	}
	return time.Now().Add(p.again.Sub(p.now)), err // the home has a clock of its own
}

// keep keeps the targets of one cluster. The error is about the home.
func (p *pass) keep(ctx context.Context, cluster string, of []*known) error {
	g := &grants{pass: p, cluster: cluster}
	defer g.close()
	for _, k := range of {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if later := cmp.Or(k.rest, k.retry); p.now.Before(later) {
			p.at(later)
			p.tell(k)
			continue
		}
		err := p.one(ctx, g, k)
		if err != nil && ctx.Err() == nil && kube.ClassOf(err) != kube.Changed && !p.usable(k) {
			// After a failure of the home, show fails as well.
			err = errors.Join(err, p.show(ctx, k, condition{reason: connectionFailed, message: problem.Message(err)}))
		}
		if p.ofHome(err) || ctx.Err() != nil {
			return err
		}
		if err != nil {
			p.failed(k, err)
			continue
		}
		k.failures, k.retry, k.failure = 0, time.Time{}, ""
		p.tell(k)
	}
	return nil
}

// ofHome reports whether err is about the whole home.
func (p *pass) ofHome(err error) bool {
	e, ok := errors.AsType[*kube.Error](err)
	return ok && e.Cluster == p.Cluster && e.ClusterWide()
}

// one brings a target to its desired state.
func (p *pass) one(ctx context.Context, g *grants, k *known) error {
	if err := p.look(ctx, k); err != nil {
		return err
	}
	d := decide(p.Cluster, k, p.Reserves(k.meta.Namespace), p.Fleet)
	if k.meta.DeletionTimestamp != nil && d.do != withdraw {
		return nil // it is held by a finalizer, and its Secret may be gone already
	}
	if d.renews() && p.now.Before(k.renewal) {
		d.do = wait
	} else {
		k.renewal, k.overdue = time.Time{}, ""
	}
	switch d.do {
	case wait:
		p.at(p.now.Add(waitPause))
	case use:
		var err error
		if d.condition, err = p.use(ctx, k); err != nil {
			return err
		}
	case withdraw:
		if err := p.withdraw(ctx, k); err != nil {
			return err
		}
	case offer:
		taken, err := p.offer(ctx, g, k, d)
		if d.renews() && err != nil && ctx.Err() == nil && !p.ofHome(err) && kube.ClassOf(err) != kube.Changed {
			k.renewal, k.overdue = p.now.Truncate(time.Minute).Add(renewPause+time.Minute), problem.Message(err)
			p.at(k.renewal)
			return p.show(ctx, k, d.condition)
		}
		if err != nil {
			return err
		}
		if taken != "" {
			p.rest(k, othersPause)
		}
		if taken != "" && k.spec.secret != "" { // others brought the Secret that it names
			if d.condition, err = p.use(ctx, k); err != nil {
				return err
			}
		} else if taken != "" {
			d.condition = condition{reason: secretTaken, message: taken}
		} else {
			p.at(k.held.renew)
			p.at(p.now.Add(waitPause)) // the cluster may become unreachable
			if err := p.refer(ctx, k); err != nil {
				return err
			}
			if k.held.refused != "" {
				d.condition = condition{reason: addressRefused, message: fmt.Sprintf("the connection in Secret %s is not for applications: %s", secretName(k.meta.Name), k.held.refused)}
			}
		}
	}
	return p.show(ctx, k, d.condition)
}

// at schedules the next pass for a time, unless it is due earlier.
func (p *pass) at(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !t.IsZero() && (p.again.IsZero() || t.Before(p.again)) {
		p.again = t
	}
}

// rest leaves a target alone for some time, unless it changes.
func (p *pass) rest(k *known, d time.Duration) {
	k.rest = p.now.Add(d)
	p.at(k.rest)
}

// failed notes an error of a target, and schedules a retry.
func (p *pass) failed(k *known, err error) {
	if kube.ClassOf(err) == kube.Changed {
		p.at(p.now.Add(time.Second)) // what was read is out of date
		return
	}
	k.failures++
	k.rest = time.Time{}
	k.failure = problem.Message(err)
	k.retry = p.now.Add(min(firstRetry<<min(k.failures-1, 10), lastRetry))
	p.at(k.retry)
	p.tell(k)
}

// usable reports whether a target has a connection that has not expired.
func (p *pass) usable(k *known) bool {
	return k.shown.ready && k.held.uid != "" && (k.held.expires.IsZero() || p.now.Before(k.held.expires))
}

// tell reports a target that failed or cannot be used.
func (p *pass) tell(k *known) {
	reason := cmp.Or(k.failure, k.overdue)
	if reason == "" && !k.shown.ready {
		reason = k.shown.message
	}
	if reason == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ReportOn(k.id(), problem.Problem{Reason: reason})
}

func (k *known) id() manifest.ID { return targets.ID(k.meta.Namespace, k.meta.Name) }

// read reads a target's spec, and the condition that it has.
func (p *pass) read(ctx context.Context, k *known) error {
	tree, meta, err := p.Client.Get(ctx, targetType, k.id())
	if err != nil {
		if kube.ClassOf(err) == kube.NotFound {
			return nil // an event follows
		}
		return err
	}
	if meta.UID != k.meta.UID {
		return nil
	}
	k.spec = spec{cluster: manifest.Text(tree, "spec", "clusterRef", "name"), secret: manifest.Text(tree, "spec", "connectionSecretRef", "name")}
	if k.generation != meta.Generation {
		k.rest, k.retry = time.Time{}, time.Time{}
	}
	k.generation, k.version, k.meta = meta.Generation, meta.ResourceVersion, meta
	k.shown = shown(tree)
	return nil
}
