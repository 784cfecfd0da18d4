package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gitopsd.dev/reconcile/etcd/registry"
	"gitopsd.dev/reconcile/etcdproxy/limit"
	"gitopsd.dev/sources/errgroup"
)

// Provision creates records, roles and users of namespaces, and repairs them if others changed them. A
// complete namespace costs two reads, and many are read at a time; the others are provisioned one after
// another, since each change of a user outdates the requests under way. The error is about the etcd or
// the timeout; errors of one namespace are in its Provisioned. With an error, Provision returns the
// namespaces that it reached.
func (a *Admin) Provision(ctx context.Context, wanted []Wanted) ([]Provisioned, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	s, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	known, _, err := s.registry(ctx)
	if err != nil {
		return nil, err
	}
	complete := make([]Provisioned, len(wanted))
	var group errgroup.Group
	group.SetLimit(reading)
	for i, w := range wanted {
		group.Go(func() error {
			complete[i] = s.complete(ctx, known, w)
			return nil
		})
	}
	_ = group.Wait()
	all := slices.DeleteFunc(slices.Clone(complete), func(p Provisioned) bool { return p.Number == 0 })
	for i, w := range wanted {
		if complete[i].Number != 0 {
			continue
		}
		p, err := s.provision(ctx, known, w)
		if err != nil && (ctx.Err() != nil || status.Code(err) == codes.Unavailable) {
			return all, fmt.Errorf("etcd namespace %s: %w", w.ID, err)
		}
		if err != nil { // others go on
			p.Err = err
		}
		all = append(all, p)
	}
	return all, nil
}

// complete returns a namespace in which nothing is to be done; otherwise the zero value, also if that is
// not known.
func (s *session) complete(ctx context.Context, known *registry.Registry, w Wanted) Provisioned {
	have, there, err := known.Get(w.ID)
	if !there || err != nil || have.State != registry.Active {
		return Provisioned{}
	}
	if want, err := s.wish(known, have, there, s.owner(w), w); err != nil || want != have {
		return Provisioned{}
	}
	if faults, err := s.faults(ctx, have); err != nil || len(faults) > 0 {
		return Provisioned{}
	}
	return Provisioned{ID: w.ID, Number: have.Number, Prefix: have.Prefix}
}

// owner returns the owner that a namespace should have.
func (s *session) owner(w Wanted) registry.Owner {
	return registry.Owner{Fleet: s.Config.Fleet, UID: w.UID}
}

// refusal is an error of a namespace that somebody has to resolve.
type refusal struct{ error }

func refuse(format string, args ...any) error { return refusal{fmt.Errorf(format, args...)} }

// provision provisions one namespace. A crash is safe after each step: the record reserves number and
// prefix; then the role; then the user, who gets the role once it has exactly the range.
func (s *session) provision(ctx context.Context, known *registry.Registry, w Wanted) (Provisioned, error) {
	p := Provisioned{ID: w.ID}
	record, err := s.claim(ctx, known, w)
	if why, ok := errors.AsType[refusal](err); ok {
		p.Err = why.error
		return p, nil
	}
	if err != nil {
		return p, err
	}
	if record.State == registry.Deleting {
		p.Err = fmt.Errorf("its keys below %s are being deleted, since it was declared with deletion: Delete and then no longer; it is made anew when that has ended", record.Prefix)
		return p, nil
	}
	s.made = false
	if p.Repaired, err = s.ensureRole(ctx, w.ID.User(), record.Prefix); err != nil {
		return p, err
	}
	repaired, err := s.ensureUser(ctx, w.ID.User())
	p.Repaired = append(p.Repaired, repaired...)
	if err == nil && s.made {
		err = s.confirm(ctx, record)
	}
	if why, ok := errors.AsType[refusal](err); ok {
		return Provisioned{ID: w.ID, Err: why.error}, nil
	}
	p.Number, p.Prefix = record.Number, record.Prefix
	return p, err
}

