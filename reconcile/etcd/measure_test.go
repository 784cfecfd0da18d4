package etcd_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/etcd/registry"
	"gitopsd.dev/reconcile/etcdproxy/limit"
	"gitopsd.dev/render/etcd"
)

// Namespaces are measured as their quota counts, again after they have changed, and only this fleet's
// that are not skipped.
func TestMeasure(t *testing.T) {
	t.Parallel()
	s := own(t)
	a := open(t, s, "measured")
	c := root(t, s)
	w, skipped, empty := fresh(t), fresh(t), fresh(t)
	p := provision(t, a, w)
	provision(t, a, skipped)
	provision(t, a, empty)
	foreign := fresh(t)
	provision(t, open(t, s, "another"), foreign)
	put(t, c, p.Prefix, string(limit.FormatFloor(1))) // the floor's key is not the tenant's
	want, large := int64(0), 1<<20
	add := func(key, value string) {
		t.Helper()
		put(t, c, p.Prefix+key, value)
		want += int64(len(key) + len(value))
	}
	for i := range 3 {
		add(fmt.Sprintf("large-%d", i), strings.Repeat("v", large))
	}
	var ops []clientv3.Op
	for i := range 100 {
		key := fmt.Sprintf("small-%03d", i)
		ops = append(ops, clientv3.OpPut(p.Prefix+key, ""))
		want += int64(len(key))
	}
	if _, err := c.Txn(t.Context()).Then(ops...).Commit(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var measuring sync.WaitGroup
	defer measuring.Wait()
	defer cancel()
	measuring.Go(func() {
		admin.MeasureOften(ctx, a, func(id etcd.ID) bool { return id == skipped.ID })
	})
	await := func(what string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			n := status(t, a, w.ID)
			if n.Sized && n.Bytes == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %d bytes (%v), want %d", what, n.Bytes, n.Sized, want)
			}
		}
	}
	await("at first")
	add("another", "value")
	await("after a key came")
	if _, err := c.Compact(t.Context(), get(t, c, "x").Header.GetRevision()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Delete(t.Context(), p.Prefix+"large-0"); err != nil {
		t.Fatal(err)
	}
	want -= int64(len("large-0") + large)
	await("after a compaction, and when one went")

	put(t, c, skipped.ID.DefaultPrefix()+"a", "b")
	if n := status(t, a, skipped.ID); n.Keys != 1 || n.Sized {
		t.Errorf("what somebody else measures was measured: %+v", n)
	}
	if n := status(t, a, empty.ID); !n.Sized || n.Bytes != 0 {
		t.Errorf("without keys: %+v", n)
	}
	remove(t, a, w, admin.Delete)
	if n := status(t, a, w.ID); n.State == registry.Active {
		t.Errorf("removed: %+v", n)
	}
}

// status returns the status of one namespace.
func status(t *testing.T, a *admin.Admin, id etcd.ID) admin.Status {
	t.Helper()
	all, err := a.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range all.Namespaces {
		if n.ID == id {
			return n
		}
	}
	return admin.Status{}
}
