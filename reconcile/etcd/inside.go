package etcd

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"gitopsd.dev/reconcile/etcd/registry"
)

// Inside calls do with the keys of a provisioned namespace, without their prefix. The leases have no
// namespace. It is an error if the namespace is not in etcd as it was provisioned: etcd was restored from a
// snapshot of before, and the prefix may be another's. Only connecting is bounded by the configured timeout, not do.
func (a *Admin) Inside(ctx context.Context, in Provisioned, do func(clientv3.KV, clientv3.Lease) error) error {
	opening, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(a.cfg.Timeout, func() { cancel(fmt.Errorf("etcd: not ready after %s", a.cfg.Timeout)) })
	defer late.Stop()
	s, err := a.connect(opening)
	if err != nil {
		return err
	}
	defer s.Close()
	known, _, err := s.registry(opening)
	if err != nil {
		return err
	}
	have, _, err := known.Get(in.ID)
	if err != nil {
		return err
	}
	if have.Number != in.Number || have.Prefix != in.Prefix || have.State != registry.Active {
		return fmt.Errorf("etcd namespace %s is not in etcd as it was provisioned, perhaps because etcd was restored; it is provisioned again", in.ID)
	}
	late.Stop()
	return do(namespace.NewKV(s.KV, in.Prefix), s.Lease)
}
