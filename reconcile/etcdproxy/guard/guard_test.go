package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gitopsd.dev/reconcile/etcdproxy"
	"gitopsd.dev/reconcile/etcdproxy/limit"
	"gitopsd.dev/reconcile/etcdproxy/wire"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/testscripts/await"
	"gitopsd.dev/testscripts/etcdserver"
)

// Growing writes of a full namespace are refused with etcd's own error and alarm. Its other calls go on, and so
// does its neighbour.
func TestQuota(t *testing.T) {
	t.Parallel()
	s := sharedEtcd(t)
	a := newTenant(t, s, etcd.Quota{Storage: 1000, Keys: 5}, etcd.Throttle{})
	b := newTenant(t, s, etcd.Quota{Storage: 1000, Keys: 5}, etcd.Throttle{})
	p := serve(t, etcdproxy.Limits{}, Config{}, a, b)
	ca, cb := p.client(t, a), p.client(t, b)
	ctx := t.Context()
	put := func(c *clientv3.Client, key string, size int) error {
		_, err := c.Put(ctx, key, strings.Repeat("v", size))
		return err
	}
	noSpace := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, rpctypes.ErrNoSpace) {
			t.Errorf("%s: got %v, want no space", what, err)
		}
	}
	allowed := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	allowed("fits exactly", put(ca, "0123456789", 990))
	noSpace("one key more", put(ca, "k", 0))
	noSpace("in a transaction", func() error {
		_, err := ca.Txn(ctx).If(clientv3.Compare(clientv3.Version("x"), "=", 7)).Then(clientv3.OpPut("k", "")).Else(clientv3.OpGet("k")).Commit()
		return err
	}())
	status, err := ca.Status(ctx, ca.Endpoints()[0])
	if err != nil || status.DbSize != 1000 || status.DbSizeQuota != 1000 || len(status.Errors) != 1 {
		t.Errorf("status of a full namespace: %v, %v", status, err)
	}
	alarms, err := ca.AlarmList(ctx)
	if err != nil || len(alarms.Alarms) != 1 {
		t.Errorf("alarms of a full namespace: %v, %v", alarms, err)
	}
	allowed("the same size", put(ca, "0123456789", 990))
	allowed("the apiserver's compaction", func() error {
		_, err := ca.Txn(ctx).If(clientv3.Compare(clientv3.Version(limit.CompactKey), "=", 0)).Then(clientv3.OpPut(limit.CompactKey, "12345")).Else(clientv3.OpGet(limit.CompactKey)).Commit()
		return err
	}())
	_, err = ca.Get(ctx, "", clientv3.WithPrefix())
	allowed("a list", err)
	allowed("a smaller value", put(ca, "0123456789", 100))
	allowed("what fits again", put(ca, "k", 100))
	_, err = ca.Delete(ctx, "", clientv3.WithPrefix())
	allowed("deletion", err)
	for i := range 5 {
		allowed("a key", put(ca, fmt.Sprint("key", i), 1))
	}
	if !await.Soon(func() bool { return p.state(a).Usage.Bytes == 25 }) {
		t.Errorf("counted %+v", p.state(a).Usage)
	}
	if status, err = ca.Status(ctx, ca.Endpoints()[0]); err != nil || status.DbSize != 25 {
		t.Errorf("status of a namespace with room: %v, %v", status, err)
	}
	noSpace("the sixth key", put(ca, "key5", 1))
	allowed("the neighbour", put(cb, "k", 900))
	if n := p.state(a).Full; n != 3 || p.state(b).Full != 0 {
		t.Errorf("%d calls are counted as refused for a full namespace, and %d of the neighbour's", n, p.state(b).Full)
	}

	// A larger quota counts from now on, and so does a smaller one.
	a.Quota.Keys = 6
	allowed("set", p.set(a, b))
	allowed("the sixth key", put(ca, "key5", 1))
	a.Quota.Keys = 2
	allowed("set", p.set(a, b))
	noSpace("more keys than a smaller quota has", put(ca, "key6", 1))
	allowed("shrinking above the quota", put(ca, "key5", 0))
}

