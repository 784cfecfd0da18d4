// Package linearizability tests that proxies behave as etcd does: as a linearizable store that
// shows watchers each change once and in order.
//
// Clients send random requests to two proxies of one etcd, and watchers follow the changes
// (traffic_test.go, watchers_test.go). The proxies are processes, and one of them is killed at random
// and started again. Afterwards porcupine looks for an order of the requests in which a store could
// have given the answers (model_test.go), and every watcher's events are compared with etcd's own
// history (watch_test.go). Broken histories show that both checks can fail (broken_test.go).
package linearizability

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"gitopsd.dev/reconcile/etcdproxy/proxytest"
	"gitopsd.dev/render/etcd"
)

var all = flag.Bool("all", false, "send many more requests, which takes minutes")

func TestMain(m *testing.M) {
	proxytest.Main()
	flag.Parse()
	os.Exit(m.Run())
}

// size is how much happens in a run.
type size struct{ clients, requests, kills int }

// Requests through two proxies, one of which is killed now and then, are linearizable, and watchers see
// every change once and in order.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	for _, kind := range proxytest.Kinds {
		t.Run(kind.Name, func(t *testing.T) { testLinearizable(t, kind) })
	}
}

func testLinearizable(t *testing.T, kind proxytest.Kind) {
	t.Parallel()
	s := size{clients: 5, requests: 120, kills: 4}
	if *all {
		s = size{clients: 8, requests: 3000, kills: 60}
	}
	f := start(t, kind)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	watching, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	var watchers sync.WaitGroup
	kinds := f.watchers(t)
	failed := make(chan error, len(kinds))
	for _, w := range kinds {
		kv := f.client(t)
		watchers.Go(func() {
			if err := w.follow(watching, kv, clientv3.WithFragment()); err != nil {
				failed <- err
			}
		})
	}
	r := &recorder{begun: time.Now()}
	var clients sync.WaitGroup
	for i := range s.clients {
		c := &client{id: i, kv: f.client(t), random: rand.New(rand.NewPCG(seed, uint64(i)+1)), known: make(map[string]int64)}
		clients.Go(func() { c.run(t.Context(), r, s.requests) })
	}
	beside, stop := context.WithCancel(t.Context())
	defer stop()
	clients.Go(func() { f.writeBeside(beside) })
	f.killing(t, random, r, s)
	r.wait(t.Context(), s.clients*s.requests)
	stop()
	clients.Wait()
	f.finish(t)
	defer time.AfterFunc(patience, giveUp).Stop()
	watchers.Wait()
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}

	history := f.history(t)
	events, notified := 0, 0
	for _, w := range kinds {
		events, notified = events+len(w.seen), notified+len(w.progress)
		if err := w.check(history); err != nil {
			t.Error(err)
		}
	}
	operations := r.operations(t, history)
	t.Logf("%d requests with an answer, %d without; %d events in the history, %d seen by %d watchers, with %d progress notifications",
		len(r.history), len(r.lost), len(history), events, len(kinds), notified)
	if notified == 0 {
		t.Error("no watcher got a progress notification")
	}
	if len(r.history) < s.clients*s.requests/2 {
		t.Errorf("only %d of %d requests got an answer", len(r.history), s.clients*s.requests)
	}
	f.linearizable(t, operations)
}

// linearizable fails the test, and writes a page with the operations, if there is no order of them in which
// a store could have given the answers.
func (f *fixture) linearizable(t *testing.T, operations []porcupine.Operation) {
	t.Helper()
	const limit = 5 * time.Minute
	result, info := porcupine.CheckOperationsVerbose(model, operations, limit)
	if result == porcupine.Ok {
		return
	}
	page := filepath.Join(os.TempDir(), fmt.Sprintf("linearizability-%d.html", os.Getpid()))
	t.Errorf("linearizable: %v; see %s (%v)", result, page, porcupine.VisualizePath(model, info, page))
}

// namespace is what clients write to; neighbour writes to the same etcd.
var (
	namespace = etcd.Namespace{ID: etcd.ID{Cluster: "one"}, Number: 1, Prefix: etcd.ID{Cluster: "one"}.DefaultPrefix()}
	neighbour = "/gitopsd.dev/ns/other/"
)

