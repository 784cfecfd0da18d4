package etcd_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/etcd/registry"
	"gitopsd.dev/reconcile/etcdproxy/limit"
	"gitopsd.dev/render/etcd"
)

// fill writes keys inside and outside of a namespace, a lease with keys, and one without.
func fill(t *testing.T, r *clientv3.Client, p admin.Provisioned, keys int) {
	t.Helper()
	for i := 0; i < keys; i += 100 {
		var ops []clientv3.Op
		for j := i; j < min(i+100, keys); j++ {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("%s%06d", p.Prefix, j), "value"))
		}
		if _, err := r.Txn(t.Context()).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	put(t, r, strings.TrimSuffix(p.Prefix, "/")+"0", "beside")
	for _, own := range []int64{7, 8} {
		lease(t, r, p.Number<<etcd.LeaseBits|own)
	}
	put(t, r, p.Prefix+"leased", "value", clientv3.WithLease(clientv3.LeaseID(p.Number<<etcd.LeaseBits|7)))
}

// lease grants a lease with an ID.
func lease(t *testing.T, r *clientv3.Client, id int64) {
	t.Helper()
	l := etcdserverpb.NewLeaseClient(r.ActiveConnection())
	if _, err := l.LeaseGrant(t.Context(), &etcdserverpb.LeaseGrantRequest{ID: id, TTL: 600}); err != nil {
		t.Fatal(err)
	}
}

// leases counts the leases of a number.
func leases(t *testing.T, r *clientv3.Client, number int64) (n int) {
	t.Helper()
	all, err := r.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all.Leases {
		if int64(l.ID)>>etcd.LeaseBits == number {
			n++
		}
	}
	return n
}

// A namespace that is declared again while its keys are being deleted is made anew once they are gone. Another
// cluster has to adopt it before.
func TestDeclaredAgain(t *testing.T) {
	t.Parallel()
	for _, another := range []bool{false, true} {
		a, r := open(t, shared, "fleet"), root(t, shared)
		w := fresh(t)
		p := provision(t, a, w)
		put(t, r, p.Prefix+"a", "1")
		record := registry.Record{ID: w.ID, Number: p.Number, Prefix: p.Prefix, Owner: registry.Owner{Fleet: "fleet", UID: w.UID}, State: registry.Deleting}
		put(t, r, registry.Key(w.ID), record.Format()) // the first step of a removal
		if another {
			w.UID = "made-anew"
			if why := refused(t, a, w); !strings.Contains(why, "adopt it to delete the rest") {
				t.Error(why)
			}
			w.Adopt = true
		}
		for range 2 {
			if why := refused(t, a, w); !strings.Contains(why, "are being deleted") {
				t.Error(why)
			}
		}
		if n := get(t, r, p.Prefix+"a").Count; n != 1 {
			t.Errorf("%d keys", n)
		}
		remove(t, a, w, admin.Delete)
		w.Adopt = false
		provision(t, a, w)
	}
}

// With Retain the keys stay, nobody else gets them, and a later declaration gets them back.
func TestRetain(t *testing.T) {
	t.Parallel()
	a, r := open(t, shared, "fleet"), root(t, shared)
	w := fresh(t)
	p := provision(t, a, w)
	fill(t, r, p, 10)
	tenant := as(t, shared, w.ID.User())
	remove(t, a, w, admin.Retain)
	remove(t, a, w, admin.Retain)
	if _, err := tenant.Get(t.Context(), p.Prefix); err == nil {
		t.Error("its user still reads")
	}
	if n := get(t, r, p.Prefix, clientv3.WithPrefix()).Count; n != 12 || leases(t, r, p.Number) != 2 {
		t.Errorf("%d keys, %d leases", n, leases(t, r, p.Number))
	}
	thief := fresh(t)
	thief.Prefix = p.Prefix
	if why := refused(t, a, thief); !strings.Contains(why, "are inside one another") {
		t.Error(why)
	}
	if why := refused(t, open(t, shared, "other"), w); !strings.Contains(why, `it belongs to fleet "fleet"`) {
		t.Error(why)
	}
	again := w
	again.UID = "uid-of-the-next"
	if q := provision(t, a, again); q.Number != p.Number || q.Prefix != p.Prefix {
		t.Errorf("%+v, want %+v", q, p)
	}
	if get(t, tenant, p.Prefix+"000001").Count != 1 {
		t.Error("its key is not back")
	}
}

