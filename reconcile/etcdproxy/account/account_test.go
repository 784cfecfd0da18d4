package account

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"gitopsd.dev/reconcile/etcdproxy/limit"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/testscripts/await"
	"gitopsd.dev/testscripts/etcdserver"
)

// world is an etcd with a namespace that is followed through a relay.
type world struct {
	t       *testing.T
	server  *etcdserver.Server
	relay   *etcdserver.Relay
	conn    *grpc.ClientConn
	streams atomic.Int64 // that were opened
	prefix  string
	usage   *limit.Usage
	floor   *limit.Floor
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s, err := etcdserver.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	w := &world{t: t, server: s, prefix: "/ns/a/"}
	cert, err := s.AddUser(t.Context(), "a", w.prefix)
	if err != nil {
		t.Fatal(err)
	}
	if w.relay, err = etcdserver.NewRelay(s.Endpoint); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.relay.Close)
	at, err := url.Parse(w.relay.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	creds := credentials.NewTLS(&tls.Config{RootCAs: s.Authority.Pool(), Certificates: []tls.Certificate{cert}})
	if w.conn, err = grpc.NewClient(at.Host, grpc.WithTransportCredentials(creds), grpc.WithStreamInterceptor(w.counted)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.conn.Close() })
	return w
}

func (w *world) counted(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	w.streams.Add(1)
	return open(ctx, desc, conn, method, options...)
}

// follow begins to follow, until the test ends or stop is called.
func (w *world) follow() (stop func()) {
	w.usage, w.floor = limit.NewUsage(etcd.Quota{Storage: 1 << 40}), limit.NewFloor()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	cfg := Config{
		Log: slog.New(slog.DiscardHandler), Name: "a", Prefix: w.prefix, Etcd: w.conn,
		Usage: w.usage, Floor: w.floor, Scans: make(chan struct{}, 1),
		busyFor: time.Hour,
	}
	done.Go(func() { Follow(ctx, cfg) })
	stop = func() { cancel(); done.Wait() }
	w.t.Cleanup(stop)
	return stop
}

// agrees waits until a revision is counted, and compares the count with etcd.
func (w *world) agrees(when string) {
	w.t.Helper()
	out, err := w.server.Root.Get(w.t.Context(), w.prefix+"\x00", clientv3.WithRange(clientv3.GetPrefixRangeEnd(w.prefix)))
	if err != nil {
		w.t.Fatal(err)
	}
	bytes := int64(0)
	for _, kv := range out.Kvs {
		bytes += int64(len(kv.Key) - len(w.prefix) + len(kv.Value))
	}
	var got limit.State
	if !await.Soon(func() bool {
		got = w.usage.State()
		return got.Current && got.Revision >= out.Header.Revision
	}) {
		w.t.Fatalf("%s: revision %d is not reached: %+v", when, out.Header.Revision, got)
	}
	if got.Bytes != bytes || got.Keys != int64(len(out.Kvs)) {
		w.t.Errorf("%s: counted %d bytes and %d keys, and etcd holds %d and %d", when, got.Bytes, got.Keys, bytes, len(out.Kvs))
	}
}

