// Package namespaces keeps the EtcdNamespaces of a home: each that the repository
// declares is provisioned in etcd, and its Secrets and ConfigMaps are written beside it.
// It is a [home.Controller].
//
// The declaration in the repository is the permission, and says what is wanted. The
// object in the cluster only gets a status: one that somebody makes or changes there gets
// nothing by it. What is in etcd is decided by records there (reconcile/etcd), and who
// may connect by certificates (reconcile/etcd/identity).
//
// decide.go says what is to be done about an object, a pure function; namespaces.go goes
// through all, provision.go provisions one, serve.go has the daemon serve it, share.go
// shares what was asked of etcd between homes, store.go reads and writes Secrets and
// ConfigMaps, remove.go takes leave of one that is no longer declared, status.go writes
// statuses, and own.go keeps the namespaces of clusters themselves.
//
// What is durable when: the finalizer is on the object before anything is in etcd. It goes
// when what is there is gone, or is left there by the declaration's policy.
package namespaces

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/etcd/identity"
	"gitopsd.dev/reconcile/etcd/registry"
	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/render/manifest"
)

// Admin administers the etcd; [admin.Admin] does.
type Admin interface {
	// Provision makes what namespaces have in etcd. The error is about the etcd; what is
	// about one namespace is in its Provisioned.
	Provision(ctx context.Context, wanted []admin.Wanted) ([]admin.Provisioned, error)
	// Remove removes a namespace, with its keys or without, a bounded part at a time.
	// The error is about the etcd or the namespace.
	Remove(ctx context.Context, w admin.Wanted, how admin.Deletion) (admin.Removal, error)
	// Overview returns what the etcd has of this fleet's. The error is about the etcd.
	Overview(ctx context.Context) (admin.Overview, error)
}

// Keeper keeps certificates; [identity.Keeper] does.
type Keeper interface {
	// Keep makes and renews the certificates of a namespace. The error is about the
	// cluster.
	Keep(ctx context.Context, s identity.Store, w identity.Wanted) (identity.Kept, error)
}

// Etcd is the etcd that namespaces are in.
type Etcd struct {
	Admin Admin
	// Keeper keeps certificates.
	Keeper Keeper
	// Upstream returns whom etcd trusts, and is trusted by. The error says what to do.
	Upstream func() (identity.Upstream, error)
	// Endpoints are the client URLs by which proxies reach it.
	Endpoints []string
	// Prefixes begin the prefixes that declarations may name.
	Prefixes []string
	// Proxy serves namespaces in the daemon; nil if it serves none.
	Proxy Proxy
}

// Proxy serves the namespaces of clusters that reach the daemon for it
// (spec.etcd.proxy.url).
type Proxy interface {
	// Serve serves a namespace by the files of its proxy's directory (etcd.Files), by
	// path. The error says what is wrong with them; what was served before still is.
	Serve(id etcd.ID, files map[string][]byte) error
	// Withdraw serves namespaces no longer that are chosen.
	Withdraw(chosen func(etcd.ID) bool)
	// Bytes returns how much a namespace holds, as its quota counts it, and reports
	// whether that is known here.
	Bytes(id etcd.ID) (n int64, known bool)
	// Trust returns the CAs that clients are to trust, in PEM; empty if they trust them
	// anyway. Serves returns an error if they do not accept its certificate for a host.
	Trust() []byte
	Serves(host string) error
}