// confirm checks whether a namespace was removed while its user was created. If so, it removes the
// user, which would outlive the namespace.
func (s *session) confirm(ctx context.Context, record registry.Record) error {
	known, _, err := s.registry(ctx)
	if err != nil {
		return err
	}
	now, there, err := known.Get(record.ID)
	switch {
	case err != nil:
		return refusal{err}
	case there && now.State == registry.Active:
		return nil
	}
	if err := s.dropUser(ctx, record.ID.User()); err != nil {
		return err
	}
	return refuse("another process removed it meanwhile; have only one daemon keep it")
}

// registry reads the registry, and returns it with its revision.
func (s *session) registry(ctx context.Context) (*registry.Registry, int64, error) {
	r, err := s.Get(ctx, registry.Prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, 0, fmt.Errorf("etcd: the registry of namespaces: %w", err)
	}
	var entries []registry.Entry
	for _, kv := range r.Kvs {
		entries = append(entries, registry.Entry{Key: string(kv.GetKey()), Value: string(kv.GetValue())})
	}
	return registry.Read(entries), r.Header.GetRevision(), nil
}

// attempts bounds how often to read the registry again because another process wrote it.
const attempts = 20

// claim returns the record of a namespace, and creates or updates it if necessary. known may be out of
// date: it only serves to see that nothing is to be done.
func (s *session) claim(ctx context.Context, known *registry.Registry, w Wanted) (registry.Record, error) {
	owner := s.owner(w)
	revision := int64(0) // unknown
	for range attempts {
		have, there, why := known.Get(w.ID)
		want := have
		if why == nil {
			want, why = s.wish(known, have, there, owner, w)
		}
		switch {
		case why == nil && there && want == have:
			return have, nil
		case revision == 0:
		case why != nil:
			return have, refusal{why}
		default:
			if done, err := s.write(ctx, want, there, revision, w.Adopt); err != nil || done {
				return want, err
			}
		}
		var err error
		if known, revision, err = s.registry(ctx); err != nil {
			return have, err
		}
	}
	return registry.Record{}, fmt.Errorf("others write etcd's registry below %s all the time", registry.Prefix)
}

// wish returns the record that a namespace should have, or an error if it must not have it. A namespace
// whose keys are being deleted stays so: its owner has to remove it first.
func (s *session) wish(known *registry.Registry, have registry.Record, ok bool, owner registry.Owner, w Wanted) (registry.Record, error) {
	prefix := cmp.Or(w.Prefix, w.ID.DefaultPrefix())
	if !ok {
		return known.Allocate(w.ID, prefix, owner)
	}
	switch {
	case have.Owner.Fleet != owner.Fleet && !w.Adopt:
		return have, fmt.Errorf("it belongs to fleet %q; if that fleet has given it up, adopt it, or declare it with another name", have.Owner.Fleet)
	case have.State == registry.Deleting && have.Owner.UID != owner.UID && !w.Adopt:
		return have, fmt.Errorf("another cluster with this name (uid %q, now %q) has begun to delete its keys below %s; adopt it to delete the rest and make it anew, or declare it with another name", have.Owner.UID, owner.UID, have.Prefix)
	case have.State == registry.Deleting:
		have.Owner = owner
		return have, nil
	case have.State == registry.Active && have.Owner.UID != owner.UID && !w.Adopt:
		return have, fmt.Errorf("it belongs to an EtcdNamespace of another cluster with this name (uid %q, now %q); adopt its keys, or declare it with another name", have.Owner.UID, owner.UID)
	case have.Prefix != prefix:
		return have, fmt.Errorf("its keys are below %s, and %s is declared; a prefix cannot be changed: declare the old one, or another name", have.Prefix, prefix)
	}
	have.Owner, have.State = owner, registry.Active
	return have, nil
}