// fixture is an etcd with two proxies.
type fixture struct {
	etcd      *proxytest.Etcd
	config    proxytest.Config
	client    func(*testing.T) *clientv3.Client
	addresses [2]string
	processes [2]*proxytest.Process
}

func start(t *testing.T, kind proxytest.Kind) *fixture {
	t.Helper()
	e, err := proxytest.Start(t.TempDir(), proxytest.NewConfig())
	check(t, err)
	t.Cleanup(func() { e.Close() })
	clients, err := proxytest.NewAuthority("clients")
	check(t, err)
	servers, err := proxytest.NewAuthority("servers")
	check(t, err)
	served, err := e.Serve(t.Context(), namespace, clients.PEM())
	check(t, err)
	certificate, err := servers.Server()
	check(t, err)
	f := &fixture{etcd: e, config: proxytest.Config{Tenants: []proxytest.Served{served}, GRPCGo: kind.GRPCGo}}
	f.config.Certificate, f.config.Key, err = proxytest.EncodePair(certificate)
	check(t, err)
	for i := range f.processes {
		f.addresses[i] = "127.0.0.1:0"
		f.run(t, i)
	}
	t.Cleanup(func() {
		for _, p := range f.processes {
			p.Kill()
		}
	})
	tlsConfig, err := proxytest.ClientTLS(namespace.ID, clients, servers)
	check(t, err)
	f.client = func(t *testing.T) *clientv3.Client { return connect(t, f.addresses[:], tlsConfig) }
	return f
}

// connect returns a client that knows several proxies.
func connect(t *testing.T, addresses []string, tlsConfig *tls.Config) *clientv3.Client {
	t.Helper()
	// The client keeps the slice.
	c, err := clientv3.New(clientv3.Config{Endpoints: slices.Clone(addresses), TLS: tlsConfig, Logger: zap.NewNop()})
	check(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// run starts a proxy, at the address that it had before.
func (f *fixture) run(t *testing.T, i int) {
	t.Helper()
	var err error
	f.processes[i], f.addresses[i], err = proxytest.StartProxy(context.Background(), f.addresses[i], f.config)
	check(t, err)
}

// killing kills proxies at random points of the requests' progress, and starts them again.
func (f *fixture) killing(t *testing.T, random *rand.Rand, r *recorder, s size) {
	t.Helper()
	step := s.clients * s.requests / (s.kills + 1)
	for i := range s.kills {
		r.wait(t.Context(), i*step+random.IntN(step/2))
		victim := random.IntN(len(f.processes))
		if err := f.processes[victim].Kill(); err != nil {
			t.Fatal(err)
		}
		r.wait(t.Context(), i*step+step/2+random.IntN(step/2))
		f.run(t, victim)
	}
}

// writeBeside writes beside the namespace, so that its revisions have gaps.
func (f *fixture) writeBeside(ctx context.Context) {
	for ctx.Err() == nil {
		f.etcd.Root().Put(ctx, neighbour+"key", "value")
		time.Sleep(5 * time.Millisecond)
	}
}

// watchers returns the watchers of a run: of everything and of ranges, with and without previous values.
func (f *fixture) watchers(t *testing.T) []*watched {
	t.Helper()
	return []*watched{
		{name: "everything", from: 1, key: "\x00", before: true},
		{name: "everything, without previous values", from: 1, key: "\x00"},
		{name: "a range", from: 1, key: "b", end: end},
		{name: "from a key on", from: 1, key: "c", before: true},
	}
}

// finish puts the key last, which ends the watchers.
func (f *fixture) finish(t *testing.T) {
	t.Helper()
	_, err := f.client(t).Put(t.Context(), last, "end")
	check(t, err)
}

// history returns the namespace's history in etcd.
func (f *fixture) history(t *testing.T) (all []event) {
	t.Helper()
	watched := f.etcd.Root().Watch(t.Context(), namespace.Prefix, clientv3.WithPrefix(), clientv3.WithRev(1), clientv3.WithPrevKV())
	for answer := range watched {
		check(t, answer.Err())
		for _, e := range answer.Events {
			e.Kv.Key = e.Kv.Key[len(namespace.Prefix):]
			all = append(all, eventOf(e, true))
			if string(e.Kv.Key) == last {
				return all
			}
		}
	}
	t.Fatal("etcd's history has no end")
	return nil
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
