package etcdproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// secret is in each key and value of the victim, and in nothing else.
const secret = "s3cret"

// victim is a tenant that is attacked.
type victim struct {
	tenantIn
	key           string // in etcd
	lease, empty  int64  // IDs in etcd: with a key, and without
	before        int64  // a revision
	root, through *clientv3.Client
}

// newVictim provisions a tenant with keys and leases.
func newVictim(t *testing.T, p running, in tenantIn) *victim {
	t.Helper()
	ctx := t.Context()
	v := &victim{tenantIn: in, key: in.Prefix + secret, root: sharedEtcd(t).Root, through: p.client(t, in)}
	lease, err1 := v.through.Grant(ctx, 1000)
	empty, err2 := v.through.Grant(ctx, 1000)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	space := p.tenantOf(in.ID.URI().String()).space
	v.lease, v.empty = space.Lease(int64(lease.ID)), space.Lease(int64(empty.ID))
	for _, k := range []string{secret, "a/" + secret, "\xff" + secret} {
		put, err := v.through.Put(ctx, k, "value of "+secret, clientv3.WithLease(lease.ID))
		if err != nil {
			t.Fatal(err)
		}
		v.before = put.Header.Revision
	}
	return v
}

// state is the victim's state that an attack might change, as etcd's root sees it.
func (v *victim) state(t *testing.T) string {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var b strings.Builder
	kvs, err := v.root.Get(ctx, v.Prefix, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range kvs.Kvs {
		fmt.Fprintln(&b, kv)
	}
	for _, id := range []int64{v.lease, v.empty} {
		ttl, err := v.root.TimeToLive(ctx, clientv3.LeaseID(id), clientv3.WithAttachedKeys())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&b, id, ttl.GrantedTTL, len(ttl.Keys))
	}
	old, err := v.through.Get(ctx, secret, clientv3.WithRev(v.before))
	if err != nil || len(old.Kvs) != 1 {
		t.Fatalf("the victim's history is gone: %v, %v", old, err)
	}
	user, err := v.root.UserGet(ctx, v.ID.User())
	if err != nil {
		t.Fatal(err)
	}
	role, err := v.root.RoleGet(ctx, v.ID.User())
	if err != nil {
		t.Fatal(err)
	}
	members, err := v.root.MemberList(ctx)
	if err != nil {
		t.Fatal(err)
	}
	alarms, err := v.root.AlarmList(ctx)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(&b, user.Roles, role.Perm, members.Members, alarms.Alarms)
	return b.String()
}

// attack is an attack of a tenant on another.
type attack struct {
	name string
	// etcd reports whether etcd itself denies it to the namespace's user, too.
	etcd bool
	// own reports whether the proxy serves the call, in the attacker's own namespace.
	own bool
	try func(a *attacker, v *victim) error
}

// attacker is a tenant's connection: through the proxy, or to etcd with the certificate of the tenant's user,
// like a proxy that rewrites nothing.
type attacker struct {
	ctx  context.Context
	conn grpc.ClientConnInterface
	// got are all responses.
	got []proto.Message
}

// do makes a call.
func do[Q, S any](a *attacker, call func(context.Context, *Q, ...grpc.CallOption) (*S, error), request *Q) error {
	out, err := call(a.ctx, request)
	if m, ok := any(out).(proto.Message); ok && err == nil {
		a.got = append(a.got, m)
	}
	return err
}

// receive makes a call with a stream of responses.
func receive[S any](a *attacker, stream grpc.ServerStreamingClient[S], err error) error {
	for err == nil {
		var out *S
		if out, err = stream.Recv(); err == nil {
			a.got = append(a.got, any(out).(proto.Message))
		}
	}
	if err == io.EOF {
		return nil
	}
	return err
}

func (a *attacker) kv() pb.KVClient                   { return pb.NewKVClient(a.conn) }
func (a *attacker) lease() pb.LeaseClient             { return pb.NewLeaseClient(a.conn) }
func (a *attacker) cluster() pb.ClusterClient         { return pb.NewClusterClient(a.conn) }
func (a *attacker) maintenance() pb.MaintenanceClient { return pb.NewMaintenanceClient(a.conn) }
func (a *attacker) auth() pb.AuthClient               { return pb.NewAuthClient(a.conn) }

