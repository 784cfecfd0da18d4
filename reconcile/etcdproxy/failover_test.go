package etcdproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"gitopsd.dev/testscripts/etcdserver"
)

// watcher collects the values that a watch has seen of a key.
type watcher struct {
	last   atomic.Int64
	cancel func()
	done   chan []string
}

func watchValues(t testing.TB, c *clientv3.Client, key string) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	events := c.Watch(ctx, key, clientv3.WithCreatedNotify())
	if r := <-events; r.Err() != nil || !r.Created {
		t.Fatalf("watch: %+v, %v", r, r.Err())
	}
	w := &watcher{cancel: cancel, done: make(chan []string, 1)}
	go func() {
		var seen []string
		for r := range events {
			for _, e := range r.Events {
				seen = append(seen, string(e.Kv.Value))
				if n, err := strconv.ParseInt(string(e.Kv.Value), 10, 64); err == nil {
					w.last.Store(n)
				}
			}
		}
		w.done <- seen
	}()
	return w
}

// ends waits for a last value and returns all that was seen.
func (w *watcher) ends(t testing.TB, last int64) []string {
	t.Helper()
	waitFor(t, fmt.Sprintf("event %d", last), func() bool { return w.last.Load() == last })
	w.cancel()
	return <-w.done
}

// writes puts numbers under a key, each once, and calls disturb now and then, until that reports its end. It
// returns the last number, and the numbers that etcd confirmed.
func writes(t testing.TB, c *clientv3.Client, key string, disturb func(i int) bool) (last int64, written map[string]bool) {
	t.Helper()
	written = make(map[string]bool)
	put := func(i int) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := c.Put(ctx, key, fmt.Sprint(i))
		if err == nil {
			written[fmt.Sprint(i)] = true
		}
		return err
	}
	i := 1
	for ; disturb(i); i++ {
		if err := put(i); err != nil {
			time.Sleep(20 * time.Millisecond)
		}
	}
	for put(i) != nil {
		i++
	}
	return int64(i), written
}

// compare compares the events of a watch with etcd's history.
func compare(t testing.TB, history, seen []string, written map[string]bool) {
	t.Helper()
	if !slices.Equal(seen, history) {
		t.Errorf("the watch saw %d events that are not etcd's %d: %v and %v", len(seen), len(history), seen, history)
	}
	count := make(map[string]int)
	for _, v := range history {
		count[v]++
	}
	for v, n := range count {
		if n != 1 {
			t.Errorf("%s was written %d times", v, n)
		}
	}
	for v := range maps.Keys(written) {
		if count[v] != 1 {
			t.Errorf("%s was not written, and the client was told that it was", v)
		}
	}
}

// Of two endpoints of etcd first one is down, then the other: no write is applied twice, no confirmed write is
// lost, and a watch misses or repeats no event.
func TestFailover(t *testing.T) { both(t, testFailover) }

func testFailover(t *testing.T) {
	t.Parallel()
	s := sharedEtcd(t)
	a := newTenantIn(t, "a")
	var relays []*etcdserver.Relay
	a.Upstream.Endpoints = nil
	for range 2 {
		r, err := etcdserver.NewRelay(s.Endpoint)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		relays = append(relays, r)
		a.Upstream.Endpoints = append(a.Upstream.Endpoints, r.Endpoint)
	}
	relays[1].SetDown(true)
	p := serve(t, Config{}, a)
	c := p.client(t, a)
	direct, through := watchValues(t, s.Root, a.Prefix+"k"), watchValues(t, c, "k")
	last, written := writes(t, c, "k", func(i int) bool {
		if i%40 == 0 {
			up := i / 40 % 2
			relays[up].SetDown(false)
			relays[1-up].SetDown(true)
		}
		return i < 200
	})
	compare(t, direct.ends(t, last), through.ends(t, last), written)
	if len(written) < 100 {
		t.Errorf("only %d of %d writes were confirmed", len(written), last)
	}
	for i, r := range relays {
		if _, ever := r.Open(); ever == 0 {
			t.Errorf("endpoint %d was never used", i)
		}
	}
}

// replica serves on another listener, like another replica with the same certificate.
func (r running) replica(t testing.TB) (url string, stop func(), ended <-chan error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	done := make(chan error, 1)
	go func() { done <- r.Serve(ctx, l) }()
	return "https://" + l.Addr().String(), cancel, done
}

// When a proxy ends, its clients go on with another: no write is applied twice or lost, and a watch misses or
// repeats no event.
func TestDrain(t *testing.T) { both(t, testDrain) }

