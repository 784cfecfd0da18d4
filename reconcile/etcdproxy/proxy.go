// Package etcdproxy serves namespaces of one etcd to tenants that do not see each other.
//
// Two walls keep them apart. The proxy rewrites the keys and lease IDs in the calls that it
// knows, and refuses all other calls. And it calls etcd as the user of the namespace, whose role
// is limited to the namespace's keys. The URI in a client's certificate names its tenant; the
// certificate is verified against the certificate authorities of that tenant alone.
//
//   - proxy.go: [Config], [Tenant], [Proxy], serving
//   - tenant.go: the tenants and their replacement, [Proxy.Set]
//   - identity.go, handshakes.go, session.go: authenticating connections, and closing those no longer
//     trusted
//   - upstream.go, leader.go: a tenant's connection to etcd, and leaving a member
//   - fast.go: the transport without grpc-go
//   - local.go: an etcd in the same process
//   - calls.go: the methods and their handlers
//   - unary.go, watch.go, lease.go, maintenance.go, compact.go: the handlers
//   - resend.go: calls that are sent to etcd again
//   - frame.go, errors.go: messages as bytes, and errors for tenants
//   - gate.go: [Gate], for quota and throttling
//   - slow.go: clients that do not read
//   - memory.go: bounds of the memory of messages
//   - pong.go: answers to pings of grpc-go's clients
//   - counts.go: [Counts]
//
// Package wire rewrites messages. Package guard is the Gate of gitopsd. Users, roles and
// certificates are provisioned by reconcile/etcd.
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
	"gitopsd.dev/reconcile/listener"
	"gitopsd.dev/render/etcd"
)

// Config configures a [Proxy].
type Config struct {
	// Log gets what an operator should look at; required. Keys and values are never logged.
	Log *slog.Logger
	// Certificate returns the serving certificate; required. It is called for each connection,
	// so that a renewed certificate needs no restart.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Gate decides on requests and knows how much is used; nil for none.
	Gate Gate
	// Floors keeps the revisions that tenants compacted to; nil keeps them in memory.
	Floors Floors
	// Limits bound what clients may cost.
	Limits Limits
	// Member is the etcd of all tenants if it runs in this process. It is reached without sockets,
	// whatever the endpoints. nil if etcd runs elsewhere. See local.go.
	Member *member.Member
	// GRPCGo has grpc-go serve clients and make all calls, which takes more CPU, and does not bound
	// what it holds of requests that clients have sent in part. By default package
	// h2 serves clients, and makes the calls with one request and one response; see fast.go.
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
	// LargeBytes is how much memory large responses of etcd may take until they are ready for
	// clients, of all tenants together; twice ResponseBytes by default. Others wait.
	LargeBytes int
	// HeaderBytes is the size of the largest list of headers; 16 KiB by default.
	HeaderBytes uint32
	// Streams is the largest number of calls in progress on a connection; 1000 by default.
	Streams uint32
	// Calls is the largest number of calls in progress of a tenant, including streams and calls
	// that wait; 10000 by default.
	Calls int
	// Unread is how long a client may leave a message of a stream unread before the stream ends;
	// a minute by default.
	Unread time.Duration
	// Unfinished is how long a client may take to send the rest of a request, or the next 64 KiB
	// of it; a minute by default. It does not apply with GRPCGo.
	Unfinished time.Duration
	// UnreadBytes is how many bytes of unread responses are held, of all tenants together, before
	// reads are refused to tenants with more than an even share; half of ResponseBytes by default.
	// It also bounds requests.
	UnreadBytes int
	// Connections is the largest number of connections of a tenant; 5000 by default. A
	// kube-apiserver has one for each type of its objects.
	Connections int
	// Handshakes is the largest number of connections that are not authenticated yet; 1000 by
	// default. With more, the oldest of the client address that has the most is closed.
	Handshakes int
	// Handshake is how long a handshake may take; 10 seconds by default.
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
	l.Unfinished = cmp.Or(l.Unfinished, time.Minute)
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
	// Upstream says how to reach etcd as the user of the namespace.
	Upstream Upstream
}

// Upstream says how a tenant's requests reach etcd.
type Upstream struct {
	// Endpoints are URLs as in "https://10.0.0.1:2379"; required. They are tried in random
	// order.
	Endpoints []string
	// Certificate is the certificate of the namespace's user in etcd; required. Open connections
	// stay when it is replaced.
	Certificate tls.Certificate
	// CAs sign etcd's serving certificates; required.
	CAs *x509.CertPool
	// ServerName is the name to verify in etcd's certificate; the host of the endpoint if empty.
	ServerName string
}

// Proxy serves tenants. Its methods may be called concurrently.
type Proxy struct {
	cfg        Config
	handshakes handshakes
	large      *semaphore.Weighted
	unread     atomic.Int64 // bytes of unread responses, of all tenants
	asked      atomic.Int64 // bytes of requests in progress
	served     atomic.Int64 // number of tenants

	setting sync.Mutex // held during Set
	mu      sync.Mutex
	tenants map[string]*tenant // by the URI of their clients; the map is replaced as a whole
}

// New returns a proxy without tenants; see [Proxy.Set].
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
		handshakes: handshakes{most: cfg.Limits.Handshakes},
		large:      semaphore.NewWeighted(int64(cfg.Limits.LargeBytes)),
	}, nil
}

// Serve serves on a listener until ctx ends or somebody closes the listener. When ctx ends, it refuses new calls,
// waits up to [Limits.Drain] for those in progress, and closes the listener and its connections.
// The error is nil if ctx ended.
func (p *Proxy) Serve(ctx context.Context, l net.Listener) error {
	server := p.server()
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener.Patient(l, p.cfg.Log)) }()
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

// Close removes all tenants, and closes their connections.
func (p *Proxy) Close() error { return p.Set(nil) }

// tenantOf returns the tenant that the URI of a certificate names; nil for none.
func (p *Proxy) tenantOf(uri string) *tenant {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tenants[uri]
}

// server is a [grpc.Server] or an h2.Server.
type server interface {
	Serve(net.Listener) error
	GracefulStop()
	Stop()
}

// server returns a server that hands each call to the proxy as bytes.
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
		// Fixed windows bound what a client can make the proxy hold: a request that no call waits
		// for stays with the client.
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connWindow),
		grpc.KeepaliveEnforcementPolicy(enforcement),
		grpc.KeepaliveParams(serverKeepalive),
		grpc.WaitForHandlers(true),
		// Each call beyond these has a new goroutine whose stack has to grow, which took an eighth of
		// the CPU of a put. A watch keeps a worker while it lasts.
		grpc.NumStreamWorkers(256),
	)
}