func (a *attacker) txn(t *pb.TxnRequest) error { return do(a, a.kv().Txn, t) }

// watch watches, makes the victim write, and reads until etcd has reported progress up to that.
func (a *attacker) watch(v *victim, create *pb.WatchCreateRequest) error {
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	stream, err := pb.NewWatchClient(a.conn).Watch(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil {
		return err
	}
	created, err := stream.Recv()
	if err != nil {
		return err
	}
	a.got = append(a.got, created)
	if created.Canceled {
		return errors.New(created.CancelReason)
	}
	put, err := v.through.Put(ctx, "watched", secret)
	if err != nil {
		return err
	}
	defer v.through.Delete(context.WithoutCancel(ctx), "watched")
	// etcd does not answer before its watches have caught up, so ask again.
	go func() {
		for ctx.Err() == nil {
			stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
			time.Sleep(20 * time.Millisecond)
		}
	}()
	for {
		got, err := stream.Recv()
		if err != nil {
			return err
		}
		a.got = append(a.got, got)
		if len(got.Events) > 0 || got.Header.Revision >= put.Header.Revision {
			return nil
		}
	}
}

// nested nests an operation in transactions.
func nested(depth int, op *pb.RequestOp) *pb.TxnRequest {
	t := &pb.TxnRequest{Success: []*pb.RequestOp{op}}
	for range depth {
		t = &pb.TxnRequest{Compare: []*pb.Compare{{Key: []byte("k"), Target: pb.Compare_VERSION, Result: pb.Compare_GREATER, TargetUnion: &pb.Compare_Version{Version: -1}}},
			Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestTxn{RequestTxn: t}}}}
	}
	return t
}

func rangeOp(key, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(key), RangeEnd: []byte(end)}}}
}

func putOp(key, value string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte(value), PrevKv: true}}}
}

func deleteOp(key, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end), PrevKv: true}}}
}

