package guard

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"gitopsd.dev/reconcile/etcdproxy"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/testscripts/await"
	"gitopsd.dev/testscripts/etcdserver"
)

// shared is the etcd of tests that do not disturb it.
var (
	shared = sync.OnceValues(etcdserver.Start)
	used   atomic.Bool
)

func TestMain(m *testing.M) {
	code := m.Run()
	if used.Load() {
		if s, err := shared(); err == nil {
			s.Close()
		}
	}
	os.Exit(code)
}

func sharedEtcd(t testing.TB) *etcdserver.Server {
	t.Helper()
	used.Store(true)
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// numbers are given to tenants.
var numbers atomic.Int64

// tenantIn is a tenant with the CA of its clients.
type tenantIn struct {
	etcdproxy.Tenant
	ca *etcdserver.Authority
}

// newTenant provisions a tenant in an etcd.
func newTenant(t testing.TB, s *etcdserver.Server, q etcd.Quota, throttle etcd.Throttle) tenantIn {
	t.Helper()
	n := numbers.Add(1)
	id := etcd.ID{Cluster: "test", Namespace: fmt.Sprintf("n%d", n), Name: "x"}
	prefix := id.DefaultPrefix()
	cert, err := s.AddUser(t.Context(), id.User(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := etcdserver.NewAuthority("clients of " + id.String())
	if err != nil {
		t.Fatal(err)
	}
	return tenantIn{
		Tenant: etcdproxy.Tenant{
			Namespace: etcd.Namespace{ID: id, Number: n, Prefix: prefix, Quota: q, Throttle: throttle},
			ClientCAs: ca.Pool(),
			Upstream:  etcdproxy.Upstream{Endpoints: []string{s.Endpoint}, Certificate: cert, CAs: s.Authority.Pool()},
		},
		ca: ca,
	}
}

// running is a proxy that serves behind a guard.
type running struct {
	*etcdproxy.Proxy
	guard *Guard
	addr  string
	roots *x509.CertPool
	stop  func() // and wait until it has ended
}

// serve runs a proxy until the test ends, and waits until its tenants are counted.
func serve(t testing.TB, limits etcdproxy.Limits, cfg Config, tenants ...tenantIn) running {
	t.Helper()
	r := start(t, limits, cfg, tenants...)
	if !await.Soon(func() bool { return r.guard.Ready() == nil }) {
		t.Fatal(r.guard.Ready())
	}
	return r
}

func start(t testing.TB, limits etcdproxy.Limits, cfg Config, tenants ...tenantIn) running {
	t.Helper()
	ca, err := etcdserver.NewAuthority("proxy")
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.Issue(etcdserver.Serving())
	if err != nil {
		t.Fatal(err)
	}
	cfg.Log = slog.New(slog.DiscardHandler)
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if limits.Drain == 0 {
		limits.Drain = time.Millisecond
	}
	p, err := etcdproxy.New(etcdproxy.Config{
		Log: cfg.Log, Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil },
		Gate: g, Floors: g, Limits: limits,
	})
	if err != nil {
		t.Fatal(err)
	}
	r := running{Proxy: p, guard: g, roots: ca.Pool()}
	if err := r.set(tenants...); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx, l) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the proxy ended: %v", err)
		}
		p.Close()
	})
	t.Cleanup(r.stop)
	return r
}

func (r running) set(tenants ...tenantIn) error {
	var all []etcdproxy.Tenant
	for _, x := range tenants {
		all = append(all, x.Tenant)
	}
	return r.Set(all)
}

// certificate issues a certificate for a client of the tenant.
func (x tenantIn) certificate(t testing.TB) tls.Certificate {
	t.Helper()
	cert, err := x.ca.Issue(etcdserver.Client(x.ID.URI()))
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// client connects as a client of a tenant.
func (r running) client(t testing.TB, x tenantIn, more ...string) *clientv3.Client {
	t.Helper()
	endpoints := []string{"https://" + r.addr}
	c, err := clientv3.New(clientv3.Config{
		Endpoints: append(endpoints, more...), Logger: zap.NewNop(),
		TLS: &tls.Config{RootCAs: r.roots, Certificates: []tls.Certificate{x.certificate(t)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// state returns the state of a tenant.
func (r running) state(x tenantIn) State { return r.guard.States()[x.ID] }
