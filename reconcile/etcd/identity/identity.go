// Package identity keeps the certificates of an etcd namespace: who may connect to its
// proxy, as whom the proxy serves, and as whom it speaks to etcd. All rotate as
// reconcile/certs/rotation decides (keep.go), each by a record of its own in gitopsd's
// namespace, where no pod mounts it (source.go).
//
// Each client has a CA of its own, and the proxy trusts all of these. So a client that is
// no longer declared is refused as soon as its CA has left the proxy's Secret, and not
// when its certificate expires; one certificate alone is refused by its fingerprint.
//
// Where Secrets and ConfigMaps are, and whose, is told by a [Store]; reconcile/etcd/namespaces
// has that of a cluster.
package identity

import (
	"context"
	"errors"
	"time"

	"gitopsd.dev/reconcile/certs/rotation"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/render/manifest"
)

// ErrChanged is returned by a [Store] if what was to be replaced is not as it was read.
var ErrChanged = errors.New("changed meanwhile")

// Stored is a Secret or a ConfigMap of a cluster. The zero Stored is none.
type Stored struct {
	// Data is the content; of ConfigMaps their data too.
	Data map[string][]byte
	// Version is the resourceVersion; empty if there is no such object.
	Version string
	// Foreign is why it is not gitopsd's and must not be written; empty if it is
	// gitopsd's or there is none.
	Foreign string
}

// Store reads and writes Secrets and ConfigMaps of one cluster.
type Store interface {
	// Get returns an object; the zero Stored if there is none. The error is about the
	// cluster.
	Get(ctx context.Context, id manifest.ID) (Stored, error)
	// Put creates an object (version "") and its namespace if there is none, or replaces
	// its content, if it is still of this version. The error is ErrChanged if it is not, or about the cluster.
	Put(ctx context.Context, id manifest.ID, data map[string][]byte, version string) error
}

// Client is who gets a certificate to connect with.
type Client struct {
	// Secret gets the pair tls.crt and tls.key, and ca.crt with the CAs of the proxy.
	Secret manifest.ID
	// Validity is how long a certificate lives; zero means the policy's.
	Validity time.Duration
}

// Wanted is what certificates a namespace is to have.
type Wanted struct {
	ID etcd.ID
	// Service is the proxy's.
	Service manifest.ID
	// Proxy is the Secret that the proxy mounts. It gets server.crt and server.key,
	// client-ca.crt, upstream.crt, upstream.key and upstream-ca.crt.
	Proxy manifest.ID
	// Clients may connect, and those of ConfigMaps get ca.crt.
	Clients    []Client
	ConfigMaps []manifest.ID
	// Upstream signs the certificate by which the proxy speaks to etcd.
	Upstream Upstream
	// Trust has CAs that clients are to trust besides, in PEM: those of the daemon's own
	// proxy, if that serves the namespace. It may be empty.
	Trust []byte
}

// Upstream is what etcd trusts, and is trusted by, in PEM.
type Upstream struct {
	// ClientCACert and ClientCAKey are a CA that etcd trusts for clients.
	ClientCACert, ClientCAKey []byte
	// CA has the CAs of the members' certificates.
	CA []byte
}

// Certificate is a certificate for the status.
type Certificate struct {
	Secret  manifest.ID
	Use     string
	Expires time.Time
	// SHA256 is the fingerprint, as etcd.Namespace.Revoked has them.
	SHA256 string
}

// Uses of certificates.
const (
	Serving  = "serving"
	ByClient = "client"
	ToEtcd   = "upstream"
)

// Kept is what there is.
type Kept struct {
	Certificates []Certificate
	// Again is when to keep again; zero for when something changes.
	Again time.Time
	// Ready reports whether the proxy's Secret has all that it needs to serve.
	Ready bool
	// Notes say what waits, and Problems what must be done.
	Notes, Problems []string
}

// Keeper keeps certificates. It remembers nothing; the zero Keeper has the defaults.
type Keeper struct {
	// Policy is how long certificates live that say nothing else; see [Defaults].
	Policy rotation.Policy
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Defaults are how long certificates live. A kubelet takes up to two minutes to bring a
// Secret to a pod, so a new CA settles for longer.
var Defaults = rotation.Policy{Authority: 365 * 24 * time.Hour, Leaf: 90 * 24 * time.Hour, Settle: 10 * time.Minute}

// policy returns how long certificates of a validity live. Their CA lives for three times
// as long at least, and settles for a third of it at most.
func (k *Keeper) policy(validity time.Duration) rotation.Policy {
	p := k.Policy
	if p == (rotation.Policy{}) {
		p = Defaults
	}
	if validity > 0 {
		p.Leaf = validity
	}
	p.Authority, p.Settle = max(p.Authority, 3*p.Leaf), min(p.Settle, p.Leaf/3)
	return p
}