// attacks returns every call of etcd's API as an attack on another tenant.
func attacks() []attack {
	const end = "\x00"
	all := []attack{
		{"compare a key", true, true, func(a *attacker, v *victim) error {
			err := a.txn(&pb.TxnRequest{
				Compare: []*pb.Compare{{Key: []byte(v.key), Target: pb.Compare_VERSION, Result: pb.Compare_GREATER, TargetUnion: &pb.Compare_Version{}}},
			})
			return told(a, err)
		}},
		{"compare all keys", true, true, func(a *attacker, v *victim) error {
			err := a.txn(&pb.TxnRequest{
				Compare: []*pb.Compare{{Key: []byte{0}, RangeEnd: []byte(end), Target: pb.Compare_CREATE, Result: pb.Compare_GREATER, TargetUnion: &pb.Compare_CreateRevision{}}},
			})
			return told(a, err)
		}},
		{"compare the lease of a key", true, true, func(a *attacker, v *victim) error {
			err := a.txn(&pb.TxnRequest{
				Compare: []*pb.Compare{{Key: []byte(v.key), Target: pb.Compare_LEASE, TargetUnion: &pb.Compare_Lease{Lease: v.lease}}},
			})
			return told(a, err)
		}},
		{"compact", true, true, func(a *attacker, v *victim) error {
			return do(a, a.kv().Compact, &pb.CompactionRequest{Revision: v.before + 1, Physical: true})
		}},
		{"attach a key to a lease", true, true, func(a *attacker, v *victim) error {
			return do(a, a.kv().Put, &pb.PutRequest{Key: []byte("k"), Lease: v.lease})
		}},
		{"attach a key to a lease without keys", false, true, func(a *attacker, v *victim) error {
			return do(a, a.kv().Put, &pb.PutRequest{Key: []byte("k"), Lease: v.empty})
		}},
		{"attach a key to a lease in a transaction", true, true, func(a *attacker, v *victim) error {
			op := putOp("k", "")
			op.GetRequestPut().Lease = v.lease
			return a.txn(nested(2, op))
		}},
		{"list leases", true, true, func(a *attacker, v *victim) error { return do(a, a.lease().LeaseLeases, &pb.LeaseLeasesRequest{}) }},
		{"status", false, true, func(a *attacker, v *victim) error { return do(a, a.maintenance().Status, &pb.StatusRequest{}) }},
		{"get alarms", false, true, func(a *attacker, v *victim) error { return do(a, a.maintenance().Alarm, &pb.AlarmRequest{}) }},
		{"raise an alarm", true, false, func(a *attacker, v *victim) error {
			return do(a, a.maintenance().Alarm, &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE})
		}},
		{"clear alarms", true, false, func(a *attacker, v *victim) error {
			return do(a, a.maintenance().Alarm, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, Alarm: pb.AlarmType_NOSPACE})
		}},
		{"snapshot", true, false, func(a *attacker, v *victim) error {
			s, err := a.maintenance().Snapshot(a.ctx, &pb.SnapshotRequest{})
			return receive(a, s, err)
		}},
		{"hash", true, false, func(a *attacker, v *victim) error { return do(a, a.maintenance().Hash, &pb.HashRequest{}) }},
		{"hash of keys", true, false, func(a *attacker, v *victim) error { return do(a, a.maintenance().HashKV, &pb.HashKVRequest{}) }},
		{"defragment", true, false, func(a *attacker, v *victim) error { return do(a, a.maintenance().Defragment, &pb.DefragmentRequest{}) }},
		{"move the leader", true, false, func(a *attacker, v *victim) error {
			return do(a, a.maintenance().MoveLeader, &pb.MoveLeaderRequest{TargetID: 1})
		}},
		{"downgrade", true, false, func(a *attacker, v *victim) error {
			return do(a, a.maintenance().Downgrade, &pb.DowngradeRequest{Action: pb.DowngradeRequest_ENABLE, Version: "3.6.0"})
		}},
		{"list members", false, true, func(a *attacker, v *victim) error { return do(a, a.cluster().MemberList, &pb.MemberListRequest{}) }},
		{"add a member", true, false, func(a *attacker, v *victim) error {
			return do(a, a.cluster().MemberAdd, &pb.MemberAddRequest{PeerURLs: []string{"http://127.0.0.1:1"}, IsLearner: true})
		}},
		{"remove a member", true, false, func(a *attacker, v *victim) error {
			return do(a, a.cluster().MemberRemove, &pb.MemberRemoveRequest{ID: memberOf(v)})
		}},
		{"update a member", true, false, func(a *attacker, v *victim) error {
			return do(a, a.cluster().MemberUpdate, &pb.MemberUpdateRequest{ID: memberOf(v), PeerURLs: []string{"http://127.0.0.1:1"}})
		}},
		{"promote a member", true, false, func(a *attacker, v *victim) error {
			return do(a, a.cluster().MemberPromote, &pb.MemberPromoteRequest{ID: memberOf(v)})
		}},
		{"disable authentication", true, false, func(a *attacker, v *victim) error { return do(a, a.auth().AuthDisable, &pb.AuthDisableRequest{}) }},
		{"authenticate", true, false, func(a *attacker, v *victim) error {
			return do(a, a.auth().Authenticate, &pb.AuthenticateRequest{Name: "root", Password: "root"})
		}},
		{"add a user", true, false, func(a *attacker, v *victim) error {
			return do(a, a.auth().UserAdd, &pb.AuthUserAddRequest{Name: "mallory", Options: &authpb.UserAddOptions{NoPassword: true}})
		}},
		{"read a user", true, false, func(a *attacker, v *victim) error {
			return do(a, a.auth().UserGet, &pb.AuthUserGetRequest{Name: v.ID.User()})
		}},
		{"list users", true, false, func(a *attacker, v *victim) error { return do(a, a.auth().UserList, &pb.AuthUserListRequest{}) }},
		{"delete a user", true, false, func(a *attacker, v *victim) error {
			return do(a, a.auth().UserDelete, &pb.AuthUserDeleteRequest{Name: v.ID.User()})
		}},
		{"give a user a password", true, false, func(a *attacker, v *victim) error {
			return do(a, a.auth().UserChangePassword, &pb.AuthUserChangePasswordRequest{Name: v.ID.User(), Password: "p"})
		}},
		{"take a role", true, false, func(a *attacker, v *victim) error {
			return do(a, a.auth().UserGrantRole, &pb.AuthUserGrantRoleRequest{User: a.user(v), Role: "root"})
		}},
		{"take a role away", true, false, func(a *attacker, v *victim) error {
			return do(a, a.auth().UserRevokeRole, &pb.AuthUserRevokeRoleRequest{Name: v.ID.User(), Role: v.ID.User()})
		}},
		{"add a role", true, false, func(a *attacker, v *victim) error {
			return do(a, a.auth().RoleAdd, &pb.AuthRoleAddRequest{Name: "mallory"})
		}},
		{"read a role", true, false, func(a *attacker, v *victim) error {
			return do(a, a.auth().RoleGet, &pb.AuthRoleGetRequest{Role: v.ID.User()})
		}},
		{"list roles", true, false, func(a *attacker, v *victim) error { return do(a, a.auth().RoleList, &pb.AuthRoleListRequest{}) }},
		{"delete a role", true, false, func(a *attacker, v *victim) error {
			return do(a, a.auth().RoleDelete, &pb.AuthRoleDeleteRequest{Role: v.ID.User()})
		}},
		{"widen a role", true, false, func(a *attacker, v *victim) error {
			return do(a, a.auth().RoleGrantPermission, &pb.AuthRoleGrantPermissionRequest{Name: a.user(v), Perm: &authpb.Permission{PermType: authpb.READWRITE, Key: []byte{0}, RangeEnd: []byte{0}}})
		}},
		{"narrow a role", true, false, func(a *attacker, v *victim) error {
			return do(a, a.auth().RoleRevokePermission, &pb.AuthRoleRevokePermissionRequest{Role: v.ID.User(), Key: []byte(v.Prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(v.Prefix))})
		}},
		{"lock", false, false, func(a *attacker, v *victim) error {
			return do(a, v3lockpb.NewLockClient(a.conn).Lock, &v3lockpb.LockRequest{Name: []byte(v.key), Lease: v.empty})
		}},
		{"unlock", false, false, func(a *attacker, v *victim) error {
			return do(a, v3lockpb.NewLockClient(a.conn).Unlock, &v3lockpb.UnlockRequest{Key: []byte(v.key)})
		}},
		{"campaign", false, false, func(a *attacker, v *victim) error {
			return do(a, v3electionpb.NewElectionClient(a.conn).Campaign, &v3electionpb.CampaignRequest{Name: []byte(v.key), Lease: v.empty, Value: []byte("mine")})
		}},
		{"proclaim", false, false, func(a *attacker, v *victim) error {
			return do(a, v3electionpb.NewElectionClient(a.conn).Proclaim, &v3electionpb.ProclaimRequest{Leader: &v3electionpb.LeaderKey{Name: []byte(v.Prefix), Key: []byte(v.key), Rev: v.before, Lease: v.lease}, Value: []byte("mine")})
		}},
		{"leader", false, false, func(a *attacker, v *victim) error {
			return do(a, v3electionpb.NewElectionClient(a.conn).Leader, &v3electionpb.LeaderRequest{Name: []byte(v.Prefix + "a")})
		}},
		{"observe", false, false, func(a *attacker, v *victim) error {
			s, err := v3electionpb.NewElectionClient(a.conn).Observe(a.ctx, &v3electionpb.LeaderRequest{Name: []byte(v.Prefix + "a")})
			return receive(a, s, err)
		}},
		{"resign", false, false, func(a *attacker, v *victim) error {
			return do(a, v3electionpb.NewElectionClient(a.conn).Resign, &v3electionpb.ResignRequest{Leader: &v3electionpb.LeaderKey{Name: []byte(v.Prefix), Key: []byte(v.key), Rev: v.before, Lease: v.lease}})
		}},
	}
	for _, id := range []struct {
		name string
		etcd bool // etcd guards leases by the keys attached to them
		of   func(*victim) int64
	}{
		{"a lease", true, func(v *victim) int64 { return v.lease }},
		{"a lease without keys", false, func(v *victim) int64 { return v.empty }},
		{"the tenant's part of the ID of a lease", true, func(v *victim) int64 { return v.lease & (1<<43 - 1) }},
	} {
		all = append(all,
			attack{"revoke " + id.name, id.etcd, true, func(a *attacker, v *victim) error {
				return do(a, a.lease().LeaseRevoke, &pb.LeaseRevokeRequest{ID: id.of(v)})
			}},
			attack{"look at " + id.name, id.etcd, true, func(a *attacker, v *victim) error {
				err := do(a, a.lease().LeaseTimeToLive, &pb.LeaseTimeToLiveRequest{ID: id.of(v), Keys: true})
				return dead(a, err)
			}},
			attack{"renew " + id.name, id.etcd, true, func(a *attacker, v *victim) error {
				stream, err := a.lease().LeaseKeepAlive(a.ctx)
				if err != nil {
					return err
				}
				if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: id.of(v)}); err != nil {
					return err
				}
				got, err := stream.Recv()
				if err == nil {
					a.got = append(a.got, got)
				}
				return dead(a, err)
			}},
			attack{"grant again " + id.name, false, true, func(a *attacker, v *victim) error {
				return do(a, a.lease().LeaseGrant, &pb.LeaseGrantRequest{ID: id.of(v), TTL: 1})
			}},
		)
	}
	for _, r := range []struct {
		name string
		of   func(v *victim) (key, end string)
	}{
		{"a key", func(v *victim) (string, string) { return v.key, "" }},
		{"the prefix", func(v *victim) (string, string) { return v.Prefix, clientv3.GetPrefixRangeEnd(v.Prefix) }},
		{"from a key on", func(v *victim) (string, string) { return "a", end }},
		{"everything", func(*victim) (string, string) { return "\x00", end }},
		{"the empty key on", func(*victim) (string, string) { return "", end }},
		{"a long range", func(*victim) (string, string) { return "\x00", strings.Repeat("\xff", 300) }},
		{"a path upwards", func(v *victim) (string, string) { return "../" + v.ID.Name + "/" + secret, "" }},
		{"a range that ends first", func(v *victim) (string, string) { return clientv3.GetPrefixRangeEnd(v.Prefix), v.Prefix }},
	} {
		op := func(f func(key, end string) *pb.RequestOp) func(v *victim) *pb.RequestOp {
			return func(v *victim) *pb.RequestOp { return f(r.of(v)) }
		}
		for _, o := range []struct {
			name string
			of   func(*victim) *pb.RequestOp
		}{
			{"read", op(rangeOp)}, {"delete", op(deleteOp)},
			{"overwrite", func(v *victim) *pb.RequestOp { key, _ := r.of(v); return putOp(key, "mine") }},
		} {
			all = append(all,
				attack{o.name + " " + r.name, true, true, func(a *attacker, v *victim) error {
					switch op := o.of(v).Request.(type) {
					case *pb.RequestOp_RequestRange:
						return do(a, a.kv().Range, op.RequestRange)
					case *pb.RequestOp_RequestDeleteRange:
						return do(a, a.kv().DeleteRange, op.RequestDeleteRange)
					case *pb.RequestOp_RequestPut:
						return do(a, a.kv().Put, op.RequestPut)
					}
					return nil
				}},
				attack{o.name + " " + r.name + " in a transaction", true, true, func(a *attacker, v *victim) error { return a.txn(nested(0, o.of(v))) }},
				attack{o.name + " " + r.name + " in nested transactions", true, true, func(a *attacker, v *victim) error { return a.txn(nested(3, o.of(v))) }},
				attack{o.name + " " + r.name + " in the branch that fails", true, true, func(a *attacker, v *victim) error {
					t := nested(1, o.of(v))
					t.Failure, t.Success = t.Success, nil
					t.Compare[0].Result = pb.Compare_LESS
					return a.txn(t)
				}},
			)
		}
		all = append(all,
			attack{"stream " + r.name, true, true, func(a *attacker, v *victim) error {
				key, end := r.of(v)
				s, err := a.kv().RangeStream(a.ctx, &pb.RangeRequest{Key: []byte(key), RangeEnd: []byte(end)})
				return receive(a, s, err)
			}},
			attack{"read the past of " + r.name, true, true, func(a *attacker, v *victim) error {
				key, end := r.of(v)
				return do(a, a.kv().Range, &pb.RangeRequest{Key: []byte(key), RangeEnd: []byte(end), Revision: v.before, Serializable: true, SortOrder: pb.RangeRequest_DESCEND, SortTarget: pb.RangeRequest_VALUE})
			}},
			attack{"count " + r.name, true, true, func(a *attacker, v *victim) error {
				key, end := r.of(v)
				return do(a, a.kv().Range, &pb.RangeRequest{Key: []byte(key), RangeEnd: []byte(end), CountOnly: true})
			}},
			attack{"watch " + r.name, true, true, func(a *attacker, v *victim) error {
				key, end := r.of(v)
				return a.watch(v, &pb.WatchCreateRequest{Key: []byte(key), RangeEnd: []byte(end), StartRevision: v.before, PrevKv: true, Fragment: true, ProgressNotify: true})
			}},
		)
	}
	// Watches of the past come first: later the attacker has one, too.
	isWatch := func(a attack) bool { return strings.HasPrefix(a.name, "watch") }
	watches := slices.DeleteFunc(slices.Clone(all), func(a attack) bool { return !isWatch(a) })
	return append(watches, slices.DeleteFunc(all, isWatch)...)
}

