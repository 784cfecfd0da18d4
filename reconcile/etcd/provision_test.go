package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/etcd/registry"
	"gitopsd.dev/render/etcd"
)

// A namespace's user reads and writes the keys of its prefix and no others. Provisioning again changes
// nothing in etcd.
func TestProvision(t *testing.T) {
	t.Parallel()
	a, etcdRoot := open(t, shared, "fleet"), root(t, shared)
	one, two := fresh(t), fresh(t)
	p, q := provision(t, a, one), provision(t, a, two)
	if p.Number == q.Number || p.Prefix != one.ID.DefaultPrefix() || len(p.Repaired) > 0 {
		t.Errorf("%+v, %+v", p, q)
	}
	tenant := as(t, shared, one.ID.User())
	put(t, tenant, p.Prefix+"a", "1")
	put(t, tenant, p.Prefix, "5") // the floor
	put(t, etcdRoot, q.Prefix+"a", "2")
	if r := get(t, tenant, p.Prefix, clientv3.WithPrefix()); r.Count != 2 {
		t.Errorf("%d keys", r.Count)
	}
	user, err := etcdRoot.UserGet(t.Context(), one.ID.User())
	if err != nil || !slices.Equal(user.Roles, []string{one.ID.User()}) {
		t.Errorf("%v, %v", user, err)
	}
	denied := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, rpctypes.ErrPermissionDenied) {
			t.Errorf("%s: %v", what, err)
		}
	}
	ctx := t.Context()
	end := clientv3.GetPrefixRangeEnd(p.Prefix)
	_, err = tenant.Get(ctx, q.Prefix+"a")
	denied("read another's", err)
	_, err = tenant.Put(ctx, q.Prefix+"a", "3")
	denied("write another's", err)
	_, err = tenant.Get(ctx, end)
	denied("the first key behind", err)
	_, err = tenant.Get(ctx, p.Prefix, clientv3.WithFromKey())
	denied("all keys behind", err)
	_, err = tenant.Get(ctx, "\x00", clientv3.WithFromKey())
	denied("everything", err)
	_, err = tenant.Get(ctx, registry.Key(one.ID))
	denied("its own record", err)
	_, err = tenant.Delete(ctx, p.Prefix, clientv3.WithRange(end+"\x00"))
	denied("delete a key more", err)
	_, err = tenant.Txn(ctx).Then(clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut(q.Prefix+"b", "4")}, nil)).Commit()
	denied("a nested write", err)
	_, err = tenant.UserList(ctx)
	denied("users", err)
	if _, err := tenant.Authenticate(ctx, one.ID.User(), ""); err == nil {
		t.Error("the user has a password")
	}

	users, err := etcdRoot.UserList(ctx)
	if err != nil {
		t.Fatal(err)
	}
	writes := &recorder{}
	cfg := shared.Admin()
	cfg.Fleet = "fleet"
	cfg.Intercept = append(cfg.Intercept, writes.record)
	if again, err := openAs(t, cfg).Provision(ctx, []admin.Wanted{one, two}); err != nil || len(again) != 2 || again[0].Number != p.Number || again[1].Number != q.Number {
		t.Errorf("%+v, %v", again, err)
	}
	if made := writes.writes(); len(made) > 0 || len(users.Users) == 0 {
		t.Errorf("the second time it sent %v", made)
	}
}

// recorder notes the requests.
type recorder struct {
	mu   sync.Mutex
	sent []string
}

func (r *recorder) record(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	r.mu.Lock()
	r.sent = append(r.sent, method[strings.LastIndex(method, "/")+1:])
	r.mu.Unlock()
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (r *recorder) writes() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, m := range r.sent {
		if writing[m] {
			all = append(all, m)
		}
	}
	return all
}

