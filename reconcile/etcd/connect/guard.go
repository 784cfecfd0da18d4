package connect

import (
	"context"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// reads are the methods that change nothing. A method that is not known counts as a write.
var reads = []string{
	etcdserverpb.KV_Range_FullMethodName,
	etcdserverpb.Lease_LeaseTimeToLive_FullMethodName, etcdserverpb.Lease_LeaseLeases_FullMethodName,
	etcdserverpb.Cluster_MemberList_FullMethodName,
	etcdserverpb.Maintenance_Status_FullMethodName, etcdserverpb.Maintenance_Hash_FullMethodName, etcdserverpb.Maintenance_HashKV_FullMethodName,
	etcdserverpb.Auth_Authenticate_FullMethodName, etcdserverpb.Auth_AuthStatus_FullMethodName,
	etcdserverpb.Auth_UserGet_FullMethodName, etcdserverpb.Auth_UserList_FullMethodName,
	etcdserverpb.Auth_RoleGet_FullMethodName, etcdserverpb.Auth_RoleList_FullMethodName,
}

// Guard returns an interceptor that asks mayWrite before each request that may change
// something. If that returns an error, nothing is sent.
func Guard(mayWrite func(context.Context) error) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		alarm, _ := req.(*etcdserverpb.AlarmRequest)
		if !slices.Contains(reads, method) && !(alarm != nil && alarm.GetAction() == etcdserverpb.AlarmRequest_GET) {
			if err := mayWrite(ctx); err != nil {
				return fmt.Errorf("etcd: not sent: %w", err)
			}
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
}