// user returns the attacker's user: the one that is not the victim's.
func (a *attacker) user(v *victim) string {
	name, _ := metadata.FromOutgoingContext(a.ctx)
	return strings.Join(name.Get("attacker"), "")
}

func memberOf(v *victim) uint64 {
	members, err := v.root.MemberList(context.Background())
	if err != nil || len(members.Members) != 1 {
		return 0
	}
	return members.Members[0].ID
}

// told returns an error unless a comparison succeeded that needs a key of the victim.
func told(a *attacker, err error) error {
	if err == nil && !a.got[len(a.got)-1].(*pb.TxnResponse).Succeeded {
		return errors.New("the comparison is false")
	}
	return err
}

// dead returns an error if a response says that a lease has expired.
func dead(a *attacker, err error) error {
	if err != nil {
		return err
	}
	switch m := a.got[len(a.got)-1].(type) {
	case *pb.LeaseTimeToLiveResponse:
		if m.TTL < 0 {
			return errors.New("no such lease")
		}
	case *pb.LeaseKeepAliveResponse:
		if m.TTL <= 0 {
			return errors.New("no such lease")
		}
	}
	return nil
}

// TestAttacks attacks a tenant with every call of etcd's API: through the proxy, and then as the proxy's user in
// etcd, without rewriting. No response has anything of the victim, and its state does not change.
func TestAttacks(t *testing.T) {
	all(t, testAttacks)
	t.Run("grpc/local", testAttacks)
}

