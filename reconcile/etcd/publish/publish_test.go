package publish

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// childVar makes the test binary publish until it is killed, to the etcd at its value.
const childVar = "GITOPSD_TEST_PUBLISH"

func TestMain(m *testing.M) {
	if endpoint := os.Getenv(childVar); endpoint != "" {
		child(endpoint)
	}
	os.Exit(m.Run())
}

// server runs an etcd until the test ends, and returns its endpoint.
func server(t *testing.T) string {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	cfg.UnsafeNoFsync = true
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	free := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.ListenPeerUrls = free, free
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(time.Minute):
		t.Fatal("etcd does not start")
	}
	return "http://" + e.Clients[0].Addr().String()
}

func connect(endpoint string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
}

// client connects to an etcd of its own.
func client(t *testing.T) *clientv3.Client {
	t.Helper()
	c, err := connect(server(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func publisher(t *testing.T, kv clientv3.KV, lease clientv3.Lease) *Publisher {
	t.Helper()
	p, err := New(Config{KV: kv, Lease: lease, Keep: 2, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// generation returns documents of one generation.
func generation(n, count int) []Document {
	docs := make([]Document, count)
	for i := range docs {
		docs[i] = Document{Name: fmt.Sprintf("types/example.org/Kind%04d/v1", i), Body: fmt.Appendf(nil, "generation %d of %d", n, i)}
	}
	return docs
}

// keys counts the keys below each directory of a namespace.
func keys(t *testing.T, kv clientv3.KV) map[string]int {
	t.Helper()
	res, err := kv.Get(t.Context(), root, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	count := make(map[string]int)
	for _, kv := range res.Kvs {
		directory, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), root), "/")
		count[directory]++
	}
	return count
}

// Published documents can be read, publishing them again writes nothing, and old revisions are removed.
func TestPublish(t *testing.T) {
	t.Parallel()
	c := client(t)
	kv, lease := namespace.NewKV(c, "/a/"), namespace.NewLease(c, "/a/")
	p := publisher(t, kv, lease)
	if _, _, err := Read(t.Context(), kv, 0); !errors.Is(err, ErrNone) {
		t.Fatalf("before: %v", err)
	}
	for n := range 4 {
		docs := generation(n, 700)
		pointer, err := p.Publish(t.Context(), docs)
		if err != nil {
			t.Fatal(err)
		}
		if pointer.Revision != int64(n+1) || pointer.Documents != 700 {
			t.Errorf("%+v", pointer)
		}
		read, got, err := Read(t.Context(), kv, 0)
		if err != nil || read != pointer || !slices.EqualFunc(got, docs, func(a, b Document) bool { return a.Name == b.Name && string(a.Body) == string(b.Body) }) {
			t.Fatalf("read %+v, %d documents, %v", read, len(got), err)
		}
	}
	before, err := kv.Get(t.Context(), Current)
	if err != nil {
		t.Fatal(err)
	}
	same := generation(3, 700)
	slices.Reverse(same)
	if pointer, err := p.Publish(t.Context(), same); err != nil || pointer.Revision != 4 {
		t.Errorf("the same again: %+v, %v", pointer, err)
	}
	after, err := kv.Get(t.Context(), Current)
	if err != nil || after.Header.Revision != before.Header.Revision {
		t.Errorf("the same again wrote something: revision %d, then %d, %v", before.Header.Revision, after.Header.Revision, err)
	}
	if got, want := keys(t, kv), map[string]int{"current": 1, "next": 1, "published": 2, "revisions": 1400}; !maps.Equal(got, want) {
		t.Errorf("keys %v, want %v", got, want)
	}
	if res, err := c.Get(t.Context(), "gitopsd/", clientv3.WithPrefix()); err != nil || res.Count != 0 {
		t.Errorf("%d keys outside of the namespace, %v", res.Count, err)
	}
}

// A publication that fails at any request leaves the previous revision, and the next one cleans up.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	c := client(t)
	for after := 1; ; after++ {
		kv := namespace.NewKV(c, fmt.Sprintf("/%d/", after))
		good := publisher(t, kv, c)
		if _, err := good.Publish(t.Context(), generation(0, 150)); err != nil {
			t.Fatal(err)
		}
		failing := &failingKV{KV: kv, left: after}
		pointer, err := publisher(t, failing, c).Publish(t.Context(), generation(1, 150))
		if failing.left > 0 {
			if err != nil || after < 5 {
				t.Fatalf("all %d requests succeed: %v", after, err)
			}
			return
		}
		read, docs, readErr := Read(t.Context(), kv, 0)
		if readErr != nil {
			t.Fatalf("after %d requests: %v", after, readErr)
		}
		if whole := string(docs[0].Body); err != nil && whole != "generation 0 of 0" || err == nil && (whole != "generation 1 of 0" || read != pointer) {
			t.Errorf("after %d requests: %v, and %+v has %q", after, err, read, whole)
		}
		if _, err := good.Publish(t.Context(), generation(2, 150)); err != nil {
			t.Fatalf("after %d requests, the next: %v", after, err)
		}
		if got, want := keys(t, kv), map[string]int{"current": 1, "next": 1, "published": 2, "revisions": 300}; !maps.Equal(got, want) {
			t.Errorf("after %d requests: keys %v, want %v", after, got, want)
		}
	}
}

// Calls that fail again and again do not pile up incomplete revisions.
func TestFailing(t *testing.T) {
	t.Parallel()
	c := client(t)
	kv := namespace.NewKV(c, "/prod/")
	p := publisher(t, kv, c)
	docs := append(generation(1, 200), Document{Name: "z", Body: make([]byte, 2<<20)}) // more than this etcd takes
	var first map[string]int
	for range 5 {
		if _, err := p.Publish(t.Context(), docs); err == nil {
			t.Fatal("published")
		}
		left := keys(t, kv)
		if first == nil {
			first = left
		}
		if !maps.Equal(left, first) {
			t.Errorf("left are %v, and after the first time %v", left, first)
		}
	}
}

// failingKV fails after some requests.
type failingKV struct {
	clientv3.KV
	left int
}

var errFailing = errors.New("the connection is gone")

func (f *failingKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if f.left--; f.left < 0 {
		return nil, errFailing
	}
	return f.KV.Get(ctx, key, opts...)
}

func (f *failingKV) Txn(ctx context.Context) clientv3.Txn { return failingTxn{f.KV.Txn(ctx), f} }

type failingTxn struct {
	clientv3.Txn
	of *failingKV
}

func (t failingTxn) If(cs ...clientv3.Cmp) clientv3.Txn { return failingTxn{t.Txn.If(cs...), t.of} }
func (t failingTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	return failingTxn{t.Txn.Then(ops...), t.of}
}

func (t failingTxn) Commit() (*clientv3.TxnResponse, error) {
	if t.of.left--; t.of.left < 0 {
		return nil, errFailing
	}
	return t.Txn.Commit()
}

// One of several concurrent publishers succeeds, and the current revision is always whole.
func TestSeveral(t *testing.T) {
	t.Parallel()
	c := client(t)
	kv := namespace.NewKV(c, "/a/")
	results := make(chan error)
	const publishers, rounds = 4, 8
	for n := range publishers {
		p := publisher(t, kv, c)
		go func() {
			var err error
			for round := range rounds {
				if _, e := p.Publish(t.Context(), generation(n*rounds+round, 130)); e != nil && !errors.Is(e, ErrOvertaken) {
					err = e
				}
			}
			results <- err
		}()
	}
	for left := publishers; left > 0; {
		select {
		case err := <-results:
			if left--; err != nil {
				t.Error(err)
			}
		default:
		}
		if _, docs, err := Read(t.Context(), kv, 0); err == nil {
			oneGeneration(t, docs)
		} else if !errors.Is(err, ErrNone) {
			t.Fatal(err)
		}
	}
	if _, err := publisher(t, kv, c).Publish(t.Context(), generation(-1, 130)); err != nil {
		t.Fatal(err)
	}
	if got, want := keys(t, kv), map[string]int{"current": 1, "next": 1, "published": 2, "revisions": 260}; !maps.Equal(got, want) {
		t.Errorf("keys %v, want %v", got, want)
	}
}

func oneGeneration(t *testing.T, docs []Document) {
	t.Helper()
	first, _, _ := strings.Cut(string(docs[0].Body), " of ")
	for _, d := range docs {
		if g, _, _ := strings.Cut(string(d.Body), " of "); g != first {
			t.Fatalf("%s is of %s, others of %s", d.Name, g, first)
		}
	}
}

// A value that gitopsd did not write is replaced if that loses nothing; otherwise it is an error. Keys of
// others stay.
func TestGarbled(t *testing.T) {
	t.Parallel()
	c := client(t)
	kv := namespace.NewKV(c, "/a/")
	put := func(key, value string) {
		t.Helper()
		if _, err := kv.Put(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	put(Current, "{")
	put(published+"mine", "x")
	put(started+"5", "x")
	p := publisher(t, kv, c)
	if _, _, err := Read(t.Context(), kv, 0); !errors.Is(err, ErrIncomplete) {
		t.Errorf("garbled: %v", err)
	}
	for n := range 3 {
		if _, err := p.Publish(t.Context(), generation(n, 3)); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := keys(t, kv), map[string]int{"current": 1, "next": 1, "published": 3, "started": 1, "revisions": 6}; !maps.Equal(got, want) {
		t.Errorf("keys %v, want %v", got, want)
	}
	now, _, err := Read(t.Context(), kv, 0)
	if err != nil {
		t.Fatal(err)
	}
	put(below(now.Revision)+"types/example.org/Kind0001/v1", "changed")
	if _, _, err := Read(t.Context(), kv, 0); !errors.Is(err, ErrIncomplete) {
		t.Errorf("a changed document: %v", err)
	}
	for _, text := range []string{"x", "-1", "9223372036854775808"} {
		put(next, text)
		if _, err := p.Publish(t.Context(), generation(9, 3)); err == nil || !strings.Contains(err.Error(), "is not a number that gitopsd wrote") {
			t.Errorf("next is %q: %v", text, err)
		}
	}
}

// A reader that gets events about Current never sees half a revision, although the publisher is killed
// repeatedly.
func TestKilled(t *testing.T) {
	t.Parallel()
	endpoint := server(t)
	c, err := connect(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	watched, stop := context.WithCancel(t.Context())
	defer stop()
	seen, done := 0, make(chan error, 1)
	go func() {
		for res := range c.Watch(watched, Current) {
			for _, e := range res.Events {
				_, docs, err := Read(t.Context(), c, e.Kv.ModRevision)
				if err != nil {
					done <- err
					return
				}
				oneGeneration(t, docs)
				seen++
			}
		}
		done <- nil
	}()
	const kills = 20
	for range kills {
		runAndKill(t, endpoint)
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if seen < kills {
		t.Errorf("%d revisions were seen", seen)
	}
	leftover, err := c.Get(t.Context(), started, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if leftover.Count == 0 {
		t.Errorf("no publication was interrupted in %d kills, so that nothing was tried", kills)
	}
}

// runAndKill runs a publisher, and kills it after it has published something.
func runAndKill(t *testing.T, endpoint string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childVar+"="+endpoint)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for range 1 + rand.N(2) {
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), "published") {
			t.Errorf("the publisher printed %q", lines.Text())
		}
	}
	time.Sleep(rand.N(150 * time.Millisecond))
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
}

func child(endpoint string) {
	c, err := connect(endpoint)
	if err == nil {
		var p *Publisher
		if p, err = New(Config{KV: c, Lease: c, Log: slog.New(slog.DiscardHandler)}); err == nil {
			for n := os.Getpid() << 16; err == nil; n++ {
				var pointer Pointer
				if pointer, err = p.Publish(context.Background(), generation(n, 400)); err == nil {
					fmt.Println("published " + strconv.FormatInt(pointer.Revision, 10))
				}
			}
		}
	}
	fmt.Println(err)
	os.Exit(1)
}
