package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"gitopsd.dev/reconcile/etcd/registry"
	"gitopsd.dev/render/etcd"
)

// batch is how many keys are deleted at a time. etcd serves nothing else meanwhile.
const batch = 500

// shortestPause is the shortest pause between two batches. Usually the pause is as long as the batch
// took, which leaves half of etcd's time to others.
const shortestPause = 5 * time.Millisecond

// Remove removes a namespace that is no longer declared. [Retain] removes the user and the role. The
// record stays, so that the prefix stays reserved, and a declaration of the same name in the same fleet
// gets the keys back. [Delete] removes everything, the record last. A namespace without a record is
// removed already.
//
// Remove stops before the timeout of operations, and returns what is left; the next call continues. A
// damaged record, or one of another fleet or cluster, is an error, and nothing is changed.
func (a *Admin) Remove(ctx context.Context, w Wanted, how Deletion) (Removal, error) {
	if how != Retain && how != Delete {
		return Removal{}, fmt.Errorf("etcd namespace %s: deletion %q; use %s or %s", w.ID, how, Retain, Delete)
	}
	whole, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	s, err := a.connect(whole)
	if err != nil {
		return Removal{}, err
	}
	defer s.Close()
	r := &removal{session: s, until: time.Now().Add(a.cfg.Timeout / 2), wanted: w}
	if err := r.remove(whole, how); err != nil {
		return r.Removal, fmt.Errorf("etcd namespace %s: %w", w.ID, err)
	}
	return r.Removal, nil
}

// removal is a call of Remove.
type removal struct {
	*session
	Removal
	// until is when to begin no more batches, so that there is time to count the rest.
	until  time.Time
	wanted Wanted
	record registry.Record
}

func (r *removal) remove(ctx context.Context, how Deletion) error {
	state := registry.Retained
	if how == Delete {
		state = registry.Deleting
	}
	there, err := r.mark(ctx, state)
	if err != nil {
		return err
	}
	if !there {
		r.Done = true
		return nil
	}
	// From here on nobody provisions it. Without a user nobody writes keys that are being deleted.
	if err := r.dropUser(ctx, r.record.ID.User()); err != nil {
		return err
	}
	if how == Retain {
		r.Done = true
		return nil
	}
	if done, err := r.deleteKeys(ctx); err != nil || !done {
		return err
	}
	if done, err := r.revokeLeases(ctx); err != nil || !done {
		return err
	}
	return r.forget(ctx)
}

// mark records the state in the registry, so that any later call continues the same removal.
func (r *removal) mark(ctx context.Context, state registry.State) (there bool, err error) {
	for range attempts {
		known, revision, err := r.registry(ctx)
		if err != nil {
			return false, err
		}
		have, ok, err := known.Get(r.wanted.ID)
		switch {
		case err != nil || !ok:
			return false, err
		case have.Owner.Fleet != r.Config.Fleet:
			return false, fmt.Errorf("it belongs to fleet %q, so that its keys, its user and its role stay", have.Owner.Fleet)
		case have.Owner.UID != r.wanted.UID:
			return false, fmt.Errorf("it belongs to an EtcdNamespace of another cluster with this name (uid %q, not %q), so that its keys, its user and its role stay", have.Owner.UID, r.wanted.UID)
		case have.State == registry.Deleting && state == registry.Retained:
			return false, fmt.Errorf("its keys below %s are being deleted already; finish that with deletion: Delete", have.Prefix)
		}
		r.record = have
		if have.State == state {
			return true, nil
		}
		r.record.State = state
		if done, err := r.write(ctx, r.record, true, revision, false); err != nil || done {
			return true, err
		}
	}
	return false, fmt.Errorf("others write etcd's registry below %s all the time", registry.Prefix)
}

// dropUser removes a user and the role of the same name.
func (s *session) dropUser(ctx context.Context, name string) error {
	if _, err := s.UserDelete(ctx, name); err != nil && !errors.Is(err, rpctypes.ErrUserNotFound) {
		return fmt.Errorf("user %s: %w", name, err)
	}
	if _, err := s.RoleDelete(ctx, name); err != nil && !errors.Is(err, rpctypes.ErrRoleNotFound) {
		return fmt.Errorf("role %s: %w", name, err)
	}
	return nil
}

// deleteKeys deletes the keys batch by batch, and reports whether all are gone.
func (r *removal) deleteKeys(ctx context.Context) (done bool, err error) {
	end := clientv3.GetPrefixRangeEnd(r.record.Prefix)
	for {
		begun := time.Now()
		page, err := r.Get(ctx, r.record.Prefix, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(batch))
		if err != nil {
			return false, fmt.Errorf("keys below %s: %w", r.record.Prefix, err)
		}
		r.Left = page.Count
		if len(page.Kvs) == 0 {
			return true, nil
		}
		if begun.After(r.until) {
			return false, nil
		}
		last := string(page.Kvs[len(page.Kvs)-1].GetKey())
		if !strings.HasPrefix(last, r.record.Prefix) {
			return false, fmt.Errorf("etcd returned the key %q, which is not below %s", last, r.record.Prefix)
		}
		gone, err := r.Delete(ctx, r.record.Prefix, clientv3.WithRange(last+"\x00"))
		if err != nil {
			return false, fmt.Errorf("keys below %s: %w", r.record.Prefix, err)
		}
		r.Deleted += gone.Deleted
		r.Left = max(0, r.Left-gone.Deleted)
		if err := sleep(ctx, max(shortestPause, time.Since(begun))); err != nil {
			return false, err
		}
	}
}

// revokeLeases revokes the leases with the namespace's number, and reports whether all are gone. They have
// no keys any more, unless somebody attached keys of others, which must not be deleted.
func (r *removal) revokeLeases(ctx context.Context) (done bool, err error) {
	all, err := r.Leases(ctx)
	if err != nil {
		return false, fmt.Errorf("leases: %w", err)
	}
	for _, l := range all.Leases {
		if number(l.ID) != r.record.Number {
			continue
		}
		begun := time.Now()
		if begun.After(r.until) {
			return false, nil
		}
		info, err := r.TimeToLive(ctx, l.ID, clientv3.WithAttachedKeys())
		if err != nil {
			return false, fmt.Errorf("lease %x: %w", int64(l.ID), err)
		}
		for _, key := range info.Keys {
			if !strings.HasPrefix(string(key), r.record.Prefix) {
				return false, fmt.Errorf("lease %x has the key %q, which is not below %s; detach it (put it without a lease), and the removal goes on", int64(l.ID), key, r.record.Prefix)
			}
		}
		if _, err := r.Revoke(ctx, l.ID); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return false, fmt.Errorf("lease %x: %w", int64(l.ID), err)
		}
		if err := sleep(ctx, time.Since(begun)); err != nil {
			return false, err
		}
	}
	return true, nil
}

// forget removes the record if the namespace has no keys and nobody changed the record.
func (r *removal) forget(ctx context.Context) error {
	key := registry.Key(r.record.ID)
	result, err := r.Txn(ctx).If(
		clientv3.Compare(clientv3.Value(key), "=", r.record.Format()),
		clientv3.Compare(clientv3.CreateRevision(r.record.Prefix).WithPrefix(), "=", 0),
	).Then(clientv3.OpDelete(key)).Commit()
	if err != nil {
		return fmt.Errorf("its record: %w", err)
	}
	r.Done = result.Succeeded // if not, something was written meanwhile, and the next call continues
	return nil
}

// number returns the number of the namespace that a lease belongs to.
func number(id clientv3.LeaseID) int64 { return int64(id) >> etcd.LeaseBits }

// sleep waits. The error is the context's cause if it ends first.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
