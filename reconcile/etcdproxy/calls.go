package etcdproxy

import (
	"context"
	"strings"

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
	// ctx ends with the client's call. It carries the deadline and the metadata that etcd is
	// to see.
	ctx    context.Context
	client grpc.ServerStream
	// slow has a token once the client has not read for too long.
	slow chan struct{}
}

// Methods that the code names.
const (
	txnMethod        = "/etcdserverpb.KV/Txn"
	rangeMethod      = "/etcdserverpb.KV/Range"
	timeToLiveMethod = "/etcdserverpb.Lease/LeaseTimeToLive"
	statusMethod     = "/etcdserverpb.Maintenance/Status"
)

// methods are all that a tenant may call.
var methods = map[string]func(*call) error{
	rangeMethod:                          unary(wire.RangeRequest, wire.RangeResponse),
	"/etcdserverpb.KV/RangeStream":       (*call).rangeStream,
	"/etcdserverpb.KV/Put":               unary(wire.PutRequest, wire.PutResponse),
	"/etcdserverpb.KV/DeleteRange":       unary(wire.DeleteRangeRequest, wire.DeleteRangeResponse),
	txnMethod:                            unary(wire.TxnRequest, wire.TxnResponse),
	"/etcdserverpb.KV/Compact":           (*call).compact,
	"/etcdserverpb.Watch/Watch":          (*call).watch,
	"/etcdserverpb.Lease/LeaseGrant":     (*call).leaseGrant,
	"/etcdserverpb.Lease/LeaseRevoke":    (*call).leaseRevoke,
	"/etcdserverpb.Lease/LeaseKeepAlive": (*call).leaseKeepAlive,
	timeToLiveMethod:                     (*call).leaseTimeToLive,
	"/etcdserverpb.Lease/LeaseLeases":    (*call).leaseLeases,
	statusMethod:                         (*call).status,
	"/etcdserverpb.Maintenance/Alarm":    (*call).alarms,
	"/etcdserverpb.Cluster/MemberList":   (*call).memberList,
}

// serve serves a call.
func (p *Proxy) serve(_ any, client grpc.ServerStream) (err error) {
	s := sessionOf(client.Context())
	if s == nil {
		return status.Error(codes.Unauthenticated, "gitopsd: no client certificate")
	}
	method, _ := grpc.MethodFromServerStream(client)
	serve := methods[method]
	if serve == nil {
		s.tenant.counts.refused.Add(1)
		return refuse(method)
	}
	ctx, cancel := context.WithCancel(outgoing(client.Context()))
	defer cancel()
	defer func() { s.tenant.counts.done(method, err) }()
	if s.tenant.counts.active.Add(1) > int64(p.cfg.Limits.Calls) {
		return errTooManyCalls
	}
	return serve(&call{Proxy: p, tenant: s.tenant, method: method, ctx: ctx, client: client, slow: make(chan struct{}, 1)})
}

// refuse returns what a client is told of a method that it may not call.
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

// outgoing returns a context with the metadata that etcd gets: of all that a client may send, no
// more than whether it needs a leader. Tokens and names of users never pass.
func outgoing(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	v := md.Get(rpctypes.MetadataRequireLeaderKey)
	if len(v) == 0 || v[0] != rpctypes.MetadataHasLeader {
		return ctx
	}
	return metadata.NewOutgoingContext(ctx, metadata.Pairs(rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader))
}

// enter asks the gate.
func (c *call) enter(notes *wire.Notes, in *received) (Passage, error) {
	passage, err := c.cfg.Gate.Enter(c.ctx, &Call{Tenant: c.tenant.id, Method: c.method, Request: in.from.bytes(), Notes: notes})
	if passage == nil {
		passage = open{}
	}
	return passage, err
}
