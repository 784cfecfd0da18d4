package home

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/testscripts/await"
	"gitopsd.dev/testscripts/devcluster"
)

func TestMain(m *testing.M) { os.Exit(devcluster.Main(m)) }

var configMaps = kube.Type{Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Namespaced: true}

// recorder sends the ConfigMaps that it follows, as it sees them.
type recorder struct {
	kind   Kind
	calls  chan []string
	do     func(ctx context.Context, v *View, call int) (time.Time, error)
	call   int
	closed bool
}

func (r *recorder) Name() string  { return "recorder" }
func (r *recorder) Kinds() []Kind { return []Kind{r.kind} }
func (r *recorder) Close()        { r.closed = true }

func (r *recorder) Reconcile(ctx context.Context, v *View) (again time.Time, err error) {
	all, err := v.Objects(r.kind)
	var names []string
	for _, m := range all {
		names = append(names, m.Name)
	}
	r.call++
	if r.do != nil {
		again, err = r.do(ctx, v, r.call)
	}
	r.calls <- names
	return again, err
}

// bed is a namespace of a test's own.
type bed struct {
	*testing.T
	client *kube.Client
	ns     string
	told   chan []problem.Problem
}

func newBed(t *testing.T) *bed {
	t.Helper()
	t.Parallel()
	b := &bed{T: t, ns: strings.ToLower(t.Name()), told: make(chan []problem.Problem, 100)}
	b.client = b.connect(nil)
	t.Cleanup(b.client.Close)
	namespaces := kube.Type{Version: "v1", Kind: "Namespace", Resource: "namespaces"}
	if _, err := b.client.Create(t.Context(), namespaces, namespaces.ID("", b.ns), object(t, "Namespace", "", b.ns, nil)); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bed) connect(wrap func(http.RoundTripper) http.RoundTripper) *kube.Client {
	b.Helper()
	kubeconfig, err := os.ReadFile(devcluster.Start(b.T, "home").Kubeconfig("home"))
	if err != nil {
		b.Fatal(err)
	}
	c, err := kube.New(kube.Config{Name: "hub", Kubeconfig: kubeconfig, WrapTransport: wrap})
	if err != nil {
		b.Fatal(err)
	}
	return c
}

func object(t *testing.T, kind, namespace, name string, labels map[string]string) []byte {
	t.Helper()
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": name, "namespace": namespace, "labels": labels}})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// make makes a ConfigMap with the label test, and returns its UID.
func (b *bed) make(name string) string {
	b.Helper()
	meta, err := b.client.Create(b.Context(), configMaps, configMaps.ID(b.ns, name), object(b.T, "ConfigMap", b.ns, name, map[string]string{"test": b.ns}))
	if err != nil {
		b.Fatal(err)
	}
	return string(meta.UID)
}

func (b *bed) recorder(do func(ctx context.Context, v *View, call int) (time.Time, error)) *recorder {
	return &recorder{kind: Kind{GroupKind: manifest.ConfigMap, Selector: "test=" + b.ns}, calls: make(chan []string, 1000), do: do}
}

// run runs controllers until the function that it returns is called.
func (b *bed) run(controllers ...Controller) (h *Home, stop func()) {
	b.Helper()
	return b.runAs(b.connect(nil), controllers...)
}

// runAs runs controllers with a client.
func (b *bed) runAs(client *kube.Client, controllers ...Controller) (h *Home, stop func()) {
	b.Helper()
	h, err := New(Config{Client: client, Controllers: controllers, Log: slog.New(slog.DiscardHandler), Tell: func(p []problem.Problem) { b.told <- p }})
	if err != nil {
		b.Fatal(err)
	}
	h.Set(Fleet{Registry: new(clusters.Registry)})
	ctx, cancel := context.WithCancel(b.Context())
	var ran sync.WaitGroup
	ran.Go(func() { h.Run(ctx) })
	stop = func() {
		cancel()
		ran.Wait()
	}
	b.Cleanup(stop)
	return h, stop
}

// sees waits for a call that sees just these objects.
func (r *recorder) sees(t *testing.T, names ...string) {
	t.Helper()
	for {
		select {
		case seen := <-r.calls:
			if slices.Equal(seen, names) {
				return
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("the controller was not called with %v", names)
		}
	}
}

// A controller sees the selected objects and each change to them, and no others.
func TestFollow(t *testing.T) {
	b := newBed(t)
	b.make("first")
	r := b.recorder(nil)
	_, stop := b.run(r)
	r.sees(t, "first")
	uid := b.make("second")
	r.sees(t, "first", "second")
	if _, _, err := b.client.Delete(t.Context(), configMaps, configMaps.ID(b.ns, "second"), uid); err != nil {
		t.Fatal(err)
	}
	r.sees(t, "first")
	stop()
	if !r.closed {
		t.Error("the controller was not closed")
	}
}

// Of the Secrets of a home, nothing is kept that could be secret.
func TestVersions(t *testing.T) {
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: "sql", UID: "1", ResourceVersion: "2", Labels: map[string]string{"a": "b"},
		Annotations: map[string]string{"kubectl.kubernetes.io/last-applied-configuration": `{"data":{"password":"hunter2"}}`},
	}}
	want := metav1.ObjectMeta{Namespace: "team", Name: "sql", UID: "1", ResourceVersion: "2"}
	if have := Secrets.slim(m).ObjectMeta; !reflect.DeepEqual(have, want) {
		t.Errorf("have %+v", have)
	}
}