func testAttacks(t *testing.T) {
	t.Parallel()
	mallory, alice := newTenantIn(t, "mallory"), newTenantIn(t, "alice")
	p := serve(t, Config{}, mallory, alice)
	v := newVictim(t, p, alice)
	s := sharedEtcd(t)
	bare, err := s.Client(mallory.Upstream.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	defer bare.Close()
	second := grpc.ClientConnInterface(bare.ActiveConnection())
	if isLocal(t) {
		second = newLocalConn(t, mallory.Upstream)
	}
	through := p.plain(t, mallory.certificate(t))
	want := v.state(t)
	for _, way := range []struct {
		name string
		to   grpc.ClientConnInterface
		etcd bool
	}{{"proxy", through, false}, {"etcd", second, true}} {
		denied, allowed := 0, 0
		for _, at := range attacks() {
			if way.etcd && !at.etcd {
				continue
			}
			name := way.name + ": " + at.name
			ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "attacker", mallory.ID.User()), time.Minute)
			a := &attacker{ctx: ctx, conn: way.to}
			err := at.try(a, v)
			cancel()
			if err == nil {
				allowed++
			} else {
				denied++
			}
			if ctx.Err() == context.DeadlineExceeded {
				t.Fatalf("%s: took a minute: %v", name, err)
			}
			switch code := status.Code(err); {
			case way.etcd && err == nil:
				t.Errorf("%s: was allowed", name)
			case !way.etcd && !at.own && code != codes.PermissionDenied && code != codes.Unimplemented:
				t.Errorf("%s: %v", name, err)
			case err != nil && (strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), alice.ID.Name)):
				t.Errorf("%s: the error tells: %v", name, err)
			}
			for _, got := range a.got {
				if leak := leaks(got, v, s.Endpoint); leak != "" {
					t.Errorf("%s: %s came back", name, leak)
				}
			}
			if _, err := s.Root.Delete(t.Context(), mallory.Prefix, clientv3.WithPrefix()); err != nil {
				t.Fatal(err)
			}
			if have := v.state(t); have != want {
				t.Fatalf("%s: the victim has\n%s\nwant\n%s", name, have, want)
			}
		}
		t.Logf("%s: %d attacks were denied, %d had an answer with nothing of the victim's", way.name, denied, allowed)
	}
	for id, n := range p.Counts() {
		if n.Foreign != 0 {
			t.Errorf("%s: %d responses were stopped by the second wall only", id, n.Foreign)
		}
	}
}

