package etcdproxy

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"gitopsd.dev/render/etcd"
	"gitopsd.dev/testscripts/etcdserver"
)

// get reads over a new connection with a certificate.
func (r running) get(t *testing.T, config *tls.Config) error {
	t.Helper()
	config.RootCAs = r.ca.Pool()
	conn, err := grpc.NewClient(r.addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = pb.NewKVClient(conn).Range(t.Context(), &pb.RangeRequest{Key: []byte("k")})
	return err
}

func fingerprint(cert tls.Certificate) string {
	sum := sha256.Sum256(cert.Certificate[0])
	return strings.ToUpper(hex.EncodeToString(sum[:]))
}

// Only a certificate of the tenant's own authority, with the tenant's URI and no other, is accepted.
func TestWhoGetsIn(t *testing.T) { both(t, testWhoGetsIn) }

func testWhoGetsIn(t *testing.T) {
	t.Parallel()
	a, b := newTenantIn(t, "a"), newTenantIn(t, "b")
	issueTemplate := func(by *etcdserver.Authority, change func(*x509.Certificate), with ...*etcdserver.Authority) tls.Certificate {
		template := etcdserver.Client(a.ID.URI())
		change(template)
		cert, err := by.Issue(template, with...)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	as := func(change func(*x509.Certificate)) tls.Certificate { return issueTemplate(a.ca, change) }
	same := func(*x509.Certificate) {}
	uri := func(s string) *url.URL {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	stranger, err := etcdserver.NewAuthority("clients of a")
	if err != nil {
		t.Fatal(err)
	}
	between, err := a.ca.Intermediate("between")
	if err != nil {
		t.Fatal(err)
	}
	asIfCA, err := a.ca.Leaf(etcdserver.Client(a.ID.URI()))
	if err != nil {
		t.Fatal(err)
	}
	leaf := issue(t, a.ca, a.ID)
	revoked, kept := issue(t, a.ca, a.ID), issue(t, a.ca, a.ID)
	a.Revoked = []string{fingerprint(revoked), strings.Repeat("0", 64)}
	p := serve(t, Config{}, a, b)
	for _, tt := range []struct {
		name string
		cert tls.Certificate
		ok   bool
	}{
		{"its own", leaf, true},
		{"its own, beside one that is revoked", kept, true},
		{"by an intermediate that is sent with it", issueTemplate(between, same, between), true},
		{"with a DNS name and an address beside the URI", as(func(c *x509.Certificate) { c.DNSNames, c.IPAddresses = []string{"x"}, []net.IP{{1, 2, 3, 4}} }), true},
		{"none", tls.Certificate{}, false},
		{"of another tenant's authority", issueTemplate(b.ca, same), false},
		{"of its own authority with another tenant's URI", issue(t, a.ca, b.ID), false},
		{"of an unknown authority with the same name", issueTemplate(stranger, same), false},
		{"self-signed", issueTemplate(nil, same), false},
		{"by an intermediate that is not sent", issueTemplate(between, same), false},
		{"by a leaf", issueTemplate(asIfCA, same, asIfCA), false},
		{"two URIs", issue(t, a.ca, a.ID, b.ID), false},
		{"its URI twice", issue(t, a.ca, a.ID, a.ID), false},
		{"no URI", issue(t, a.ca), false},
		{"the name in the subject only", as(func(c *x509.Certificate) {
			c.URIs, c.Subject.CommonName, c.DNSNames = nil, a.ID.String(), []string{"gitopsd.dev"}
		}), false},
		{"of etcd's authority, as the user", a.Upstream.Certificate, false},
		{"another trust domain", as(func(c *x509.Certificate) { c.URIs = []*url.URL{uri("spiffe://example.org/etcd/" + a.ID.String())} }), false},
		{"a URI with a query", as(func(c *x509.Certificate) { c.URIs = []*url.URL{uri(a.ID.URI().String() + "?x")} }), false},
		{"a URI with a slash at the end", as(func(c *x509.Certificate) { c.URIs = []*url.URL{uri(a.ID.URI().String() + "/")} }), false},
		{"a URI that is escaped", as(func(c *x509.Certificate) {
			c.URIs = []*url.URL{uri(strings.Replace(a.ID.URI().String(), "/test/", "/%74est/", 1))}
		}), false},
		{"a URI above it", as(func(c *x509.Certificate) { c.URIs = []*url.URL{etcd.ID{Cluster: "test"}.URI()} }), false},
		{"expired", as(func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
		}), false},
		{"not valid yet", as(func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
		}), false},
		{"for servers only", as(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), false},
		{"revoked", revoked, false},
	} {
		config := &tls.Config{Certificates: []tls.Certificate{tt.cert}}
		if tt.cert.Certificate == nil {
			config.Certificates = nil
		}
		err := p.get(t, config)
		if (err == nil) != tt.ok || err != nil && status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", tt.name, err)
		}
		if err != nil && strings.Contains(err.Error(), b.ID.Name+" ") {
			t.Errorf("%s: the error tells: %v", tt.name, err)
		}
	}
	if err := p.get(t, &tls.Config{Certificates: []tls.Certificate{leaf}, MaxVersion: tls.VersionTLS12}); err == nil {
		t.Error("TLS 1.2 is good enough")
	}
}

