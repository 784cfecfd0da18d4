package etcdproxy

import (
	"context"

	"google.golang.org/grpc"

	"gitopsd.dev/reconcile/etcdproxy/wire"
	"gitopsd.dev/render/etcd"
)

// Call is a request as a [Gate] sees it, after it was found to be valid and rewritten.
type Call struct {
	// Tenant is who asks.
	Tenant etcd.ID
	// Method is as in "/etcdserverpb.KV/Put". Of a stream each message that a client sends is
	// a call: of Watch and of LeaseKeepAlive.
	Method string
	// Notes are what the request holds: keys to put, revisions, kinds of watch requests. They
	// are valid until Enter returns.
	Notes *wire.Notes
}

// A Gate stands between the proxy and etcd. Its methods are called at the same time.
type Gate interface {
	// Open is called before a namespace is served, and again when what it may use may have
	// changed. conn reaches etcd as the namespace's user until Close; endpoints are where.
	Open(ns etcd.Namespace, endpoints []string, conn grpc.ClientConnInterface)
	// Close is called when a namespace is served no longer.
	Close(tenant etcd.ID)
	// Enter is called before a request is sent to etcd, and may wait. If it returns an error,
	// a status of gRPC, nothing is sent and the client gets the error, a watch alone if it is
	// ResourceExhausted; ctx ends with the call. The Passage may be nil.
	Enter(ctx context.Context, c *Call) (Passage, error)
	// Unwatch is called once for each request to create a watch that Enter let pass, when the
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
	// Leave is called once the call has ended; of a stream's message, once it was sent.
	Leave(Outcome)
}

// Outcome says how a call ended.
type Outcome struct {
	// Err is what the client was told.
	Err error
	// Bytes is the size of the response, and Response is it where there is just one, valid
	// until Leave returns.
	Bytes    int
	Response []byte
}

// Usage is what a namespace holds, as Status and Alarm answer it.
type Usage struct {
	// Bytes are those of the keys and values that exist.
	Bytes int64
	// Full reports whether requests that grow it are refused.
	Full bool
}

// open is a gate that lets everything pass and counts nothing.
type open struct{}

func (open) Open(etcd.Namespace, []string, grpc.ClientConnInterface) {}
func (open) Close(etcd.ID)                                           {}
func (open) Enter(context.Context, *Call) (Passage, error)           { return nil, nil }
func (open) Unwatch(etcd.ID)                                         {}
func (open) Usage(etcd.ID) Usage                                     { return Usage{} }

// Answered and Leave make open a Passage, too.
func (open) Answered()     {}
func (open) Leave(Outcome) {}