// change changes keys inside and outside of the namespace.
func (w *world) change(r *rand.Rand) {
	w.t.Helper()
	c, ctx := w.server.Root, w.t.Context()
	key := func() string { return fmt.Sprintf("%sk%d", w.prefix, r.IntN(30)) }
	value := func() string { return strings.Repeat("v", r.IntN(1000)) }
	var err error
	switch r.IntN(7) {
	case 0, 1:
		_, err = c.Put(ctx, key(), value())
	case 2:
		_, err = c.Delete(ctx, key())
	case 3:
		_, err = c.Delete(ctx, key(), clientv3.WithRange(key()))
	case 4:
		_, err = c.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key()), "=", 0)).Then(
			clientv3.OpPut(w.prefix+"then", value()), clientv3.OpDelete(key()+"x"), clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut(key(), value())}, nil),
		).Else(clientv3.OpPut(key(), value())).Commit()
	case 5:
		var lease *clientv3.LeaseGrantResponse
		if lease, err = c.Grant(ctx, 1000); err == nil {
			if _, err = c.Put(ctx, key(), value(), clientv3.WithLease(lease.ID)); err == nil {
				_, err = c.Revoke(ctx, lease.ID)
			}
		}
	case 6:
		_, err = c.Put(ctx, "/ns/b/"+key(), value())
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// While much is written the watch rests, unless the quota is near. The count stays right.
func TestRests(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		quota etcd.Quota
		rests bool
	}{
		{"far from the quota", etcd.Quota{Storage: 1 << 40, Keys: 1000}, true},
		{"without a quota", etcd.Quota{}, true},
		{"near the quota", etcd.Quota{Storage: 100}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r := rand.New(rand.NewPCG(3, 4))
			for i := range 30 { // what change writes to
				if _, err := w.server.Root.Put(t.Context(), fmt.Sprintf("%sk%d", w.prefix, i), "v"); err != nil {
					t.Fatal(err)
				}
			}
			w.follow()
			w.usage.SetQuota(test.quota)
			w.agrees("counted")
			for range 2 {
				for range 3 * busyAnswers {
					if _, err := w.server.Root.Put(t.Context(), fmt.Sprintf("%sk%d", w.prefix, r.IntN(30)), strings.Repeat("v", r.IntN(100_000))); err != nil {
						t.Fatal(err)
					}
				}
				for range 20 {
					w.change(r)
				}
				w.agrees("written")
			}
			if rested := w.streams.Load() > 1; rested != test.rests {
				t.Errorf("opened %d watches", w.streams.Load())
			}
		})
	}
}

// If etcd went back to an earlier revision during a rest, the namespace is counted again, and growing writes
// wait for that.
func TestBackDuringRest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	usage := limit.NewUsage(etcd.Quota{Storage: 1 << 40})
	usage.SetCurrent(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	kv := &seen{KVClient: etcdserverpb.NewKVClient(w.conn), page: func() {
		if usage.State().Current {
			t.Error("what was counted before is current while it is counted anew")
		}
		cancel()
	}}
	f := &follower{
		Config: Config{Log: slog.New(slog.DiscardHandler), Name: "a", Prefix: w.prefix, Usage: usage, Floor: limit.NewFloor()},
		kv:     kv, end: clientv3.GetPrefixRangeEnd(w.prefix),
		counted: true, revision: 1 << 40, // as after a rest
	}
	if err := f.follow(ctx); status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	if !kv.paged {
		t.Error("nothing was counted")
	}
}

// seen calls page before what counts is read.
type seen struct {
	etcdserverpb.KVClient
	page  func()
	paged bool
}

func (s *seen) Range(ctx context.Context, in *etcdserverpb.RangeRequest, options ...grpc.CallOption) (*etcdserverpb.RangeResponse, error) {
	if in.GetLimit() > 0 {
		s.paged = true
		s.page()
	}
	return s.KVClient.Range(ctx, in, options...)
}

// The count is right after any sequence of changes, compactions, broken connections and restarts of etcd.
func TestFollow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		w.change(r)
	}
	stop := w.follow()
	w.agrees("counted")
	for range 50 {
		w.change(r)
	}
	w.agrees("followed")

	compact := func() {
		t.Helper()
		out, err := w.server.Root.Get(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.server.Root.Compact(t.Context(), out.Header.Revision); err != nil {
			t.Fatal(err)
		}
	}
	compact()
	w.change(r)
	w.agrees("compacted while followed")
	for range 5 {
		w.relay.Cut()
		for range 10 {
			w.change(r)
		}
		w.agrees("connection cut")
	}

	w.relay.SetDown(true)
	if !await.Soon(func() bool { return !w.usage.State().Current }) {
		t.Error("current without a connection")
	}
	for range 20 {
		w.change(r)
	}
	compact()
	w.change(r)
	w.relay.SetDown(false)
	w.agrees("compacted beyond the watch")

	if err := w.server.Restart(func(string) error { return nil }); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		w.change(r)
	}
	w.agrees("etcd started again")

	stop()
	w.follow()
	w.agrees("started again")
}

