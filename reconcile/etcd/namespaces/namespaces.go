// Package namespaces reconciles the EtcdNamespaces of a home: it provisions those that the
// repository declares in etcd, and writes their Secrets and ConfigMaps. [Controller] is a
// [home.Controller].
//
// The declaration in the repository grants the key space. The object in the cluster only gets a
// status: creating or changing one in the cluster grants nothing. Records in etcd decide who owns
// which keys (reconcile/etcd), and certificates decide who may connect (reconcile/etcd/identity).
//
//   - decide.go: what to do about an object, as a pure function
//   - namespaces.go: [Controller], and its passes over all objects
//   - provision.go: provisioning a namespace, and its certificates
//   - serve.go: serving a namespace in the daemon
//   - store.go: reading and writing Secrets and ConfigMaps
//   - remove.go: removing a namespace that is no longer declared
//   - status.go: statuses
//   - share.go: [Share], an Admin for several homes
//   - own.go: [Own], the key spaces of clusters themselves
//
// Durability: an object gets the finalizer before anything is created in etcd. It loses it when
// everything there is removed, or left there by the declaration's policy.
package namespaces

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// Admin administers the etcd; see [admin.Admin].
type Admin interface {
	// Provision provisions namespaces in etcd. The error is about the etcd; errors of one
	// namespace are in its Provisioned.
	Provision(ctx context.Context, wanted []admin.Wanted) ([]admin.Provisioned, error)
	// Remove removes a bounded part of a namespace, with its keys or without. The error is about
	// the etcd or the namespace.
	Remove(ctx context.Context, w admin.Wanted, how admin.Deletion) (admin.Removal, error)
	// Overview returns the state of this fleet's namespaces. The error is about the etcd.
	Overview(ctx context.Context) (admin.Overview, error)
}

// Keeper keeps certificates; see [identity.Keeper].
type Keeper interface {
	// Keep creates and renews the certificates of a namespace. The error is about the cluster, or
	// [identity.ErrChanged].
	Keep(ctx context.Context, s identity.Store, w identity.Wanted) (identity.Kept, error)
}

// Etcd is the etcd of the namespaces.
type Etcd struct {
	Admin  Admin
	Keeper Keeper
	// Upstream returns the etcd's CAs. The error says what to do.
	Upstream func() (identity.Upstream, error)
	// Endpoints are the client URLs for proxies.
	Endpoints []string
	// Prefixes are the beginnings of prefixes that declarations may name.
	Prefixes []string
	// Proxy serves namespaces in the daemon; nil if it serves none.
	Proxy Proxy
}

// Proxy serves the namespaces of clusters with spec.etcd.proxy.url in the daemon.
type Proxy interface {
	// Serve serves a namespace with the files of its proxy's directory ([etcd.Files]), by path. The
	// error says what is wrong with them; the namespace is then served as before, or not at all if
	// its number or keys are those of another that is served.
	Serve(id etcd.ID, files map[string][]byte) error
	// Admit makes a namespace that is served accept clients of these CAs alone, in PEM, and changes
	// nothing else. Without CAs, nobody may connect. The error says what is wrong with them.
	Admit(id etcd.ID, cas []byte) error
	// Has reports whether a namespace is served.
	Has(id etcd.ID) bool
	// Withdraw stops serving the chosen namespaces.
	Withdraw(chosen func(etcd.ID) bool)
	// Bytes returns how many bytes of its quota a namespace uses, and reports whether that is known
	// here.
	Bytes(id etcd.ID) (n int64, known bool)
	// Trust returns the CAs that clients should trust, in PEM; empty if they trust them anyway.
	Trust() []byte
	// Serves returns an error if clients do not accept the proxy's certificate for a host.
	Serves(host string) error
}