// Concurrent writes of all kinds do not exceed the quota together.
func TestQuotaConcurrently(t *testing.T) {
	t.Parallel()
	s := sharedEtcd(t)
	const quota = 10_000
	a := newTenant(t, s, etcd.Quota{Storage: quota}, etcd.Throttle{RequestsPerSecond: 100_000})
	p := serve(t, etcdproxy.Limits{}, Config{}, a)
	c := p.client(t, a)
	ctx := t.Context()
	var all sync.WaitGroup
	var refused atomic.Int64
	for i := range 8 {
		all.Go(func() {
			for j := range 40 {
				key := fmt.Sprint("k", (i*j)%40)
				value := strings.Repeat("v", 100*(j%12))
				var err error
				switch j % 3 {
				case 0:
					_, err = c.Put(ctx, key, value)
				case 1:
					_, err = c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), ">", 0)).Then(clientv3.OpPut(key+"x", value)).Else(clientv3.OpPut(key+"y", value)).Commit()
				case 2:
					_, err = c.Delete(ctx, key)
				}
				if errors.Is(err, rpctypes.ErrNoSpace) {
					refused.Add(1)
				} else if err != nil {
					t.Error(err)
				}
				if bytes := p.state(a).Usage.Bytes; bytes > quota {
					t.Errorf("%d bytes are held of %d", bytes, quota)
				}
			}
		})
	}
	all.Wait()
	if refused.Load() == 0 {
		t.Error("nothing was refused, which shows nothing")
	}
	if !await.Soon(func() bool { return p.state(a).Usage.Reserved == 0 }) {
		t.Errorf("something stays reserved: %+v", p.state(a).Usage)
	}
	out, err := c.Get(ctx, "", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	bytes := 0
	for _, kv := range out.Kvs {
		bytes += len(kv.Key) + len(kv.Value)
	}
	if got := p.state(a).Usage; got.Bytes != int64(bytes) || got.Keys != int64(len(out.Kvs)) {
		t.Errorf("counted %+v, and etcd holds %d bytes and %d keys", got, bytes, len(out.Kvs))
	}
}

// While etcd cannot be followed, growing writes wait, or get an error that clients retry. Reads and deletions go
// on as soon as etcd answers them.
func TestCounting(t *testing.T) {
	t.Parallel()
	s := sharedEtcd(t)
	a := newTenant(t, s, etcd.Quota{Storage: 1000}, etcd.Throttle{})
	// The only slot for scans is taken, so none may run.
	p := start(t, etcdproxy.Limits{}, Config{Scans: 1})
	p.guard.scans <- struct{}{}
	if err := p.set(a); err != nil {
		t.Fatal(err)
	}
	c := p.client(t, a)
	ctx := t.Context()
	if _, err := c.Get(ctx, "k"); err != nil {
		t.Errorf("a read while the namespace is counted: %v", err)
	}
	if _, err := c.Delete(ctx, "k"); err != nil {
		t.Errorf("a deletion while the namespace is counted: %v", err)
	}
	if err := p.guard.Ready(); err == nil || !strings.Contains(err.Error(), a.ID.String()) {
		t.Errorf("ready while nothing is counted: %v", err)
	}
	if _, err := c.Put(ctx, "k", "v"); err == nil || !strings.Contains(err.Error(), "still being counted") {
		t.Errorf("a write while the namespace is counted: %v", err)
	}
	written := make(chan error, 1)
	go func() {
		_, err := c.Put(ctx, "k", "v")
		written <- err
	}()
	<-p.guard.scans
	if err := <-written; err != nil {
		t.Errorf("a write that waited for the count: %v", err)
	}
	if !await.Soon(func() bool { return p.guard.Ready() == nil }) {
		t.Error(p.guard.Ready())
	}
}

