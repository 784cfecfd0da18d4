package etcdproxy

import (
	"context"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"gitopsd.dev/reconcile/etcdproxy/wire"
)

// call is a call in progress.
type call struct {
	*Proxy
	tenant *tenant
	method string
	// ctx ends with the client's call. It carries the deadline and the metadata for etcd.
	ctx    context.Context
	client messages
	// values returns the values of a header that the client sent.
	values func(name string) []string
	// slow receives a token when patience ends: the client of a stream has not read for too long.
	slow     chan struct{}
	patience *time.Timer
}

// messages is a stream of messages, each a *frame. RecvMsg and SendMsg may be called concurrently.
type messages interface {
	RecvMsg(any) error
	SendMsg(any) error
}

// Methods that need a name.
const (
	txnMethod         = "/etcdserverpb.KV/Txn"
	rangeMethod       = "/etcdserverpb.KV/Range"
	rangeStreamMethod = "/etcdserverpb.KV/RangeStream"
	watchMethod       = "/etcdserverpb.Watch/Watch"
	keepAliveMethod   = "/etcdserverpb.Lease/LeaseKeepAlive"
	timeToLiveMethod  = "/etcdserverpb.Lease/LeaseTimeToLive"
	statusMethod      = "/etcdserverpb.Maintenance/Status"
)

// methods are all methods that a tenant may call.
var methods = map[string]func(*call) error{
	rangeMethod:                        unary(wire.RangeRequest, wire.RangeResponse),
	rangeStreamMethod:                  streaming((*call).rangeStream),
	"/etcdserverpb.KV/Put":             unary(wire.PutRequest, wire.PutResponse),
	"/etcdserverpb.KV/DeleteRange":     unary(wire.DeleteRangeRequest, wire.DeleteRangeResponse),
	txnMethod:                          unary(wire.TxnRequest, wire.TxnResponse),
	"/etcdserverpb.KV/Compact":         (*call).compact,
	watchMethod:                        streaming((*call).watch),
	"/etcdserverpb.Lease/LeaseGrant":   (*call).leaseGrant,
	"/etcdserverpb.Lease/LeaseRevoke":  (*call).leaseRevoke,
	keepAliveMethod:                    streaming((*call).leaseKeepAlive),
	timeToLiveMethod:                   (*call).leaseTimeToLive,
	"/etcdserverpb.Lease/LeaseLeases":  (*call).leaseLeases,
	statusMethod:                       (*call).status,
	"/etcdserverpb.Maintenance/Alarm":  (*call).alarms,
	"/etcdserverpb.Cluster/MemberList": (*call).memberList,
}

// streaming returns the handler of a call with a stream to etcd. The stream ends when serve returns, even
// if the client has not read everything yet.
func streaming(serve func(*call) error) func(*call) error {
	return func(c *call) error {
		ctx, cancel := context.WithCancel(c.ctx)
		defer cancel()
		c.ctx, c.slow = ctx, make(chan struct{}, 1)
		return serve(c)
	}
}

// serve serves a call that grpc-go received.
func (p *Proxy) serve(_ any, client grpc.ServerStream) error {
	ctx := client.Context()
	method, _ := grpc.MethodFromServerStream(client)
	values := func(key string) []string { return metadata.ValueFromIncomingContext(ctx, key) }
	return p.call(ctx, sessionOf(ctx), method, values, client)
}

// call serves a call.
func (p *Proxy) call(ctx context.Context, s *session, method string, values func(string) []string, client messages) (err error) {
	if s == nil {
		return status.Error(codes.Unauthenticated, "gitopsd: no client certificate")
	}
	serve := methods[method]
	if serve == nil {
		s.tenant.counts.refused.Add(1)
		return refuse(method)
	}
	defer func() { s.tenant.counts.done(method, err) }()
	if s.tenant.counts.active.Add(1) > int64(p.cfg.Limits.Calls) {
		return errTooManyCalls
	}
	return serve(&call{Proxy: p, tenant: s.tenant, method: method, ctx: outgoing(ctx, values), client: client, values: values})
}

// refuse returns the error for a method that clients may not call.
func refuse(method string) error {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	switch service {
	case "etcdserverpb.Auth", "etcdserverpb.Cluster", "etcdserverpb.Maintenance":
		_, service, _ = strings.Cut(service, ".")
		return status.Errorf(codes.PermissionDenied, "gitopsd: %s.%.64s is not for tenants of a shared etcd", service, name)
	case "v3lockpb.Lock", "v3electionpb.Election":
		return status.Error(codes.Unimplemented, "gitopsd: the services for locks and elections are not served; use the client library's (concurrency), which needs no more than keys and leases")
	}
	return status.Error(codes.Unimplemented, "gitopsd: not a call that is served")
}

// outgoing returns a context with the metadata for etcd: whether the client requires a leader, and nothing
// else. Tokens and user names never pass.
func outgoing(ctx context.Context, values func(string) []string) context.Context {
	v := values(rpctypes.MetadataRequireLeaderKey)
	if len(v) == 0 || v[0] != rpctypes.MetadataHasLeader {
		return ctx
	}
	return metadata.NewOutgoingContext(ctx, metadata.Pairs(rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader))
}

// enter asks the gate. The Passage is never nil.
func (c *call) enter(notes *wire.Notes) (Passage, error) {
	passage, err := c.cfg.Gate.Enter(c.ctx, &Call{Tenant: c.tenant.id, Method: c.method, Notes: notes})
	if passage == nil {
		passage = open{}
	}
	return passage, err
}