// Config configures a [Controller].
type Config struct {
	// Etcd is nil if the daemon has none. Then nothing is provisioned, and conditions say what to do.
	Etcd *Etcd
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// noEtcd says what to do if the daemon has no etcd.
const noEtcd = "the daemon has no etcd: start it with --etcd-servers, or for a small fleet with --etcd-embedded DIR"

// countPause is the pause between two counts of keys, and goingPause the pause between two removals of
// keys.
const (
	countPause = time.Minute
	goingPause = time.Second
)

// Pauses after failures grow from firstRetry to lastRetry.
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

// Controller reconciles the EtcdNamespaces of a home. It is a [home.Controller].
type Controller struct {
	cfg   Config
	known map[string]*known // by UID
	// etcdProblems say what was wrong with the etcd itself when it was read last.
	etcdProblems []string
}

// known is the memory of one object between passes, so that a pass over an unchanged home sends
// nothing.
type known struct {
	meta *metav1.PartialObjectMetadata
	// key identifies the input of the last successful pass, and next is when it is due again.
	key  string
	next time.Time
	// After failures in a row with the input failedKey, nothing is tried before retry; failure is
	// the text of the last error, or what a successful pass waits for.
	retry     time.Time
	failures  int
	failedKey string
	failure   string
	// deletes is the policy that was declared last; nil if this process has not seen it.
	deletes *bool
	// shown is the object's status; nil before it was read.
	shown *shown
}

// object returns the object's ID.
func (k *known) object() manifest.ID { return namespaces.ID(k.meta.Namespace, k.meta.Name) }

// New returns a Controller.
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

// pass is a call of Reconcile.
type pass struct {
	*Controller
	*home.View
	now, again time.Time
	// url is where the daemon serves the namespaces; empty if proxies in the home do.
	url string
	// cluster is the UID of the cluster, which owns its namespaces in etcd; empty before it was read.
	// Each pass reads it, since a cluster may be made anew behind the same credentials.
	cluster string
	// there has the namespaces in etcd; nil if they were not read. damaged has the errors of damaged
	// records.
	there   map[etcd.ID]admin.Status
	damaged map[etcd.ID]error
}

// task is the work on one object in a pass.
type task struct {
	*known
	subject
	key string
	// written are the Secrets and ConfigMaps that exist for it.
	written []manifest.ID
	uids    map[manifest.ID]string
	// unfinalized is why it could not get the finalizer. Then nothing is made for it.
	unfinalized error
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
	if len(all) == 0 {
		c.etcdProblems = nil
	}
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
	maps.DeleteFunc(c.known, func(uid string, _ *known) bool { return !there[uid] })
	if len(due) > 0 {
		err = p.work(ctx, due)
	}
	for _, reason := range c.etcdProblems {
		p.Report(problem.Problem{Reason: reason})
	}
	if p.again.IsZero() {
		return time.Time{}, err
	}
	return time.Now().Add(p.again.Sub(p.now)), err // the home has a clock of its own
}

// task collects the state of an object.
func (p *pass) task(k *known) (*task, error) {
	t := &task{known: k, uids: make(map[manifest.ID]string)}
	m, id := k.meta, k.object()
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

// work works on the objects that are due.
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
		if kube.IsClusterWide(err) {
			errs = append(errs, err)
			break
		}
		p.failed(t, err)
	}
	return errors.Join(errs...)
}

// next notes when an object is due again; the zero time for when something changes.
func (p *pass) next(t *task, at time.Time) {
	t.known.next = at
	p.at(at)
}

// one works on one object. waits says what the object waits for, if nothing can be done.
func (p *pass) one(ctx context.Context, t *task, provisioned map[etcd.ID]admin.Provisioned, trouble error) (waits string, err error) {
	do, why := decide(t.subject)
	switch do {
	case keep:
		return "", p.keep(ctx, t, provisioned[p.id(t)], trouble)
	case remove:
		return "", p.remove(ctx, t, trouble)
	case release:
		if there, known := p.there[p.id(t)]; trouble != nil || known && there.State == registry.Deleting {
			return "", p.remove(ctx, t, trouble) // it was undeclared meanwhile, and its keys are being deleted
		}
		p.Log.Warn("somebody deleted an EtcdNamespace that the repository declares; its keys stay", "namespace", p.id(t).String())
		return "", p.unfinalize(ctx, t)
	case refuse:
		s := new(state)
		s.set(readyCondition, false, why.reason, why.message)
		return "", p.show(ctx, t, s)
	case leave:
		if p.resumes(t) {
			if err := p.resume(ctx, t, trouble); err != nil {
				return "", err
			}
		}
		if t.unclear && t.finalized {
			expire, err := p.expiring(ctx, t)
			return strings.Join(slices.DeleteFunc([]string{why.message, expire}, func(s string) bool { return s == "" }), "; "), err
		}
	}
	return why.message, nil
}

// id returns the ID of an object's namespace in etcd.
func (p *pass) id(t *task) etcd.ID {
	return etcd.ID{Cluster: p.Cluster, Namespace: t.meta.Namespace, Name: t.meta.Name}
}

// at makes the next pass begin at a time, unless it begins earlier or the time is zero.
func (p *pass) at(t time.Time) {
	if !t.IsZero() && (p.again.IsZero() || t.Before(p.again)) {
		p.again = t
	}
}

// failed notes an error of an object, which is retried later.
func (p *pass) failed(t *task, err error) {
	t.failures++
	t.failure, t.failedKey = problem.Message(err), t.key
	t.retry = p.now.Add(min(firstRetry<<min(t.failures-1, 10), lastRetry))
	p.at(t.retry)
	p.tell(t)
	p.Log.Warn("an EtcdNamespace cannot be kept; it is tried again", "namespace", p.id(t).String(), "error", err)
}

// tell reports the problem of an object, if it has one.
func (p *pass) tell(t *task) {
	reason := t.failure
	if reason == "" && t.known.shown != nil {
		reason = t.known.shown.trouble()
	}
	if reason != "" {
		p.ReportOn(t.object(), problem.Problem{Reason: reason})
	}
}