// The calls of a tenant that floods the proxy wait and are refused. All calls of a neighbour go through, each
// behind only a few of the flood.
func TestNeighbour(t *testing.T) {
	t.Parallel()
	s := sharedEtcd(t)
	a := newTenant(t, s, etcd.Quota{}, etcd.Throttle{RequestsPerSecond: 1_000_000, Concurrent: 32})
	b := newTenant(t, s, etcd.Quota{}, etcd.Throttle{})
	p := serve(t, etcdproxy.Limits{}, Config{Slots: 4}, a, b)
	cb := p.client(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	var refused atomic.Int64
	for range 4 {
		ca := p.client(t, a)
		for range limit.MaxQueued / 3 {
			flood.Go(func() {
				for ctx.Err() == nil {
					if _, err := ca.Put(ctx, "k", "v"); errors.Is(err, rpctypes.ErrTooManyRequests) {
						refused.Add(1)
					}
				}
			})
		}
	}
	defer flood.Wait()
	defer cancel()
	if !await.Soon(func() bool { return p.state(a).Queue.Waiting >= limit.MaxQueued-200 && refused.Load() > 0 }) {
		t.Fatalf("no flood: %+v, %d refused", p.state(a), refused.Load())
	}
	const calls = 30
	before := p.state(a).Queue.Passed
	for i := range calls {
		if _, err := cb.Put(ctx, fmt.Sprint("k", i), "v"); err != nil {
			t.Fatalf("call %d of the neighbour: %v", i, err)
		}
	}
	// Each of the neighbour's calls comes next but for those under way, and etcd answers one
	// of either in turn: without fair turns, a queue of the flood's would come before each.
	during := p.state(a).Queue.Passed - before
	if during > calls*60 {
		t.Errorf("%d calls of the flood went through during %d of the neighbour's", during, calls)
	}
	if p.state(b).Throttled != 0 || p.state(a).Throttled == 0 {
		t.Errorf("refused: %d of the flood's, %d of the neighbour's", p.state(a).Throttled, p.state(b).Throttled)
	}
}

// Watches and leases are bounded: only one too many is refused, and one that ends makes room.
func TestCaps(t *testing.T) {
	t.Parallel()
	s := sharedEtcd(t)
	a := newTenant(t, s, etcd.Quota{}, etcd.Throttle{Watches: 3})
	p := serve(t, etcdproxy.Limits{}, Config{}, a)
	c := p.client(t, a)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first, end := context.WithCancel(ctx)
	defer end()
	var watches []clientv3.WatchChan
	for i := range 3 {
		at := ctx
		if i == 0 {
			at = first
		}
		w := c.Watch(at, "k", clientv3.WithCreatedNotify())
		if r := <-w; r.Err() != nil || !r.Created {
			t.Fatalf("watch %d: %+v, %v", i, r, r.Err())
		}
		watches = append(watches, w)
	}
	fourth := c.Watch(ctx, "k")
	if r, ok := <-fourth; ok && (r.Err() == nil || !strings.Contains(r.Err().Error(), "as many watches as it may")) {
		t.Errorf("the fourth watch: %+v, %v", r, r.Err())
	}
	if _, err := c.Put(ctx, "k", "v"); err != nil {
		t.Fatal(err)
	}
	for i, w := range watches {
		if r := <-w; r.Err() != nil || len(r.Events) != 1 {
			t.Errorf("watch %d after one was refused: %+v, %v", i, r, r.Err())
		}
	}
	if got := p.state(a); got.Watches != 3 || got.Throttled != 1 {
		t.Errorf("counted %+v", got)
	}
	end()
	if !await.Soon(func() bool { return p.state(a).Watches == 2 }) {
		t.Errorf("%d watches are counted when one has ended", p.state(a).Watches)
	}
	if r := <-c.Watch(ctx, "k", clientv3.WithCreatedNotify()); r.Err() != nil || !r.Created {
		t.Errorf("a watch when one has ended: %+v, %v", r, r.Err())
	}
	cancel()
	if !await.Soon(func() bool { return p.state(a).Watches == 0 }) {
		t.Errorf("%d watches are counted at the end", p.state(a).Watches)
	}

	lease, err := c.Grant(t.Context(), 100)
	if err != nil || p.state(a).Leases != 1 {
		t.Errorf("one lease granted: %v, %d counted", err, p.state(a).Leases)
	}
	if _, err := c.Revoke(t.Context(), lease.ID); err != nil || p.state(a).Leases != 0 {
		t.Errorf("revoked: %v, %d counted", err, p.state(a).Leases)
	}
}

// A compaction affects one tenant, through every proxy, and outlives the proxies.
func TestFloors(t *testing.T) {
	t.Parallel()
	s := sharedEtcd(t)
	a := newTenant(t, s, etcd.Quota{}, etcd.Throttle{})
	b := newTenant(t, s, etcd.Quota{}, etcd.Throttle{})
	p, q := serve(t, etcdproxy.Limits{}, Config{}, a, b), serve(t, etcdproxy.Limits{}, Config{}, a, b)
	ca, cb := p.client(t, a), p.client(t, b)
	ctx := t.Context()
	var revisions []int64
	for i := range 5 {
		for _, c := range []*clientv3.Client{ca, cb} {
			out, err := c.Put(ctx, "k", fmt.Sprint(i))
			if err != nil {
				t.Fatal(err)
			}
			revisions = append(revisions, out.Header.Revision)
		}
	}
	middle, last := revisions[4], revisions[9]
	if _, err := ca.Compact(ctx, last+1000); !errors.Is(err, rpctypes.ErrFutureRev) {
		t.Errorf("compacted the future: %v", err)
	}
	if _, err := ca.Compact(ctx, middle); err != nil {
		t.Fatal(err)
	}
	for _, lower := range []int64{middle, middle - 1} {
		if _, err := ca.Compact(ctx, lower); !errors.Is(err, rpctypes.ErrCompacted) {
			t.Errorf("compacted to %d after %d: %v", lower, middle, err)
		}
	}
	check := func(what string, c *clientv3.Client, compacted bool) {
		t.Helper()
		_, err := c.Get(ctx, "k", clientv3.WithRev(middle-1))
		if errors.Is(err, rpctypes.ErrCompacted) != compacted {
			t.Errorf("%s: a read below: %v", what, err)
		}
		if _, err := c.Get(ctx, "k", clientv3.WithRev(middle)); err != nil {
			t.Errorf("%s: a read at the floor: %v", what, err)
		}
		w := <-c.Watch(ctx, "k", clientv3.WithRev(middle-1))
		if errors.Is(w.Err(), rpctypes.ErrCompacted) != compacted || compacted && w.CompactRevision != middle {
			t.Errorf("%s: a watch from below: %+v, %v", what, w, w.Err())
		}
	}
	check("the tenant", ca, true)
	check("the neighbour", cb, false)
	if !await.Soon(func() bool { return q.state(a).Floor == middle }) {
		t.Error("the other proxy does not know the floor")
	}
	check("by the other proxy", q.client(t, a), true)
	r := serve(t, etcdproxy.Limits{}, Config{}, a, b)
	check("by a new proxy", r.client(t, a), true)

	// Tenants can neither see nor change the key of the floor.
	for _, op := range []clientv3.Op{
		clientv3.OpGet("", clientv3.WithPrefix()), clientv3.OpGet("\x00", clientv3.WithFromKey()), clientv3.OpGet("b", clientv3.WithRange("a")),
		clientv3.OpDelete("", clientv3.WithPrefix()), clientv3.OpDelete("\x00", clientv3.WithFromKey()), clientv3.OpDelete("b", clientv3.WithRange("a")),
	} {
		out, err := ca.Do(ctx, op)
		if err != nil {
			t.Fatal(err)
		}
		if got := out.Get(); got != nil {
			for _, kv := range got.Kvs {
				if string(kv.Key) != "k" {
					t.Errorf("the tenant sees %q", kv.Key)
				}
			}
		}
	}
	kept, err := s.Root.Get(ctx, string(limit.FloorKey(a.Prefix)))
	if err != nil || len(kept.Kvs) != 1 {
		t.Errorf("the floor is not kept: %v, %v", kept, err)
	} else if got, ok := limit.ParseFloor(kept.Kvs[0].Value, last+100); !ok || got != middle {
		t.Errorf("kept as %q", kept.Kvs[0].Value)
	}
}

// n proxies of a namespace exceed its quota together by at most n-1 times the room at their last common count.
func TestQuotaOfSeveral(t *testing.T) {
	t.Parallel()
	s := sharedEtcd(t)
	const quota, room, proxies = 100, 10, 3
	a := newTenant(t, s, etcd.Quota{Keys: quota}, etcd.Throttle{})
	var all []running
	var clients []*clientv3.Client
	for range proxies {
		p := serve(t, etcdproxy.Limits{}, Config{}, a)
		all, clients = append(all, p), append(clients, p.client(t, a))
	}
	ctx := t.Context()
	count := func() int64 {
		got, err := s.Root.Get(ctx, a.Prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		return got.Count
	}
	agree := func(keys int64) {
		t.Helper()
		for _, p := range all {
			if !await.Soon(func() bool { return p.state(a).Usage.Keys == keys }) {
				t.Fatalf("a proxy counts %d keys of %d", p.state(a).Usage.Keys, keys)
			}
		}
	}
	for i := range quota - room {
		if _, err := clients[i%proxies].Put(ctx, fmt.Sprint("k", i), ""); err != nil {
			t.Fatal(err)
		}
	}
	agree(quota - room)
	var flood sync.WaitGroup
	for i, c := range clients {
		for j := range 5 * room {
			flood.Go(func() {
				if _, err := c.Put(ctx, fmt.Sprint("more", i, j), ""); err != nil && !errors.Is(err, rpctypes.ErrNoSpace) {
					t.Error(err)
				}
			})
		}
	}
	flood.Wait()
	keys := count()
	if keys < quota || keys > quota+(proxies-1)*room {
		t.Errorf("there are %d keys of %d, by %d proxies with room for %d", keys, quota, proxies, room)
	}
	agree(keys)
	for i, c := range clients {
		if _, err := c.Put(ctx, fmt.Sprint("last", i), ""); !errors.Is(err, rpctypes.ErrNoSpace) {
			t.Errorf("one more by proxy %d: %v", i, err)
		}
	}
	if _, err := clients[0].Delete(ctx, "more", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	agree(quota - room)
	if _, err := clients[1].Put(ctx, "again", ""); err != nil {
		t.Errorf("below the quota: %v", err)
	}
}

// held is a connection whose calls wait until the channel is closed.
type held struct {
	grpc.ClientConnInterface
	until chan struct{}
}

func (h held) Invoke(ctx context.Context, method string, in, out any, options ...grpc.CallOption) error {
	select {
	case <-h.until:
		return h.ClientConnInterface.Invoke(ctx, method, in, out, options...)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A floor that a new proxy has not read yet is not taken for none.
func TestFloorUnknown(t *testing.T) {
	t.Parallel()
	s := sharedEtcd(t)
	a := newTenant(t, s, etcd.Quota{}, etcd.Throttle{})
	out, err := s.Root.Put(t.Context(), string(limit.FloorKey(a.Prefix)), "1")
	if err != nil {
		t.Fatal(err)
	}
	floor := out.Header.Revision
	if _, err := s.Root.Put(t.Context(), string(limit.FloorKey(a.Prefix)), string(limit.FormatFloor(floor))); err != nil {
		t.Fatal(err)
	}
	g, err := New(Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	conn := held{s.Root.ActiveConnection(), make(chan struct{})}
	g.Open(a.Namespace, a.Upstream.Endpoints, conn)
	t.Cleanup(func() { g.Close(a.ID) })
	ended, end := context.WithCancel(t.Context())
	end()
	if got, err := g.Floor(ended, a.ID); status.Code(err) != codes.Canceled {
		t.Errorf("not read yet: %d, %v", got, err)
	}
	if got, err := g.Floor(t.Context(), a.ID); !errors.Is(err, limit.ErrFloorUnknown) {
		t.Errorf("not read in time: %d, %v", got, err)
	}
	close(conn.until)
	if !await.Soon(func() bool { got, err := g.Floor(t.Context(), a.ID); return err == nil && got == floor }) {
		t.Errorf("the floor is not known")
	}
	if got, err := g.Floor(t.Context(), etcd.ID{Cluster: "nobody"}); status.Code(err) != codes.Unavailable {
		t.Errorf("of nobody: %d, %v", got, err)
	}
}

// A removed namespace is no longer followed, and can come back.
func TestSet(t *testing.T) {
	t.Parallel()
	s := sharedEtcd(t)
	a := newTenant(t, s, etcd.Quota{Storage: 100}, etcd.Throttle{})
	b := newTenant(t, s, etcd.Quota{Storage: 100}, etcd.Throttle{})
	p := serve(t, etcdproxy.Limits{}, Config{}, a, b)
	cb := p.client(t, b)
	watch := cb.Watch(t.Context(), "k", clientv3.WithCreatedNotify())
	<-watch
	if err := p.set(b); err != nil {
		t.Fatal(err)
	}
	if len(p.guard.States()) != 1 {
		t.Errorf("%d namespaces are followed", len(p.guard.States()))
	}
	if err := p.set(a, b); err != nil {
		t.Fatal(err)
	}
	if _, err := p.client(t, a).Put(t.Context(), "k", "v"); err != nil {
		t.Errorf("back again: %v", err)
	}
	if _, err := cb.Put(t.Context(), "k", "v"); err != nil {
		t.Error(err)
	}
	if r := <-watch; len(r.Events) != 1 {
		t.Errorf("the watch of one that stayed: %+v, %v", r, r.Err())
	}
	if _, err := New(Config{}); err == nil {
		t.Error("a guard without a log")
	}
}

// A throttled tenant can still renew leases, compact, and ask for the progress of watches.
func TestExempt(t *testing.T) {
	t.Parallel()
	s := sharedEtcd(t)
	a := newTenant(t, s, etcd.Quota{}, etcd.Throttle{})
	p := serve(t, etcdproxy.Limits{}, Config{}, a)
	c := p.client(t, a)
	ctx := clientv3.WithRequireLeader(t.Context())
	lease, err := c.Grant(ctx, 1000)
	if err != nil {
		t.Fatal(err)
	}
	put, err := c.Put(ctx, "k", "v")
	if err != nil {
		t.Fatal(err)
	}
	watch := c.Watch(ctx, "k", clientv3.WithCreatedNotify())
	<-watch
	a.Throttle.RequestsPerSecond = 1
	if err := p.set(a); err != nil {
		t.Fatal(err)
	}
	var flood sync.WaitGroup
	var waiting, refused atomic.Int64
	for range 20 {
		waiting.Add(1)
		flood.Go(func() {
			defer waiting.Add(-1)
			if _, err := c.Get(ctx, "k"); errors.Is(err, rpctypes.ErrTooManyRequests) {
				refused.Add(1)
			}
		})
	}
	defer flood.Wait()
	// More than a few seconds' worth is refused at once, and the others wait.
	if !await.Soon(func() bool { return refused.Load() >= 10 }) {
		t.Fatalf("%d of 20 calls were refused at one a second", refused.Load())
	}
	if _, err := c.KeepAliveOnce(ctx, lease.ID); err != nil {
		t.Errorf("keep-alive: %v", err)
	}
	if _, err := c.Compact(ctx, put.Header.Revision); err != nil {
		t.Errorf("compaction: %v", err)
	}
	if err := c.RequestProgress(ctx); err != nil {
		t.Errorf("progress: %v", err)
	}
	if r := <-watch; r.Err() != nil || !r.IsProgressNotify() {
		t.Errorf("progress: %+v, %v", r, r.Err())
	}
	if waiting.Load() == 0 {
		t.Error("nothing waited any more, which shows nothing")
	}
}

// A guard is ready while etcd answers for each namespace.
func TestReady(t *testing.T) {
	t.Parallel()
	s := sharedEtcd(t)
	a := newTenant(t, s, etcd.Quota{Storage: 1000}, etcd.Throttle{})
	b := newTenant(t, s, etcd.Quota{Storage: 1000}, etcd.Throttle{})
	relay, err := etcdserver.NewRelay(s.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(relay.Close)
	a.Upstream.Endpoints = []string{relay.Endpoint}
	p := serve(t, etcdproxy.Limits{}, Config{}, a, b)
	relay.SetDown(true)
	if !await.Soon(func() bool { return p.guard.Ready() != nil }) {
		t.Fatal("ready although etcd is gone")
	}
	if err := p.guard.Ready(); err == nil || !strings.Contains(err.Error(), a.ID.String()) || strings.Contains(err.Error(), b.ID.String()) {
		t.Errorf("not ready: %v", err)
	}
	if _, err := p.client(t, b).Put(t.Context(), "k", "v"); err != nil {
		t.Errorf("the neighbour: %v", err)
	}
	relay.SetDown(false)
	if !await.Soon(func() bool { return p.guard.Ready() == nil }) {
		t.Errorf("not ready again: %v", p.guard.Ready())
	}
	if _, err := p.client(t, a).Put(t.Context(), "k", "v"); err != nil {
		t.Errorf("when etcd is back: %v", err)
	}
}

// What etcd stores counts against the rate of writes: the value that a put keeps, and more than keys and values.
func TestWriteRate(t *testing.T) {
	t.Parallel()
	s := sharedEtcd(t)
	large := strings.Repeat("v", 1<<20)
	var many []clientv3.Op
	for i := range 120 {
		many = append(many, clientv3.OpPut(fmt.Sprintf("%03d", i), ""))
	}
	keep := clientv3.OpPut("k", "", clientv3.WithIgnoreValue())
	for name, op := range map[string]clientv3.Op{
		"a put that keeps the value": keep,
		"one in a transaction":       clientv3.OpTxn(nil, []clientv3.Op{keep}, nil),
		"many small puts":            clientv3.OpTxn(nil, many, nil),
	} {
		a := newTenant(t, s, etcd.Quota{Storage: 1 << 30}, etcd.Throttle{})
		p := serve(t, etcdproxy.Limits{}, Config{}, a)
		c := p.client(t, a)
		ctx := t.Context()
		if _, err := c.Put(ctx, "k", large); err != nil {
			t.Fatal(err)
		}
		if !await.Soon(func() bool { return p.state(a).Usage.Bytes > 1<<20 && p.state(a).Usage.Reserved == 0 }) {
			t.Fatalf("counted %+v", p.state(a).Usage)
		}
		a.Quota.WriteBytesPerSecond = 200
		if err := p.set(a); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Do(ctx, op); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := c.Do(ctx, op); !errors.Is(err, rpctypes.ErrTooManyRequests) {
			t.Errorf("%s, again: got %v, want that it is refused", name, err)
		}
	}
}

// A tenant that compacts without end is refused, and can still renew leases.
func TestCompactions(t *testing.T) {
	t.Parallel()
	s := sharedEtcd(t)
	a := newTenant(t, s, etcd.Quota{}, etcd.Throttle{})
	p := serve(t, etcdproxy.Limits{}, Config{}, a)
	enter := func(ctx context.Context, method string) error {
		_, err := p.guard.Enter(ctx, &etcdproxy.Call{Tenant: a.ID, Method: "/etcdserverpb." + method, Notes: new(wire.Notes)})
		return err
	}
	for i := range limit.CompactionsPerSecond {
		if err := enter(t.Context(), "KV/Compact"); err != nil {
			t.Errorf("compaction %d: %v", i, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	var refused atomic.Int64
	for range 1000 {
		flood.Go(func() {
			if errors.Is(enter(ctx, "KV/Compact"), limit.ErrTooManyRequests) {
				refused.Add(1)
			}
		})
	}
	defer flood.Wait()
	defer cancel()
	if !await.Soon(func() bool { return refused.Load() > 500 }) {
		t.Errorf("%d of 1000 compactions were refused", refused.Load())
	}
	if err := enter(t.Context(), "Lease/LeaseKeepAlive"); err != nil {
		t.Errorf("a keep-alive: %v", err)
	}
}
