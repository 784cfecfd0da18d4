package etcdproxy

import (
	"context"

	"google.golang.org/grpc"

	"gitopsd.dev/reconcile/etcdproxy/wire"
	"gitopsd.dev/render/etcd"
)

// Call is a valid request, as a [Gate] sees it. Each message that a client sends on a stream of Watch or
// LeaseKeepAlive is a call.
type Call struct {
	// Tenant is the client's.
	Tenant etcd.ID
	// Method is as in "/etcdserverpb.KV/Put".
	Method string
	// Notes say what is in the request: keys to put, revisions, kinds of watch requests. They
	// are valid until Enter returns.
	Notes *wire.Notes
}

// A Gate stands between the proxy and etcd. Its methods are called concurrently.
type Gate interface {
	// Open is called before a namespace is served, and again when its limits may have changed.
	// conn reaches etcd, at the endpoints, as the namespace's user until Close.
	Open(ns etcd.Namespace, endpoints []string, conn grpc.ClientConnInterface)
	// Close is called when a namespace is no longer served.
	Close(tenant etcd.ID)
	// Enter is called before a request is sent to etcd, and may wait; ctx ends with the call.
	// With an error, a gRPC status, nothing is sent and the call ends with the error; where that is
	// ResourceExhausted, a request to create a watch ends that watch alone. The Passage may be nil.
	Enter(ctx context.Context, c *Call) (Passage, error)
	// Unwatch is called once for each request to create a watch that Enter let through, when the
	// watch has ended or etcd refused it.
	Unwatch(tenant etcd.ID)
	// Usage returns what a namespace holds.
	Usage(tenant etcd.ID) Usage
}

// A Passage is a request that a [Gate] let through.
type Passage interface {
	// Answered is called when etcd begins to answer in parts: from then on the call waits
	// for the client rather than for etcd.
	Answered()
	// Leave is called when the call has ended; for a stream's message, when it was sent.
	Leave(Outcome)
}

// Outcome says how a call ended.
type Outcome struct {
	// Err is the client's error.
	Err error
	// Bytes is the size of the response. Response is the response if there is just one, valid
	// until Leave returns.
	Bytes    int
	Response []byte
}

// Usage is what a namespace holds, for Status and Alarm.
type Usage struct {
	// Bytes is the size of the keys and values that exist.
	Bytes int64
	// Full reports whether requests that make it larger are refused.
	Full bool
}

// open is a [Gate] and a [Passage] that lets everything through and counts nothing.
type open struct{}

func (open) Open(etcd.Namespace, []string, grpc.ClientConnInterface) {}
func (open) Close(etcd.ID)                                           {}
func (open) Enter(context.Context, *Call) (Passage, error)           { return nil, nil }
func (open) Unwatch(etcd.ID)                                         {}
func (open) Usage(etcd.ID) Usage                                     { return Usage{} }
func (open) Answered()                                               {}
func (open) Leave(Outcome)                                           {}