// writing are the requests that change something.
var writing = map[string]bool{
	"Txn": true, "Put": true, "DeleteRange": true, "Compact": true, "LeaseRevoke": true,
	"UserAdd": true, "UserDelete": true, "UserGrantRole": true, "UserRevokeRole": true,
	"RoleAdd": true, "RoleDelete": true, "RoleGrantPermission": true, "RoleRevokePermission": true,
}

var errKilled = errors.New("killed here")

// killer fails the request with a number, before or after it is sent, and all later ones, as if the
// process were killed.
type killer struct {
	mu     sync.Mutex
	at     int
	after  bool
	sent   int
	killed bool
}

func (k *killer) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	k.mu.Lock()
	if writing[method[strings.LastIndex(method, "/")+1:]] {
		k.sent++
	}
	now, dead := k.sent == k.at && writing[method[strings.LastIndex(method, "/")+1:]], k.killed
	k.killed = k.killed || now
	k.mu.Unlock()
	if dead || now && !k.after {
		return errKilled
	}
	if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
		return err
	}
	if now {
		return errKilled
	}
	return nil
}

// everyWrite calls do with a process that is killed before and after each of its writes, then again
// without, and then check.
func everyWrite(t *testing.T, do func(t *testing.T, a *admin.Admin, dies bool) (ended bool), check func(t *testing.T)) {
	for at := 1; ; at++ {
		last := false
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("write %d, after %v", at, after), func(t *testing.T) {
				cfg := shared.Admin()
				cfg.Fleet = "fleet"
				k := &killer{at: at, after: after}
				cfg.Intercept = append(cfg.Intercept, k.intercept)
				do(t, openAs(t, cfg), true)
				do(t, open(t, shared, "fleet"), false)
				check(t)
				last = !k.killed
			})
		}
		if last {
			if at < 4 {
				t.Errorf("only %d writes", at-1)
			}
			return
		}
	}
}

// After a crash at any step, the next attempt completes the namespace.
func TestProvisionKilled(t *testing.T) {
	t.Parallel()
	var w admin.Wanted
	everyWrite(t, func(t *testing.T, a *admin.Admin, dies bool) bool {
		if dies {
			w = fresh(t)
			_, err := a.Provision(t.Context(), []admin.Wanted{w})
			return err == nil
		}
		provision(t, a, w)
		return true
	}, func(t *testing.T) {
		tenant := as(t, shared, w.ID.User())
		put(t, tenant, w.ID.DefaultPrefix()+"a", "1")
		if _, err := tenant.Get(t.Context(), "/gitopsd.dev/", clientv3.WithPrefix()); !errors.Is(err, rpctypes.ErrPermissionDenied) {
			t.Errorf("it reads all: %v", err)
		}
	})
}

