package etcdproxy

import (
	"context"

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
	// Bytes is the size of the request as the client sent it.
	Bytes int
	// Notes are what the request holds: keys to put, revisions, kinds of watch requests. They
	// are valid until Enter returns.
	Notes *wire.Notes
}

// A Gate stands between the proxy and etcd. Its methods are called at the same time.
type Gate interface {
	// Enter is called before a request is sent to etcd, and may wait. If it returns an error,
	// a status of gRPC, nothing is sent and the client gets the error; ctx ends with the
	// call. Otherwise leave is called once the call has ended, with what the client was told
	// and the size of the response; of a stream's message, once it was sent. It may be nil.
	Enter(ctx context.Context, c *Call) (leave func(err error, bytes int), err error)
	// Watching is told of a stream's watches: +1 when etcd created one and -1 when it ended.
	Watching(tenant etcd.ID, delta int)
	// Usage returns what a namespace holds.
	Usage(tenant etcd.ID) Usage
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

func (open) Enter(context.Context, *Call) (func(error, int), error) { return nil, nil }
func (open) Watching(etcd.ID, int)                                  {}
func (open) Usage(etcd.ID) Usage                                    { return Usage{} }
