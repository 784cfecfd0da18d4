package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"gitopsd.dev/reconcile/etcd/registry"
	"gitopsd.dev/reconcile/etcdproxy/limit"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/sources/errgroup"
)

// Status is the state of a namespace in etcd.
type Status struct {
	registry.Record
	// Keys is the number of keys, and Floor the revision to which the namespace is compacted.
	Keys, Floor int64
	// Bytes is the size of keys and values, as the quota counts it, when [Admin.Measure] last
	// measured it. Sized reports whether it has.
	Bytes int64
	Sized bool
	// Leases is the number of leases.
	Leases int
	// Problems say what is wrong and what to do.
	Problems []string
	// Err is why Keys, Floor and Problems could not be read; nil if they were.
	Err error
}

// reading is the number of namespaces that are read at a time: one after another, those of a large fleet
// would take longer than [Config.Timeout].
const reading = 16

// Overview is the state of an etcd.
type Overview struct {
	Server
	// Namespaces are the namespaces of this fleet.
	Namespaces []Status
	// Damaged has the errors of damaged records of any fleet.
	Damaged map[etcd.ID]error
	// Problems say what is wrong with the etcd and its registry, and what to do.
	Problems []string
}

// Overview returns the state of the etcd. It only reads. The numbers are not of one revision. The error
// is about the etcd; errors of one namespace are in its Status.
func (a *Admin) Overview(caller context.Context) (Overview, error) {
	ctx, cancel := context.WithTimeout(caller, a.cfg.Timeout)
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
	o := Overview{Server: s.Server, Damaged: make(map[etcd.ID]error)}
	for _, err := range known.Damaged() {
		o.Problems = append(o.Problems, err.Error())
		if d, ok := errors.AsType[*registry.DamagedError](err); ok {
			if id, err := etcd.ParseID(strings.TrimPrefix(d.Key, registry.Prefix)); err == nil {
				o.Damaged[id] = d
			}
		}
	}
	for _, m := range s.Server.Members {
		// The text must not change with the size: it is logged when it does.
		switch {
		case s.Config.Embedded && nearlyFull(m.InUse, m.Quota):
			o.Problems = append(o.Problems, fmt.Sprintf("the embedded etcd has less than a tenth of its %d bytes left; once it is full, nobody can write: delete keys (kubectl get etcdnamespaces shows who has many), or move to an etcd with more room", m.Quota))
		case !s.Config.Embedded && nearlyFull(m.Bytes, m.Quota):
			o.Problems = append(o.Problems, fmt.Sprintf("etcd %s: its database has less than a tenth of its %d bytes left; once it is full, nobody can write: compact and defragment it, or raise --quota-backend-bytes", m.Endpoint, m.Quota))
		}
	}
	strays, err := s.strays(ctx, known)
	if err != nil {
		return o, err
	}
	o.Problems = append(o.Problems, strays...)
	leases, err := s.leases(ctx)
	if err != nil {
		return o, err
	}
	for _, r := range known.All() {
		if r.Owner.Fleet != s.Config.Fleet {
			continue
		}
		n := Status{Record: r, Leases: leases[r.Number]}
		n.Bytes, n.Sized = a.sizes.of(r)
		o.Namespaces = append(o.Namespaces, n)
	}
	var group errgroup.Group
	group.SetLimit(reading)
	for _, i := range rand.Perm(len(o.Namespaces)) { // if the time is too short, each has its turn some time
		n := &o.Namespaces[i]
		group.Go(func() error {
			if n.Err = s.status(ctx, n); n.Err == nil && n.Keys == 0 {
				n.Bytes, n.Sized = 0, true
			}
			return nil
		})
	}
	_ = group.Wait() // errors are in the statuses
	if i := slices.IndexFunc(o.Namespaces, func(n Status) bool { return n.Err != nil }); i >= 0 {
		o.Problems = append(o.Problems, fmt.Sprintf("the keys of some etcd namespaces could not be counted, and their statuses have earlier numbers: %v", o.Namespaces[i].Err))
	}
	return o, caller.Err()
}

// strays returns a problem for each user with the name of a namespace's user that belongs to no active
// namespace: a daemon was killed while another removed a namespace. Such a user may be another's, so
// it stays. While a record is damaged, strays returns none.
func (s *session) strays(ctx context.Context, known *registry.Registry) (problems []string, err error) {
	users, err := s.UserList(ctx)
	if err != nil {
		return nil, fmt.Errorf("etcd: users: %w", err)
	}
	if len(known.Damaged()) > 0 {
		return nil, nil
	}
	of := make(map[string]bool)
	for _, r := range known.All() {
		of[r.ID.User()] = r.State == registry.Active
	}
	for _, user := range users.Users {
		if userName.MatchString(user) && !of[user] {
			problems = append(problems, fmt.Sprintf("user %s is of no namespace in use, and may have the keys of one to come; remove it: etcdctl user delete %[1]s, etcdctl role delete %[1]s", user))
		}
	}
	return problems, nil
}

// userName matches what etcd.ID.User returns.
var userName = regexp.MustCompile(`^gitopsd-[0-9a-f]{40}$`)

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

// status reads the state of one namespace into n.
func (s *session) status(ctx context.Context, n *Status) error {
	count, err := s.Get(ctx, n.Prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	floor, err := s.Get(ctx, string(limit.FloorKey(n.Prefix)))
	if err != nil {
		return err
	}
	if n.State == registry.Active {
		if n.Problems, err = s.faults(ctx, n.Record); err != nil {
			return err
		}
	}
	n.Keys = count.Count
	if len(floor.Kvs) > 0 {
		n.Keys-- // tenants do not see it
		n.Floor, _ = limit.ParseFloor(floor.Kvs[0].GetValue(), floor.Header.GetRevision())
	}
	return nil
}

// faults returns what is wrong with the role and the user of an active namespace.
func (s *session) faults(ctx context.Context, r registry.Record) (faults []string, err error) {
	name := r.ID.User()
	role, err := s.RoleGet(ctx, name)
	switch {
	case errors.Is(err, rpctypes.ErrRoleNotFound):
		faults = append(faults, fmt.Sprintf("role %s does not exist; it is made with the next pass", name))
	case err != nil:
		return nil, err
	case len(role.Perm) != 1 || !whole(role.Perm[0], r.Prefix):
		faults = append(faults, fmt.Sprintf("role %s does not have the keys below %s and no others; it is repaired with the next pass", name, r.Prefix))
	}
	user, err := s.UserGet(ctx, name)
	switch {
	case errors.Is(err, rpctypes.ErrUserNotFound):
		faults = append(faults, fmt.Sprintf("user %s does not exist; it is made with the next pass", name))
	case err != nil:
		return nil, err
	case !slices.Equal(user.Roles, []string{name}):
		faults = append(faults, fmt.Sprintf("user %s has the roles %q; it is repaired with the next pass", name, user.Roles))
	}
	return faults, nil
}

// ranges reports whether a permission is for the keys of a prefix, and whole whether it is for reading
// and writing them.
func ranges(p *authpb.Permission, prefix string) bool {
	return bytes.Equal(p.GetKey(), []byte(prefix)) && bytes.Equal(p.GetRangeEnd(), []byte(clientv3.GetPrefixRangeEnd(prefix)))
}

func whole(p *authpb.Permission, prefix string) bool {
	return ranges(p, prefix) && clientv3.PermissionType(p.GetPermType()) == clientv3.PermissionType(clientv3.PermReadWrite)
}
