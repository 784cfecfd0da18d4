package etcdproxy

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Large responses wait for room in memory for a limited time; small ones do not wait. Responses give their room
// back.
func TestLargeResponses(t *testing.T) { all(t, testLargeResponses) }

func testLargeResponses(t *testing.T) {
	t.Parallel()
	a := newTenantIn(t, "a")
	const room = 32 << 20
	p := serve(t, Config{Limits: Limits{LargeBytes: room, Unread: 100 * time.Millisecond}}, a)
	kv := pb.NewKVClient(p.plain(t, a.certificate(t)))
	put := func(key string) *pb.PutRequest {
		return &pb.PutRequest{Key: []byte(key), Value: []byte(strings.Repeat("v", 1<<20))}
	}
	const keys = 6
	for i := range keys {
		if _, err := kv.Put(t.Context(), put(fmt.Sprint("k", i))); err != nil {
			t.Fatal(err)
		}
	}
	read := grpc.MaxCallRecvMsgSize(64 << 20) // by the client
	all := &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")}
	op := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: all}}
	get := func(i int) *pb.RequestOp { return rangeOp(fmt.Sprint("k", i), "") }
	for what, tt := range map[string]struct {
		large bool
		call  func() error
	}{
		"a range": {true, func() error { _, err := kv.Range(t.Context(), all, read); return err }},
		"a transaction": {true, func() error {
			_, err := kv.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{op}}, read)
			return err
		}},
		"one that writes": {true, func() error {
			_, err := kv.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{putOp("w", ""), op}}, read)
			return err
		}},
		"many keys": {true, func() error {
			_, err := kv.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{putOp("w", ""), get(0), get(1), get(2), get(3), get(4)}}, read)
			return err
		}},
		"what is deleted": {true, func() error {
			_, err := kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte("none"), RangeEnd: []byte("nonf"), PrevKv: true})
			return err
		}},
		"a key": {false, func() error { _, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("k1")}); return err }},
		"a count": {false, func() error {
			_, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l"), CountOnly: true})
			return err
		}},
		"a write": {false, func() error { _, err := kv.Put(t.Context(), put("w")); return err }},
		"a key or a write": {false, func() error {
			_, err := kv.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{putOp("w", "")}, Failure: []*pb.RequestOp{get(1)}})
			return err
		}},
		"a range that goes": {false, func() error {
			_, err := kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte("none"), RangeEnd: []byte("nonf")})
			return err
		}},
	} {
		if err := tt.call(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if !p.large.TryAcquire(room) {
			t.Fatalf("%s: it has room, and has ended", what)
		}
		err := tt.call()
		if tt.large != (status.Code(err) == codes.ResourceExhausted && strings.Contains(status.Convert(err).Message(), "too many large responses")) || !tt.large && err != nil {
			t.Errorf("%s, without room: %v", what, err)
		}
		p.large.Release(room)
	}
}

// waiting is a gate that lets nothing through until it is closed.
type waiting struct {
	open
	until chan struct{}
}

func (w waiting) Enter(ctx context.Context, _ *Call) (Passage, error) {
	select {
	case <-w.until:
		return nil, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// The memory of waiting requests is limited. Beyond the limit the tenant's are refused, and no neighbour's.
func TestRequestsHeld(t *testing.T) { both(t, testRequestsHeld) }

func testRequestsHeld(t *testing.T) {
	t.Parallel()
	a, b := newTenantIn(t, "a"), newTenantIn(t, "b")
	gate := waiting{until: make(chan struct{})}
	p := serve(t, Config{Gate: gate, Limits: Limits{UnreadBytes: 4 << 20}}, a, b)
	large := &pb.PutRequest{Key: []byte("k"), Value: []byte(strings.Repeat("v", 1<<20))}
	put := func(x tenantIn, r *pb.PutRequest) chan error {
		kv, ended := pb.NewKVClient(p.plain(t, x.certificate(t))), make(chan error, 1)
		go func() {
			_, err := kv.Put(t.Context(), r)
			ended <- err
		}()
		return ended
	}
	var held []chan error
	for range 4 {
		held = append(held, put(a, large))
	}
	waitFor(t, "four requests to wait", func() bool { return p.asked.Load() > 4<<20 })
	if err := <-put(a, large); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "hold as much as they may") {
		t.Errorf("one more: %v", err)
	}
	neighbour := put(b, large)
	waitFor(t, "the neighbour's request to wait", func() bool { return p.asked.Load() > 5<<20 })
	close(gate.until)
	for _, ended := range append(held, neighbour) {
		if err := <-ended; err != nil {
			t.Errorf("a request that waited: %v", err)
		}
	}
	if err := <-put(a, large); err != nil {
		t.Errorf("once they are gone: %v", err)
	}
	waitFor(t, "nothing to be held", func() bool { return p.asked.Load() == 0 })
}

// A request that could not be sent holds no memory.
func TestNotSent(t *testing.T) { both(t, testNotSent) }

func testNotSent(t *testing.T) {
	t.Parallel()
	a := newTenantIn(t, "a")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a.Upstream.Endpoints = []string{"https://" + l.Addr().String()}
	l.Close() // nobody is there
	p := serve(t, Config{}, a)
	kv := pb.NewKVClient(p.plain(t, a.certificate(t)))
	large := strings.Repeat("k", 1<<20)
	for what, call := range map[string]func() error{
		"put":   func() error { _, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte(large)}); return err },
		"range": func() error { _, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte(large)}); return err },
		"parts": func() error {
			s, err := kv.RangeStream(t.Context(), &pb.RangeRequest{Key: []byte(large)})
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
	} {
		if err := call(); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", what, err)
		}
		waitFor(t, what+" to be let go", func() bool { return p.asked.Load() == 0 })
	}
}