// TLS sessions cannot be resumed, so no ticket outlives a revocation.
func TestNoResumption(t *testing.T) {
	t.Parallel()
	a := newTenantIn(t, "a")
	p := serve(t, Config{}, a)
	cache := tls.NewLRUClientSessionCache(10)
	config := &tls.Config{Certificates: []tls.Certificate{a.certificate(t)}, RootCAs: p.ca.Pool(), ServerName: "localhost", ClientSessionCache: cache, NextProtos: []string{"h2"}}
	for range 3 {
		conn, err := tls.Dial("tcp", p.addr, config)
		if err != nil {
			t.Fatal(err)
		}
		conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
		conn.Read(make([]byte, 100)) // the settings; tickets would have come before
		if conn.ConnectionState().DidResume {
			t.Error("a session was resumed")
		}
		if ticket, ok := cache.Get("localhost"); ok {
			t.Errorf("there is a ticket: %v", ticket)
		}
		conn.Close()
	}
}

// An open connection is closed, with its watches, when its client is no longer trusted. Others stay.
func TestOpenConnections(t *testing.T) { both(t, testOpenConnections) }

func testOpenConnections(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, a *tenantIn, cert tls.Certificate, all []Tenant) []Tenant
	}{
		{"revoked", func(_ *testing.T, a *tenantIn, cert tls.Certificate, all []Tenant) []Tenant {
			all[0].Revoked = []string{fingerprint(cert)}
			return all
		}},
		{"removed", func(_ *testing.T, _ *tenantIn, _ tls.Certificate, all []Tenant) []Tenant { return all[1:] }},
		{"another authority", func(t *testing.T, a *tenantIn, _ tls.Certificate, all []Tenant) []Tenant {
			ca, err := etcdserver.NewAuthority("new")
			if err != nil {
				t.Fatal(err)
			}
			all[0].ClientCAs = ca.Pool()
			return all
		}},
		{"other keys", func(_ *testing.T, a *tenantIn, _ tls.Certificate, all []Tenant) []Tenant {
			all[0].Prefix += "moved/"
			return all
		}},
		{"not to be served as it is", func(_ *testing.T, a *tenantIn, _ tls.Certificate, all []Tenant) []Tenant {
			all[0].ClientCAs = nil
			return all
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a, b := newTenantIn(t, "a"), newTenantIn(t, "b")
			p := serve(t, Config{}, a, b)
			cert := a.certificate(t)
			ends, stays := p.open(t, cert), p.open(t, b.certificate(t))
			err := p.Set(tt.change(t, &a, cert, tenantsOf(a, b)))
			if (err != nil) != (tt.name == "not to be served as it is") {
				t.Errorf("Set: %v", err)
			}
			if _, err := ends.Recv(); status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
				t.Errorf("the watch ended with %v", err)
			}
			if err := p.get(t, &tls.Config{Certificates: []tls.Certificate{cert}}); err == nil && tt.name != "other keys" {
				t.Error("the client got in again")
			}
			stays.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
			if _, err := stays.Recv(); err != nil {
				t.Errorf("another's watch ended: %v", err)
			}
		})
	}
}

// open opens a connection with a watch on it.
func (r running) open(t *testing.T, cert tls.Certificate) pb.Watch_WatchClient {
	t.Helper()
	stream, err := pb.NewWatchClient(r.plain(t, cert)).Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte("k")}}}); err != nil {
		t.Fatal(err)
	}
	if created, err := stream.Recv(); err != nil || !created.Created {
		t.Fatalf("watch: %v, %v", created, err)
	}
	return stream
}

// A connection ends when its certificate expires.
func TestExpiresWhileOpen(t *testing.T) { both(t, testExpiresWhileOpen) }

func testExpiresWhileOpen(t *testing.T) {
	t.Parallel()
	a := newTenantIn(t, "a")
	p := serve(t, Config{}, a)
	template := etcdserver.Client(a.ID.URI())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(3*time.Second)
	cert, err := a.ca.Issue(template)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := p.open(t, cert).Recv(); err == nil {
		t.Errorf("the watch goes on: %v", got)
	}
}

// Certificates are replaced while a stream goes on: the proxy's, its CAs for clients, and the one for etcd. New
// connections use the new ones.
func TestRotation(t *testing.T) { both(t, testRotation) }

