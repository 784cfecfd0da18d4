// Package limit decides whether a call of a namespace may go to etcd now, later or not at all, so that
// no namespace hinders another. It does no I/O.
//
//   - [Usage] is what a namespace holds (usage.go, change.go). It refuses a [Write] that would exceed
//     the quota (write.go). Writes in flight count, so that they cannot exceed it together.
//   - [Bucket] bounds a rate: requests, or bytes written.
//   - [Queue] bounds the calls in progress at one etcd, and gives each namespace its weighted
//     share where several wait.
//   - [Watches] and [Leases] bound how many of them a namespace has.
//   - [Floor] is the revision that a namespace has compacted to, and [Compaction] the revision to
//     which an etcd with many namespaces may be compacted.
//   - [Outcome] reads the result of a write from its response.
//
// The errors are etcd's own, so that clients of etcd know what to do. Package account keeps a
// Usage and a Floor up to date by following the namespace in etcd, and package guard asks both
// for each call.
package limit

import (
	"cmp"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gitopsd.dev/render/etcd"
)

// Defaults of [etcd.Throttle], for three kube-apiservers with a thousand types of objects. Each API server has a
// connection, a LIST and a watch for each type, and asks for all of them within seconds of its start. Later it
// makes some hundred writes a second with a thousand nodes, and reads a revision with each consistent LIST. The
// [Queue] keeps namespaces apart; the rate bounds clients that ask without end, and is about a tenth of what an
// etcd can do.
const (
	defaultRequestsPerSecond = 5000
	defaultConcurrent        = 32
	defaultWatches           = 10_000
	defaultWeight            = 10
)

// Limits that declarations do not change.
const (
	// DefaultSlots is how many calls a proxy has in progress at one etcd.
	DefaultSlots = 128
	// MaxQueued is how many calls of a namespace may wait. A kube-apiserver may have 600 requests
	// in progress, and lists all of its types when it starts.
	MaxQueued = 2000
	// MaxWait is how long a call waits for its turn, and for each of the rates that bound it.
	MaxWait = 5 * time.Second
	// MaxCountWait is how long a write waits for its namespace to be counted.
	MaxCountWait = 2 * time.Second
	// ExemptPerSecond bounds, against floods, the requests that the throttle exempts: keep-alives, and
	// requests about existing watches.
	ExemptPerSecond = 5000
	// CompactionsPerSecond bounds compactions, which the throttle exempts, too. Each takes several calls to
	// etcd. A group of kube-apiservers compacts once in five minutes.
	CompactionsPerSecond = 5
	// maxLeases is how many leases a namespace may have by one proxy. A kube-apiserver needs one for
	// each minute in which Events are written.
	maxLeases = 10_000
)

// Errors of calls that are not let through.
var (
	// ErrNoSpace says that the write would exceed the namespace's quota.
	ErrNoSpace = rpctypes.ErrGRPCNoSpace
	// ErrTooManyRequests says that too many calls wait, or that the wait is too long.
	ErrTooManyRequests = rpctypes.ErrGRPCRequestTooManyRequests
	// ErrCompacted says that the floor is not below the revision.
	ErrCompacted = rpctypes.ErrGRPCCompacted
	// ErrCounting says that the usage of the namespace is not known. Clients of etcd retry calls
	// that were certainly not made.
	ErrCounting = status.Error(codes.Unavailable, "etcdserver: the namespace's keys are still being counted against its quota; try again")
	// ErrFloorUnknown says that the floor of the namespace is not known.
	ErrFloorUnknown = status.Error(codes.Unavailable, "etcdserver: it is not known yet to which revision the namespace is compacted; try again")
	// ErrTooManyWatches and ErrTooManyLeases say that the namespace has as many as it may.
	ErrTooManyWatches = status.Error(codes.ResourceExhausted, "etcdserver: too many requests: the namespace has as many watches as it may; cancel some, or raise throttle.watches")
	ErrTooManyLeases  = status.Error(codes.ResourceExhausted, "etcdserver: too many requests: the namespace has as many leases as it may; revoke some")
)

// Throttle returns t with defaults in place of what is not positive.
func Throttle(t etcd.Throttle) etcd.Throttle {
	t.RequestsPerSecond = cmp.Or(max(t.RequestsPerSecond, 0), defaultRequestsPerSecond)
	t.Concurrent = cmp.Or(max(t.Concurrent, 0), defaultConcurrent)
	t.Watches = cmp.Or(max(t.Watches, 0), defaultWatches)
	t.Weight = cmp.Or(max(t.Weight, 0), defaultWeight)
	return t
}