// write writes a record if the registry has not changed since a revision. A new namespace must have no
// keys yet, unless adopt. If it has none, it begins with a floor, which hides deleted keys in etcd's
// history.
func (s *session) write(ctx context.Context, r registry.Record, there bool, revision int64, adopt bool) (done bool, err error) {
	unchanged := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(registry.Prefix).WithPrefix(), "<", revision+1)}
	put := []clientv3.Op{clientv3.OpPut(registry.Key(r.ID), r.Format())}
	if !there {
		found, err := s.Get(ctx, r.Prefix, clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
		switch {
		case err != nil:
			return false, err
		case len(found.Kvs) == 0:
			unchanged = append(unchanged, clientv3.Compare(clientv3.CreateRevision(r.Prefix).WithPrefix(), "=", 0))
			// The revision of this transaction is higher than the revision of the last deletion.
			put = append(put, clientv3.OpPut(string(limit.FloorKey(r.Prefix)), string(limit.FormatFloor(found.Header.GetRevision()+1))))
		case !adopt:
			return false, refuse("there are keys below %s already, which are not a namespace's; adopt them if they are to be this one's, or declare another prefix", r.Prefix)
		}
	}
	result, err := s.Txn(ctx).If(unchanged...).Then(put...).Commit()
	if err != nil {
		return false, fmt.Errorf("its record: %w", err)
	}
	return result.Succeeded, nil
}

// ensureRole creates a role for reading and writing the keys of a prefix, and revokes all other
// permissions.
func (s *session) ensureRole(ctx context.Context, role, prefix string) (repaired []string, err error) {
	end := clientv3.GetPrefixRangeEnd(prefix)
	found, err := s.RoleGet(ctx, role)
	if errors.Is(err, rpctypes.ErrRoleNotFound) {
		s.made = true
		_, err = s.RoleAdd(ctx, role)
		if errors.Is(err, rpctypes.ErrRoleAlreadyExist) { // another process was faster
			err = nil
		}
		if err == nil {
			found, err = s.RoleGet(ctx, role)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("role %s: %w", role, err)
	}
	granted := false
	for _, p := range found.Perm {
		if whole(p, prefix) {
			granted = true
			continue
		}
		if !ranges(p, prefix) {
			if _, err := s.RoleRevokePermission(ctx, role, string(p.GetKey()), string(p.GetRangeEnd())); err != nil && !errors.Is(err, rpctypes.ErrPermissionNotGranted) {
				return repaired, fmt.Errorf("role %s: revoke %q to %q: %w", role, p.GetKey(), p.GetRangeEnd(), err)
			}
			repaired = append(repaired, fmt.Sprintf("role %s had the keys from %q to %q too", role, p.GetKey(), p.GetRangeEnd()))
		}
	}
	if granted {
		return repaired, nil
	}
	s.made = true
	if _, err := s.RoleGrantPermission(ctx, role, prefix, end, clientv3.PermissionType(clientv3.PermReadWrite)); err != nil {
		return repaired, fmt.Errorf("role %s: grant %s: %w", role, prefix, err)
	}
	return repaired, nil
}

// ensureUser creates a user without a password, grants the role of the same name, and revokes all other
// roles.
func (s *session) ensureUser(ctx context.Context, user string) (repaired []string, err error) {
	found, err := s.UserGet(ctx, user)
	if errors.Is(err, rpctypes.ErrUserNotFound) {
		s.made = true
		_, err = s.UserAddWithOptions(ctx, user, "", &clientv3.UserAddOptions{NoPassword: true})
		if errors.Is(err, rpctypes.ErrUserAlreadyExist) {
			err = nil
		}
		if err == nil {
			found, err = s.UserGet(ctx, user)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("user %s: %w", user, err)
	}
	for _, role := range found.Roles {
		if role == user {
			continue
		}
		if _, err := s.UserRevokeRole(ctx, user, role); err != nil && !errors.Is(err, rpctypes.ErrRoleNotGranted) {
			return repaired, fmt.Errorf("user %s: revoke role %s: %w", user, role, err)
		}
		repaired = append(repaired, fmt.Sprintf("user %s had the role %s too", user, role))
	}
	if slices.Contains(found.Roles, user) {
		return repaired, nil
	}
	s.made = true
	if _, err := s.UserGrantRole(ctx, user, user); err != nil {
		return repaired, fmt.Errorf("user %s: grant role: %w", user, err)
	}
	return repaired, nil
}
