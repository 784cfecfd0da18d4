package etcdproxy

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gitopsd.dev/render/etcd"
)

// full is a gate for a full namespace of 1234 bytes.
type full struct{ open }

func (full) Usage(etcd.ID) Usage { return Usage{Bytes: 1234, Full: true} }

// Status and alarms are the namespace's, and the only member is the proxy.
func TestMaintenance(t *testing.T) { all(t, testMaintenance) }

func testMaintenance(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	a := newTenantIn(t, "a")
	a.Quota.Storage = 1000
	p := serve(t, Config{Gate: full{}}, a)
	conn := p.plain(t, a.certificate(t))
	maintenance, cluster := pb.NewMaintenanceClient(conn), pb.NewClusterClient(conn)
	version, err := sharedEtcd(t).Root.Status(ctx, sharedEtcd(t).Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	have, err := maintenance.Status(ctx, &pb.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if have.DbSize != 1234 || have.DbSizeInUse != 1234 || have.DbSizeQuota != 1000 || have.Version != version.Version || have.Leader == 0 || len(have.Errors) != 1 {
		t.Errorf("status: %v", have)
	}
	alarms, err := maintenance.Alarm(ctx, &pb.AlarmRequest{})
	if err != nil || len(alarms.Alarms) != 1 || alarms.Alarms[0].Alarm != pb.AlarmType_NOSPACE {
		t.Errorf("alarms: %v, %v", alarms, err)
	}
	for _, action := range []pb.AlarmRequest_AlarmAction{pb.AlarmRequest_ACTIVATE, pb.AlarmRequest_DEACTIVATE, 9} {
		if _, err := maintenance.Alarm(ctx, &pb.AlarmRequest{Action: action}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%v: %v", action, err)
		}
	}
	members, err := cluster.MemberList(ctx, &pb.MemberListRequest{Linearizable: true})
	if err != nil || len(members.Members) != 1 || len(members.Members[0].PeerURLs) != 0 || members.Members[0].ClientURLs[0] != "https://"+p.addr {
		t.Errorf("members: %v, %v", members, err)
	}
}
