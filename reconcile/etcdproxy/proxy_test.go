package etcdproxy

import (
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A tenant reads, writes and watches its own keys, and sees no others.
func TestServes(t *testing.T) { all(t, testServes) }

func testServes(t *testing.T) {
	t.Parallel()
	a, b := newTenantIn(t, "a"), newTenantIn(t, "b")
	p := serve(t, Config{}, a, b)
	ca, cb := p.client(t, a), p.client(t, b)
	ctx := t.Context()
	watch := ca.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	if w := <-watch; w.Err() != nil || !w.Created {
		t.Fatalf("watch: %+v, %v", w, w.Err())
	}
	for _, c := range []*clientv3.Client{cb, ca} {
		if _, err := c.Put(ctx, "key", "value"); err != nil {
			t.Fatal(err)
		}
	}
	if w := <-watch; len(w.Events) != 1 || string(w.Events[0].Kv.Key) != "key" {
		t.Errorf("watched %+v", w)
	}
	got, err := ca.Get(ctx, "", clientv3.WithPrefix())
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Key) != "key" || string(got.Kvs[0].Value) != "value" {
		t.Errorf("got %v, %v", got, err)
	}
}

// If the new Upstream is invalid, a tenant keeps the old one, and its connections and watches.
func TestBadUpstream(t *testing.T) {
	t.Parallel()
	a := newTenantIn(t, "a")
	p := serve(t, Config{}, a)
	c := p.client(t, a)
	watch := c.Watch(t.Context(), "key", clientv3.WithCreatedNotify())
	if w := <-watch; w.Err() != nil || !w.Created {
		t.Fatalf("watch: %+v, %v", w, w.Err())
	}
	bad := a.Tenant
	bad.Upstream.Endpoints = []string{a.Upstream.Endpoints[0] + "/path"}
	if err := p.Set([]Tenant{bad}); err == nil || !strings.Contains(err.Error(), a.ID.String()) {
		t.Errorf("a bad endpoint: %v", err)
	}
	if _, err := c.Put(t.Context(), "key", "value"); err != nil {
		t.Fatal(err)
	}
	if w := <-watch; w.Err() != nil || len(w.Events) != 1 {
		t.Errorf("watched %+v, %v", w, w.Err())
	}
	if n := p.Counts()[a.ID].Connections; n != 1 {
		t.Errorf("%d connections", n)
	}
}