func testDrain(t *testing.T) {
	t.Parallel()
	s := sharedEtcd(t)
	a := newTenantIn(t, "a")
	p := serve(t, Config{Limits: Limits{Drain: 200 * time.Millisecond}}, a)
	first, stop, ended := p.replica(t)
	second, _, _ := p.replica(t)
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{first, second}, Logger: zap.NewNop(),
		TLS: &tls.Config{RootCAs: p.ca.Pool(), Certificates: []tls.Certificate{a.certificate(t)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	direct, through := watchValues(t, s.Root, a.Prefix+"k"), watchValues(t, c, "k")
	over := false
	last, written := writes(t, c, "k", func(i int) bool {
		if i == 20 {
			stop()
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			over = true
		default:
		}
		return !over || i < 60
	})
	compare(t, direct.ends(t, last), through.ends(t, last), written)
	if _, err := net.Dial("tcp", strings.TrimPrefix(first, "https://")); err == nil {
		t.Error("what has ended still listens")
	}
}

// Calls in progress when a proxy ends may complete, and new calls are refused.
func TestDrainsCalls(t *testing.T) { both(t, testDrainsCalls) }

func testDrainsCalls(t *testing.T) {
	t.Parallel()
	a := newTenantIn(t, "a")
	p := serve(t, Config{Limits: Limits{Drain: time.Minute}}, a)
	c := p.client(t, a)
	const keys, size = 32, 256 << 10
	for i := range keys {
		if _, err := c.Put(t.Context(), fmt.Sprintf("k%02d", i), strings.Repeat("v", size)); err != nil {
			t.Fatal(err)
		}
	}
	url, stop, ended := p.replica(t)
	at := p
	at.addr = strings.TrimPrefix(url, "https://")
	kv := etcdserverpb.NewKVClient(at.raw(t, a))
	stream, err := kv.RangeStream(t.Context(), &etcdserverpb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	part, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	got += len(part.RangeResponse.Kvs)
	stop()
	waitFor(t, "new calls to be refused", func() bool {
		_, err := kv.Range(t.Context(), &etcdserverpb.RangeRequest{Key: []byte("k")})
		return err != nil
	})
	select {
	case <-ended:
		t.Fatal("the proxy ended while a call was in progress")
	default:
	}
	for got < keys {
		part, err := stream.Recv()
		if err != nil {
			t.Fatalf("after %d keys: %v", got, err)
		}
		got += len(part.RangeResponse.Kvs)
	}
	if _, err := stream.Recv(); err == nil {
		t.Error("more than there is")
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Idle watches do not hold up the end of a proxy. Their error tells clients to begin again elsewhere: it is not
// Canceled.
func TestDrainsIdleWatches(t *testing.T) { both(t, testDrainsIdleWatches) }

func testDrainsIdleWatches(t *testing.T) {
	t.Parallel()
	a := newTenantIn(t, "a")
	p := serve(t, Config{Limits: Limits{Drain: 100 * time.Millisecond}}, a)
	url, stop, ended := p.replica(t)
	at := p
	at.addr = strings.TrimPrefix(url, "https://")
	watches := etcdserverpb.NewWatchClient(at.plain(t, a.certificate(t)))
	const many = 200
	told := make(chan error, many)
	for range many {
		w, err := watches.Watch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: &etcdserverpb.WatchCreateRequest{Key: []byte("k")}}}); err != nil {
			t.Fatal(err)
		}
		if created, err := w.Recv(); err != nil || !created.Created {
			t.Fatalf("%v, %v", created, err)
		}
		go func() {
			_, err := w.Recv()
			told <- err
		}()
	}
	stop()
	for range many {
		if err := <-told; status.Code(err) != codes.Unavailable {
			t.Fatalf("a watch ended with %v", err)
		}
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	waitFor(t, "no call to be left", func() bool { return p.Counts()[a.ID].Calls == 0 })
}

// A member of etcd without a leader is left for another, although it answers.
func TestLosesLeader(t *testing.T) { both(t, testLosesLeader) }

func testLosesLeader(t *testing.T) {
	t.Parallel()
	rogues, x := startRogues(t, 2)
	for _, r := range rogues {
		r.answer = func(method string) (proto.Message, error) {
			if method == watchMethod {
				return nil, rpctypes.ErrGRPCNoLeader
			}
			return &etcdserverpb.RangeResponse{}, nil
		}
	}
	conn := serve(t, Config{}, x).plain(t, x.certificate(t))
	read := func() {
		t.Helper()
		if _, err := etcdserverpb.NewKVClient(conn).Range(t.Context(), &etcdserverpb.RangeRequest{Key: []byte("k")}); err != nil {
			t.Fatal(err)
		}
	}
	read()
	at, other := rogues[0], rogues[1]
	if at.asked() == 0 {
		at, other = other, at
	}
	for range 50 { // until all kinds of connections are open
		read()
		time.Sleep(time.Millisecond)
	}
	if n := other.asked(); n != 0 {
		t.Fatalf("%d calls went to the other member", n)
	}
	w, err := etcdserverpb.NewWatchClient(conn).Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Send(&etcdserverpb.WatchRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Recv(); !errors.Is(err, rpctypes.ErrGRPCNoLeader) {
		t.Errorf("the watch ended with %v", err)
	}
	waitFor(t, "calls to go to the other member", func() bool {
		read()
		before := at.asked()
		read()
		return other.asked() > 0 && at.asked() == before
	})
}
