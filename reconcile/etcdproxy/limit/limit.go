// Package limit is what keeps one namespace of an etcd proxy from hindering another: it
// decides, without talking to anything, whether a call may go to etcd now, later or not.
//
//   - [Usage] is what a namespace holds, and refuses what would make it hold more than its
//     quota. What is in flight counts, so that writers cannot pass the quota together.
//   - [Bucket] bounds a rate: requests, or bytes written.
//   - [Queue] bounds what is asked of one etcd at a time, and gives each namespace its
//     weighted share where several wait.
//   - [Count] caps how many watches a namespace has, and [Leases] how many leases.
//   - [Floor] is the revision that a namespace has compacted to, and [Compaction] the
//     revision to which an etcd with many namespaces may really be compacted.
//
// Its errors are etcd's own, so that clients of etcd know what to do. The neighbour
// account keeps a Usage and a Floor true by following the namespace in etcd, and etcdproxy
// asks for both before and after each call.
package limit

import (
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gitopsd.dev/render/etcd"
)

// Defaults of [etcd.Throttle], for three kube-apiservers with a thousand types of objects. Each
// API server has a connection, a LIST and a watch for each type, and asks for all of them within
// seconds of its start; later for some hundred writes a second if there are a thousand nodes,
// and for a revision with each consistent LIST. What keeps namespaces apart is the [Queue]: the
// rate is for clients that ask without end, and is about a tenth of what an etcd does.
const (
	DefaultRequestsPerSecond = 5000
	DefaultConcurrent        = 32
	DefaultWatches           = 10_000
	DefaultWeight            = 10
)

// What a namespace may have or wait for whatever it is declared with.
const (
	// DefaultSlots is how many calls a proxy has in progress at one etcd.
	DefaultSlots = 128
	// MaxQueued is how many calls of a namespace wait. A kube-apiserver may have 600 requests
	// in progress, and lists all of its types when it starts.
	MaxQueued = 2000
	// MaxWait is how long a call waits for its turn, and as long again for each of the
	// rates that it is bound by.
	MaxWait = 5 * time.Second
	// MaxCountWait is how long a write waits for its namespace to be counted.
	MaxCountWait = 2 * time.Second
	// ExemptPerSecond bounds what the throttle exempts: keep-alives, compactions, and
	// requests about watches that exist. It is there for floods.
	ExemptPerSecond = 5000
	// MaxLeases is how many leases a namespace has by one proxy. A kube-apiserver needs one
	// for each minute in which Events are written.
	MaxLeases = 10_000
)

// Errors of calls that are not let through.
var (
	// ErrNoSpace says that the write would make the namespace hold more than its quota.
	ErrNoSpace = rpctypes.ErrGRPCNoSpace
	// ErrTooManyRequests says that too many calls wait, or that the wait is too long.
	ErrTooManyRequests = rpctypes.ErrGRPCRequestTooManyRequests
	// ErrCompacted says that the revision is below the floor.
	ErrCompacted = rpctypes.ErrGRPCCompacted
	// ErrCounting says that it is not known what the namespace holds. Clients of etcd try
	// again where they know that the call was not made.
	ErrCounting = status.Error(codes.Unavailable, "etcdserver: the namespace's keys are still being counted against its quota; try again")
	// ErrFloorUnknown says that it is not known what the namespace was compacted to.
	ErrFloorUnknown = status.Error(codes.Unavailable, "etcdserver: it is not known yet to which revision the namespace is compacted; try again")
	// ErrTooManyWatches and ErrTooManyLeases say that the namespace has as many as it may.
	ErrTooManyWatches = status.Error(codes.ResourceExhausted, "etcdserver: too many requests: the namespace has as many watches as it may; cancel some, or raise throttle.watches")
	ErrTooManyLeases  = status.Error(codes.ResourceExhausted, "etcdserver: too many requests: the namespace has as many leases as it may; revoke some")
)

// Throttle returns t with defaults for what it leaves open.
func Throttle(t etcd.Throttle) etcd.Throttle {
	set := func(field *int64, value int64) {
		if *field <= 0 {
			*field = value
		}
	}
	set(&t.RequestsPerSecond, DefaultRequestsPerSecond)
	set(&t.Concurrent, DefaultConcurrent)
	set(&t.Watches, DefaultWatches)
	set(&t.Weight, DefaultWeight)
	return t
}
