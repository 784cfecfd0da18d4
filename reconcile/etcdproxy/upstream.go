package etcdproxy

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"gitopsd.dev/reconcile/etcdproxy/inprocess"
)

// Windows of flow control: how many bytes a stream and a connection may send before they are read.
const (
	streamWindow = 1 << 20
	connWindow   = 4 << 20
)

// enforcement says how often clients may ping, as etcd does.
var enforcement = keepalive.EnforcementPolicy{MinTime: 5 * time.Second}

// serverKeepalive detects clients that vanished. Connections have no maximum age.
var serverKeepalive = keepalive.ServerParameters{Time: 2 * time.Minute, Timeout: 20 * time.Second}

// clientKeepalive detects an etcd that vanished, so that watches move to another.
var clientKeepalive = keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 10 * time.Second}

// minConnect is how long opening and authenticating a connection to etcd may take.
const minConnect = 3 * time.Second

// reconnect is how long to wait before connecting to etcd again. Clients wait meanwhile.
var reconnect = backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second}

// upstream is a tenant's connection to etcd. The first call opens it, and idleness closes it.
type upstream struct {
	conn    *grpc.ClientConn
	members *members
	creds   *upstreamCreds
	// For calls with one request and one response, before conn; at least one is nil.
	local *localUpstream
	fast  *fastUpstream
}

// serviceConfig tries the endpoints in random order, and stays with one that works: serializable reads do
// not go back in time by moving between members.
const serviceConfig = `{"loadBalancingConfig": [{"pick_first": {"shuffleAddressList": true}}]}`

func newUpstream(u Upstream, cfg Config) (*upstream, error) {
	state, err := endpoints(u)
	if err != nil {
		return nil, err
	}
	where := manual.NewBuilderWithScheme("etcd")
	where.InitialState(state)
	creds := &upstreamCreds{open: dialTCP, now: u, dialing: make(map[net.Conn]string)}
	if cfg.Member != nil {
		creds.open = cfg.Member.Dial
	}
	all := &members{where: where, creds: creds, all: state}
	conn, err := grpc.NewClient("etcd:///etcd",
		grpc.WithContextDialer(creds.dial),
		grpc.WithResolvers(where),
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithDisableServiceConfig(),
		// gRPC may still send a call again that etcd certainly did not process.
		grpc.WithDisableRetry(),
		grpc.WithChainUnaryInterceptor(all.unary, resend),
		grpc.WithStreamInterceptor(all.stream),
		grpc.WithKeepaliveParams(clientKeepalive),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: minConnect}),
		grpc.WithNoProxy(),
		// Beyond these windows, messages that a client does not read stay in etcd.
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(codec{}),
			grpc.MaxCallRecvMsgSize(cfg.Limits.ResponseBytes),
			grpc.MaxCallSendMsgSize(2*cfg.Limits.RequestBytes),
		),
	)
	if err != nil {
		return nil, err
	}
	up := &upstream{conn: conn, members: all, creds: creds}
	switch {
	case cfg.Member != nil:
		up.local = &localUpstream{member: cfg.Member, creds: creds}
	case !cfg.GRPCGo:
		up.fast = &fastUpstream{creds: creds}
	}
	return up, nil
}

// invoke makes a call that has one request and one response. A response of more than most bytes is an error.
// The request stays the caller's.
func (u *upstream) invoke(ctx context.Context, method string, in, got *frame, most int) error {
	if u.local != nil {
		if made, err := u.local.invoke(ctx, method, in, got, most); made {
			return err
		}
	}
	if u.fast != nil {
		if made, err := u.fast.invoke(ctx, method, in, got, most); made {
			u.members.heard(err)
			return err
		}
	}
	return u.conn.Invoke(ctx, method, in.lend(), got, grpc.MaxCallRecvMsgSize(most)) // resend frees it
}

// set replaces the endpoints and certificates. Open connections stay, except those to removed endpoints.
func (u *upstream) set(to Upstream) error {
	state, err := endpoints(to)
	if err != nil {
		return err
	}
	if moved := u.creds.set(to, state); moved {
		u.members.set(state)
	}
	return nil
}

func (u *upstream) close() {
	if u.fast != nil {
		u.fast.close()
	}
	u.members.close()
	u.conn.Close()
}

