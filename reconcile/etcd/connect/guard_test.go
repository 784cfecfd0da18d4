package connect

import (
	"context"
	"errors"
	"slices"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// Whatever may change something is asked for, what only reads is not, and a method of a later
// etcd counts as a write.
func TestGuard(t *testing.T) {
	t.Parallel()
	var read []string
	refused := errors.New("not the leader")
	call := func(method string, request any) error {
		sent := false
		err := Guard(func(context.Context) error { return refused })(t.Context(), method, request, nil, nil,
			func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
				sent = true
				return nil
			})
		if sent == (err != nil) || err != nil && !errors.Is(err, refused) {
			t.Errorf("%s: sent is %v, the error %v", method, sent, err)
		}
		return err
	}
	for _, service := range []grpc.ServiceDesc{etcdserverpb.KV_ServiceDesc, etcdserverpb.Lease_ServiceDesc, etcdserverpb.Cluster_ServiceDesc, etcdserverpb.Maintenance_ServiceDesc, etcdserverpb.Auth_ServiceDesc} {
		for _, m := range service.Methods {
			if call("/"+service.ServiceName+"/"+m.MethodName, nil) == nil {
				read = append(read, m.MethodName)
			}
		}
	}
	want := []string{"Range", "LeaseTimeToLive", "LeaseLeases", "MemberList", "Status", "Hash", "HashKV", "Authenticate", "AuthStatus", "UserGet", "UserList", "RoleGet", "RoleList"}
	slices.Sort(read)
	slices.Sort(want)
	if !slices.Equal(read, want) {
		t.Errorf("without asking: %q", read)
	}
	if call("/etcdserverpb.KV/Rename", nil) == nil {
		t.Error("an unknown method is a read")
	}
	const alarm = etcdserverpb.Maintenance_Alarm_FullMethodName
	if call(alarm, &etcdserverpb.AlarmRequest{Action: etcdserverpb.AlarmRequest_GET}) != nil || call(alarm, &etcdserverpb.AlarmRequest{Action: etcdserverpb.AlarmRequest_DEACTIVATE}) == nil {
		t.Error("alarms are disarmed, or cannot be read")
	}
}