// A controller is called at the time that it asks for, and for a new registry.
func TestAgain(t *testing.T) {
	b := newBed(t)
	r := b.recorder(func(_ context.Context, v *View, call int) (time.Time, error) {
		if call < 3 {
			return time.Now(), nil
		}
		return time.Time{}, nil
	})
	h, _ := b.run(r)
	for range 3 {
		r.sees(t)
	}
	h.Set(Fleet{Registry: new(clusters.Registry)})
	r.sees(t)
}

// A failure or panic is reported and tried again; it stops no other controller.
func TestFailures(t *testing.T) {
	b := newBed(t)
	bad := b.recorder(func(_ context.Context, v *View, call int) (time.Time, error) {
		switch call {
		case 1:
			return time.Time{}, errors.New("out of order")
		case 2:
			panic("oops")
		}
		v.Report(problem.Problem{Object: "configmap/x", Reason: "is odd"})
		return time.Time{}, nil
	})
	good := b.recorder(nil)
	b.run(bad, good)
	good.sees(t)
	for _, want := range []string{"recorder: out of order", "recorder: a bug in gitopsd", "is odd"} {
		select {
		case told := <-b.told:
			if len(told) != 1 || !strings.Contains(told[0].Reason, want) || told[0].Cluster != "hub" {
				t.Errorf("told %v, want %q", told, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("nothing was told; want %q", want)
		}
	}
}

// A kind that the cluster does not serve differs from one that could not be looked up.
func TestNoSuchType(t *testing.T) {
	b := newBed(t)
	r := b.recorder(nil)
	r.kind = Kind{GroupKind: manifest.GroupKind{Group: "acme.example", Kind: "Missing"}}
	classes := make(chan kube.Class, 1000)
	r.do = func(_ context.Context, v *View, _ int) (time.Time, error) {
		_, err := v.Objects(r.kind)
		classes <- kube.ClassOf(err)
		_, err = v.Objects(Kind{GroupKind: manifest.Secret})
		if !errors.Is(err, errNotListed) {
			t.Errorf("a kind that is not followed: %v", err)
		}
		return time.Time{}, nil
	}
	b.run(r)
	if class := <-classes; class != kube.NoSuchType {
		t.Errorf("the class is %q", class)
	}
}

// define makes a CRD, and waits until the cluster serves its kind.
func (b *bed) define(kind, plural string) Kind {
	b.Helper()
	k := Kind{GroupKind: manifest.GroupKind{Group: "followed.example", Kind: kind}}
	text, err := json.Marshal(map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": plural + "." + k.Group},
		"spec": map[string]any{
			"group": k.Group, "scope": "Namespaced", "names": map[string]any{"kind": kind, "plural": plural},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}},
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	crds, err := b.client.Kind(b.Context(), manifest.CRD.Group, manifest.CRD.Kind)
	if err == nil {
		_, err = b.client.Create(b.Context(), crds, manifest.CRD.ID("", plural+"."+k.Group), text)
	}
	if err != nil {
		b.Fatal(err)
	}
	await.True(b.T, kind+" is served", func() bool {
		b.client.Forget(k.Group)
		b.client.Refresh()
		t, err := b.client.Kind(b.Context(), k.Group, kind)
		if err == nil {
			_, err = b.client.List(b.Context(), t, kube.ListOptions{}, nil)
		}
		return err == nil
	})
	return k
}

// paged answers the first request for the list of a resource with the page of a proxy that has no
// route, whose text is an API server's for a kind that it does not serve.
type paged struct {
	http.RoundTripper
	resource string
	answered *atomic.Bool
}

func (p paged) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.HasSuffix(r.URL.Path, "/"+p.resource) || p.answered.Swap(true) {
		return p.RoundTripper.RoundTrip(r)
	}
	return &http.Response{
		StatusCode: http.StatusNotFound, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {"text/plain"}},
		Body: io.NopCloser(strings.NewReader("404 page not found\n")), Request: r,
	}, nil
}