// Permissions that somebody added are revoked, and reported.
func TestRepair(t *testing.T) {
	t.Parallel()
	a, r, ctx := open(t, shared, "fleet"), root(t, shared), t.Context()
	for _, tt := range []struct {
		name   string
		change func(user, prefix string) error
		want   string
	}{
		{"a range more", func(user, prefix string) error {
			_, err := r.RoleGrantPermission(ctx, user, "/registry/", "/registry0", clientv3.PermissionType(clientv3.PermRead))
			return err
		}, `had the keys from "/registry/" to "/registry0" too`},
		{"everything", func(user, prefix string) error {
			_, err := r.RoleGrantPermission(ctx, user, "\x00", "\x00", clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		}, `had the keys from "\x00" to "\x00" too`},
		{"a single key", func(user, prefix string) error {
			_, err := r.RoleGrantPermission(ctx, user, "/x", "", clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		}, `had the keys from "/x" to "" too`},
		{"another role", func(user, prefix string) error {
			_, err := r.UserGrantRole(ctx, user, "root")
			return err
		}, "had the role root too"},
		{"read only", func(user, prefix string) error {
			_, err := r.RoleGrantPermission(ctx, user, prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermRead))
			return err
		}, ""},
		{"no range", func(user, prefix string) error {
			_, err := r.RoleRevokePermission(ctx, user, prefix, clientv3.GetPrefixRangeEnd(prefix))
			return err
		}, ""},
		{"no role", func(user, prefix string) error {
			_, err := r.RoleDelete(ctx, user)
			return err
		}, ""},
		{"no user", func(user, prefix string) error {
			_, err := r.UserDelete(ctx, user)
			return err
		}, ""},
	} {
		w := fresh(t)
		p := provision(t, a, w)
		if err := tt.change(w.ID.User(), p.Prefix); err != nil {
			t.Fatal(tt.name, err)
		}
		o, err := a.Overview(ctx)
		i := slices.IndexFunc(o.Namespaces, func(s admin.Status) bool { return s.ID == w.ID })
		if err != nil || i < 0 || len(o.Namespaces[i].Problems) == 0 {
			t.Errorf("%s: the overview does not say so: %+v, %v", tt.name, o.Namespaces, err)
		}
		repaired := strings.Join(provision(t, a, w).Repaired, "\n")
		if !strings.Contains(repaired, tt.want) || (repaired == "") != (tt.want == "") {
			t.Errorf("%s: said %q, want %q", tt.name, repaired, tt.want)
		}
		role, err := r.RoleGet(ctx, w.ID.User())
		if err != nil || len(role.Perm) != 1 || string(role.Perm[0].GetKey()) != p.Prefix || string(role.Perm[0].GetRangeEnd()) != clientv3.GetPrefixRangeEnd(p.Prefix) {
			t.Errorf("%s: %+v, %v", tt.name, role, err)
		}
		user, err := r.UserGet(ctx, w.ID.User())
		if err != nil || !slices.Equal(user.Roles, []string{w.ID.User()}) {
			t.Errorf("%s: %+v, %v", tt.name, user, err)
		}
		tenant := as(t, shared, w.ID.User())
		put(t, tenant, p.Prefix+"a", "1")
		if again := provision(t, a, w); len(again.Repaired) > 0 {
			t.Errorf("%s: repaired again: %v", tt.name, again.Repaired)
		}
	}
}

// A record of another fleet or cluster is refused unless it is adopted, and so are keys without a record.
func TestOwner(t *testing.T) {
	t.Parallel()
	mine, other := open(t, shared, "fleet"), open(t, shared, "other")
	w := fresh(t)
	p := provision(t, mine, w)
	put(t, as(t, shared, w.ID.User()), p.Prefix+"a", "1")

	if why := refused(t, other, w); !strings.Contains(why, `it belongs to fleet "fleet"`) {
		t.Error(why)
	}
	again := w
	again.UID = "uid-again"
	if why := refused(t, mine, again); !strings.Contains(why, "it belongs to an EtcdNamespace of another cluster") {
		t.Error(why)
	}
	moved := w
	moved.Prefix = "/elsewhere/"
	if why := refused(t, mine, moved); !strings.Contains(why, "a prefix cannot be changed") {
		t.Error(why)
	}
	for _, a := range []struct {
		admin *admin.Admin
		w     admin.Wanted
	}{{other, w}, {mine, again}} {
		for _, how := range []admin.Deletion{admin.Retain, admin.Delete} {
			if _, err := a.admin.Remove(t.Context(), a.w, how); err == nil || !strings.Contains(err.Error(), "stay") {
				t.Errorf("%s by another: %v", how, err)
			}
		}
	}
	if get(t, as(t, shared, w.ID.User()), p.Prefix+"a").Count != 1 {
		t.Error("the key is gone")
	}
	again.Adopt = true
	if q := provision(t, mine, again); q.Number != p.Number {
		t.Errorf("%+v, want number %d", q, p.Number)
	}
	again.Adopt = false
	provision(t, mine, again)
	if why := refused(t, mine, w); !strings.Contains(why, "an EtcdNamespace of another cluster") {
		t.Error(why)
	}

	found := fresh(t)
	found.Prefix = "/found-" + found.ID.Name + "/"
	put(t, root(t, shared), found.Prefix+"a", "1")
	if why := refused(t, mine, found); !strings.Contains(why, "there are keys below "+found.Prefix+" already") {
		t.Error(why)
	}
	found.Adopt = true
	provision(t, mine, found)
}

// Prefixes that are equal to, inside or around others are refused.
func TestPrefix(t *testing.T) {
	t.Parallel()
	a := open(t, shared, "fleet")
	w := fresh(t)
	w.Prefix = "/prefix-test/a/"
	provision(t, a, w)
	for prefix, want := range map[string]string{
		"/prefix-test/a/":                    "are inside one another",
		"/prefix-test/a/b/":                  "are inside one another",
		"/prefix-test/":                      "are inside one another",
		"/prefix-test/aa":                    "does not end with /",
		"/":                                  "is around other keys",
		"//":                                 "is around other keys",
		"/registry/":                         "where kube-apiservers keep their objects",
		"/registry/x/":                       "where kube-apiservers keep their objects",
		"/gitopsd.dev/registry/":             "where gitopsd keeps its registry",
		"/gitopsd.dev/":                      "where gitopsd keeps its registry",
		"/a\x00/":                            "printable ASCII",
		"/é/":                                "printable ASCII",
		"/" + strings.Repeat("x", 600) + "/": "use at most 512",
	} {
		other := fresh(t)
		other.Prefix = prefix
		if why := refused(t, a, other); !strings.Contains(why, want) {
			t.Errorf("%q: %s, want %q", prefix, why, want)
		}
	}
	beside := fresh(t)
	beside.Prefix = "/prefix-test/aa/"
	provision(t, a, beside)
}

// Daemons that provision concurrently give out each number once.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	const daemons, each = 4, 6
	var wait sync.WaitGroup
	var mu sync.Mutex
	byNumber := make(map[int64]etcd.ID)
	contested := fresh(t)
	winners := 0
	for d := range daemons {
		var wanted []admin.Wanted
		for range each {
			wanted = append(wanted, fresh(t))
		}
		a := open(t, shared, fmt.Sprint("fleet-", d))
		wait.Go(func() {
			all, err := a.Provision(t.Context(), append(wanted, contested))
			if err != nil || len(all) != each+1 {
				t.Errorf("%d provisioned, %v", len(all), err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, p := range all {
				if p.ID == contested.ID && p.Err != nil {
					continue
				}
				if p.ID == contested.ID {
					winners++
				}
				if other, twice := byNumber[p.Number]; twice || p.Err != nil {
					t.Errorf("%+v, %s has this number", p, other)
				}
				byNumber[p.Number] = p.ID
			}
		})
	}
	wait.Wait()
	if len(byNumber) != daemons*each+1 || winners != 1 {
		t.Errorf("%d numbers, %d winners", len(byNumber), winners)
	}
}

// A namespace that is removed while another process creates its user has no user in the end. If that
// process is killed, the user is reported.
func TestRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	s := own(t)
	a, r := open(t, s, "fleet"), root(t, s)
	for _, tt := range []struct {
		how  admin.Deletion
		dies bool
	}{{admin.Retain, false}, {admin.Delete, false}, {admin.Delete, true}} {
		w := fresh(t)
		once := sync.OnceFunc(func() { remove(t, a, w, tt.how) })
		dead := false
		cfg := s.Admin()
		cfg.Fleet = "fleet"
		cfg.Intercept = append(cfg.Intercept, func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if strings.HasSuffix(method, "/RoleAdd") {
				once()
			}
			if dead {
				return errKilled
			}
			dead = tt.dies && strings.HasSuffix(method, "/UserGrantRole")
			return invoke(ctx, method, req, reply, cc, opts...)
		})
		all, err := openAs(t, cfg).Provision(t.Context(), []admin.Wanted{w})
		if tt.dies {
			o, overview := a.Overview(t.Context())
			if err != nil || len(all) != 1 || !errors.Is(all[0].Err, errKilled) || overview != nil || len(o.Problems) != 1 || !strings.Contains(o.Problems[0], "user "+w.ID.User()+" is of no namespace in use") {
				t.Errorf("%+v, %v; %+v, %v", all, err, o.Problems, overview)
			}
			continue
		}
		if err != nil || len(all) != 1 || all[0].Err == nil || !strings.Contains(all[0].Err.Error(), "another process removed it meanwhile") {
			t.Errorf("%+v, %v", all, err)
		}
		if _, err := r.UserGet(t.Context(), w.ID.User()); !errors.Is(err, rpctypes.ErrUserNotFound) {
			t.Errorf("the user is there: %v", err)
		}
		if _, err := r.RoleGet(t.Context(), w.ID.User()); !errors.Is(err, rpctypes.ErrRoleNotFound) {
			t.Errorf("the role is there: %v", err)
		}
		if o, err := a.Overview(t.Context()); err != nil || len(o.Problems) > 0 {
			t.Errorf("%+v, %v", o.Problems, err)
		}
	}
}

