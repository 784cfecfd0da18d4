package etcdproxy

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"gitopsd.dev/reconcile/etcdproxy/inprocess"
	"gitopsd.dev/reconcile/etcdproxy/member"
)

// localConn is a connection to an etcd in this process, like that of a proxy that rewrites nothing.
type localConn struct {
	*grpc.ClientConn
	client *member.Client
}

func newLocalConn(t *testing.T, u Upstream) *localConn {
	t.Helper()
	m := sharedMember(t)
	client, err := m.Login(t.Context(), "127.0.0.1", u.credentials())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///127.0.0.1",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return m.Dial(ctx, "") }),
		grpc.WithTransportCredentials(inprocess.Credentials(u.credentials())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &localConn{conn, client}
}

// Invoke implements [grpc.ClientConnInterface].
func (c *localConn) Invoke(ctx context.Context, method string, in, out any, options ...grpc.CallOption) error {
	request, err := proto.Marshal(in.(proto.Message))
	if err != nil {
		return err
	}
	response, made, err := c.client.Call(ctx, method, false, request, 1<<30, pool)
	if !made {
		return c.ClientConn.Invoke(ctx, method, in, out, options...)
	}
	if err != nil {
		return err
	}
	defer response.Free()
	return proto.Unmarshal(response.ReadOnlyData(), out.(proto.Message))
}
