package etcdproxy

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gitopsd.dev/reconcile/etcdproxy/wire"
)

// Two tenants have leases of their own with the same IDs: with keys, without, and with IDs that the proxy chose.
// Neither can list, renew or revoke the other's.
func TestLeases(t *testing.T) { all(t, testLeases) }

func testLeases(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	a, b := newTenantIn(t, "a"), newTenantIn(t, "b")
	p := serve(t, Config{}, a, b)
	ca, cb := p.client(t, a), p.client(t, b)
	leases := pb.NewLeaseClient(p.plain(t, a.certificate(t)))
	for _, c := range []*clientv3.Client{ca, cb} {
		l := pb.NewLeaseClient(c.ActiveConnection())
		for _, id := range []int64{1, wire.MaxLease} {
			if got, err := l.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: id, TTL: 1000}); err != nil || got.ID != id {
				t.Fatalf("%v, %v", got, err)
			}
		}
		if _, err := c.Put(ctx, "k", "v", clientv3.WithLease(1)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: 1, TTL: 1000}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("granted twice: %v", err)
	}
	for _, id := range []int64{-1, wire.MaxLease + 1, 1 << 62} {
		if _, err := leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: id, TTL: 1000}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("lease %d: %v", id, err)
		}
	}
	chosen, err := ca.Grant(ctx, 1000)
	if err != nil || chosen.ID <= 0 || int64(chosen.ID) > wire.MaxLease {
		t.Fatalf("%v, %v", chosen, err)
	}
	list := func(c *clientv3.Client) (ids []int64) {
		out, err := c.Leases(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range out.Leases {
			ids = append(ids, int64(l.ID))
		}
		slices.Sort(ids)
		return ids
	}
	want := []int64{1, int64(chosen.ID), wire.MaxLease}
	slices.Sort(want)
	if have := list(ca); !slices.Equal(have, want) {
		t.Errorf("leases %v, want %v", have, want)
	}
	if have := list(cb); !slices.Equal(have, []int64{1, wire.MaxLease}) {
		t.Errorf("the other's leases: %v", have)
	}
	ttl, err := ca.TimeToLive(ctx, 1, clientv3.WithAttachedKeys())
	if err != nil || ttl.ID != 1 || ttl.TTL <= 0 || fmt.Sprintf("%s", ttl.Keys) != "[k]" {
		t.Errorf("%+v, %v", ttl, err)
	}
	if got, err := ca.Get(ctx, "k"); err != nil || got.Kvs[0].Lease != 1 {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := ca.KeepAliveOnce(ctx, 1); err != nil || got.ID != 1 || got.TTL != 1000 {
		t.Errorf("%v, %v", got, err)
	}
	for _, id := range []clientv3.LeaseID{1, clientv3.LeaseID(wire.MaxLease)} {
		if _, err := ca.Revoke(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ca.KeepAliveOnce(ctx, 1); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Errorf("a lease that is gone: %v", err)
	}
	if have := list(ca); !slices.Equal(have, []int64{int64(chosen.ID)}) {
		t.Errorf("leases %v, want %d alone", have, chosen.ID)
	}
	if got, err := ca.Get(ctx, "k"); err != nil || len(got.Kvs) != 0 {
		t.Errorf("the key is there without its lease: %v, %v", got, err)
	}
	if got, err := cb.Get(ctx, "k"); err != nil || len(got.Kvs) != 1 || got.Kvs[0].Lease != 1 {
		t.Errorf("the other's key: %v, %v", got, err)
	}
}