// A garbled or conflicting record is reported, and neither overwritten nor deleted. Namespaces with
// sound records go on, and new ones wait.
func TestDamaged(t *testing.T) {
	t.Parallel()
	s := own(t)
	a, r := open(t, s, "fleet"), root(t, s)
	sound, hurt := fresh(t), fresh(t)
	provision(t, a, sound)
	p := provision(t, a, hurt)
	put(t, as(t, s, hurt.ID.User()), p.Prefix+"a", "1")
	for _, value := range []string{"", "{", `{"version":2}`, "null", strings.Repeat("x", 100_000),
		string(get(t, r, registry.Key(sound.ID)).Kvs[0].GetValue())} { // another's
		put(t, r, registry.Key(hurt.ID), value)
		if why := refused(t, a, hurt); !strings.Contains(why, "cannot be used") {
			t.Error(why)
		}
		for _, how := range []admin.Deletion{admin.Retain, admin.Delete} {
			if _, err := a.Remove(t.Context(), hurt, how); err == nil || !strings.Contains(err.Error(), "cannot be used") {
				t.Errorf("%s: %v", how, err)
			}
		}
		if why := refused(t, a, fresh(t)); !strings.Contains(why, "no number can be given out") {
			t.Error(why)
		}
		if o, err := a.Overview(t.Context()); err != nil || len(o.Problems) == 0 || o.Damaged[hurt.ID] == nil {
			t.Errorf("%+v, %v", o, err)
		}
		if kept := get(t, r, registry.Key(hurt.ID)); string(kept.Kvs[0].GetValue()) != value {
			t.Errorf("%q became %q", value, kept.Kvs[0].GetValue())
		}
		if !strings.Contains(value, "number") { // that which is both's hurts both
			provision(t, a, sound)
		}
	}
	if get(t, as(t, s, hurt.ID.User()), p.Prefix+"a").Count != 1 {
		t.Error("the key is gone")
	}
}

