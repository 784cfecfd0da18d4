package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"gitopsd.dev/reconcile/etcd/registry"
	"gitopsd.dev/reconcile/etcdproxy/limit"
)

// Status is what an etcd has of one namespace.
type Status struct {
	registry.Record
	// Keys is how many keys exist, and Floor the revision to which the namespace is
	// compacted. How many bytes they have is known to the proxies, which count them.
	Keys, Floor int64
	// Leases is how many there are.
	Leases int
	// Problems say what is wrong and what to do.
	Problems []string
}

// Overview is what an etcd has.
type Overview struct {
	Server
	// Namespaces are those of this fleet.
	Namespaces []Status
	// Problems say what is wrong with the registry, and what to do.
	Problems []string
}

// Overview returns what the etcd has. It only reads, and every number is as of its own
// request.
func (a *Admin) Overview(ctx context.Context) (Overview, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	s, err := a.connect(ctx)
	if err != nil {
		return Overview{}, err
	}
	defer s.Close()
	known, _, err := s.registry(ctx)
	if err != nil {
		return Overview{}, err
	}
	o := Overview{Server: s.server}
	for _, err := range known.Damaged() {
		o.Problems = append(o.Problems, err.Error())
	}
	for _, m := range s.server.Members {
		if m.Quota > 0 && m.Bytes > m.Quota/10*9 {
			o.Problems = append(o.Problems, fmt.Sprintf("etcd %s: its database has %d of %d bytes; once it is full, nobody can write: compact and defragment it, or raise --quota-backend-bytes", m.Endpoint, m.Bytes, m.Quota))
		}
	}
	leases, err := s.leases(ctx)
	if err != nil {
		return o, err
	}
	for _, r := range known.All() {
		if r.Owner.Fleet != s.cfg.Fleet {
			continue
		}
		n, err := s.status(ctx, r)
		if err != nil {
			return o, fmt.Errorf("etcd namespace %s: %w", r.ID, err)
		}
		n.Leases = leases[r.Number]
		o.Namespaces = append(o.Namespaces, n)
	}
	return o, nil
}

// leases counts the leases by the numbers of their namespaces.
func (s *session) leases(ctx context.Context) (map[int64]int, error) {
	all, err := s.Leases(ctx)
	if err != nil {
		return nil, fmt.Errorf("etcd: leases: %w", err)
	}
	count := make(map[int64]int)
	for _, l := range all.Leases {
		count[number(l.ID)]++
	}
	return count, nil
}

// status reads what there is of one namespace.
func (s *session) status(ctx context.Context, r registry.Record) (Status, error) {
	n := Status{Record: r}
	count, err := s.Get(ctx, r.Prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return n, err
	}
	floor, err := s.Get(ctx, string(limit.FloorKey(r.Prefix)))
	if err != nil {
		return n, err
	}
	n.Keys = count.Count
	if len(floor.Kvs) > 0 {
		n.Keys-- // which no tenant sees
		n.Floor, _ = limit.ParseFloor(floor.Kvs[0].GetValue(), floor.Header.GetRevision())
	}
	if r.State != registry.Active {
		return n, nil
	}
	name := r.ID.User()
	role, err := s.RoleGet(ctx, name)
	switch {
	case errors.Is(err, rpctypes.ErrRoleNotFound):
		n.Problems = append(n.Problems, fmt.Sprintf("role %s does not exist; it is made with the next pass", name))
	case err != nil:
		return n, err
	case len(role.Perm) != 1 || !bytes.Equal(role.Perm[0].GetKey(), []byte(r.Prefix)) ||
		!bytes.Equal(role.Perm[0].GetRangeEnd(), []byte(clientv3.GetPrefixRangeEnd(r.Prefix))):
		n.Problems = append(n.Problems, fmt.Sprintf("role %s does not have the keys below %s and no others; it is repaired with the next pass", name, r.Prefix))
	}
	user, err := s.UserGet(ctx, name)
	switch {
	case errors.Is(err, rpctypes.ErrUserNotFound):
		n.Problems = append(n.Problems, fmt.Sprintf("user %s does not exist; it is made with the next pass", name))
	case err != nil:
		return n, err
	case !slices.Equal(user.Roles, []string{name}):
		n.Problems = append(n.Problems, fmt.Sprintf("user %s has the roles %q; it is repaired with the next pass", name, user.Roles))
	}
	return n, nil
}
