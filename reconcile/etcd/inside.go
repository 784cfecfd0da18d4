package etcd

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
)

// Inside calls do with the keys of a provisioned namespace, without their prefix. The leases have no
// namespace. Only connecting is bounded by the configured timeout, not do.
func (a *Admin) Inside(ctx context.Context, in Provisioned, do func(clientv3.KV, clientv3.Lease) error) error {
	opening, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(a.cfg.Timeout, func() { cancel(fmt.Errorf("etcd: not ready after %s", a.cfg.Timeout)) })
	s, err := a.connect(opening)
	if late.Stop(); err != nil {
		return err
	}
	defer s.Close()
	return do(namespace.NewKV(s.KV, in.Prefix), s.Lease)
}