// Nobody gets inside a namespace that is not in etcd as it was provisioned, because etcd was restored from before,
// until it is provisioned again.
func TestInside(t *testing.T) {
	t.Parallel()
	a, r := open(t, shared, "fleet"), root(t, shared)
	w := fresh(t)
	p := provision(t, a, w)
	write := func() error {
		return a.Inside(t.Context(), p, func(kv clientv3.KV, _ clientv3.Lease) error {
			_, err := kv.Put(t.Context(), "a", "1")
			return err
		})
	}
	if err := write(); err != nil || get(t, r, p.Prefix+"a").Count != 1 {
		t.Error(err)
	}
	if _, err := r.Delete(t.Context(), p.Prefix, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Delete(t.Context(), registry.Key(w.ID)); err != nil {
		t.Fatal(err)
	}
	if err := write(); err == nil || !strings.Contains(err.Error(), "is not in etcd as it was provisioned") || get(t, r, p.Prefix+"a").Count != 0 {
		t.Error(err)
	}
	p = provision(t, a, w)
	if err := write(); err != nil {
		t.Error(err)
	}
}

// Many namespaces are read at a time, so that a fleet of any size is read before the timeout. If one cannot
// be read, or the time ends, the others are there.
func TestMany(t *testing.T) {
	t.Parallel()
	const together, n = 8, 20
	s := own(t)
	var all []admin.Wanted
	for range n {
		all = append(all, fresh(t))
	}
	cfg := s.Admin()
	cfg.Fleet = "fleet"
	if _, err := openAs(t, cfg).Provision(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	intercepted := func(around func(ctx context.Context, method, role string, invoke func() error) error) *admin.Admin {
		cfg := cfg
		cfg.Intercept = append(slices.Clone(cfg.Intercept), func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			role := ""
			if r, ok := req.(interface{ GetRole() string }); ok {
				role = r.GetRole()
			}
			return around(ctx, method[strings.LastIndex(method, "/")+1:], role, func() error { return invoke(ctx, method, req, reply, cc, opts...) })
		})
		return openAs(t, cfg)
	}
	type look struct {
		ids  []etcd.ID // of those that are complete
		errs int
		err  error
	}
	for name, read := range map[string]func(context.Context, *admin.Admin) look{
		"overview": func(ctx context.Context, a *admin.Admin) (l look) {
			o, err := a.Overview(ctx)
			l.err = err
			for _, n := range o.Namespaces {
				if n.Err != nil || len(n.Problems) > 0 {
					l.errs++
				} else {
					l.ids = append(l.ids, n.ID)
				}
			}
			if (l.errs > 0) != (len(o.Problems) > 0) {
				t.Errorf("%d errors, problems %q", l.errs, o.Problems)
			}
			return l
		},
		"provision": func(ctx context.Context, a *admin.Admin) (l look) {
			made, err := a.Provision(ctx, all)
			l.err = err
			for _, p := range made {
				if p.Err != nil || p.Number == 0 {
					l.errs++
				} else {
					l.ids = append(l.ids, p.ID)
				}
			}
			return l
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var waiting atomic.Int64
			enough := make(chan struct{})
			a := intercepted(func(ctx context.Context, method, _ string, invoke func() error) error {
				if method == "RoleGet" {
					if waiting.Add(1) == together {
						close(enough)
					}
					select {
					case <-enough:
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				return invoke()
			})
			if l := read(t.Context(), a); l.err != nil || l.errs > 0 || len(l.ids) != n {
				t.Errorf("at a time: %d are read, %d errors, %v", len(l.ids), l.errs, l.err)
			}

			bad := all[n/2].ID
			a = intercepted(func(_ context.Context, method, role string, invoke func() error) error {
				if method == "RoleGet" && role == bad.User() {
					return errKilled
				}
				return invoke()
			})
			if l := read(t.Context(), a); l.err != nil || l.errs != 1 || len(l.ids) != n-1 || slices.Contains(l.ids, bad) {
				t.Errorf("one cannot be read: %d are read, %d errors, %v", len(l.ids), l.errs, l.err)
			}

			var users atomic.Int64
			others := make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			a = intercepted(func(ctx context.Context, method, role string, invoke func() error) error {
				if method == "RoleGet" && role == bad.User() {
					select {
					case <-others:
					case <-ctx.Done():
					}
					cancel()
					return ctx.Err()
				}
				err := invoke()
				if method == "UserGet" && users.Add(1) == n-1 {
					close(others)
				}
				return err
			})
			if l := read(ctx, a); l.err == nil || len(l.ids) < n-2 || slices.Contains(l.ids, bad) {
				t.Errorf("the time ends: %d are read, %d errors, %v", len(l.ids), l.errs, l.err)
			}
		})
	}
}
