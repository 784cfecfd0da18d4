package kube

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gitopsd.dev/render/manifest"
)

// Close closes every connection, even with a request under way. Requests keep to a pace,
// except while they only wait.
func TestCloseAndPace(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	open := make(map[net.Conn]bool)
	asked := make(chan struct{}, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/namespaces/hangs" {
			asked <- struct{}{}
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"metadata":{"name":"a"}}`))
	}))
	server.Config.ConnState = func(c net.Conn, s http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		if s == http.StateClosed {
			delete(open, c)
		} else {
			open[c] = true
		}
	}
	server.Start()
	defer server.Close()
	c, err := New(Config{Name: "prod", Trusted: true, Kubeconfig: []byte(strings.Replace(fleetFile, "https://127.0.0.1:1", server.URL, 1))})
	if err != nil {
		t.Fatal(err)
	}
	namespace := Type{Version: "v1", Kind: "Namespace", Resource: "namespaces"}

	var calls []string
	ctx := WithPace(t.Context(), &Pace{
		Before: func(context.Context) error { calls = append(calls, "before"); return nil },
		After:  func() { calls = append(calls, "after") },
	})
	for _, ctx := range []context.Context{ctx, Waiting(ctx)} {
		if _, err := c.GetMetadata(ctx, namespace, manifest.ID{Kind: "Namespace", Name: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(calls, []string{"before", "after"}) {
		t.Errorf("calls %q", calls)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := c.GetMetadata(t.Context(), namespace, manifest.ID{Kind: "Namespace", Name: "hangs"})
		failed <- err
	}()
	<-asked
	c.Close()
	if err := <-failed; err == nil {
		t.Error("a request outlived its connection")
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		mu.Lock()
		n := len(open)
		mu.Unlock()
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d connections stay open", n)
		}
	}
}
