package member_test

import (
	"context"
	"crypto/tls"
	"net"
	"runtime"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"gitopsd.dev/reconcile/etcdproxy/inprocess"
	"gitopsd.dev/reconcile/etcdproxy/member"
	"gitopsd.dev/testscripts/etcdserver"
)

// After Stop nothing uses the etcd, so it may be closed.
func TestStop(t *testing.T) {
	server, err := etcdserver.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	m, err := member.Serve(server.Etcd())
	if err != nil {
		t.Fatal(err)
	}
	user, err := server.AddUser(t.Context(), "a", "/a/")
	if err != nil {
		t.Fatal(err)
	}
	creds := inprocess.Credentials(credentials.NewTLS(&tls.Config{RootCAs: server.Authority.Pool(), Certificates: []tls.Certificate{user}}))
	conn, err := grpc.NewClient("passthrough:///127.0.0.1", grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, at string) (net.Conn, error) { return m.Dial(ctx, at) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 200 {
		stream, err := etcdserverpb.NewWatchClient(conn).Watch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
			CreateRequest: &etcdserverpb.WatchCreateRequest{Key: []byte("/a/x")},
		}}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	served := func() int {
		stacks := make([]byte, 16<<20)
		return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "v3rpc.(*watchServer).Watch(")
	}
	if n := served(); n != 200 {
		t.Fatalf("%d watches are served", n)
	}
	m.Stop()
	if n := served(); n > 0 {
		t.Errorf("%d watches are served after the end", n)
	}
}
