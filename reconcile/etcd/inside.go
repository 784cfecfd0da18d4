package etcd

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
)

// Inside calls do with the keys of a provisioned namespace, in which they have no
// prefix. The leases are etcd's own: keys of the fleet, which gitopsd itself writes, are
// attached to them.
func (a *Admin) Inside(ctx context.Context, in Provisioned, do func(clientv3.KV, clientv3.Lease) error) error {
	s, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	return do(namespace.NewKV(s.KV, in.Prefix), s.Lease)
}
