package leader

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/testscripts/devcluster"
)

func TestMain(m *testing.M) { os.Exit(devcluster.Main(m)) }

// world is a hub with daemons.
type world struct {
	*testing.T
	client *kube.Client
	down   atomic.Bool // whether no daemon reaches the hub
}

func newWorld(t *testing.T) *world {
	t.Helper()
	text, err := os.ReadFile(devcluster.Start(t, "hub").Kubeconfig("hub"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := kube.New(kube.Config{Name: "hub", Kubeconfig: text, Trusted: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	w := &world{T: t, client: client}
	w.put("{apiVersion: v1, kind: Namespace, metadata: {name: " + w.namespace() + "}}")
	return w
}

func (w *world) namespace() string { return strings.ToLower(w.Name()) }

// put applies an object.
func (w *world) put(text string) {
	w.Helper()
	tree := manifesttest.Tree(w, text)
	typ, err := w.client.Type(w.Context(), manifest.Text(tree, "apiVersion"), manifest.Text(tree, "kind"))
	if err != nil {
		w.Fatal(err)
	}
	id := typ.ID(manifest.Text(tree, "metadata", "namespace"), manifest.Text(tree, "metadata", "name"))
	body, err := json.Marshal(tree)
	if err != nil {
		w.Fatal(err)
	}
	if _, err := w.client.Apply(w.Context(), typ, id, body, kube.ApplyOptions{Force: true}); err != nil {
		w.Fatal(err)
	}
}

// lease returns who has the Lease.
func (w *world) lease() string {
	w.Helper()
	return manifest.Text(w.get(manifest.Lease, "gitopsd"), "spec", "holderIdentity")
}

func (w *world) get(kind manifest.GroupKind, name string) map[string]any {
	w.Helper()
	typ, err := w.client.Kind(w.Context(), kind.Group, kind.Kind)
	if err != nil {
		w.Fatal(err)
	}
	tree, _, err := w.client.Get(w.Context(), typ, kind.ID(w.namespace(), name))
	if err != nil {
		w.Fatal(err)
	}
	return tree
}

// daemon returns a daemon of a pod. Its Lease lasts three seconds, of which it writes for two.
func (w *world) daemon(pod string) *Leader {
	w.Helper()
	l, err := New(Config{
		Client: func() (*kube.Client, error) {
			if w.down.Load() {
				return nil, errors.New("the hub does not answer")
			}
			return w.client, nil
		},
		Namespace: w.namespace(), Name: "gitopsd", Pod: pod, Fleet: "fleet",
		Duration: 3 * time.Second, Writes: time.Second, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		w.Fatal(err)
	}
	return l
}

// start runs a daemon until stop is called. leads is closed when it becomes the leader, and
// ended gets the error of Keep.
func (w *world) start(l *Leader) (leads chan struct{}, ended chan error, stop context.CancelFunc) {
	ctx, stop := context.WithCancel(w.Context())
	leads, ended = make(chan struct{}), make(chan error, 1)
	go func() {
		if err := l.Await(ctx); err != nil {
			ended <- err
			return
		}
		close(leads)
		ended <- l.Keep(ctx)
	}()
	return leads, ended, stop
}

func (w *world) mustLead(leads chan struct{}) {
	w.Helper()
	select {
	case <-leads:
	case <-time.After(time.Minute):
		w.Fatal("it does not become the leader")
	}
}

// eventually waits until a condition is true.
func (w *world) eventually(what string, is func() bool) {
	w.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("not so: %s", what)
		}
	}
}

func (w *world) pod(name string) {
	w.Helper()
	w.put("{apiVersion: v1, kind: Pod, metadata: {name: " + name + ", namespace: " + w.namespace() + "}, spec: {containers: [{name: a, image: a.example/a}], schedulerName: none, automountServiceAccountToken: false}}")
}

func (w *world) labelled(pod string) bool {
	w.Helper()
	return manifest.Text(w.get(manifest.Pod, pod), "metadata", "labels", manifest.LeaderLabel) == "gitopsd"
}

// One daemon works, and the other takes over at once when that ends. The label follows.
func TestHandOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("one")
	w.pod("two")
	one, two := w.daemon("one"), w.daemon("two")
	if err := one.MayWrite(t.Context()); err == nil {
		t.Error("it may write before it is the leader")
	}
	leads, ended, stop := w.start(one)
	w.mustLead(leads)
	if why, ok := one.Waiting(); why != "" || !ok || one.MayWrite(t.Context()) != nil {
		t.Errorf("the leader waits (%q)", why)
	}
	other, _, stopOther := w.start(two)
	defer stopOther()
	w.eventually("it waits", func() bool { why, ok := two.Waiting(); return why == "one is the leader" && ok })
	w.eventually("the leader is labelled", func() bool { return w.labelled("one") && !w.labelled("two") })
	for range 50 { // longer than the Lease lasts
		if one.MayWrite(t.Context()) != nil || two.MayWrite(t.Context()) == nil {
			t.Fatalf("one: %v, two: %v", one.MayWrite(t.Context()), two.MayWrite(t.Context()))
		}
		time.Sleep(100 * time.Millisecond)
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := one.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if one.MayWrite(t.Context()) == nil {
		t.Error("it may write although it gave the Lease up")
	}
	w.mustLead(other)
	w.eventually("the other is labelled", func() bool { return !w.labelled("one") && w.labelled("two") })
	if n, _ := manifest.Mapping(w.get(manifest.Lease, "gitopsd"), "spec")["leaseTransitions"].(int64); n != 2 {
		t.Errorf("%d transitions", n)
	}
}

// A daemon that does not reach the hub stops to write before the other begins, and steps down
// when it learns of that. One that reaches it again in time goes on.
func TestCutOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("one")
	w.pod("two")
	one := w.daemon("one")
	leads, ended, stop := w.start(one)
	defer stop()
	w.mustLead(leads)
	w.down.Store(true)
	w.eventually("it writes no more", func() bool { return one.MayWrite(t.Context()) != nil })
	if one.Problem() == "" {
		t.Error("it has no problem")
	}
	w.down.Store(false)
	w.eventually("it writes again", func() bool { return one.MayWrite(t.Context()) == nil })

	// The other is not cut off.
	two := w.daemon("two")
	two.cfg.Client = func() (*kube.Client, error) { return w.client, nil }
	w.down.Store(true)
	other, _, stopOther := w.start(two)
	defer stopOther()
	w.eventually("the other takes over", func() bool {
		both := two.MayWrite(t.Context()) == nil
		if both && one.MayWrite(t.Context()) == nil {
			t.Fatal("both write")
		}
		return both
	})
	w.mustLead(other)
	w.eventually("the label follows", func() bool { return !w.labelled("one") && w.labelled("two") })
	w.down.Store(false)
	if err := <-ended; !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "two") {
		t.Errorf("the first one ends with %v", err)
	}
	if why, ok := one.Waiting(); why == "" || ok || one.MayWrite(t.Context()) == nil || one.Problem() != "" {
		t.Errorf("it is still the leader: %q, %v, %q", why, ok, one.Problem())
	}
}

// silent is a hub that answers no request.
type silent struct{ asked *atomic.Int32 }

func (s silent) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Context().Err() == nil {
		s.asked.Add(1)
	}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// Labels of pods that hang take together no longer than the next renewal can wait.
func TestSlowLabels(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	config, err := os.ReadFile(devcluster.Start(t, "hub").Kubeconfig("hub"))
	if err != nil {
		t.Fatal(err)
	}
	hub, err := kube.New(kube.Config{Name: "hub", Kubeconfig: config, Trusted: true, WrapTransport: func(http.RoundTripper) http.RoundTripper { return silent{&asked} }})
	if err != nil {
		t.Fatal(err)
	}
	defer hub.Close()
	l, err := New(Config{Client: func() (*kube.Client, error) { return hub, nil }, Namespace: "default", Name: "gitopsd", Pod: "one",
		Duration: 3 * time.Second, Writes: time.Second, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	l.labels["two"], l.labels["three"] = false, false
	l.setLabels(t.Context())
	if n := asked.Load(); n != 1 || len(l.labels) != 3 {
		t.Errorf("%d requests, labels left %v", n, l.labels)
	}
	l.renewed = time.Now().Add(-time.Minute)
	if l.untilRenewal() > 0 {
		t.Error("a renewal that is late is not due")
	}
}

// A Lease that somebody deletes or edits stays its leader's, unless the holder was changed.
func TestEdited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := w.daemon("")
	leads, ended, stop := w.start(one)
	defer stop()
	w.mustLead(leads)
	was := w.lease()
	typ, err := w.client.Kind(t.Context(), manifest.Lease.Group, manifest.Lease.Kind)
	if err != nil {
		t.Fatal(err)
	}
	id := manifest.Lease.ID(w.namespace(), "gitopsd")
	patch := func(fields map[string]any) {
		t.Helper()
		w.eventually("patched", func() bool {
			err := w.client.Patch(t.Context(), typ, id, fields, manifest.Text(w.get(manifest.Lease, "gitopsd"), "metadata", "resourceVersion"))
			if err != nil && kube.ClassOf(err) != kube.Changed {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	patch(map[string]any{"metadata": map[string]any{"labels": map[string]any{"a": "b"}}})
	time.Sleep(one.renewal() * 3)
	if _, _, err := w.client.Delete(t.Context(), typ, id, manifest.Text(w.get(manifest.Lease, "gitopsd"), "metadata", "uid")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(one.renewal() * 3)
	if now := w.lease(); now != was || one.MayWrite(t.Context()) != nil {
		t.Errorf("the Lease is %s's after %s's", now, was)
	}
	patch(map[string]any{"spec": map[string]any{"holderIdentity": ""}})
	if err := <-ended; !errors.Is(err, ErrLost) {
		t.Errorf("it ends with %v", err)
	}
}

// If somebody deletes or clears the Lease, another daemon does not take it while its leader may
// write.
func TestTakenFromNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := w.daemon("one"), w.daemon("two")
	leads, ended, stop := w.start(one)
	defer stop()
	w.mustLead(leads)
	_, _, stopOther := w.start(two)
	defer stopOther()
	w.eventually("it waits", func() bool { _, ok := two.Waiting(); return ok })
	typ, err := w.client.Kind(t.Context(), manifest.Lease.Group, manifest.Lease.Kind)
	if err != nil {
		t.Fatal(err)
	}
	id := manifest.Lease.ID(w.namespace(), "gitopsd")
	alone := func() bool {
		t.Helper()
		first := one.MayWrite(t.Context()) == nil
		if two.MayWrite(t.Context()) == nil && first && one.MayWrite(t.Context()) == nil {
			t.Fatal("both write")
		}
		return first
	}
	if _, _, err := w.client.Delete(t.Context(), typ, id, manifest.Text(w.get(manifest.Lease, "gitopsd"), "metadata", "uid")); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(2 * one.renewal()); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if !alone() {
			t.Fatal("the leader lost a Lease that was deleted")
		}
	}
	w.eventually("cleared", func() bool {
		version := manifest.Text(w.get(manifest.Lease, "gitopsd"), "metadata", "resourceVersion")
		return w.client.Patch(t.Context(), typ, id, map[string]any{"spec": map[string]any{"holderIdentity": ""}}, version) == nil
	})
	w.eventually("the leader steps down", func() bool { return !alone() })
	if err := <-ended; !errors.Is(err, ErrLost) {
		t.Errorf("it ends with %v", err)
	}
	w.eventually("the other takes over", func() bool { return two.MayWrite(t.Context()) == nil })
}

// A daemon that is told to end gives the Lease up, also in the moment in which it takes it, and
// after somebody edited it.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("one")
	one := w.daemon("one")
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	one.cfg.Client = func() (*kube.Client, error) {
		if calls++; calls == 2 { // for the label, after the Lease
			cancel()
		}
		return w.client, nil
	}
	if err := one.Await(ctx); !errors.Is(err, context.Canceled) || one.MayWrite(t.Context()) == nil {
		t.Errorf("it ends with %v", err)
	}
	if holder := w.lease(); holder != "" || w.labelled("one") {
		t.Errorf("the Lease is %q's", holder)
	}

	two := w.daemon("two")
	if err := two.Await(t.Context()); err != nil {
		t.Fatal(err)
	}
	typ, err := w.client.Kind(t.Context(), manifest.Lease.Group, manifest.Lease.Kind)
	if err != nil {
		t.Fatal(err)
	}
	version := manifest.Text(w.get(manifest.Lease, "gitopsd"), "metadata", "resourceVersion")
	edit := map[string]any{"spec": map[string]any{"leaseTransitions": math.MaxInt32}}
	if err := w.client.Patch(t.Context(), typ, manifest.Lease.ID(w.namespace(), "gitopsd"), edit, version); err != nil {
		t.Fatal(err)
	}
	if err := two.Release(t.Context()); err != nil || w.lease() != "" {
		t.Errorf("%v, and the Lease is %q's", err, w.lease())
	}
	if err := w.daemon("three").Await(t.Context()); err != nil { // the counter starts anew
		t.Error(err)
	}
}

// The Lease of another program is never taken.
func TestForeign(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put("{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: gitopsd, namespace: " + w.namespace() + "}, spec: {holderIdentity: controller_1, leaseDurationSeconds: 1}}")
	one := w.daemon("one")
	_, _, stop := w.start(one)
	defer stop()
	time.Sleep(4 * time.Second) // longer than any Lease here lasts
	if why, ok := one.Waiting(); why != "controller has the Lease, and is no gitopsd: choose another --lease" || !ok {
		t.Errorf("it waits since %q", why)
	}
}

// Daemons of two fleets with one Lease do not work side by side, and each says why.
func TestOtherFleet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := w.daemon("one"), w.daemon("two")
	two.cfg.Fleet = "other"
	leads, _, stop := w.start(one)
	defer stop()
	w.mustLead(leads)
	_, ended, stopOther := w.start(two)
	want := "one has the Lease for another fleet, fleet: give one of the two a --lease of its own"
	w.eventually("it says so", func() bool { why, ok := two.Waiting(); return why == want && ok })
	stopOther()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A process in the pod of the former leader waits, and says for what. Garbled durations are
// bounded.
func TestHeld(t *testing.T) {
	t.Parallel()
	l, err := New(Config{Namespace: "ns", Name: "gitopsd", Pod: "one", Fleet: "f"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		seconds any
		want    time.Duration
	}{{nil, time.Minute}, {int64(-5), time.Minute}, {int64(120), 2 * time.Minute}, {int64(1 << 60), longest}, {"x", time.Minute}} {
		r := parse(map[string]any{"spec": map[string]any{"holderIdentity": "one_x", "leaseDurationSeconds": tt.seconds}}, new(metav1.PartialObjectMetadata))
		r.fleet = "f"
		if got := l.lasts(r); got != tt.want {
			t.Errorf("%v: %s", tt.seconds, got)
		}
		if text := l.held(r).Error(); !strings.HasPrefix(text, "the process that was one before has the Lease, until it has not been renewed for ") {
			t.Error(text)
		}
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]Config{
		`"a b" is not the name of a Lease`:          {Name: "a b"},
		`is not the name of a Lease`:                {Name: strings.Repeat("a", 64)},
		"40s is too short for a Lease":              {Name: "a", Duration: 40 * time.Second},
		"1h0m0s is too long for a Lease":            {Name: "a", Duration: time.Hour},
		"-1s is too short for a Lease: a write may": {Name: "a", Duration: -time.Second},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s, got %v", want, err)
		}
	}
}