// After etcd was restored to an earlier state, count and floor are those of the restored state.
func TestRestored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		w.change(r)
	}
	w.follow()
	w.agrees("counted")
	saved := t.TempDir()
	if err := w.server.Restart(func(data string) error { return os.CopyFS(saved, os.DirFS(data)) }); err != nil {
		t.Fatal(err)
	}
	for range 40 {
		w.change(r)
	}
	w.agrees("before it was restored")
	before := w.usage.State().Revision
	if err := Raise(t.Context(), w.conn, w.prefix, w.floor, before); err != nil {
		t.Fatal(err)
	}
	err := w.server.Restart(func(data string) error {
		if err := os.RemoveAll(data); err != nil {
			return err
		}
		return os.CopyFS(data, os.DirFS(saved))
	})
	if err != nil {
		t.Fatal(err)
	}
	if !await.Soon(func() bool { s := w.usage.State(); return s.Current && s.Revision < before }) {
		t.Fatalf("not counted again: %+v", w.usage.State())
	}
	w.agrees("restored")
	if floor := w.floor.Load(); floor != 0 {
		t.Errorf("the floor is %d, and the restored etcd has none", floor)
	}
	w.change(r)
	w.agrees("followed again")
}

// A scan reads many and large keys in pages at one revision, while they change.
func TestScanPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	for i := range 30 {
		var ops []clientv3.Op
		for j := range 100 {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("%s%02d-%02d", w.prefix, i, j), ""))
		}
		if _, err := w.server.Root.Txn(ctx).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 8 {
		if _, err := w.server.Root.Put(ctx, fmt.Sprintf("%sz%02d", w.prefix, i), strings.Repeat("v", 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	w.follow()
	for i := range 8 {
		if _, err := w.server.Root.Delete(ctx, fmt.Sprintf("%sz%02d", w.prefix, i)); err != nil {
			t.Fatal(err)
		}
	}
	w.agrees("while it was counted")
}

// Events that together exceed the connection's largest message are counted.
func TestBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.server.Root.Put(t.Context(), w.prefix+"k", "v"); err != nil {
		t.Fatal(err)
	}
	w.follow()
	w.agrees("counted")
	w.relay.SetDown(true)
	if !await.Soon(func() bool { return !w.usage.State().Current }) {
		t.Error("current without a connection")
	}
	for i := range 6 { // the connection takes 4 MiB
		if _, err := w.server.Root.Put(t.Context(), fmt.Sprint(w.prefix, "k", i), strings.Repeat("v", 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	w.relay.SetDown(false)
	w.agrees("behind by much")
}

// A floor only rises, outlives the proxy, and is the same for all proxies.
func TestRaise(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	revision := int64(0)
	for range 20 {
		out, err := w.server.Root.Put(ctx, w.prefix+"k", "v")
		if err != nil {
			t.Fatal(err)
		}
		revision = out.Header.Revision
	}
	stop := w.follow()
	other := limit.NewFloor() // of another proxy
	if err := Raise(ctx, w.conn, w.prefix, other, revision-5); err != nil || other.Load() != revision-5 {
		t.Errorf("raised to %d: %v", other.Load(), err)
	}
	if !await.Soon(func() bool { return w.floor.Load() == revision-5 }) {
		t.Errorf("the floor is %d here, want %d", w.floor.Load(), revision-5)
	}
	for _, lower := range []int64{revision - 6, revision - 5} {
		if err := Raise(ctx, w.conn, w.prefix, other, lower); err != limit.ErrCompacted {
			t.Errorf("raised to %d again: %v", lower, err)
		}
	}
	var all sync.WaitGroup
	for i := range int64(5) {
		all.Go(func() {
			// One of them, or each, comes too late.
			if err := Raise(ctx, w.conn, w.prefix, other, revision-4+i); err != nil && err != limit.ErrCompacted {
				t.Error(err)
			}
		})
	}
	all.Wait()
	stop()
	w.follow()
	w.agrees("the record is no key of the tenant")
	if w.floor.Load() != revision {
		t.Errorf("the floor is %d after a start, want %d", w.floor.Load(), revision)
	}

	// An impossible floor is ignored.
	for _, garbage := range []string{"", "x", "-1", "999999999999"} {
		if _, err := w.server.Root.Put(ctx, w.prefix, garbage); err != nil {
			t.Fatal(err)
		}
		if is, err := read(ctx, etcdserverpb.NewKVClient(w.conn), w.prefix); err != nil || is.floor != 0 {
			t.Errorf("record %q: floor %d, %v", garbage, is.floor, err)
		}
	}
	w.agrees("garbage in the record")
	if w.floor.Load() != revision {
		t.Errorf("garbage moved the floor to %d", w.floor.Load())
	}
	if err := Raise(ctx, w.conn, w.prefix, w.floor, revision+1); err != nil {
		t.Errorf("over garbage: %v", err)
	}
}
