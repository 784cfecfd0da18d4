// Package etcdproxy serves namespaces of one etcd to tenants that do not see each other.
//
// Two walls keep them apart. The proxy rewrites the keys and the IDs of leases in the calls
// that it knows, and refuses all others; and it sends them to etcd as the user of the
// namespace, whose role is the range of its keys. A client is the tenant that the URI in its
// certificate names, verified against the certificate authorities of that tenant alone.
//
//   - proxy.go: [Config], [Tenant], [Proxy]; what is served and how that changes
//   - identity.go, session.go: who a connection belongs to, and closing it once it no longer may
//   - upstream.go, leader.go: the connection to etcd that a tenant has, and leaving a member
//   - fast.go: the same without grpc-go, for what is called most
//   - local.go: an etcd in the same process
//   - calls.go: each method, and how it is served; refusal of all others
//   - unary.go, watch.go, lease.go, maintenance.go, compact.go: the calls
//   - resend.go: what is sent to etcd again
//   - frame.go, errors.go: messages as bytes, and what a tenant is told of errors
//   - gate.go: the seam for quota and throttling, which package guard has
//   - slow.go: clients that do not read
//   - memory.go: what messages take of the process' memory
//
// The rewriting itself is pure, in the package wire. The package provisions nothing: users,
// roles and certificates are reconcile/etcd's.
package etcdproxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"gitopsd.dev/reconcile/etcdproxy/member"
	"gitopsd.dev/render/etcd"
)

// Config configures a [Proxy].
type Config struct {
	// Log gets a line for what an operator should look at; required. Keys and values are
	// never logged.
	Log *slog.Logger
	// Certificate returns the certificate to serve with; required. It is called for each
	// connection, so that a renewed certificate needs no restart.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// ClientURL is what MemberList answers, such as "https://sample-etcd.default.svc:2379".
	// If empty, it is the host and port that the client asked for.
	ClientURL string
	// Gate decides on requests and knows how much is used; nil for none.
	Gate Gate
	// Floors keeps the revisions up to which tenants compacted; nil keeps them in memory.
	Floors Floors
	// Limits bound what one client may cost.
	Limits Limits
	// Member is the etcd of all tenants if it is in this process, which is then reached without
	// sockets, whatever the endpoints; nil if it is not. See local.go.
	Member *member.Member
	// GRPCGo has grpc-go serve clients and make all calls, which takes more CPU. Otherwise frames of
	// HTTP/2 are relayed without it, on the way of calls that have one request and one response;
	// see fast.go.
	GRPCGo bool
}

// Limits bound what clients may cost. Zero fields get the defaults.
type Limits struct {
	// RequestBytes is the size of the largest request; 2 MiB by default, as in etcd (1.5 MiB
	// and half as overhead).
	RequestBytes int
	// ResponseBytes is the size of the largest response of etcd, which is held in memory as
	// a whole; 128 MiB by default. Larger ranges need a limit, or RangeStream.
	ResponseBytes int
	// LargeBytes is how much memory responses of etcd that are not small may take, of all
	// tenants together, until they are ready for clients; twice ResponseBytes by default.
	// Others wait.
	LargeBytes int
	// HeaderBytes is the size of the largest list of headers; 16 KiB by default.
	HeaderBytes uint32
	// Streams is the largest number of calls in progress on a connection; 1000 by default.
	Streams uint32
	// Calls is the largest number of calls in progress of a tenant, streams and those that
	// wait included; 10000 by default.
	Calls int
	// Unread is how long a client may leave unread what a stream has for it; a minute by
	// default. Then the stream ends.
	Unread time.Duration
	// UnreadBytes is how much is held of responses that clients do not read, of all tenants
	// together, before reads are refused to those who have more than an even share of it;
	// half of ResponseBytes by default. As much is held of requests.
	UnreadBytes int
	// Connections is the largest number of connections of a tenant; 5000 by default. A
	// kube-apiserver has one for each type of its objects.
	Connections int
	// Handshakes is the largest number of connections that are not authenticated yet; 1000 by
	// default. Beyond it new ones are closed at once.
	Handshakes int
	// Handshake is how long a connection may take until it is authenticated; 10 seconds by
	// default.
	Handshake time.Duration
	// Drain is how long calls in progress may go on when Serve ends; 10 seconds by default.
	Drain time.Duration
}

func (l Limits) withDefaults() Limits {
	l.RequestBytes = cmp.Or(l.RequestBytes, 2<<20)
	l.ResponseBytes = cmp.Or(l.ResponseBytes, 128<<20)
	l.HeaderBytes = cmp.Or(l.HeaderBytes, 16<<10)
	l.Streams = cmp.Or(l.Streams, 1000)
	l.Calls = cmp.Or(l.Calls, 10_000)
	l.LargeBytes = cmp.Or(l.LargeBytes, 2*l.ResponseBytes)
	l.UnreadBytes = cmp.Or(l.UnreadBytes, l.ResponseBytes/2)
	l.Unread = cmp.Or(l.Unread, time.Minute)
	l.Connections = cmp.Or(l.Connections, 5000)
	l.Handshakes = cmp.Or(l.Handshakes, 1000)
	l.Handshake = cmp.Or(l.Handshake, 10*time.Second)
	l.Drain = cmp.Or(l.Drain, 10*time.Second)
	return l
}

