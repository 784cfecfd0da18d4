// Package member serves an etcd in this process to clients in this process: calls with one request
// and one response by function calls, others over a connection in memory (package inprocess).
// Clients authenticate as they do over sockets, and etcd checks each call.
package member

import (
	"context"
	"fmt"
	"net"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"gitopsd.dev/reconcile/etcdproxy/inprocess"
)

// Member is an etcd in this process.
type Member struct {
	etcd        *etcdserver.EtcdServer
	credentials credentials.TransportCredentials // the server's
	server      *grpc.Server
	listener    *inprocess.Listener
	ended       chan struct{} // closed when the server has ended
	methods     methods

	calls   sync.RWMutex // read-locked by each call
	stopped bool
}

// Serve serves an etcd until Stop, with the certificates and client CAs of the etcd's configuration.
func Serve(etcd *embed.Etcd) (*Member, error) {
	is := etcd.Config()
	config, err := is.ClientTLSInfo.ServerConfig()
	if err != nil {
		return nil, fmt.Errorf("etcd in this process: %w", err)
	}
	is.ClientTLSInfo.ConfigureCRLVerification(config)
	config.SessionTicketsDisabled = true // see inprocess.Credentials
	m := &Member{
		etcd: etcd.Server, credentials: inprocess.Credentials(credentials.NewTLS(config)), listener: inprocess.Listen(),
		ended: make(chan struct{}), methods: make(methods),
	}
	m.server = v3rpc.Server(etcd.Server, nil, nil,
		grpc.Creds(m.credentials),
		grpc.WaitForHandlers(true), // before the etcd is closed
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: is.GRPCKeepAliveMinTime}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: is.GRPCKeepAliveInterval, Timeout: is.GRPCKeepAliveTimeout}),
	)
	etcdserverpb.RegisterKVServer(m.methods, v3rpc.NewQuotaKVServer(etcd.Server))
	etcdserverpb.RegisterLeaseServer(m.methods, v3rpc.NewQuotaLeaseServer(etcd.Server))
	go func() {
		defer close(m.ended)
		_ = m.server.Serve(m.listener) // until it is stopped
	}()
	return m, nil
}

// Stop closes the connections, and waits for the calls. It is called before the etcd is closed.
func (m *Member) Stop() {
	m.server.Stop()
	<-m.ended
	m.calls.Lock()
	defer m.calls.Unlock()
	m.stopped = true
}

// Dial opens a connection to this etcd, whatever the address.
func (m *Member) Dial(ctx context.Context, _ string) (net.Conn, error) { return m.listener.Dial(ctx) }

// Login authenticates a client and the etcd to each other by a TLS handshake. The authority is the name that the
// client verifies.
func (m *Member) Login(ctx context.Context, authority string, client credentials.TransportCredentials) (*Client, error) {
	here, there := inprocess.Pair()
	defer here.Close()
	type outcome struct {
		info credentials.AuthInfo
		err  error
	}
	server := make(chan outcome, 1)
	go func() {
		defer there.Close()
		_, info, err := m.credentials.ServerHandshake(there)
		server <- outcome{info, err}
	}()
	stop := context.AfterFunc(ctx, func() { here.Close() })
	defer stop()
	_, _, err := inprocess.Credentials(client).ClientHandshake(ctx, authority, here)
	if err != nil {
		here.Close()
		<-server
		return nil, err
	}
	of := <-server
	if of.err != nil {
		return nil, of.err
	}
	return &Client{member: m, peer: &peer.Peer{Addr: m.listener.Addr(), AuthInfo: of.info}}, nil
}

// Client makes calls as the user of a certificate.
type Client struct {
	member *Member
	peer   *peer.Peer
}

// Call makes a call with one request and one response. It returns made false for a method that needs a
// connection. The response is in memory of the pool; more than most bytes are an error, as with gRPC. The request
// stays the caller's. The error is a gRPC status.
func (c *Client) Call(ctx context.Context, method string, leader bool, request []byte, most int, pool mem.BufferPool) (response mem.Buffer, made bool, err error) {
	m := c.member
	call := m.methods[method]
	if call.handle == nil {
		return nil, false, nil
	}
	m.calls.RLock()
	defer m.calls.RUnlock()
	if m.stopped {
		return nil, true, rpctypes.ErrGRPCStopped
	}
	// The checks that etcd's interceptors make before each call to a voting member.
	switch limit := int(m.etcd.Cfg.MaxRequestBytesWithOverhead()); {
	case len(request) > limit:
		return nil, true, status.Errorf(codes.ResourceExhausted, "grpc: received message larger than max (%d vs. %d)", len(request), limit)
	case !api.IsCapabilityEnabled(api.V3rpcCapability):
		return nil, true, rpctypes.ErrGRPCNotCapable
	case leader && m.etcd.Leader() == 0:
		return nil, true, rpctypes.ErrGRPCNoLeader
	}
	ctx = metadata.NewIncomingContext(peer.NewContext(ctx, c.peer), metadata.MD{})
	out, err := call.handle(call.server, ctx, func(to any) error {
		if err := proto.Unmarshal(request, to.(proto.Message)); err != nil {
			return status.Error(codes.Internal, "grpc: error unmarshalling request: "+err.Error())
		}
		return nil
	}, nil)
	if err != nil {
		is, ok := status.FromError(err)
		if !ok {
			is = status.FromContextError(err)
		}
		return nil, true, is.Err()
	}
	message := out.(proto.Message)
	size := proto.Size(message)
	if size > most {
		return nil, true, status.Errorf(codes.ResourceExhausted, "grpc: received message larger than max (%d vs. %d)", size, most)
	}
	room := pool.Get(size)
	if *room, err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend((*room)[:0], message); err != nil {
		pool.Put(room)
		return nil, true, status.Error(codes.Internal, "grpc: error while marshaling: "+err.Error())
	}
	return mem.NewBuffer(room, pool), true, nil
}

// methods are the methods of services, by name. It is a [grpc.ServiceRegistrar].
type methods map[string]method

type method struct {
	server any
	handle grpc.MethodHandler
}

// RegisterService implements [grpc.ServiceRegistrar].
func (m methods) RegisterService(service *grpc.ServiceDesc, server any) {
	for _, is := range service.Methods {
		m["/"+service.ServiceName+"/"+is.MethodName] = method{server, is.Handler}
	}
}
