// Package kube is the client of a registered cluster.
//
// It owns
//   - connecting with a kubeconfig (kubeconfig.go). The subpackage kubeconfig decides
//     which are accepted: one from the fleet runs no program and reads no file;
//   - discovery (types.go): kinds to resources, one small document for each group
//     and version, read again as CRDs come and go;
//   - the requests, on raw bytes, so that no object is decoded twice: reads, lists
//     and watches, mostly of metadata alone (requests.go, watch.go), and writes:
//     server-side apply, create, delete, tokens (write.go), and what reconcile/migrate
//     needs (storage.go). Every write asks [Config].MayWrite first;
//   - the classes of errors (errors.go), which it decides once. No message holds a
//     value of a Secret. Advice names the missing rule of a role (rbac.go, account.go)
//     and the field that was probably meant (meant.go);
//   - limits on the size of answers (limits.go), and on the time of requests: a request
//     without an answer is blamed on the cluster, or on its object or kind alone
//     (patience.go); [WithPace] bounds requests over many clusters (pace.go);
//   - the live definition of a kind (definition.go), and which kinds may have objects
//     though they are not served (hidden.go).
//
// It caches only the types. The desired objects are render's, the differences
// reconcile/plan's, and the order of writes reconcile/apply's.
package kube

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	"gitopsd.dev/reconcile/problem"
)

// FieldManager is gitopsd's name in metadata.managedFields.
const FieldManager = "gitopsd"

// DefaultTimeout limits one request, its answer included. After a timeout, the next
// requests for the same kind get less.
const DefaultTimeout = 30 * time.Second

// dialTimeout is how long connecting to an API server may take: shorter than a
// request, so that a cluster that is gone is noticed early.
const dialTimeout = 10 * time.Second

// Config describes a registered cluster and how to reach it.
type Config struct {
	// Name is the cluster's name in the registry; errors start with it.
	Name string
	// Kubeconfig is the content of a kubeconfig file. One that names a plugin
	// or a file, skips the verification of the server or speaks plain HTTP is
	// refused unless it is Trusted.
	Kubeconfig []byte
	// Context is the context to use; empty means the kubeconfig's current one.
	Context string
	// Trusted marks the user's own kubeconfig: the plugins and files that it names are
	// used. If Kubeconfig is empty, the user's files are read, as kubectl does
	// ($KUBECONFIG, ~/.kube/config).
	Trusted bool
	// InCluster uses the ServiceAccount of the pod that this process runs in.
	// It excludes Kubeconfig and Trusted.
	InCluster bool
	// ServiceAccount is impersonated in the cluster; nil for no impersonation.
	ServiceAccount *ServiceAccount
	// UserAgent is sent with each request; default "gitopsd".
	UserAgent string
	// Timeout of one request; default DefaultTimeout.
	Timeout time.Duration
	// MayWrite, if set, is called before each attempt at a write (create, apply, patch,
	// delete, token), but not before dry runs. If it returns an error, nothing is sent,
	// and the write fails with an error of class Fenced that wraps it. A write that was
	// allowed may take effect until Timeout has passed.
	MayWrite func(ctx context.Context) error
	// MayReach, if set, is called before each connection with its resolved address, of
	// the server or the proxy. If it returns an error, no connection is made.
	MayReach func(netip.Addr) error
	// WrapTransport, if set, wraps the transport of all requests, for metrics.
	WrapTransport func(http.RoundTripper) http.RoundTripper
}

// ServiceAccount names a service account of the cluster.
type ServiceAccount struct {
	Namespace, Name string
}

// Client is a registered cluster. It is safe for concurrent use, and opens no connection
// before the first request.
type Client struct {
	name      string
	base      *url.URL
	roots     []byte
	client    *http.Client
	conns     *connections
	timeout   time.Duration
	quiet     time.Duration // after which a watch is given up
	userAgent string
	mayWrite  func(context.Context) error // nil: always
	actsAs    string                      // the user of Config.ServiceAccount; empty for none
	account   *account                    // whether it exists; nil if actsAs is empty

	mu     sync.Mutex
	groups map[string]*group      // by group name; see types.go
	gvs    map[string]*groupTypes // by group/version
	epoch  uint64
	lanes  map[lane]int // strikes; see patience.go
}

// New checks the configuration and returns the client. It sends nothing.
func New(c Config) (*Client, error) {
	cfg, err := restConfig(c)
	if err != nil {
		return nil, problem.In(c.Name, err)
	}
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	if c.MayReach != nil {
		dialer.Control = func(_, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			return c.MayReach(to.Addr())
		}
		if cfg.Proxy == nil { // a proxy of the daemon's environment would reach for it what is refused
			cfg.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
		}
	}
	conns := &connections{dialer: connrotation.NewDialer(dialer.DialContext)}
	cfg.Dial = conns.dial
	// Compressing costs the API server more than the bytes cost the network.
	cfg.DisableCompression = true
	cfg.WrapTransport = c.WrapTransport
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, problem.In(c.Name, fmt.Errorf("kubeconfig: %w", err))
	}
	client.CheckRedirect = noRedirects
	files := rest.CopyConfig(cfg)
	if err := rest.LoadTLSFiles(files); err != nil {
		return nil, problem.In(c.Name, fmt.Errorf("kubeconfig: %w", err))
	}
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, problem.In(c.Name, fmt.Errorf("kubeconfig: server %q: %w", cfg.Host, err))
	}
	cl := &Client{
		name: c.Name, base: base, roots: files.CAData, client: client, conns: conns,
		timeout: cmp.Or(c.Timeout, DefaultTimeout), quiet: quietLongest, userAgent: cmp.Or(c.UserAgent, "gitopsd"), mayWrite: c.MayWrite,
		groups: make(map[string]*group), gvs: make(map[string]*groupTypes), epoch: 1, lanes: make(map[lane]int),
	}
	if c.ServiceAccount != nil {
		cl.actsAs = accountUser(*c.ServiceAccount)
		own := rest.CopyConfig(cfg)
		own.Impersonate = rest.ImpersonationConfig{}
		cl.account = &account{ServiceAccount: *c.ServiceAccount, base: base, own: own, userAgent: cl.userAgent}
	}
	return cl, nil
}

// noRedirects is a CheckRedirect. API servers do not redirect: following a redirect could
// send credentials elsewhere, or take the answer from there.
func noRedirects(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Name returns the cluster's name in the registry.
func (c *Client) Name() string { return c.name }

// Server returns the API server's URL.
func (c *Client) Server() string { return c.base.String() }

// Roots returns the certificates (PEM) of the CAs that the API server is verified with; empty
// for those that the machine trusts.
func (c *Client) Roots() []byte { return c.roots }

// Close closes all connections. Requests under way and later ones fail.
func (c *Client) Close() { c.conns.close() }

// connections closes all connections to a cluster. http.Transport closes only idle ones,
// and opens another connection for a request whose own was closed.
type connections struct {
	dialer *connrotation.Dialer
	closed atomic.Bool
}

func (c *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := c.dialer.DialContext(ctx, network, address)
	if err == nil && c.closed.Load() {
		conn.Close()
		return nil, net.ErrClosed
	}
	return conn, err
}

func (c *connections) close() {
	c.closed.Store(true)
	c.dialer.CloseAll()
}