// leaks returns what a message reveals of the victim.
func leaks(m proto.Message, v *victim, endpoint string) string {
	text := fmt.Sprint(m)
	for what, of := range map[string]string{"a secret": secret, "the prefix": v.Prefix, "the user": v.ID.User(), "a lease": fmt.Sprint(v.lease), "a lease without keys": fmt.Sprint(v.empty), "an address": strings.TrimPrefix(endpoint, "https://")} {
		if strings.Contains(text, of) {
			return what
		}
	}
	if m, ok := m.(*pb.StatusResponse); ok && (m.DbSize != 0 || m.DbSizeInUse != 0) { // no gate counts here
		return "the size of the database"
	}
	return found(m.ProtoReflect())
}

// found returns the field of a message that says that there was a key: the attacker has none.
func found(m protoreflect.Message) (what string) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch f.Name() {
		case "kvs", "prev_kv", "prev_kvs", "events", "count", "deleted":
			what = string(f.Name())
		}
		switch {
		case f.Kind() == protoreflect.MessageKind && f.IsList():
			for i := range v.List().Len() {
				what += found(v.List().Get(i).Message())
			}
		case f.Kind() == protoreflect.MessageKind:
			what += found(v.Message())
		}
		return what == ""
	})
	return what
}

// TestOnlyTheseCalls calls all methods of etcd's services: those not in the list are refused.
func TestOnlyTheseCalls(t *testing.T) { both(t, testOnlyTheseCalls) }

