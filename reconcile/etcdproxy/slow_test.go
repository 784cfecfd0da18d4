package etcdproxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// raw connects without a library that reads by itself.
func (r running) raw(t testing.TB, x tenantIn) *grpc.ClientConn {
	t.Helper()
	creds := credentials.NewTLS(&tls.Config{RootCAs: r.ca.Pool(), Certificates: []tls.Certificate{x.certificate(t)}})
	conn, err := grpc.NewClient(r.addr, grpc.WithTransportCredentials(creds),
		grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// The watch of a client that does not read it ends with an error. Meanwhile the proxy holds little for it, and
// other streams of the tenant and its neighbour go on.
func TestSlowWatch(t *testing.T) { both(t, testSlowWatch) }

func testSlowWatch(t *testing.T) {
	t.Parallel()
	a, b := newTenantIn(t, "a"), newTenantIn(t, "b")
	p := serve(t, Config{Limits: Limits{Unread: 2 * time.Second}}, a, b)
	ctx := t.Context()
	slow, err := etcdserverpb.NewWatchClient(p.raw(t, a)).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := slow.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
		CreateRequest: &etcdserverpb.WatchCreateRequest{Key: []byte("k")},
	}}); err != nil {
		t.Fatal(err)
	}
	if r, err := slow.Recv(); err != nil || !r.Created {
		t.Fatalf("%v, %v", r, err)
	}
	ca, cb := p.client(t, a), p.client(t, b)
	others := []clientv3.WatchChan{ca.Watch(ctx, "k", clientv3.WithCreatedNotify()), cb.Watch(ctx, "k", clientv3.WithCreatedNotify())}
	for _, w := range others {
		<-w
	}
	const events, size = 16, 1 << 20
	for i := range events {
		if _, err := ca.Put(ctx, "k", strings.Repeat("v", size)); err != nil {
			t.Fatalf("write %d beside a slow watch: %v", i, err)
		}
	}
	for seen := 0; seen < events; {
		r := <-others[0]
		if r.Err() != nil {
			t.Fatalf("another watch of the tenant ended after %d events: %v", seen, r.Err())
		}
		seen += len(r.Events)
	}
	if _, err := cb.Put(ctx, "k", "v"); err != nil {
		t.Fatal(err)
	}
	if r := <-others[1]; r.Err() != nil || len(r.Events) != 1 {
		t.Errorf("the neighbour's watch: %+v, %v", r, r.Err())
	}
	key := Ended{"/etcdserverpb.Watch/Watch", codes.ResourceExhausted}
	waitFor(t, "the slow watch to end", func() bool { return p.Counts()[a.ID].Ended[key] == 1 })
	if sent := p.Counts()[a.ID].Sent; sent > (events+8)*(size+1000) {
		t.Errorf("%d bytes were taken from etcd for a client that reads nothing", sent-events*size)
	}
	for {
		if _, err = slow.Recv(); err != nil {
			break
		}
	}
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "unread for too long") {
		t.Errorf("the slow client was told %v", err)
	}
}

// A range in parts waits for its reader for a limited time.
func TestSlowRange(t *testing.T) { both(t, testSlowRange) }

func testSlowRange(t *testing.T) {
	t.Parallel()
	a := newTenantIn(t, "a")
	p := serve(t, Config{Limits: Limits{Unread: 200 * time.Millisecond}}, a)
	c := p.client(t, a)
	for i := range 32 { // the first part has ten keys
		if _, err := c.Put(t.Context(), fmt.Sprint("k", i), strings.Repeat("v", 256<<10)); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := etcdserverpb.NewKVClient(p.raw(t, a)).RangeStream(t.Context(), &etcdserverpb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	if err != nil {
		t.Fatal(err)
	}
	key := Ended{"/etcdserverpb.KV/RangeStream", codes.ResourceExhausted}
	waitFor(t, "the range to end", func() bool { return p.Counts()[a.ID].Ended[key] == 1 })
	for err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(err, errSlow) && status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the slow client was told %v", err)
	}
}

// The memory of unread responses is limited. Beyond the limit the tenant's calls are refused until they are read,
// and no neighbour's.
func TestUnread(t *testing.T) { both(t, testUnread) }

func testUnread(t *testing.T) {
	t.Parallel()
	a, b := newTenantIn(t, "a"), newTenantIn(t, "b")
	p := serve(t, Config{Limits: Limits{UnreadBytes: 4 << 20}}, a, b)
	c, cb := p.client(t, a), p.client(t, b)
	ctx := t.Context()
	if _, err := c.Put(ctx, "k", strings.Repeat("v", 1<<20)); err != nil {
		t.Fatal(err)
	}
	conn := p.raw(t, a)
	var streams []grpc.ClientStream
	for range 10 {
		s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/etcdserverpb.KV/Range")
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SendMsg(&etcdserverpb.RangeRequest{Key: []byte("k")}); err != nil {
			t.Fatal(err)
		}
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	waitFor(t, "what is unread to be too much", func() bool {
		_, err := c.Get(ctx, "other")
		return err != nil && strings.Contains(err.Error(), "left unread")
	})
	if _, err := cb.Get(ctx, "k"); err != nil {
		t.Errorf("the neighbour: %v", err)
	}
	if _, err := c.Put(ctx, "other", "v"); err != nil {
		t.Errorf("a write: %v", err)
	}
	read := 0
	for _, s := range streams {
		if err := s.RecvMsg(new(etcdserverpb.RangeResponse)); err == nil {
			read++
		}
	}
	if read < 4 {
		t.Errorf("%d responses could be read at last", read)
	}
	waitFor(t, "calls to go on", func() bool { _, err := c.Get(ctx, "other"); return err == nil })
}

// The number of calls in progress of a tenant is limited, whatever they wait for.
func TestTooManyCalls(t *testing.T) { both(t, testTooManyCalls) }

func testTooManyCalls(t *testing.T) {
	t.Parallel()
	a, b := newTenantIn(t, "a"), newTenantIn(t, "b")
	p := serve(t, Config{Limits: Limits{Calls: 5}}, a, b)
	watches := etcdserverpb.NewWatchClient(p.raw(t, a))
	for range 5 {
		if _, err := watches.Watch(t.Context()); err != nil { // and sends nothing
			t.Fatal(err)
		}
	}
	waitFor(t, "five calls", func() bool { return p.Counts()[a.ID].Calls == 5 })
	if _, err := etcdserverpb.NewKVClient(p.raw(t, a)).Range(t.Context(), &etcdserverpb.RangeRequest{Key: []byte("k")}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the sixth call: %v", err)
	}
	if _, err := p.client(t, b).Get(t.Context(), "k"); err != nil {
		t.Errorf("the neighbour: %v", err)
	}
}

func waitFor(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited for %s", what)
		}
	}
}
