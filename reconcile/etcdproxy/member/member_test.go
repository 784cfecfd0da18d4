package member_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"gitopsd.dev/reconcile/etcdproxy/inprocess"
	"gitopsd.dev/reconcile/etcdproxy/member"
	"gitopsd.dev/testscripts/etcdserver"
)

// Rights are as over sockets, for calls and for connections.
func TestUsers(t *testing.T) {
	t.Parallel()
	server, err := etcdserver.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	m, err := member.Serve(server.Etcd())
	if err != nil {
		t.Fatal(err)
	}
	stop := func() { m.Stop() }
	defer func() { stop() }()
	user, err := server.AddUser(t.Context(), "a", "/a/")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.AddUser(t.Context(), "b", "/b/"); err != nil {
		t.Fatal(err)
	}
	other, err := etcdserver.NewAuthority("etcd")
	if err != nil {
		t.Fatal(err)
	}
	issue := func(by *etcdserver.Authority, template *x509.Certificate) tls.Certificate {
		t.Helper()
		cert, err := by.Issue(template)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	expired := etcdserver.User("a")
	expired.NotBefore, expired.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	const put, get = "/etcdserverpb.KV/Put", "/etcdserverpb.KV/Range"
	with := func(certs ...tls.Certificate) *tls.Config {
		return &tls.Config{RootCAs: server.Authority.Pool(), Certificates: certs}
	}
	type test struct {
		name, authority string
		config          *tls.Config
		key             string
		code            codes.Code
		login           string // the error of the handshake; empty for none
	}
	tests := []test{
		{"own key", "127.0.0.1", with(user), "/a/x", codes.OK, ""},
		{"another's key", "127.0.0.1", with(user), "/b/x", codes.PermissionDenied, ""},
		{"no user of that name", "127.0.0.1", with(issue(server.Authority, etcdserver.User("nobody"))), "/a/x", codes.PermissionDenied, ""},
		{"no certificate", "127.0.0.1", with(), "/a/x", codes.Unavailable, "certificate"},
		{"another authority's certificate", "127.0.0.1", with(issue(other, etcdserver.User("a"))), "/a/x", codes.Unavailable, "certificate"},
		{"self-signed", "127.0.0.1", with(issue(nil, etcdserver.User("a"))), "/a/x", codes.Unavailable, "certificate"},
		{"expired", "127.0.0.1", with(issue(server.Authority, expired)), "/a/x", codes.Unavailable, "certificate"},
		{"a server that is not meant", "etcd.example.org", with(user), "/a/x", codes.Unavailable, "etcd.example.org"},
		{"a server that is not trusted", "127.0.0.1", &tls.Config{RootCAs: other.Pool(), Certificates: []tls.Certificate{user}}, "/a/x", codes.Unavailable, "certificate"},
	}
	for _, test := range tests {
		creds := credentials.NewTLS(test.config)
		client, err := m.Login(t.Context(), test.authority, creds)
		if (test.login == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.login) {
			t.Errorf("%s: login: %v", test.name, err)
		}
		requests := map[string]proto.Message{
			put: &etcdserverpb.PutRequest{Key: []byte(test.key), Value: []byte("v")},
			get: &etcdserverpb.RangeRequest{Key: []byte(test.key)},
		}
		conn, err := grpc.NewClient("passthrough:///"+test.authority, grpc.WithTransportCredentials(inprocess.Credentials(creds)),
			grpc.WithContextDialer(func(ctx context.Context, at string) (net.Conn, error) { return m.Dial(ctx, at) }))
		if err != nil {
			t.Fatal(err)
		}
		for method, request := range requests {
			if client != nil {
				in, err := proto.Marshal(request)
				if err != nil {
					t.Fatal(err)
				}
				out, made, err := client.Call(t.Context(), method, true, in, 1<<20, mem.DefaultBufferPool())
				if !made || status.Code(err) != test.code {
					t.Errorf("%s: %s: called %v: %v", test.name, method, made, err)
				}
				if out != nil {
					out.Free()
				}
			}
			err := conn.Invoke(t.Context(), method, request, new(etcdserverpb.RangeResponse))
			if status.Code(err) != test.code {
				t.Errorf("%s: %s by a connection: %v", test.name, method, err)
			}
		}
		conn.Close()
	}

	client, err := m.Login(t.Context(), "127.0.0.1", credentials.NewTLS(with(user)))
	if err != nil {
		t.Fatal(err)
	}
	in, err := proto.Marshal(&etcdserverpb.RangeRequest{Key: []byte("/a/x")})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, method string
		request      []byte
		most         int
		made         bool
		text         string
	}{
		{"a response that is larger than asked for", get, in, 1, true, "received message larger than max ("},
		{"a request that is larger than etcd takes", put, make([]byte, 3<<20), 1 << 20, true, "received message larger than max ("},
		{"no message", get, []byte{0xff}, 1 << 20, true, "unmarshal"},
		{"what is made by connections", "/etcdserverpb.Maintenance/Snapshot", nil, 1, false, ""},
		{"another service", "/etcdserverpb.Auth/UserList", nil, 1, false, ""},
	} {
		out, made, err := client.Call(t.Context(), c.method, false, c.request, c.most, mem.DefaultBufferPool())
		if made != c.made || out != nil || (err != nil) != c.made || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: made %v: %v", c.name, made, err)
		}
	}
	// The metadata and the peer of a proxy's client do not reach etcd.
	sent := peer.NewContext(metadata.NewIncomingContext(t.Context(), metadata.Pairs("token", "root", "authorization", "Bearer root", "grpcgateway-accept", "json")),
		&peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{Subject: pkix.Name{CommonName: "root"}}}}}}})
	for key, code := range map[string]codes.Code{"/a/x": codes.OK, "/b/x": codes.PermissionDenied} {
		in, err := proto.Marshal(&etcdserverpb.RangeRequest{Key: []byte(key)})
		if err != nil {
			t.Fatal(err)
		}
		out, made, err := client.Call(sent, get, false, in, 1<<20, mem.DefaultBufferPool())
		if !made || status.Code(err) != code {
			t.Errorf("%s with what a client sent: made %v: %v", key, made, err)
		}
		if out != nil {
			out.Free()
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, made, err := client.Call(ended, put, false, nil, 1<<20, mem.DefaultBufferPool()); !made || err == nil {
		t.Errorf("a call that has ended: made %v: %v", made, err)
	}
	m.Stop()
	stop = func() {}
	if _, made, err := client.Call(t.Context(), get, false, in, 1<<20, mem.DefaultBufferPool()); !made || status.Code(err) != codes.Unavailable {
		t.Errorf("a call after the end: made %v: %v", made, err)
	}
	if _, err := m.Login(t.Context(), "127.0.0.1", credentials.NewTLS(with(user))); err != nil {
		t.Errorf("a login after the end, which calls nothing: %v", err)
	}
	if _, err := m.Dial(t.Context(), ""); err == nil {
		t.Error("a connection after the end")
	}
}