// With Delete everything of the namespace is removed, and nothing of others.
func TestDelete(t *testing.T) {
	t.Parallel()
	a, r := open(t, shared, "fleet"), root(t, shared)
	w, other := fresh(t), fresh(t)
	p, q := provision(t, a, w), provision(t, a, other)
	fill(t, r, p, 1200)
	fill(t, r, q, 3)
	remove(t, a, w, admin.Delete)
	remove(t, a, w, admin.Delete)
	gone(t, r, w, p)
	if get(t, r, q.Prefix, clientv3.WithPrefix()).Count != 5 || get(t, r, strings.TrimSuffix(p.Prefix, "/")+"0").Count != 1 || leases(t, r, q.Number) != 2 {
		t.Error("others lost something")
	}
	provision(t, a, other)
	provision(t, a, w) // as a new one
	if _, err := a.Remove(t.Context(), w, "Forget"); err == nil {
		t.Error("any deletion is taken")
	}
	remove(t, a, w, admin.Delete)
}

// A namespace at the prefix of a removed one cannot read that one's history.
func TestHistory(t *testing.T) {
	t.Parallel()
	a, r := open(t, shared, "fleet"), root(t, shared)
	for _, adopt := range []bool{false, true} {
		w, next := fresh(t), fresh(t)
		p := provision(t, a, w)
		put(t, r, p.Prefix+"a", "secret")
		remove(t, a, w, admin.Delete)
		deleted := get(t, r, p.Prefix+"a").Header.GetRevision()
		next.Prefix, next.Adopt = p.Prefix, adopt
		q := provision(t, a, next)
		kv := get(t, r, string(limit.FloorKey(q.Prefix)))
		if kv.Count != 1 {
			t.Fatalf("adopt %v: no floor", adopt)
		}
		if floor, ok := limit.ParseFloor(kv.Kvs[0].Value, kv.Kvs[0].ModRevision); !ok || floor <= deleted {
			t.Errorf("adopt %v: the floor is %q, and the last key went at %d at the latest", adopt, kv.Kvs[0].Value, deleted)
		}
		provision(t, a, next)
		if again := get(t, r, string(limit.FloorKey(q.Prefix))); again.Kvs[0].Version != 1 {
			t.Errorf("adopt %v: the floor was written %d times", adopt, again.Kvs[0].Version)
		}
	}
}

// gone fails the test if something of a namespace is left.
func gone(t *testing.T, r *clientv3.Client, w admin.Wanted, p admin.Provisioned) {
	t.Helper()
	if n := get(t, r, p.Prefix, clientv3.WithPrefix(), clientv3.WithCountOnly()).Count; n > 0 {
		t.Errorf("%d keys are left", n)
	}
	if n := leases(t, r, p.Number); n > 0 {
		t.Errorf("%d leases are left", n)
	}
	if get(t, r, registry.Key(w.ID)).Count > 0 {
		t.Error("the record is left")
	}
	if _, err := r.UserGet(t.Context(), w.ID.User()); err == nil {
		t.Error("the user is left")
	}
	if _, err := r.RoleGet(t.Context(), w.ID.User()); err == nil {
		t.Error("the role is left")
	}
}

// After a crash at any step, the next attempt completes the deletion, and nothing is provisioned in
// between.
func TestDeleteKilled(t *testing.T) {
	t.Parallel()
	r := root(t, shared)
	var w admin.Wanted
	var p admin.Provisioned
	everyWrite(t, func(t *testing.T, a *admin.Admin, dies bool) bool {
		if !dies {
			if get(t, r, registry.Key(w.ID)).Count == 1 && get(t, r, p.Prefix, clientv3.WithPrefix()).Count < 552 {
				if why := refused(t, a, w); !strings.Contains(why, "are being deleted") {
					t.Error(why)
				}
				if _, err := a.Remove(t.Context(), w, admin.Retain); err == nil {
					t.Error("half of the keys are retained")
				}
			}
			remove(t, a, w, admin.Delete)
			return true
		}
		w = fresh(t)
		p = provision(t, open(t, shared, "fleet"), w)
		fill(t, r, p, 550)
		_, err := a.Remove(t.Context(), w, admin.Delete)
		return err == nil
	}, func(t *testing.T) { gone(t, r, w, p) })
}

