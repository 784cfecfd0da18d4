package etcdproxy

import (
	"errors"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"gitopsd.dev/testscripts/etcdserver"
)

// Compact hides earlier revisions from the tenant, and from no other.
func TestCompact(t *testing.T) { all(t, testCompact) }

func testCompact(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	a, b := newTenantIn(t, "a"), newTenantIn(t, "b")
	p := serve(t, Config{}, a, b)
	ca, cb := p.client(t, a), p.client(t, b)
	var at [3]int64
	var others int64 // revision, below the floor
	for i := range at {
		put, err := ca.Put(ctx, "k", string(rune('0'+i)))
		if err != nil {
			t.Fatal(err)
		}
		at[i] = put.Header.Revision
		other, err := cb.Put(ctx, "k", string(rune('0'+i)))
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			others = other.Header.Revision
		}
	}
	if _, err := ca.Compact(ctx, at[2]+1_000_000); !errors.Is(err, rpctypes.ErrFutureRev) {
		t.Errorf("the future: %v", err)
	}
	if got, err := ca.Compact(ctx, at[1], clientv3.WithCompactPhysical()); err != nil || got.Header.Revision < at[2] {
		t.Fatalf("%v, %v", got, err)
	}
	for _, revision := range []int64{at[0], at[1]} {
		if _, err := ca.Compact(ctx, revision); !errors.Is(err, rpctypes.ErrCompacted) {
			t.Errorf("again at %d: %v", revision, err)
		}
	}
	if _, err := ca.Get(ctx, "k", clientv3.WithRev(at[1]-1)); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("below: %v", err)
	}
	if _, err := ca.Txn(ctx).Then(clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpGet("k", clientv3.WithRev(at[0]))}, nil)).Commit(); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("below, in a transaction: %v", err)
	}
	stream, err := ca.GetStream(ctx, "k", clientv3.WithRev(at[0]))
	if err == nil {
		for part := range stream {
			err = errors.Join(err, part.Err())
		}
	}
	if !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("below, as a stream: %v", err)
	}
	if got, err := ca.Get(ctx, "k", clientv3.WithRev(at[1])); err != nil || string(got.Kvs[0].Value) != "1" {
		t.Errorf("at the floor: %v, %v", got, err)
	}
	if got, err := cb.Get(ctx, "k", clientv3.WithRev(others)); err != nil || string(got.Kvs[0].Value) != "0" {
		t.Errorf("another's past: %v, %v", got, err)
	}
}

// A watch that begins below the floor is created and canceled, as by an etcd that is compacted there. Others on
// the stream go on, in order.
func TestWatchBelowFloor(t *testing.T) { both(t, testWatchBelowFloor) }

func testWatchBelowFloor(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	// One of its own: if a user is created meanwhile, a watch that is requested while others are unanswered is
	// refused, see [watching].
	s, err := etcdserver.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	a := newTenantOf(t, s, "a")
	p := serve(t, Config{}, a)
	c := p.client(t, a)
	first, err := c.Put(ctx, "k", "0")
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.Put(ctx, "k", "1")
	if err != nil {
		t.Fatal(err)
	}
	floor := second.Header.Revision
	if _, err := c.Compact(ctx, floor); err != nil {
		t.Fatal(err)
	}
	stream, err := pb.NewWatchClient(c.ActiveConnection()).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	create := func(key string, from, id int64) {
		if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte(key), StartRevision: from, WatchId: id}}}); err != nil {
			t.Fatal(err)
		}
	}
	receive := func() *pb.WatchResponse {
		got, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	create("k", first.Header.Revision, 0)
	if got := receive(); !got.Created || got.Canceled || got.WatchId != 0 {
		t.Fatalf("created: %v", got)
	}
	if got := receive(); got.Created || !got.Canceled || got.WatchId != 0 || got.CompactRevision != floor || got.Header.GetRevision() < floor {
		t.Fatalf("canceled: %v", got)
	}
	create("k", first.Header.Revision, 9)
	create("k", floor, 10)
	create("k", first.Header.Revision, 10) // the ID is taken: that is told instead
	create("k", 0, 11)
	// Three of them are created and one is not, in order; what follows a watch is not ordered
	// with what follows another.
	var created []int64
	var compacted, events, refused int
	for len(created) < 3 || compacted == 0 || events == 0 || refused == 0 {
		switch got := receive(); {
		case got.Created && got.Canceled:
			refused++
			if got.WatchId != -1 || got.CancelReason == "" || len(created) != 2 {
				t.Fatalf("refused: %v", got)
			}
		case got.Created:
			created = append(created, got.WatchId)
		case got.Canceled:
			compacted++
			if got.WatchId != 9 || got.CompactRevision != floor {
				t.Fatalf("canceled: %v", got)
			}
		default:
			events += len(got.Events)
			if got.WatchId != 10 || string(got.Events[0].Kv.Value) != "1" {
				t.Fatalf("event: %v", got)
			}
		}
	}
	if created[0] != 9 || created[1] != 10 || created[2] != 11 {
		t.Errorf("created %v", created)
	}
	// The client library makes of it what it does of etcd's.
	for w := range c.Watch(ctx, "k", clientv3.WithRev(first.Header.Revision)) {
		if w.Err() != rpctypes.ErrCompacted || w.CompactRevision != floor {
			t.Errorf("the library: %+v, %v", w, w.Err())
		}
	}
	put, err := c.Put(ctx, "k", "2")
	if err != nil {
		t.Fatal(err)
	}
	for seen := map[int64]bool{}; len(seen) < 2; {
		got := receive()
		if len(got.Events) != 1 || got.Events[0].Kv.ModRevision != put.Header.Revision || got.WatchId < 10 {
			t.Fatalf("after all that: %v", got)
		}
		seen[got.WatchId] = true
	}
}