// A page of something in front of the API server does not make a kind look unserved, which
// would have no objects.
func TestPageOfProxy(t *testing.T) {
	b := newBed(t)
	b.make("first")
	for _, tt := range []struct {
		kind     Kind
		resource string
	}{
		{b.recorder(nil).kind, "configmaps"},
		{b.define("Follow", "follows"), "follows"},
	} {
		var answered atomic.Bool
		r := b.recorder(nil)
		r.kind = tt.kind
		seen := make(chan error, 1000)
		r.do = func(_ context.Context, v *View, _ int) (time.Time, error) {
			_, err := v.Objects(r.kind)
			seen <- err
			return time.Time{}, nil
		}
		b.runAs(b.connect(func(next http.RoundTripper) http.RoundTripper { return paged{next, tt.resource, &answered} }), r)
		if err := <-seen; err == nil || kube.ClassOf(err) == kube.NoSuchType {
			t.Errorf("%s after a page: %v", tt.resource, err)
		}
		if err := <-seen; err != nil {
			t.Errorf("%s afterwards: %v", tt.resource, err)
		}
	}
}

// Nothing goes out of the namespaces that hold gitopsd's own credentials.
func TestReserves(t *testing.T) {
	h, err := New(Config{Client: new(kube.Client), Reserved: "tools", Tell: func([]problem.Problem) {}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	v := h.view(&loop{Controller: new(recorder)})
	for namespace, want := range map[string]bool{"gitopsd-system": true, "tools": true, "team": false, "": false} {
		if v.Reserves(namespace) != want {
			t.Errorf("%q: %v", namespace, !want)
		}
	}
}

// An event that is older than the list is ignored.
func TestOlder(t *testing.T) {
	h, err := New(Config{Client: new(kube.Client), Tell: func([]problem.Problem) {}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	kind := Kind{GroupKind: manifest.ConfigMap}
	h.listings[kind] = new(listing)
	meta := func(name, version string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
	}
	at := func(version string) kube.Event { return kube.Event{Meta: meta("a", version)} }
	h.replace(kind, map[manifest.ID]*metav1.PartialObjectMetadata{kind.ID("", "a"): meta("a", "20")})
	gone := at("19")
	gone.Deleted = true
	h.saw(kind, gone)
	if m := h.listings[kind].objects[kind.ID("", "a")]; m == nil || m.ResourceVersion != "20" {
		t.Errorf("an older event was believed: %v", m)
	}
	h.saw(kind, at("21"))
	if m := h.listings[kind].objects[kind.ID("", "a")]; m.ResourceVersion != "21" {
		t.Errorf("a newer event was not: %v", m)
	}
}