// Tenant is a namespace to serve.
type Tenant struct {
	etcd.Namespace
	// ClientCAs sign the certificates of its clients, and of no other tenant's; required.
	// There are several while one replaces another.
	ClientCAs *x509.CertPool
	// Upstream is how etcd is reached as the user of the namespace.
	Upstream Upstream
}

// Upstream is how a tenant's requests reach etcd.
type Upstream struct {
	// Endpoints are URLs as in "https://10.0.0.1:2379"; required. They are tried in a random
	// order, and the next one if a connection fails.
	Endpoints []string
	// Certificate is that of the namespace's own user in etcd; required. Connections that
	// are open when it is replaced stay.
	Certificate tls.Certificate
	// CAs sign etcd's serving certificates; required.
	CAs *x509.CertPool
	// ServerName is verified in etcd's certificate instead of the host of the endpoint.
	ServerName string
}

// Proxy serves tenants. Its methods may be called at the same time.
type Proxy struct {
	cfg        Config
	handshakes chan struct{} // one element for each connection that is not authenticated yet
	large      *semaphore.Weighted
	unread     atomic.Int64 // bytes of responses that are not read, of all tenants
	asked      atomic.Int64 // bytes of requests in progress
	served     atomic.Int64 // tenants

	setting sync.Mutex // held by Set as a whole
	mu      sync.Mutex
	tenants map[string]*tenant // by the URI of their clients; the map is replaced as a whole
}

// New returns a proxy that serves no tenant yet.
func New(cfg Config) (*Proxy, error) {
	switch {
	case cfg.Log == nil:
		return nil, errors.New("etcd proxy: no log")
	case cfg.Certificate == nil:
		return nil, errors.New("etcd proxy: no certificate to serve with")
	}
	cfg.Limits = cfg.Limits.withDefaults()
	if cfg.Gate == nil {
		cfg.Gate = open{}
	}
	if cfg.Floors == nil {
		cfg.Floors = new(memory)
	}
	return &Proxy{
		cfg:        cfg,
		handshakes: make(chan struct{}, cfg.Limits.Handshakes),
		large:      semaphore.NewWeighted(int64(cfg.Limits.LargeBytes)),
	}, nil
}

// Serve serves on a listener until ctx ends or the listener fails. It then refuses new calls,
// lets those in progress end for [Limits.Drain], and closes the listener and its connections.
// The error is nil if ctx ended.
func (p *Proxy) Serve(ctx context.Context, l net.Listener) error {
	server := p.server()
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		server.Stop()
		return fmt.Errorf("etcd proxy on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	drained := make(chan struct{})
	go func() {
		server.GracefulStop()
		close(drained)
	}()
	select {
	case <-drained:
	case <-time.After(p.cfg.Limits.Drain):
		server.Stop()
		<-drained
	}
	<-failed
	return nil
}

// Close closes the connections to etcd and of clients. Nothing is served afterwards.
func (p *Proxy) Close() error { return p.Set(nil) }

// tenantOf returns who the URI of a certificate names; nil if that is nobody.
func (p *Proxy) tenantOf(uri string) *tenant {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tenants[uri]
}

// server serves connections.
type server interface {
	Serve(net.Listener) error
	GracefulStop()
	Stop()
}

// streamWorkers are the goroutines that serve calls one after the other.
const streamWorkers = 256

// server returns a server of gRPC that hands each call to the proxy as bytes.
func (p *Proxy) server() server {
	if !p.cfg.GRPCGo {
		return p.fastServer()
	}
	l := p.cfg.Limits
	return grpc.NewServer(
		grpc.Creds(&identify{proxy: p}),
		grpc.ConnectionTimeout(l.Handshake),
		grpc.ForceServerCodecV2(codec{}),
		grpc.UnknownServiceHandler(p.serve),
		grpc.MaxRecvMsgSize(l.RequestBytes),
		grpc.MaxSendMsgSize(l.ResponseBytes),
		grpc.MaxHeaderListSize(l.HeaderBytes),
		grpc.MaxConcurrentStreams(l.Streams),
		// Fixed windows bound what a client can have the proxy hold: a request that nobody
		// waits for stays with the client.
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connWindow),
		grpc.KeepaliveEnforcementPolicy(enforcement),
		grpc.KeepaliveParams(serverKeepalive),
		grpc.WaitForHandlers(true),
		// Calls beyond these have goroutines of their own, whose stacks grow each time: that was an
		// eighth of the CPU of a put. A watch keeps one of these while it lasts.
		grpc.NumStreamWorkers(streamWorkers),
	)
}