// Config configures a [Controller].
type Config struct {
	// Etcd is nil if the daemon has none; then nothing is provisioned, and conditions say
	// how to give it one.
	Etcd *Etcd
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// NoEtcd says what to do if the daemon has no etcd.
const NoEtcd = "the daemon has no etcd: start it with --etcd-servers, or for a small fleet with --etcd-embedded DIR"

// countPause is the pause before the number of keys is looked at again, and goingPause
// the pause while keys are being removed.
const (
	countPause = time.Minute
	goingPause = time.Second
)

// What failed is tried again after firstRetry, and ever later up to lastRetry.
const (
	firstRetry = time.Second
	lastRetry  = 2 * time.Minute
)

var (
	namespaces = home.Kind{GroupKind: manifest.EtcdNamespace}
	secrets    = home.Kind{GroupKind: manifest.Secret, Selector: manifest.EtcdLabel}
	configMaps = home.Kind{GroupKind: manifest.ConfigMap, Selector: manifest.EtcdLabel}

	namespaceType = kube.Type{Group: manifest.Group, Version: etcd.Version, Kind: manifest.EtcdNamespace.Kind, Resource: "etcdnamespaces", Namespaced: true, HasStatus: true}
	secretType    = kube.Type{Version: "v1", Kind: manifest.Secret.Kind, Resource: "secrets", Namespaced: true}
	configMapType = kube.Type{Version: "v1", Kind: manifest.ConfigMap.Kind, Resource: "configmaps", Namespaced: true}
)

// Controller keeps the EtcdNamespaces of a home. It is a [home.Controller].
type Controller struct {
	cfg Config
	// known is what is remembered of each object, by its UID.
	known map[string]*known
	// cluster identifies the cluster, and not only its name: what is in etcd belongs to
	// it. Empty before it was asked for.
	cluster string
}

// known is what is remembered of one object between passes, so that a pass over an
// undisturbed home sends nothing.
type known struct {
	meta *metav1.PartialObjectMetadata
	// key is everything that the last pass that went well was for, and next when it is
	// due again.
	key  string
	next time.Time
	// retry is the time before which nothing is tried again, after so many failures in a
	// row of the pass for failedKey; failure is the text of the last.
	retry     time.Time
	failures  int
	failedKey string
	failure   string
	// deletes is the policy that was declared last; nil if this process has not seen it.
	deletes *bool
	// shown is the status that the object has; nil before it was read.
	shown *shown
}

// New makes a Controller.
func New(c Config) *Controller {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Controller{cfg: c, known: make(map[string]*known)}
}

// Name implements [home.Controller].
func (c *Controller) Name() string { return "etcd namespaces" }

// Kinds implements [home.Controller].
func (c *Controller) Kinds() []home.Kind { return []home.Kind{namespaces, secrets, configMaps} }

// Close implements [home.Controller].
func (c *Controller) Close() {}

// pass is one call of Reconcile.
type pass struct {
	*Controller
	*home.View
	now, again time.Time
	// url is where the daemon serves the namespaces; empty if proxies in the home do.
	url string
	// there is what etcd has, by ID; nil if that was not asked, or is not known. damaged
	// says of which namespaces it cannot be known.
	there   map[etcd.ID]admin.Status
	damaged map[etcd.ID]error
}

// task is one object that is looked at.
type task struct {
	*known
	subject
	key string
	// written are the Secrets and ConfigMaps that were written for it.
	written []manifest.ID
	uids    map[manifest.ID]string
}

// Reconcile implements [home.Controller].
func (c *Controller) Reconcile(ctx context.Context, v *home.View) (time.Time, error) {
	all, err := v.Objects(namespaces)
	if kube.ClassOf(err) == kube.NoSuchType {
		clear(c.known)
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	p := &pass{Controller: c, View: v, now: c.cfg.Now(), url: served(v)}
	there := make(map[string]bool)
	var due []*task
	for _, meta := range all {
		uid := string(meta.UID)
		there[uid] = true
		k := c.known[uid]
		if k == nil {
			k = new(known)
			c.known[uid] = k
		}
		k.meta = meta
		t, err := p.task(k)
		if err != nil {
			return time.Time{}, err
		}
		switch {
		case t.key == k.failedKey && p.now.Before(k.retry):
			p.at(k.retry)
			p.tell(t)
		case t.key == k.key && (k.next.IsZero() || p.now.Before(k.next)):
			p.at(k.next)
			p.tell(t)
		default:
			due = append(due, t)
		}
	}
	for uid := range c.known {
		if !there[uid] {
			delete(c.known, uid)
		}
	}
	if len(due) > 0 {
		err = p.work(ctx, due)
	}
	if p.again.IsZero() {
		return time.Time{}, err
	}
	return time.Now().Add(p.again.Sub(p.now)), err // the home has a clock of its own
}

// task finds out what there is to know of an object.
func (p *pass) task(k *known) (*task, error) {
	t := &task{known: k, uids: make(map[manifest.ID]string)}
	m := k.meta
	id := namespaces.ID(m.Namespace, m.Name)
	t.deleting, t.finalized = m.DeletionTimestamp != nil, slices.Contains(m.Finalizers, manifest.EtcdKeysFinalizer)
	t.member = m.Labels[plan.PartOfLabel] != ""
	t.etcd = p.cfg.Etcd != nil
	var key strings.Builder
	fmt.Fprintf(&key, "%d %v %v %v", m.Generation, t.deleting, t.finalized, t.member)
	switch o := p.Fleet.Objects; {
	case o == nil:
		t.unclear = true
	case o.Get(id) != nil:
		declared := o.Get(id)
		t.declared = true
		t.declaration, t.fault = etcd.Read(declared)
		t.adopt = declared.Annotation(manifest.AdoptAnnotation) == "true"
		if t.fault == nil {
			k.deletes = &t.declaration.Delete
		}
		fmt.Fprintf(&key, " %s", declared.Hash())
	default:
		t.unclear = p.Fleet.Keeps != nil && p.Fleet.Keeps(id, "")
	}
	fmt.Fprintf(&key, " %v %s", t.unclear, p.url)
	for _, kind := range []home.Kind{secrets, configMaps} {
		all, err := p.Objects(kind)
		if err != nil {
			return nil, err
		}
		for _, w := range all {
			if written := kind.ID(w.Namespace, w.Name); w.Annotations[manifest.EtcdAnnotation] == mark(written, id) {
				t.written = append(t.written, written)
				t.uids[written] = string(w.UID)
				fmt.Fprintf(&key, " %s=%s", written, w.ResourceVersion)
			}
		}
	}
	t.key = key.String()
	return t, nil
}

// work does what is to be done about objects.
func (p *pass) work(ctx context.Context, due []*task) error {
	provisioned, trouble := p.provision(ctx, due)
	var errs []error
	for _, t := range due {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.next(t, time.Time{})
		waits, err := p.one(ctx, t, provisioned, trouble)
		if err == nil {
			t.known.key, t.known.failedKey, t.failures, t.failure, t.retry = t.key, "", 0, waits, time.Time{}
			p.at(t.known.next)
			p.tell(t)
			continue
		}
		if kube.ClassOf(err) == kube.Changed || errors.Is(err, identity.ErrChanged) {
			p.at(p.now.Add(time.Second)) // what was read is out of date
			continue
		}
		if e, ok := errors.AsType[*kube.Error](err); ok && e.ClusterWide() {
			errs = append(errs, err)
			break
		}
		p.failed(t, err)
	}
	return errors.Join(errs...)
}

// next notes when an object is due again; the zero time for when something changes.
func (p *pass) next(t *task, at time.Time) {
	if t.known.next = at; at.IsZero() {
		return
	}
	p.at(at)
}

// one does what is to be done about one object. waits is what it waits for, if nothing
// can be done.
func (p *pass) one(ctx context.Context, t *task, provisioned map[etcd.ID]admin.Provisioned, trouble error) (waits string, err error) {
	do, why := decide(t.subject)
	switch do {
	case keep:
		return "", p.keep(ctx, t, provisioned[p.id(t)], trouble)
	case remove:
		return "", p.remove(ctx, t, trouble)
	case release:
		if there, known := p.there[p.id(t)]; trouble != nil || known && there.State == registry.Deleting {
			return "", p.remove(ctx, t, trouble) // it was not declared meanwhile, and its keys are going
		}
		p.Log.Warn("somebody deleted an EtcdNamespace that the repository declares; its keys stay", "namespace", p.id(t).String())
		return "", p.unfinalize(ctx, t)
	case refuse:
		s := new(state)
		s.set(readyCondition, false, why.reason, why.message)
		return "", p.show(ctx, t, s)
	}
	return why.message, nil
}

// id is the identity of an object's namespace in etcd.
func (p *pass) id(t *task) etcd.ID {
	return etcd.ID{Cluster: p.Cluster, Namespace: t.meta.Namespace, Name: t.meta.Name}
}

// at has the next pass begin at a time, unless it begins earlier.
func (p *pass) at(t time.Time) {
	if !t.IsZero() && (p.again.IsZero() || t.Before(p.again)) {
		p.again = t
	}
}

// failed notes that an object could not be kept. It is tried again later.
func (p *pass) failed(t *task, err error) {
	t.failures++
	t.failure, t.failedKey = problem.Message(err), t.key
	t.retry = p.now.Add(min(firstRetry<<min(t.failures-1, 10), lastRetry))
	p.at(t.retry)
	p.tell(t)
	p.Log.Warn("an EtcdNamespace cannot be kept; it is tried again", "namespace", p.id(t).String(), "error", err)
}

// tell reports an object that failed or cannot be used.
func (p *pass) tell(t *task) {
	reason := t.failure
	if reason == "" && t.known.shown != nil {
		reason = t.known.shown.trouble()
	}
	if reason != "" {
		p.Report(problem.Problem{Object: namespaces.ID(t.meta.Namespace, t.meta.Name).String(), Reason: reason})
	}
}