// A lease with keys of others is not revoked, since that would delete them.
func TestForeignLease(t *testing.T) {
	t.Parallel()
	a, r := open(t, shared, "fleet"), root(t, shared)
	w := fresh(t)
	p := provision(t, a, w)
	fill(t, r, p, 3)
	id := clientv3.LeaseID(p.Number<<etcd.LeaseBits | 8)
	other := "/others/" + w.ID.Name
	put(t, r, other, "value", clientv3.WithLease(id))
	if _, err := a.Remove(t.Context(), w, admin.Delete); err == nil || !strings.Contains(err.Error(), other) {
		t.Errorf("it is removed: %v", err)
	}
	if get(t, r, other).Count != 1 {
		t.Error("the key of others is gone")
	}
	put(t, r, other, "value")
	remove(t, a, w, admin.Delete)
	if get(t, r, other).Count != 1 {
		t.Error("the key of others is gone")
	}
	gone(t, r, w, p)
}

// An etcd is compacted at the lowest floor of its active namespaces, or at the revision of an hour ago if
// that is higher; and only if gitopsd may. A cluster's own key space, whose floor nobody raises, does not
// count.
func TestCompact(t *testing.T) {
	t.Parallel()
	s := own(t)
	a, r := open(t, s, "fleet"), root(t, s)
	cfg := s.Admin()
	cfg.Fleet, cfg.MayCompact = "fleet", false
	if _, err := openAs(t, cfg).Compactor(nil); err == nil || !strings.Contains(err.Error(), "was not told that it may compact") {
		t.Errorf("it may: %v", err)
	}
	now := time.Now()
	c, err := a.Compactor(func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	provision(t, a, admin.Wanted{ID: etcd.ID{Cluster: "dev"}})
	one, two := fresh(t), fresh(t)
	p, q := provision(t, a, one), provision(t, a, two)
	for range 20 {
		put(t, r, p.Prefix+"a", "1")
	}
	current := get(t, r, p.Prefix+"a").Header.GetRevision()
	compacted := func(want int64) {
		t.Helper()
		got, err := c.Compact(t.Context())
		if err != nil || got != want {
			t.Errorf("compacted at %d, %v; want %d", got, err, want)
		}
		if want == 0 {
			return
		}
		if _, err := r.Get(t.Context(), p.Prefix+"a", clientv3.WithRev(want-1)); err == nil {
			t.Errorf("what is before %d can be read", want)
		}
		if _, err := r.Get(t.Context(), p.Prefix+"a", clientv3.WithRev(want)); err != nil {
			t.Errorf("revision %d cannot be read: %v", want, err)
		}
	}
	floor := func(p admin.Provisioned, revision int64) {
		put(t, r, string(limit.FloorKey(p.Prefix)), string(limit.FormatFloor(revision)))
	}
	began := func(p admin.Provisioned) int64 {
		kv := get(t, r, string(limit.FloorKey(p.Prefix)))
		if kv.Count == 0 {
			t.Fatal("a new namespace has no floor")
		}
		revision, _ := limit.ParseFloor(kv.Kvs[0].Value, kv.Header.GetRevision())
		return revision
	}
	compacted(began(p))
	floor(p, current-3)
	compacted(began(q)) // the other one needs all since then
	floor(q, current-10)
	compacted(current - 10)
	compacted(current - 10)
	put(t, r, string(limit.FloorKey(q.Prefix)), "garbled")
	compacted(current - 10)
	remove(t, a, two, admin.Retain)
	compacted(current - 3) // whoever is not there needs nothing
	last := get(t, r, p.Prefix+"a").Header.GetRevision()
	now = now.Add(limit.MaxHistory)
	put(t, r, p.Prefix+"b", "1")
	compacted(last)
}
