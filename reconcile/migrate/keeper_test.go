package migrate

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/testscripts/await"
)

// kept is a Keeper at work, and what it says.
type running struct {
	*Keeper
	mu       sync.Mutex
	shown    []status.Migration
	told     int // how often notify was called
	rewrites map[string]int
	// after so many rewrites the API server does not answer until the request is given
	// up; held is closed then.
	after int
	held  chan struct{}
}

func keep(t *testing.T, b *bench, after int) *running {
	t.Helper()
	k := &running{rewrites: make(map[string]int), after: after, held: make(chan struct{})}
	text, err := os.ReadFile(b.planes.Kubeconfig(b.plane))
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := kube.New(kube.Config{Name: "prod", Kubeconfig: text, WrapTransport: func(rt http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/namespaces/") && k.hold(r.URL.Path) {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			return rt.RoundTrip(r)
		})
	}})
	if err != nil {
		t.Fatal(err)
	}
	k.Keeper, err = NewKeeper(KeeperConfig{
		Cluster: cluster, Rate: 1e4, Settle: time.Second, firstRetry: 200 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Report: func(all []status.Migration) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.shown = all
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	own := b.migrator(nil).cfg
	k.m.cfg.batch, k.m.cfg.page, k.m.cfg.pause = own.batch, own.page, own.pause
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		k.Run(ctx, func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.told++
		})
	})
	t.Cleanup(func() {
		cancel()
		run.Wait()
		cluster.Close()
	})
	return k
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// hold notes a rewrite, and reports whether it gets no answer.
func (k *running) hold(path string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.after == 0 {
		if k.held != nil {
			close(k.held)
			k.held = nil
		}
		return true
	}
	k.after--
	k.rewrites[path]++
	return false
}

// answer has the API server answer again.
func (k *running) answer() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.after = -1
}

func (k *running) status() ([]status.Migration, int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.shown, k.told
}

// A migration that is given up in the middle goes on where it was, and the daemon is told
// when it is done. It begins anew when the storage version changes again.
func TestKeeper(t *testing.T) {
	t.Parallel()
	b := shared(t, "kept.example")
	const n = 4*batch + 7
	b.create(n)
	b.define("v1")
	k := keep(t, b, 2*batch+5)
	held := k.held
	k.Keep([]Wanted{{Name: b.crd()}})
	<-held
	if k.Settled() {
		t.Error("it is settled in the middle")
	}
	want := status.Migration{Definition: b.crd(), State: status.MigrationRunning, Done: 2 * batch, Objects: n}
	if shown, _ := k.status(); !slices.Equal(shown, []status.Migration{want}) {
		t.Errorf("in the middle the status is %+v", shown)
	}
	k.Keep(nil)
	if shown, _ := k.status(); len(shown) > 0 {
		t.Errorf("given up, the status is %+v", shown)
	}
	b.want([]string{"v1alpha1", "v1"}, b.count())

	k.answer()
	k.Keep([]Wanted{{Name: b.crd()}})
	await.True(b, "everything is stored again", k.Settled)
	b.want([]string{"v1"}, map[string]int{"v1": n})
	await.True(b, "the daemon is told", func() bool {
		shown, told := k.status()
		return told == 1 && len(shown) == 0
	})
	k.mu.Lock()
	for path, times := range k.rewrites {
		if at := path[strings.LastIndex(path, "/"):]; times > 1 && at < "/w00040" {
			t.Errorf("%s was stored again %d times", path, times)
		}
	}
	k.mu.Unlock()

	b.define("v1alpha1")
	k.Keep([]Wanted{{Name: b.crd(), Written: true}})
	if k.Settled() {
		t.Error("it is settled though the definition was written")
	}
	await.True(b, "everything is stored once more", k.Settled)
	b.want([]string{"v1alpha1"}, map[string]int{"v1alpha1": n})
}

// An object that a policy refuses is named, and tried again after a pause.
func TestKeeperFails(t *testing.T) {
	t.Parallel()
	b := shared(t, "keptback.example")
	b.create(12)
	b.define("v1")
	seven := b.widgets().ID("default", "w00007")
	b.refuse(seven.Name)
	k := keep(t, b, -1)
	k.Keep([]Wanted{{Name: b.crd()}})
	await.True(b, "the migration fails", func() bool {
		shown, _ := k.status()
		return len(shown) == 1 && shown[0].State == status.MigrationFailed
	})
	shown, told := k.status()
	if f := shown[0]; f.Done != 12 || f.Failed != 1 || f.Next.IsZero() || told != 0 ||
		!strings.HasPrefix(f.Message, "1 object was not stored again: "+seven.String()+": ") || !strings.Contains(f.Message, "it is not to be touched") {
		t.Errorf("the status is %+v, told %d times", f, told)
	}
	b.remove(manifest.ValidatingPolicyBinding, b.group)
	await.True(b, "it is done at last", k.Settled)
	b.want([]string{"v1"}, map[string]int{"v1": 12})
}

// Only a write of the definition that is done ends the pause after a failed attempt. One that
// was tried has the definition looked at again.
func TestKeeperPauses(t *testing.T) {
	t.Parallel()
	cluster, err := kube.New(kube.Config{Name: "prod", Kubeconfig: []byte(`{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}], users: [{name: a, user: {token: x}}]}`)})
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	for _, tt := range []struct {
		then    Wanted
		failed  bool // the first attempt
		attempt bool // another follows at once
	}{
		{Wanted{}, true, false},
		{Wanted{Tried: true}, true, false},
		{Wanted{Tried: true, Written: true}, true, true},
		{Wanted{}, false, false},
		{Wanted{Tried: true}, false, true},
		{Wanted{Tried: true, Written: true}, false, true},
	} {
		k, err := NewKeeper(KeeperConfig{Cluster: cluster, Log: slog.New(slog.DiscardHandler), Report: func([]status.Migration) {}})
		if err != nil {
			t.Fatal(err)
		}
		k.Keep([]Wanted{{Name: "widgets.acme.example"}})
		c, _ := k.take(time.Now(), func() {})
		var failure error
		if tt.failed {
			failure = errors.New("1 object was not stored again")
		}
		k.note(t.Context(), c, Result{}, failure)
		tt.then.Name = c.name
		k.Keep([]Wanted{tt.then})
		if c, _ := k.take(time.Now(), func() {}); (c != nil) != tt.attempt {
			t.Errorf("%+v: another attempt follows at once: %t", tt, c != nil)
		}
	}
}
