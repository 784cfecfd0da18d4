package etcdproxy

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"gitopsd.dev/reconcile/etcdproxy/member"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/testscripts/etcdserver"
)

// The etcd that all tests share, started by the first that needs it.
var (
	shared = sync.OnceValues(etcdserver.Start)
	used   atomic.Bool
	// local is shared for clients in this process.
	local = sync.OnceValues(func() (*member.Member, error) {
		s, err := shared()
		if err != nil {
			return nil, err
		}
		return member.Serve(s.Etcd())
	})
	usedLocal atomic.Bool
)

func TestMain(m *testing.M) {
	code := m.Run()
	if usedLocal.Load() {
		if m, err := local(); err == nil {
			m.Stop()
		}
	}
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

func sharedMember(t testing.TB) *member.Member {
	t.Helper()
	used.Store(true)
	usedLocal.Store(true)
	m, err := local()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// numbers are given to tenants.
var numbers atomic.Int64

// tenantIn is a tenant of the shared etcd, with the CA of its clients.
type tenantIn struct {
	Tenant
	ca *etcdserver.Authority // of its clients
}

// newTenantIn provisions a tenant.
func newTenantIn(t testing.TB, name string) tenantIn {
	t.Helper()
	return newTenantOf(t, sharedEtcd(t), name)
}

// newTenantOf provisions a tenant of another etcd.
func newTenantOf(t testing.TB, s *etcdserver.Server, name string) tenantIn {
	t.Helper()
	n := numbers.Add(1)
	id := etcd.ID{Cluster: "test", Namespace: fmt.Sprintf("n%d", n), Name: name}
	prefix := id.DefaultPrefix()
	cert, err := s.AddUser(t.Context(), id.User(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := etcdserver.NewAuthority("clients of " + name)
	if err != nil {
		t.Fatal(err)
	}
	return tenantIn{
		Tenant: Tenant{
			Namespace: etcd.Namespace{ID: id, Number: n, Prefix: prefix},
			ClientCAs: ca.Pool(),
			Upstream:  Upstream{Endpoints: []string{s.Endpoint}, Certificate: cert, CAs: s.Authority.Pool()},
		},
		ca: ca,
	}
}

// certificate issues a certificate for a client of the tenant.
func (x tenantIn) certificate(t testing.TB) tls.Certificate {
	t.Helper()
	return issue(t, x.ca, x.ID)
}

func issue(t testing.TB, by *etcdserver.Authority, ids ...etcd.ID) tls.Certificate {
	t.Helper()
	template := etcdserver.Client()
	for _, id := range ids {
		template.URIs = append(template.URIs, id.URI())
	}
	cert, err := by.Issue(template)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// both runs a test with each transport; [serve] chooses it by the test's name.
func both(t *testing.T, test func(*testing.T)) {
	t.Parallel()
	for _, name := range []string{"fast", "grpc"} {
		t.Run(name, test)
	}
}

// all runs a test with each transport, and with the shared etcd as a member in the proxy's process.
func all(t *testing.T, test func(*testing.T)) {
	both(t, test)
	t.Run("local", test)
}

// isLocal reports whether a test uses an etcd in the proxy's process.
func isLocal(t testing.TB) bool { return strings.Contains(t.Name()+"/", "/local/") }

// isGRPC reports whether a test uses grpc-go as the transport.
func isGRPC(t testing.TB) bool { return strings.Contains(t.Name()+"/", "/grpc/") }

// running is a serving proxy.
type running struct {
	*Proxy
	addr string
	ca   *etcdserver.Authority
}

// serve runs a proxy until the test ends.
func serve(t testing.TB, cfg Config, tenants ...tenantIn) running {
	t.Helper()
	ca, err := etcdserver.NewAuthority("proxy")
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.Issue(etcdserver.Serving())
	if err != nil {
		t.Fatal(err)
	}
	cfg.GRPCGo = cfg.GRPCGo || isGRPC(t)
	if isLocal(t) && cfg.Member == nil {
		cfg.Member = sharedMember(t)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Certificate == nil {
		cfg.Certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil }
	}
	if cfg.Limits.Drain == 0 {
		cfg.Limits.Drain = time.Millisecond
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Set(tenantsOf(tenants...)); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the proxy ended: %v", err)
		}
		p.Close()
	})
	return running{Proxy: p, addr: l.Addr().String(), ca: ca}
}

func tenantsOf(in ...tenantIn) []Tenant {
	var out []Tenant
	for _, x := range in {
		out = append(out, x.Tenant)
	}
	return out
}

// dial connects with a certificate.
func (r running) dial(t testing.TB, cert tls.Certificate) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"https://" + r.addr}, Logger: zap.NewNop(),
		TLS: &tls.Config{RootCAs: r.ca.Pool(), Certificates: []tls.Certificate{cert}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// client connects as a client of a tenant.
func (r running) client(t testing.TB, x tenantIn) *clientv3.Client {
	t.Helper()
	return r.dial(t, x.certificate(t))
}

// plain connects without etcd's client library, which retries some calls.
func (r running) plain(t testing.TB, cert tls.Certificate) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(r.addr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: r.ca.Pool(), Certificates: []tls.Certificate{cert}})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}
