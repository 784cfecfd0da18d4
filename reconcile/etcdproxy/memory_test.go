package etcdproxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
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
	now   atomic.Int64 // how many wait
}

func (w *waiting) Enter(ctx context.Context, _ *Call) (Passage, error) {
	w.now.Add(1)
	defer w.now.Add(-1)
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
	gate := &waiting{until: make(chan struct{})}
	p := serve(t, Config{Gate: gate, Limits: Limits{UnreadBytes: 7 << 19}}, a, b)
	large := &pb.PutRequest{Key: []byte("k"), Value: []byte(strings.Repeat("v", 1000<<10))}
	put := func(x tenantIn, r *pb.PutRequest) chan error {
		kv, ended := pb.NewKVClient(p.plain(t, x.certificate(t))), make(chan error, 1)
		go func() {
			_, err := kv.Put(t.Context(), r)
			ended <- err
		}()
		return ended
	}
	var held []chan error
	hold := func(x tenantIn) {
		held = append(held, put(x, large))
		waitFor(t, fmt.Sprintf("request %d to wait", len(held)), func() bool { return int(gate.now.Load()) == len(held) })
	}
	for range 4 { // one by one: while it is rewritten, a request takes twice the memory
		hold(a)
	}
	more := put(a, large)
	waitFor(t, "one more to end", func() bool { return len(more) > 0 })
	if err := <-more; status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "hold as much as they may") {
		t.Errorf("one more: %v", err)
	}
	hold(b)
	close(gate.until)
	for _, ended := range held {
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

// Requests that were sent in part are held within the limit, for a limited time, and hinder no neighbour.
func TestRequestsInPart(t *testing.T) {
	t.Parallel()
	a, b := newTenantIn(t, "a"), newTenantIn(t, "b")
	const most, size = 4 << 20, 2 << 20
	p := serve(t, Config{Limits: Limits{UnreadBytes: most, Unfinished: time.Hour}}, a, b)
	refused := Ended{"/etcdserverpb.KV/Put", codes.ResourceExhausted}
	conn := p.inPart(t, a, 8, size-100, size)
	waitFor(t, "some of the requests to be refused", func() bool { return p.Counts()[a.ID].Ended[refused] >= 4 })
	if asked := p.asked.Load(); asked < most/2 || asked > most+size {
		t.Errorf("%d bytes are held, of %d", asked, most)
	}
	if _, err := pb.NewKVClient(p.plain(t, b.certificate(t))).Put(t.Context(), &pb.PutRequest{Key: []byte("k"), Value: make([]byte, 1<<20)}); err != nil {
		t.Errorf("the neighbour: %v", err)
	}
	conn.Close()
	waitFor(t, "nothing to be held", func() bool { return p.asked.Load() == 0 })

	p = serve(t, Config{Limits: Limits{Unfinished: 10 * time.Millisecond}}, a)
	p.inPart(t, a, 2, 1<<19, size)
	waitFor(t, "both requests to end", func() bool { return p.Counts()[a.ID].Ended[refused] == 2 && p.asked.Load() == 0 })
}

// inPart opens a connection, and sends a part of each of some requests.
func (r running) inPart(t *testing.T, x tenantIn, requests, part, size int) net.Conn {
	t.Helper()
	c := r.authenticated(t, x)
	_, err := io.WriteString(c, http2.ClientPreface)
	f := http2.NewFramer(c, c)
	var block bytes.Buffer
	headers := hpack.NewEncoder(&block)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(errors.Join(err, f.WriteSettings()))
	go io.Copy(io.Discard, c)
	for i := range requests {
		id := uint32(2*i + 1)
		block.Reset()
		for _, h := range [][2]string{
			{":method", "POST"}, {":scheme", "https"}, {":path", "/etcdserverpb.KV/Put"}, {":authority", "a"},
			{"content-type", "application/grpc"}, {"te", "trailers"},
		} {
			must(headers.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}))
		}
		must(f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}))
		data := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(size)), make([]byte, part)...)
		for piece := range slices.Chunk(data, 1<<14) {
			must(f.WriteData(id, false, piece))
		}
	}
	return c
}