// endpoints returns the addresses of etcd, or an error if u is invalid.
func endpoints(u Upstream) (resolver.State, error) {
	switch {
	case len(u.Endpoints) == 0:
		return resolver.State{}, errors.New("no endpoint of etcd")
	case len(u.Certificate.Certificate) == 0:
		return resolver.State{}, errors.New("no certificate for etcd")
	case u.CAs == nil:
		return resolver.State{}, errors.New("no certificate authority of etcd")
	}
	var state resolver.State
	for _, e := range u.Endpoints {
		at, err := url.Parse(e)
		if err != nil || at.Scheme != "https" || at.Host == "" || at.Path != "" && at.Path != "/" || at.RawQuery != "" || at.User != nil {
			return resolver.State{}, fmt.Errorf("endpoint %q of etcd is not a URL as in https://10.0.0.1:2379", e)
		}
		host := at.Host
		if at.Port() == "" {
			host = net.JoinHostPort(at.Hostname(), "2379")
		}
		state.Addresses = append(state.Addresses, resolver.Address{Addr: host, ServerName: cmp.Or(u.ServerName, at.Hostname())})
	}
	return state, nil
}

// upstreamCreds authenticates connections to etcd. Each new connection uses the current certificate. It
// implements [credentials.TransportCredentials] for clients.
type upstreamCreds struct {
	open func(ctx context.Context, address string) (net.Conn, error)

	mu  sync.Mutex
	now Upstream
	// version changes with the certificates.
	version int
	// dialing has the addresses of connections that are not authenticated yet, and at is the place of
	// the last one that was.
	dialing map[net.Conn]string
	at      place
}

// place is the address of an etcd with the name in its certificate.
type place struct{ address, name string }

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

// dial opens a connection without authenticating it.
func (c *upstreamCreds) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := c.open(ctx, address)
	if err == nil {
		c.mu.Lock()
		c.dialing[conn] = address
		c.mu.Unlock()
	}
	return conn, err
}

// where returns the place that grpc-go is connected to, or was last; the zero place if that is no longer an
// endpoint.
func (c *upstreamCreds) where() place {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

// current returns the current Upstream, the version of its certificates, and the name to verify in etcd's
// certificate.
func (c *upstreamCreds) current() (u Upstream, version int, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, _ := url.Parse(c.now.Endpoints[0]) // endpoints has checked it
	return c.now, c.version, cmp.Or(c.now.ServerName, at.Hostname())
}

// set replaces the Upstream, and reports whether the endpoints have changed.
func (c *upstreamCreds) set(u Upstream, state resolver.State) (moved bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.ContainsFunc(state.Addresses, func(a resolver.Address) bool { return c.at == place{a.Addr, a.ServerName} }) {
		c.at = place{}
	}
	moved = !slices.Equal(c.now.Endpoints, u.Endpoints) || c.now.ServerName != u.ServerName
	if !slices.EqualFunc(c.now.Certificate.Certificate, u.Certificate.Certificate, bytes.Equal) || !c.now.CAs.Equal(u.CAs) {
		c.version++
	}
	c.now = u
	return moved
}

// ClientHandshake authenticates etcd to the proxy, and the tenant's user to etcd.
func (c *upstreamCreds) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.handshake(ctx, authority, raw)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.at = place{c.dialing[raw], authority}
	}
	delete(c.dialing, raw)
	return conn, info, err
}

func (c *upstreamCreds) handshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c.mu.Lock()
	now := c.now
	c.mu.Unlock()
	return inprocess.Credentials(now.credentials()).ClientHandshake(ctx, authority, raw)
}

// credentials returns the credentials of the tenant's user.
func (u Upstream) credentials() credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{
		MinVersion:   tls.VersionTLS12, // an operator may have limited etcd to it
		Certificates: []tls.Certificate{u.Certificate},
		RootCAs:      u.CAs,
		ServerName:   u.ServerName,
	})
}

// ServerHandshake implements [credentials.TransportCredentials]. It fails.
func (*upstreamCreds) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("only for clients")
}

// Info implements [credentials.TransportCredentials].
func (*upstreamCreds) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements [credentials.TransportCredentials]; copies follow the same certificates.
func (c *upstreamCreds) Clone() credentials.TransportCredentials { return c }

// OverrideServerName implements [credentials.TransportCredentials].
func (*upstreamCreds) OverrideServerName(string) error { return nil }
