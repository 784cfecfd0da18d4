package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"strings"
	"sync"

	"gitopsd.dev/reconcile/etcdproxy"
	"gitopsd.dev/reconcile/etcdproxy/guard"
	"gitopsd.dev/reconcile/etcdproxy/member"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/render/etcd"
)

// DaemonConfig configures a [Daemon].
type DaemonConfig struct {
	// Certificate returns the serving certificate; required. It is called for each connection.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Log is required.
	Log *slog.Logger
	// Member and GRPCGo are as in [etcdproxy.Config].
	Member *member.Member
	GRPCGo bool
}

// Daemon serves many namespaces on one address, in the daemon. A client's certificate names its
// namespace. Its methods may be called concurrently.
type Daemon struct {
	proxy *etcdproxy.Proxy
	guard *guard.Guard

	mu  sync.Mutex
	now map[etcd.ID]*directory
}

// NewDaemon returns a Daemon without namespaces.
func NewDaemon(c DaemonConfig) (*Daemon, error) {
	gate, err := guard.New(guard.Config{Log: c.Log})
	if err != nil {
		return nil, err
	}
	proxy, err := etcdproxy.New(etcdproxy.Config{
		Log: c.Log, Gate: gate, Floors: gate, Certificate: c.Certificate, Member: c.Member, GRPCGo: c.GRPCGo,
		Limits: etcdproxy.Limits{Drain: leaving},
	})
	if err != nil {
		return nil, err
	}
	return &Daemon{proxy: proxy, guard: gate, now: make(map[etcd.ID]*directory)}, nil
}

// Listen serves on a listener until ctx ends, waits for calls in progress, and closes all
// connections. The error is the listener's.
func (d *Daemon) Listen(ctx context.Context, l net.Listener) error {
	defer d.proxy.Close()
	return d.proxy.Serve(ctx, l)
}

// Serve serves a namespace with the files of its proxy's directory, by path, except the server's
// certificate. If they are invalid, the namespace is served as before. If its number or keys are
// those of another that is served, it is not served. The error names the file or the problem of the
// namespace.
func (d *Daemon) Serve(id etcd.ID, files map[string][]byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.serve(id, files)
}

// Admit makes a namespace that is served accept clients of these CAs alone, in PEM, and changes nothing
// else. Without CAs, nobody may connect. If they are invalid, nothing changes.
func (d *Daemon) Admit(id etcd.ID, cas []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.now[id]
	if before == nil {
		return nil
	}
	files := maps.Clone(before.files)
	files["client-ca.crt"] = cas
	return d.serve(id, files)
}

// serve is Serve. The caller holds d.mu.
func (d *Daemon) serve(id etcd.ID, files map[string][]byte) error {
	next, err := parse(files)
	if err != nil {
		return err
	}
	if next.tenant.ID != id {
		return fmt.Errorf("%s: it is for %s", etcd.NamespaceFile, next.tenant.ID)
	}
	before := d.now[id]
	if before != nil && before.same(next) {
		return nil
	}
	for _, other := range d.now { // the proxy would serve neither of two that overlap
		if a, b := next.tenant.Namespace, other.tenant.Namespace; a.ID != b.ID &&
			(a.Number == b.Number || strings.HasPrefix(a.Prefix, b.Prefix) || strings.HasPrefix(b.Prefix, a.Prefix)) {
			// The number or keys that it is served with have gone, perhaps to the other: etcd was
			// restored, and both were provisioned anew.
			d.withdraw(func(other etcd.ID) bool { return other == id })
			return fmt.Errorf("%s: its number or its keys are those of %s, too", etcd.NamespaceFile, b.ID)
		}
	}
	d.now[id] = next
	if err := d.set(); err != nil {
		delete(d.now, id)
		if before != nil {
			d.now[id] = before
		}
		return errors.Join(err, d.set())
	}
	return nil
}

// Has reports whether a namespace is served.
func (d *Daemon) Has(id etcd.ID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now[id] != nil
}

// Withdraw stops serving the chosen namespaces, and closes their connections.
func (d *Daemon) Withdraw(chosen func(etcd.ID) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.withdraw(chosen)
}

// withdraw is Withdraw. The caller holds d.mu.
func (d *Daemon) withdraw(chosen func(etcd.ID) bool) {
	n := len(d.now)
	maps.DeleteFunc(d.now, func(id etcd.ID, _ *directory) bool { return chosen(id) })
	if len(d.now) != n {
		_ = d.set() // nothing changes for the others
	}
}

// set serves the namespaces in d.now. The caller holds d.mu.
func (d *Daemon) set() error {
	var tenants []etcdproxy.Tenant
	for _, one := range d.now {
		tenants = append(tenants, one.tenant)
	}
	return d.proxy.Set(tenants)
}

// Bytes returns how many bytes of its quota a namespace uses, and reports whether that is known here.
func (d *Daemon) Bytes(id etcd.ID) (n int64, known bool) {
	s, served := d.guard.Held(id)
	return s.Bytes, served && s.Current
}

// Counts returns the numbers of the namespaces.
func (d *Daemon) Counts() []status.EtcdNamespace { return counts(d.proxy, d.guard) }
