// Package identity keeps the certificates of an etcd namespace: those of its clients, the
// proxy's serving certificate, and the proxy's client certificate for etcd. Package
// reconcile/certs/rotation decides on their rotation (keep.go), with a record for each CA in
// gitopsd's own namespace, where no pod mounts it (source.go).
//
// Each client has a CA of its own, and the proxy trusts all of them. So a client that is no longer
// declared is refused as soon as its CA has left the proxy's Secret, before its certificate
// expires. A single certificate is refused by its fingerprint.
//
// A [Store] reads and writes Secrets and ConfigMaps; reconcile/etcd/namespaces has one for a
// cluster.
package identity

import (
	"cmp"
	"context"
	"errors"
	"time"

	"gitopsd.dev/reconcile/certs/rotation"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/render/manifest"
)

// ErrChanged is returned by a [Store] if the object to replace has changed since it was read.
var ErrChanged = errors.New("changed meanwhile")

// Refused is returned by a [Store] if a write of one object failed, and others may succeed. For example,
// the object is immutable, or a policy or a quota denies it.
type Refused struct{ Err error }

func (r Refused) Error() string { return r.Err.Error() }

// Unwrap returns Err, which says which object it is about.
func (r Refused) Unwrap() error { return r.Err }

// Stored is a Secret or a ConfigMap of a cluster. The zero Stored stands for none.
type Stored struct {
	Data map[string][]byte
	// Version is the resourceVersion; empty if there is no such object.
	Version string
	// Foreign says why the object is not gitopsd's and must not be written; empty if it is
	// gitopsd's or there is none.
	Foreign string
}

// Store reads and writes Secrets and ConfigMaps of one cluster.
type Store interface {
	// Get returns an object; the zero Stored if there is none. The error is about the
	// cluster.
	Get(ctx context.Context, id manifest.ID) (Stored, error)
	// Put creates an object, and its namespace if there is none, if version is ""; otherwise it
	// replaces the content if the object still has this version. The error is ErrChanged if it does
	// not, a [Refused], or about the cluster.
	Put(ctx context.Context, id manifest.ID, data map[string][]byte, version string) error
}

// Client is a declared client of a namespace.
type Client struct {
	// Secret gets the pair tls.crt and tls.key, and ca.crt with the CAs of the proxy.
	Secret manifest.ID
	// Validity is the lifetime of a certificate; zero means the policy's.
	Validity time.Duration
}

// Wanted describes the certificates of a namespace.
type Wanted struct {
	ID etcd.ID
	// Service is the proxy's.
	Service manifest.ID
	// Proxy is the Secret that the proxy mounts. It gets server.crt and server.key,
	// client-ca.crt, upstream.crt, upstream.key and upstream-ca.crt.
	Proxy manifest.ID
	// Clients may connect.
	Clients []Client
	// Withdrawn has CAs of clients that are no longer declared, in PEM.
	Withdrawn []byte
	// ConfigMaps get ca.crt.
	ConfigMaps []manifest.ID
	// Upstream signs the proxy's client certificate for etcd. If it is not known, NoUpstream says why.
	Upstream   Upstream
	NoUpstream error
	// Trust has more CAs for clients to trust, in PEM: those of the daemon's own proxy, if that
	// serves the namespace. It may be empty.
	Trust []byte
}

// Upstream has the CAs of an etcd, in PEM.
type Upstream struct {
	// ClientCACert and ClientCAKey are a CA that etcd trusts for clients.
	ClientCACert, ClientCAKey []byte
	// CA has the CAs of the members' certificates.
	CA []byte
}

// Kept is the result of [Keeper.Keep].
type Kept struct {
	// Expires says when the clients' certificates expire, by Secret.
	Expires map[manifest.ID]time.Time
	// Again is when to call Keep again; zero for when something changes.
	Again time.Time
	// Proxy is the wanted content of the proxy's Secret. The CAs of clients are in it if they are
	// known. Written reports whether the Secret has this content.
	Proxy   map[string][]byte
	Written bool
	// Ready reports whether Proxy has all that it needs to serve.
	Ready bool
	// Refused are the writes that failed for one object each.
	Refused []error
	// Notes say what waits, and Problems what has to be done.
	Notes, Problems []string
}

// Note adds a [Refused] to k.Refused, and returns any other error.
func (k *Kept) Note(err error) error {
	if r, ok := errors.AsType[Refused](err); ok {
		k.Refused = append(k.Refused, r.Err)
		return nil
	}
	return err
}

// Keeper keeps certificates. It has no state; the zero Keeper is ready to use.
type Keeper struct {
	// Policy has the default lifetimes of certificates; if zero, a year for CAs, but 20 years for the
	// proxy's, and 90 days.
	Policy rotation.Policy
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// defaults is the default Policy. A kubelet takes up to two minutes to bring a Secret to a pod, so a
// new CA settles for longer. The proxy's CA is another matter: API servers read it only when they start
// (--etcd-cafile). So it lives for long, and one that replaces it, such as that of a year from an earlier
// version, waits until they are likely to have been restarted.
var (
	defaults = rotation.Policy{Authority: 365 * 24 * time.Hour, Leaf: 90 * 24 * time.Hour, Settle: 10 * time.Minute}
	serving  = rotation.Policy{Authority: 20 * 365 * 24 * time.Hour, Leaf: 90 * 24 * time.Hour, Settle: 30 * 24 * time.Hour}
)

// policy returns the policy for certificates with a validity; zero means the preset's. Their CA lives at
// least three times as long, and settles for at most a third of it.
func (k *Keeper) policy(preset rotation.Policy, validity time.Duration) rotation.Policy {
	p := cmp.Or(k.Policy, preset)
	if validity > 0 {
		p.Leaf = validity
	}
	p.Authority, p.Settle = max(p.Authority, 3*p.Leaf), min(p.Settle, p.Leaf/3)
	return p
}