func testRotation(t *testing.T) {
	t.Parallel()
	a := newTenantIn(t, "a")
	s := sharedEtcd(t)
	var serving atomic.Pointer[tls.Certificate]
	renew := func(ca *etcdserver.Authority) {
		cert, err := ca.Issue(etcdserver.Serving())
		if err != nil {
			t.Fatal(err)
		}
		serving.Store(&cert)
	}
	first, err := etcdserver.NewAuthority("first")
	if err != nil {
		t.Fatal(err)
	}
	renew(first)
	p := serve(t, Config{Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return serving.Load(), nil }}, a)
	p.ca = first
	old := a.certificate(t)
	watch := p.open(t, old)

	second, err := etcdserver.NewAuthority("second")
	if err != nil {
		t.Fatal(err)
	}
	renew(second)
	newCA, err := etcdserver.NewAuthority("new clients")
	if err != nil {
		t.Fatal(err)
	}
	both := a.ca.Pool()
	both.AddCert(newCA.Certificate)
	a.ClientCAs = both // the overlap of a rotation
	a.Upstream.Certificate, err = s.Authority.Issue(etcdserver.User(a.ID.User()))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Set(tenantsOf(a)); err != nil {
		t.Fatal(err)
	}
	p.ca = second
	for _, cert := range []tls.Certificate{old, issue(t, newCA, a.ID)} {
		if err := p.get(t, &tls.Config{Certificates: []tls.Certificate{cert}}); err != nil {
			t.Errorf("after the rotation: %v", err)
		}
	}
	if _, err := p.client(t, a).Put(t.Context(), "k", "v"); err != nil {
		t.Fatal(err)
	}
	if got, err := watch.Recv(); err != nil || len(got.Events) != 1 {
		t.Errorf("the watch from before the rotation: %v, %v", got, err)
	}
}

// Invalid tenants do not affect others.
func TestSet(t *testing.T) {
	t.Parallel()
	good := newTenantIn(t, "good")
	with := func(change func(*Tenant)) Tenant {
		x := good.Tenant
		x.ID.Name, x.Prefix, x.Number = "other", "/other/", 999_999
		change(&x)
		return x
	}
	p := serve(t, Config{})
	for _, tt := range []struct {
		name string
		bad  Tenant
		want string
		both bool // the good one is not served either
	}{
		{"no prefix", with(func(x *Tenant) { x.Prefix = "" }), `prefix ""`, false},
		{"everything", with(func(x *Tenant) { x.Prefix = "/" }), `prefix "/"`, false},
		{"no terminator", with(func(x *Tenant) { x.Prefix = "/a" }), "does not end with /", false},
		{"number 0", with(func(x *Tenant) { x.Number = 0 }), "number 0", false},
		{"large number", with(func(x *Tenant) { x.Number = 1 << 20 }), "number 1048576", false},
		{"no authority", with(func(x *Tenant) { x.ClientCAs = nil }), "no certificate authority for its clients", false},
		{"no endpoint", with(func(x *Tenant) { x.Upstream.Endpoints = nil }), "no endpoint", false},
		{"plain endpoint", with(func(x *Tenant) { x.Upstream.Endpoints = []string{"http://127.0.0.1:2379"} }), "not a URL as in https://", false},
		{"no user", with(func(x *Tenant) { x.Upstream.Certificate = tls.Certificate{} }), "no certificate for etcd", false},
		{"trusts any etcd", with(func(x *Tenant) { x.Upstream.CAs = nil }), "no certificate authority of etcd", false},
		{"inside another's", with(func(x *Tenant) { x.Prefix = good.Prefix + "in/" }), "overlaps", true},
		{"same number", with(func(x *Tenant) { x.Number = good.Number }), "too", true},
		{"same name", with(func(x *Tenant) { x.ID = good.ID }), "twice", true},
	} {
		err := p.Set([]Tenant{good.Tenant, tt.bad})
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.bad.ID.String()) {
			t.Errorf("%s: %v", tt.name, err)
		}
		_, served := p.Counts()[good.ID]
		_, bad := p.Counts()[tt.bad.ID]
		if served == tt.both || bad && tt.bad.ID != good.ID {
			t.Errorf("%s: the other is served: %t; it is itself: %t", tt.name, served, bad)
		}
	}
}

// The number of connections of a tenant is limited; those of others do not count.
func TestConnectionLimit(t *testing.T) { both(t, testConnectionLimit) }

func testConnectionLimit(t *testing.T) {
	t.Parallel()
	a, b := newTenantIn(t, "a"), newTenantIn(t, "b")
	p := serve(t, Config{Limits: Limits{Connections: 2}}, a, b)
	p.open(t, a.certificate(t))
	p.open(t, a.certificate(t))
	if err := p.get(t, &tls.Config{Certificates: []tls.Certificate{a.certificate(t)}}); err == nil {
		t.Error("a third connection was let in")
	}
	if err := p.get(t, &tls.Config{Certificates: []tls.Certificate{b.certificate(t)}}); err != nil {
		t.Errorf("another tenant's connection: %v", err)
	}
	if n := p.Counts()[a.ID].Connections; n != 2 {
		t.Errorf("%d connections are counted", n)
	}
}

// Silent connections end by themselves, and do not keep others out.
func TestSilentConnections(t *testing.T) { both(t, testSilentConnections) }

func testSilentConnections(t *testing.T) {
	t.Parallel()
	a := newTenantIn(t, "a")
	p := serve(t, Config{Limits: Limits{Handshake: 2 * time.Second, Handshakes: 5}}, a)
	var silent []net.Conn
	for range 5 {
		c, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		silent = append(silent, c)
	}
	for _, c := range silent {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("the proxy speaks first")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := p.client(t, a).Get(ctx, "k", clientv3.WithSerializable()); err != nil {
		t.Errorf("after those: %v", err)
	}
}
