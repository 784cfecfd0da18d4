// Package guard is the gate of an etcd proxy: it enforces the quota and the throttle of each
// namespace, and keeps its compaction floor, so that no tenant hinders another.
//
//   - guard.go: [Guard], its namespaces, and their floors
//   - enter.go: what a call waits for, and what happens when it has ended
//   - state.go: numbers and readiness
//
// Package limit decides, and is pure; package account keeps its numbers up to date. Each proxy
// throttles by itself: through two proxies a tenant may ask twice as much. All proxies count
// the same keys, but each knows only its own writes in flight, so each may fill the room that
// was left at the last common count. n proxies together exceed a quota by at most n-1 times that
// room, which is small for a namespace that is almost full. Then none lets it grow until it is
// below its quota again.
package guard

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gitopsd.dev/reconcile/etcdproxy"
	"gitopsd.dev/reconcile/etcdproxy/account"
	"gitopsd.dev/reconcile/etcdproxy/limit"
	"gitopsd.dev/render/etcd"
)

// Config configures a [Guard].
type Config struct {
	// Log gets a line when a namespace cannot be followed; required.
	Log *slog.Logger
	// Slots is how many calls may be in progress at one etcd, of all namespaces together;
	// [limit.DefaultSlots] if 0.
	Slots int
	// Scans is how many namespaces are counted concurrently; 2 if 0.
	Scans int
}

// Guard is the gate of a proxy, and keeps the floors of its tenants. Its methods may be called
// concurrently.
type Guard struct {
	cfg   Config
	scans chan struct{}

	mu      sync.RWMutex
	tenants map[etcd.ID]*tenant
	queues  map[string]*limit.Queue // by the etcd's endpoints
}

var (
	_ etcdproxy.Gate   = (*Guard)(nil)
	_ etcdproxy.Floors = (*Guard)(nil)
)

// New returns a Guard without namespaces.
func New(cfg Config) (*Guard, error) {
	if cfg.Log == nil {
		return nil, errors.New("guard of the etcd proxy: no log")
	}
	return &Guard{
		cfg:     cfg,
		scans:   make(chan struct{}, cmp.Or(cfg.Scans, 2)),
		tenants: make(map[etcd.ID]*tenant),
		queues:  make(map[string]*limit.Queue),
	}, nil
}

// tenant is a namespace.
type tenant struct {
	prefix  string
	conn    grpc.ClientConnInterface
	stop    context.CancelFunc
	stopped chan struct{} // closed when it is no longer followed

	usage  *limit.Usage
	floor  *limit.Floor
	rate   *limit.Bucket // of requests
	spare  *limit.Bucket // of requests that the throttle exempts
	floors *limit.Bucket // of compactions
	writes *limit.Bucket // of bytes
	at     string        // key of the share's queue
	share  atomic.Pointer[limit.Share]

	watches limit.Watches
	leases  limit.Leases

	throttled, full atomic.Uint64
}

// Open implements [etcdproxy.Gate].
func (g *Guard) Open(ns etcd.Namespace, endpoints []string, conn grpc.ClientConnInterface) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.tenants[ns.ID]
	if t != nil && (t.conn != conn || t.prefix != ns.Prefix) {
		t.stop()
		t = nil
	}
	if t == nil {
		t = g.follow(ns, conn)
		g.tenants[ns.ID] = t
	}
	throttle := limit.Throttle(ns.Throttle)
	t.usage.SetQuota(ns.Quota)
	t.writes.SetRate(ns.Quota.WriteBytesPerSecond)
	t.rate.SetRate(throttle.RequestsPerSecond)
	t.watches.SetMax(throttle.Watches)

	at := strings.Join(slices.Sorted(slices.Values(endpoints)), " ")
	if share := t.share.Load(); share != nil && t.at == at {
		share.Set(throttle.Weight, throttle.Concurrent, limit.MaxQueued)
		return
	}
	queue := g.queues[at]
	if queue == nil {
		queue = limit.NewQueue(cmp.Or(g.cfg.Slots, limit.DefaultSlots))
		g.queues[at] = queue
	}
	t.at = at
	t.share.Store(queue.Share(throttle.Weight, throttle.Concurrent, limit.MaxQueued))
}

// follow begins to follow a namespace.
func (g *Guard) follow(ns etcd.Namespace, conn grpc.ClientConnInterface) *tenant {
	ctx, stop := context.WithCancel(context.Background())
	t := &tenant{
		prefix: ns.Prefix, conn: conn, stop: stop, stopped: make(chan struct{}),
		usage:  limit.NewUsage(ns.Quota),
		floor:  limit.NewFloor(),
		rate:   limit.NewBucket(0),
		spare:  limit.NewBucket(limit.ExemptPerSecond),
		floors: limit.NewBucket(limit.CompactionsPerSecond),
		writes: limit.NewBucket(0),
	}
	go func() {
		defer close(t.stopped)
		account.Follow(ctx, account.Config{
			Log: g.cfg.Log, Name: ns.ID.String(), Prefix: ns.Prefix, Etcd: conn,
			Usage: t.usage, Floor: t.floor, Scans: g.scans,
		})
	}()
	return t
}

// Close implements [etcdproxy.Gate]. It returns when the connection is no longer used.
func (g *Guard) Close(id etcd.ID) {
	g.mu.Lock()
	t := g.tenants[id]
	delete(g.tenants, id)
	g.mu.Unlock()
	if t != nil {
		t.stop()
		<-t.stopped
	}
}

func (g *Guard) tenant(id etcd.ID) *tenant {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.tenants[id]
}

// Unwatch implements [etcdproxy.Gate].
func (g *Guard) Unwatch(id etcd.ID) {
	if t := g.tenant(id); t != nil {
		t.watches.Ended()
	}
}

// Usage implements [etcdproxy.Gate].
func (g *Guard) Usage(id etcd.ID) etcdproxy.Usage {
	t := g.tenant(id)
	if t == nil {
		return etcdproxy.Usage{}
	}
	s := t.usage.State()
	return etcdproxy.Usage{Bytes: s.Bytes, Full: s.Full()}
}

// Floor implements [etcdproxy.Floors]. After a start it waits until the floor was read from etcd.
func (g *Guard) Floor(ctx context.Context, id etcd.ID) (int64, error) {
	t := g.tenant(id)
	if t == nil {
		return 0, errGone
	}
	floor, err := t.floor.Wait(ctx)
	if err != nil && ctx.Err() != nil {
		err = status.FromContextError(ctx.Err()).Err()
	}
	return floor, err
}

// Raise implements [etcdproxy.Floors]. It writes the floor to etcd, where all proxies see it.
func (g *Guard) Raise(ctx context.Context, id etcd.ID, revision int64) error {
	t := g.tenant(id)
	if t == nil {
		return errGone
	}
	return account.Raise(ctx, t.conn, t.prefix, t.floor, revision)
}

// errGone is the error for calls of a namespace that was just closed.
var errGone = status.Error(codes.Unavailable, "gitopsd: the namespace is not served here")