func testOnlyTheseCalls(t *testing.T) {
	t.Parallel()
	x := newTenantIn(t, "x")
	p := serve(t, Config{}, x)
	conn := p.plain(t, x.certificate(t))
	names := []string{
		"/grpc.health.v1.Health/Check", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/etcdserverpb.KV/Other", "/etcdserverpb.KV/range",
		"/etcdserverpb.KV/", "/etcdserverpb.KV/Range/", "//etcdserverpb.KV/Range", "/other.Service/Call", "/", "/gatewaypb.KV/Range",
	}
	for _, file := range []protoreflect.FileDescriptor{pb.File_rpc_proto, v3lockpb.File_v3lock_proto, v3electionpb.File_v3election_proto} {
		for i := range file.Services().Len() {
			s := file.Services().Get(i)
			for j := range s.Methods().Len() {
				name := fmt.Sprintf("/%s/%s", s.FullName(), s.Methods().Get(j).Name())
				if methods[name] == nil {
					names = append(names, name)
				}
			}
		}
	}
	if len(names) < 40 {
		t.Fatalf("only %d calls are refused", len(names))
	}
	for _, name := range names {
		err := conn.Invoke(t.Context(), name, &pb.StatusRequest{}, &pb.StatusResponse{})
		if code := status.Code(err); code != codes.Unimplemented && code != codes.PermissionDenied {
			t.Errorf("%s: %v", name, err)
		}
	}
}
