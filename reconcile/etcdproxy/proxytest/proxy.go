// Package proxytest runs an etcd with authentication, provisions namespaces in it, and serves
// them with gitopsd's proxy, for tests and benchmarks.
//
//   - etcd.go: an [Etcd] in this process or another, with a user for each namespace
//   - proxy.go: a [Proxy] in this process
//   - kind.go: a [Kind] of proxy
//   - process.go: an etcd or a proxy in a [Process] of its own, which can be killed
//   - tunnel.go: clients and servers that do not speak TLS
//   - pki.go: certificates
package proxytest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"gitopsd.dev/reconcile/etcdproxy"
	"gitopsd.dev/reconcile/etcdproxy/guard"
	"gitopsd.dev/reconcile/etcdproxy/member"
	"gitopsd.dev/render/etcd"
)

// Served is an [etcdproxy.Tenant] that can be encoded as JSON. Certificates and keys are PEM.
type Served struct {
	etcd.Namespace
	// Endpoints are etcd's URLs.
	Endpoints []string
	// User and UserKey are the certificate of the namespace's user, and CA is etcd's.
	User, UserKey, CA []byte
	// ClientCA signs the certificates of its clients.
	ClientCA []byte
}

// Serve provisions a namespace. clients is the CA of its clients' certificates.
func (e *Etcd) Serve(ctx context.Context, ns etcd.Namespace, clients []byte) (Served, error) {
	if err := e.Provision(ctx, ns); err != nil {
		return Served{}, err
	}
	user, err := e.User(ns.ID.User())
	if err != nil {
		return Served{}, err
	}
	s := Served{Namespace: ns, Endpoints: []string{e.Endpoint}, CA: e.CA(), ClientCA: clients}
	s.User, s.UserKey, err = EncodePair(user)
	return s, err
}

// Tenant decodes the tenant.
func (s Served) Tenant() (etcdproxy.Tenant, error) {
	user, err := tls.X509KeyPair(s.User, s.UserKey)
	if err != nil {
		return etcdproxy.Tenant{}, fmt.Errorf("%s: %w", s.ID, err)
	}
	pool := func(text []byte) *x509.CertPool {
		p := x509.NewCertPool()
		p.AppendCertsFromPEM(text)
		return p
	}
	return etcdproxy.Tenant{
		Namespace: s.Namespace,
		ClientCAs: pool(s.ClientCA),
		Upstream:  etcdproxy.Upstream{Endpoints: s.Endpoints, Certificate: user, CAs: pool(s.CA)},
	}, nil
}

// Config configures a [Proxy]. It can be encoded as JSON.
type Config struct {
	// Certificate and Key are the proxy's, PEM.
	Certificate, Key []byte
	Tenants          []Served
	// GRPCGo and Member are as in [etcdproxy.Config]. A proxy in another process has no Member.
	GRPCGo bool
	Member *member.Member `json:"-"`
}

// Proxy is a proxy in this process.
type Proxy struct {
	proxy *etcdproxy.Proxy
	gate  *guard.Guard
	stop  context.CancelFunc
	ended chan error
	// Address is where it listens.
	Address string
}

// Start starts a proxy on a listener.
func (c Config) Start(l net.Listener) (*Proxy, error) {
	certificate, err := tls.X509KeyPair(c.Certificate, c.Key)
	if err != nil {
		return nil, fmt.Errorf("the proxy's certificate: %w", err)
	}
	var tenants []etcdproxy.Tenant
	for _, s := range c.Tenants {
		t, err := s.Tenant()
		if err != nil {
			return nil, err
		}
		tenants = append(tenants, t)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	gate, err := guard.New(guard.Config{Log: log})
	if err != nil {
		return nil, err
	}
	proxy, err := etcdproxy.New(etcdproxy.Config{
		Log:         log,
		Gate:        gate,
		Floors:      gate,
		GRPCGo:      c.GRPCGo,
		Member:      c.Member,
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &certificate, nil },
	})
	if err != nil {
		return nil, err
	}
	if err := proxy.Set(tenants); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &Proxy{proxy: proxy, gate: gate, stop: stop, ended: make(chan error, 1), Address: l.Addr().String()}
	go func() { p.ended <- proxy.Serve(ctx, l) }()
	return p, nil
}

// Settle waits until the proxy has counted all namespaces, but no longer than patience: etcd may be down on
// purpose.
func (p *Proxy) Settle(patience time.Duration) {
	for end := time.Now().Add(patience); p.gate.Ready() != nil && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// Close closes all connections, and ends the proxy.
func (p *Proxy) Close() error {
	err := p.proxy.Close()
	p.stop()
	if ended := <-p.ended; ended != nil {
		return ended
	}
	return err
}

// ClientTLS returns the TLS configuration of a client of a namespace. clients signs its certificate, and servers
// the proxy's.
func ClientTLS(id etcd.ID, clients, servers *Authority) (*tls.Config, error) {
	certificate, err := clients.Client("client", id.URI())
	if err != nil {
		return nil, err
	}
	return &tls.Config{RootCAs: servers.Pool(), Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}}, nil
}
