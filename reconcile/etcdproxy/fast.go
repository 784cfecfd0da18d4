package etcdproxy

import (
	"context"
	"net"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/metadata"

	"gitopsd.dev/reconcile/etcdproxy/h2"
)

// The fast path is another transport below the same calls. [h2.Server] serves clients, and [h2.Client] makes
// the calls to etcd that have one request and one response. grpc-go makes the others, such as streams, and
// every call that the h2.Client did not make. So grpc-go alone chooses the member of etcd, waits and retries.

// fastServer returns the server of the fast path. Its limits are those of [Proxy.server].
func (p *Proxy) fastServer() server {
	l := p.cfg.Limits
	return h2.NewServer(h2.ServerConfig{
		Options:     h2.Options{HeaderBytes: l.HeaderBytes, StreamWindow: streamWindow, ConnWindow: connWindow, Pool: pool},
		Credentials: &identify{proxy: p},
		Handle:      p.handle,
		Streams:     l.Streams, RequestBytes: l.RequestBytes, ResponseBytes: l.ResponseBytes,
		Count: p.receiving, Patience: l.Unfinished,
		Setup:         l.Handshake,
		KeepaliveTime: serverKeepalive.Time, KeepaliveTimeout: serverKeepalive.Timeout,
		PingPause: enforcement.MinTime,
	})
}

// handle serves a call that h2 received.
func (p *Proxy) handle(s *h2.Stream) error {
	client, _ := s.AuthInfo().(*session)
	switch s.Method() {
	case watchMethod, keepAliveMethod, rangeStreamMethod:
	default:
		s.Hold() // one response, and the end right after it
	}
	return p.call(s.Context(), client, s.Method(), s.Values, relayed{s})
}

// relayed is an [h2.Stream] as [messages].
type relayed struct{ stream *h2.Stream }

func (r relayed) RecvMsg(to any) (err error) {
	to.(*frame).buf, err = r.stream.Recv()
	return err
}

func (r relayed) SendMsg(from any) error {
	f := from.(*frame)
	f.taken = true
	return r.stream.Send(f.buf)
}

// fastUpstream makes calls to the member of etcd that grpc-go is connected to.
type fastUpstream struct {
	creds *upstreamCreds

	mu     sync.Mutex
	at     place
	client *h2.Client // nil for the zero place
	closed bool
}

// invoke makes a call, or reports that it did not. It resends; see [resends].
func (f *fastUpstream) invoke(ctx context.Context, method string, in, got *frame, most int) (made bool, err error) {
	var headers map[string]string
	if md, ok := metadata.FromOutgoingContext(ctx); ok && len(md) > 0 { // set by outgoing
		headers = map[string]string{rpctypes.MetadataRequireLeaderKey: rpctypes.MetadataHasLeader}
	}
	for try := 0; ; try++ {
		client := f.to(f.creds.where())
		if client == nil {
			return false, nil
		}
		got.buf, made, err = client.Call(ctx, method, headers, in.bytes(), most)
		if !made || !again(ctx, err, try) {
			return made, err
		}
	}
}

// to returns the client for a place; nil for the zero place. Calls in progress at the previous place go on
// there.
func (f *fastUpstream) to(at place) *h2.Client {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || f.at == at {
		return f.client
	}
	if f.client != nil {
		f.client.Retire()
	}
	f.at, f.client = at, nil
	if at != (place{}) {
		f.client = h2.NewClient(h2.ClientConfig{
			Options:   h2.Options{StreamWindow: streamWindow, ConnWindow: connWindow, Pool: pool},
			Authority: at.name, UserAgent: "gitopsd",
			Dial:  func(ctx context.Context) (net.Conn, error) { return f.creds.connect(ctx, at) },
			Pause: reconnect.BaseDelay * 10, KeepaliveTime: clientKeepalive.Time, KeepaliveTimeout: clientKeepalive.Timeout,
		})
	}
	return f.client
}

func (f *fastUpstream) close() {
	f.mu.Lock()
	client := f.client
	f.at, f.client, f.closed = place{}, nil, true
	f.mu.Unlock()
	if client != nil {
		client.Close()
	}
}

// connect opens a connection to an etcd, authenticated as grpc-go's are.
func (c *upstreamCreds) connect(ctx context.Context, at place) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, minConnect)
	defer cancel()
	raw, err := c.open(ctx, at.address)
	if err != nil {
		return nil, err
	}
	conn, _, err := c.handshake(ctx, at.name, raw)
	if err != nil {
		raw.Close()
	}
	return conn, err
}
