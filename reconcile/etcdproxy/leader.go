package etcdproxy

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// leavePause is how long a member of etcd that has lost its leader is left out. No other member is left out
// meanwhile.
const leavePause = 10 * time.Second

// members are the endpoints of etcd for grpc-go, which stays with the one that it is connected to. A
// member that is cut off from the others still accepts connections, but answers nothing that needs a leader.
// members leaves it for another once it reports that to a call that requires a leader, as the watches of
// gitopsd and of API servers do. Calls in progress there go on.
type members struct {
	where *manual.Resolver
	creds *upstreamCreds

	mu     sync.Mutex
	all    resolver.State
	back   *time.Timer // restores all; nil while all are used
	closed bool
}

// set replaces the endpoints.
func (m *members) set(all resolver.State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = all
	m.where.UpdateState(all)
}

// heard leaves the current member if an error, which may be nil, says that it lost its leader.
func (m *members) heard(err error) {
	if err == nil || !errors.Is(err, rpctypes.ErrGRPCNoLeader) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.creds.where()
	others := slices.DeleteFunc(slices.Clone(m.all.Addresses), func(a resolver.Address) bool { return at == place{a.Addr, a.ServerName} })
	if m.closed || m.back != nil || len(others) == 0 || len(others) == len(m.all.Addresses) {
		return
	}
	m.where.UpdateState(resolver.State{Addresses: others})
	m.back = time.AfterFunc(leavePause, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.back = nil; !m.closed {
			m.where.UpdateState(m.all)
		}
	})
}

func (m *members) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.back != nil {
		m.back.Stop()
	}
}

// unary is a [grpc.UnaryClientInterceptor] that passes errors to heard.
func (m *members) unary(ctx context.Context, method string, request, response any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	err := invoke(ctx, method, request, response, conn, options...)
	m.heard(err)
	return err
}

// stream is a [grpc.StreamClientInterceptor] that passes errors to heard.
func (m *members) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, conn, method, options...)
	if err != nil {
		m.heard(err)
		return nil, err
	}
	return &heardStream{s, m}, nil
}

// heardStream is a stream that passes errors to heard.
type heardStream struct {
	grpc.ClientStream
	members *members
}

func (s *heardStream) RecvMsg(to any) error {
	err := s.ClientStream.RecvMsg(to)
	s.members.heard(err)
	return err
}
