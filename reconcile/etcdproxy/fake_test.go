package etcdproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"gitopsd.dev/render/etcd"
	"gitopsd.dev/testscripts/etcdserver"
)

// rogue is an upstream with answers that no etcd gives, such as responses or errors about other tenants: a
// message, an error, or both. It records the metadata that it gets.
type rogue struct {
	mu       sync.Mutex
	metadata []metadata.MD
	answer   func(method string) (proto.Message, error)
}

func (r *rogue) handle(_ any, s grpc.ServerStream) error {
	md, _ := metadata.FromIncomingContext(s.Context())
	r.mu.Lock()
	r.metadata = append(r.metadata, md)
	r.mu.Unlock()
	method, _ := grpc.MethodFromServerStream(s)
	var in frame
	if err := s.RecvMsg(&in); err != nil && err != io.EOF {
		return err
	}
	m, failed := r.answer(method)
	if m != nil {
		b, err := proto.Marshal(m)
		if err != nil {
			return err
		}
		out, err := rewritten(len(b), func(dst []byte) ([]byte, error) { return append(dst, b...), nil })
		if err != nil {
			return err
		}
		s.SetHeader(metadata.Pairs("other-tenant", "b"))
		if err := s.SendMsg(&out); err != nil {
			return err
		}
	}
	if failed != nil {
		s.SetTrailer(metadata.Pairs("other-tenant", "b", "grpc-status-details-bin", "secret"))
	}
	return failed
}

// startRogue starts a rogue, and returns a tenant that uses it.
func startRogue(t *testing.T) (*rogue, tenantIn) {
	t.Helper()
	rogues, x := startRogues(t, 1)
	return rogues[0], x
}

// startRogues starts several, which are members of one etcd to the tenant.
func startRogues(t *testing.T, n int) (rogues []*rogue, x tenantIn) {
	t.Helper()
	ca, err1 := etcdserver.NewAuthority("etcd")
	clients, err2 := etcdserver.NewAuthority("clients")
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	cert, err := ca.Issue(etcdserver.Serving())
	if err != nil {
		t.Fatal(err)
	}
	user, err := ca.Issue(etcdserver.User("user"))
	if err != nil {
		t.Fatal(err)
	}
	x = tenantIn{ca: clients, Tenant: Tenant{
		Namespace: etcd.Namespace{ID: etcd.ID{Cluster: "rogue"}, Number: 7, Prefix: "/a/"},
		ClientCAs: clients.Pool(),
		Upstream:  Upstream{Certificate: user, CAs: ca.Pool()},
	}}
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		r := new(rogue)
		server := grpc.NewServer(grpc.ForceServerCodecV2(codec{}), grpc.UnknownServiceHandler(r.handle),
			grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool()})))
		go server.Serve(l)
		t.Cleanup(server.Stop)
		rogues = append(rogues, r)
		x.Upstream.Endpoints = append(x.Upstream.Endpoints, "https://"+l.Addr().String())
	}
	return rogues, x
}

// asked returns how many calls it got.
func (r *rogue) asked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.metadata)
}

// For any call, a response with a key or a lease of others is not passed on, and is counted.
func TestSecondWall(t *testing.T) { both(t, testSecondWall) }

func testSecondWall(t *testing.T) {
	t.Parallel()
	r, x := startRogue(t)
	p := serve(t, Config{}, x)
	conn := p.plain(t, x.certificate(t))
	kv := &mvccpb.KeyValue{Key: []byte("/b/" + secret), Value: []byte(secret)}
	header := &pb.ResponseHeader{Revision: 5}
	for i, tt := range []struct {
		method  string
		request proto.Message
		answer  proto.Message
	}{
		{"KV/Range", &pb.RangeRequest{Key: []byte("k")}, &pb.RangeResponse{Header: header, Kvs: []*mvccpb.KeyValue{kv}}},
		{"KV/RangeStream", &pb.RangeRequest{Key: []byte("k")}, &pb.RangeStreamResponse{RangeResponse: &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{kv}}}},
		{"KV/Put", &pb.PutRequest{Key: []byte("k")}, &pb.PutResponse{PrevKv: kv}},
		{"KV/DeleteRange", &pb.DeleteRangeRequest{Key: []byte("k")}, &pb.DeleteRangeResponse{PrevKvs: []*mvccpb.KeyValue{kv}}},
		{"KV/Txn", &pb.TxnRequest{}, &pb.TxnResponse{Responses: []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{PrevKv: kv}}}}}},
		{"Watch/Watch", &pb.WatchRequest{}, &pb.WatchResponse{Header: header, Events: []*mvccpb.Event{{Kv: kv}}}},
		{"Watch/Watch", &pb.WatchRequest{}, &pb.WatchResponse{Header: header, Created: true}}, // nobody asked for it
		{"Lease/LeaseGrant", &pb.LeaseGrantRequest{TTL: 5}, &pb.LeaseGrantResponse{ID: 8<<43 | 1}},
		{"Lease/LeaseGrant", &pb.LeaseGrantRequest{TTL: 5, ID: 2}, &pb.LeaseGrantResponse{ID: 7<<43 | 1}},
		{"Lease/LeaseKeepAlive", &pb.LeaseKeepAliveRequest{ID: 1}, &pb.LeaseKeepAliveResponse{ID: 8<<43 | 1}},
		{"Lease/LeaseTimeToLive", &pb.LeaseTimeToLiveRequest{ID: 1}, &pb.LeaseTimeToLiveResponse{ID: 7<<43 | 1, Keys: [][]byte{kv.Key}}},
		{"Lease/LeaseTimeToLive", &pb.LeaseTimeToLiveRequest{ID: 1}, &pb.LeaseTimeToLiveResponse{ID: 7<<43 | 2}},
		{"KV/Range", &pb.RangeRequest{Key: []byte("k")}, &pb.WatchCreateRequest{Key: []byte("k"), WatchId: 5}}, // a message with other fields
	} {
		r.answer = func(string) (proto.Message, error) { return tt.answer, nil }
		s, err := conn.NewStream(t.Context(), bothStreams, "/etcdserverpb."+tt.method)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SendMsg(tt.request); err != nil {
			t.Fatal(err)
		}
		got := tt.answer.ProtoReflect().New().Interface()
		err = s.RecvMsg(got)
		if status.Code(err) != codes.Internal || strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "/b/") {
			t.Errorf("%s: %v, %v", tt.method, got, err)
		}
		if n := p.Counts()[x.ID].Foreign; n != int64(i+1) {
			t.Fatalf("%s: %d responses are counted as foreign, want %d", tt.method, n, i+1)
		}
	}
}

// Of a client's metadata only the need of a leader reaches etcd, and only etcd's own error texts come back.
func TestMetadata(t *testing.T) { both(t, testMetadata) }

func testMetadata(t *testing.T) {
	t.Parallel()
	r, x := startRogue(t)
	p := serve(t, Config{}, x)
	conn := p.plain(t, x.certificate(t))
	r.answer = func(string) (proto.Message, error) { return &pb.RangeResponse{}, nil }
	forged := []string{
		"token", "root-token", "authorization", "Bearer root", "hasleader", "true", "client-api-version", "3.7", "username", "root", "x-forwarded-for", "10.0.0.1",
		"x-forwarded-client-cert", "root", "grpcgateway-authorization", "root", "user-agent-x", "root", "grpc-tags-bin", "root", "password-bin", "root", "traceparent", "00-1-1-00",
	}
	call := func(pairs ...string) (header, trailer metadata.MD, err error) {
		ctx := metadata.AppendToOutgoingContext(t.Context(), pairs...)
		_, err = pb.NewKVClient(conn).Range(ctx, &pb.RangeRequest{Key: []byte("k")}, grpc.Header(&header), grpc.Trailer(&trailer))
		return header, trailer, err
	}
	for _, pairs := range [][]string{forged, {"hasleader", "yes"}, {"hasleader", "true", "hasleader", secret}, nil} {
		if header, trailer, err := call(pairs...); err != nil || len(header["other-tenant"])+len(trailer["other-tenant"]) > 0 {
			t.Errorf("%v: header %v, trailer %v, %v", pairs, header, trailer, err)
		}
	}
	r.mu.Lock()
	if len(r.metadata) != 4 {
		t.Fatalf("%d calls", len(r.metadata))
	}
	for i, md := range r.metadata {
		keys := slices.Sorted(maps.Keys(md))
		want := []string{":authority", "content-type", "grpc-accept-encoding", "user-agent"}
		if i == 0 || i == 2 {
			want = append(want, "hasleader")
		}
		if md["grpc-accept-encoding"] == nil { // it came without grpc-go
			want = slices.DeleteFunc(want, func(key string) bool { return key == "grpc-accept-encoding" })
		}
		slices.Sort(want)
		if !slices.Equal(keys, want) || len(md["hasleader"]) > 1 || strings.Contains(fmt.Sprint(md), secret) || strings.Contains(fmt.Sprint(md), "root") {
			t.Errorf("call %d: etcd got %v, want %v", i, md, want)
		}
	}
	r.mu.Unlock()

	for _, tt := range []struct {
		err  error
		code codes.Code
		text string
	}{
		{status.Error(codes.OutOfRange, "etcdserver: mvcc: required revision has been compacted"), codes.OutOfRange, "etcdserver: mvcc: required revision has been compacted"},
		{status.Error(codes.ResourceExhausted, "etcdserver: mvcc: database space exceeded"), codes.ResourceExhausted, "etcdserver: mvcc: database space exceeded"},
		{status.Error(codes.Unavailable, "etcdserver: no leader"), codes.Unavailable, "etcdserver: no leader"},
		{status.Error(codes.PermissionDenied, "user b may not read /b/"+secret), codes.PermissionDenied, ""},
		{status.Error(codes.Unavailable, "dial tcp 10.1.2.3:2379: "+secret), codes.Unavailable, "gitopsd: etcd is unavailable"},
		{status.Error(codes.Unknown, "panic: "+secret), codes.Unknown, ""},
	} {
		r.answer = func(string) (proto.Message, error) { return nil, tt.err }
		_, trailer, err := call()
		s := status.Convert(err)
		if s.Code() != tt.code || tt.text != "" && s.Message() != tt.text || strings.Contains(fmt.Sprint(err, trailer), secret) || len(trailer["other-tenant"]) > 0 {
			t.Errorf("%v becomes %v, %v", tt.err, err, trailer)
		}
	}
}

// A call is sent to etcd once, whatever the answer, except after the error that it was not applied because
// etcd's users changed; and then a limited number of times.
func TestNoSecondTry(t *testing.T) { both(t, testNoSecondTry) }

func testNoSecondTry(t *testing.T) {
	t.Parallel()
	r, x := startRogue(t)
	p := serve(t, Config{}, x)
	conn := p.plain(t, x.certificate(t))
	kv, leases := pb.NewKVClient(conn), pb.NewLeaseClient(conn)
	calls := []func(context.Context) error{
		func(ctx context.Context) error { _, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("k")}); return err },
		func(ctx context.Context) error { _, err := kv.Txn(ctx, nested(2, putOp("k", ""))); return err },
		func(ctx context.Context) error { _, err := kv.Txn(ctx, nested(2, deleteOp("k", ""))); return err },
		func(ctx context.Context) error { _, err := kv.Txn(ctx, nested(2, rangeOp("k", ""))); return err },
		func(ctx context.Context) error {
			_, err := kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte("k")})
			return err
		},
		func(ctx context.Context) error {
			_, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("k")})
			return err
		},
		func(ctx context.Context) error {
			s, err := kv.RangeStream(ctx, &pb.RangeRequest{Key: []byte("k")})
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
		func(ctx context.Context) error {
			_, err := leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 5, ID: 1})
			return err
		},
		func(ctx context.Context) error {
			_, err := leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: 1})
			return err
		},
		func(ctx context.Context) error { // which is a read of the proxy's own
			_, err := kv.Compact(ctx, &pb.CompactionRequest{Revision: 1})
			return err
		},
	}
	for _, tt := range []struct {
		err  error
		want int
	}{
		{status.Error(codes.Unavailable, "lost"), 1},
		{status.Error(codes.Unknown, "lost"), 1},
		{status.Error(codes.Aborted, "lost"), 1},
		{status.Error(codes.ResourceExhausted, "lost"), 1},
		{status.Error(codes.InvalidArgument, "lost"), 1},
		{rpctypes.ErrGRPCNoLeader, 1},
		{rpctypes.ErrGRPCAuthOldRevision, 1 + resends},
	} {
		r.answer = func(string) (proto.Message, error) { return nil, tt.err }
		for i, call := range calls {
			r.mu.Lock()
			r.metadata = nil
			r.mu.Unlock()
			if err := call(t.Context()); status.Code(err) != status.Code(tt.err) {
				t.Errorf("call %d: %v becomes %v", i, tt.err, err)
			}
			r.mu.Lock()
			if n := len(r.metadata); n != tt.want {
				t.Errorf("call %d: sent %d times after %v, want %d", i, n, tt.err, tt.want)
			}
			r.mu.Unlock()
		}
	}
}

// A range in parts is whole after the part with a header. If etcd then reports that its users changed, the client
// gets no error if the user still has the namespace.
func TestUsersChangedAtTheEnd(t *testing.T) { both(t, testUsersChangedAtTheEnd) }

func testUsersChangedAtTheEnd(t *testing.T) {
	t.Parallel()
	r, x := startRogue(t)
	p := serve(t, Config{}, x)
	kv := pb.NewKVClient(p.plain(t, x.certificate(t)))
	header := &pb.ResponseHeader{ClusterId: 1, Revision: 5}
	for _, tt := range []struct {
		name       string
		part       *pb.RangeResponse
		end, after error
		want       error
	}{
		{"whole", &pb.RangeResponse{Header: header, Count: 1}, rpctypes.ErrGRPCAuthOldRevision, nil, nil},
		{"not whole", &pb.RangeResponse{Count: 1}, rpctypes.ErrGRPCAuthOldRevision, nil, rpctypes.ErrGRPCAuthOldRevision},
		{"no longer its user's", &pb.RangeResponse{Header: header, Count: 1}, rpctypes.ErrGRPCAuthOldRevision, rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCPermissionDenied},
		{"another error", &pb.RangeResponse{Header: header, Count: 1}, rpctypes.ErrGRPCCorrupt, nil, rpctypes.ErrGRPCCorrupt},
	} {
		r.answer = func(method string) (proto.Message, error) {
			if method == rangeStreamMethod {
				return &pb.RangeStreamResponse{RangeResponse: tt.part}, tt.end
			}
			if tt.after != nil {
				return nil, tt.after
			}
			return &pb.RangeResponse{Header: header}, nil
		}
		s, err := kv.RangeStream(t.Context(), &pb.RangeRequest{Key: []byte("k")})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.Recv(); err != nil || got.RangeResponse.Count != 1 {
			t.Fatalf("%s: %v, %v", tt.name, got, err)
		}
		if _, err := s.Recv(); err == io.EOF && tt.want != nil || err != io.EOF && !errors.Is(err, tt.want) {
			t.Errorf("%s: the stream ends with %v, want %v", tt.name, err, tt.want)
		}
	}
}

// A stream that etcd ends before the client ends with an error.
func TestEndedByEtcd(t *testing.T) { both(t, testEndedByEtcd) }

func testEndedByEtcd(t *testing.T) {
	t.Parallel()
	r, x := startRogue(t)
	p := serve(t, Config{}, x)
	conn := p.plain(t, x.certificate(t))
	header := &pb.ResponseHeader{Revision: 5}
	for _, tt := range []struct {
		method          string
		request, answer proto.Message
	}{
		{"Lease/LeaseKeepAlive", &pb.LeaseKeepAliveRequest{ID: 1}, &pb.LeaseKeepAliveResponse{Header: header, ID: 7<<43 | 1, TTL: 5}},
		{"Watch/Watch", &pb.WatchRequest{}, &pb.WatchResponse{Header: header}},
	} {
		r.answer = func(string) (proto.Message, error) { return tt.answer, nil }
		s, err := conn.NewStream(t.Context(), bothStreams, "/etcdserverpb."+tt.method)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SendMsg(tt.request); err != nil {
			t.Fatal(err)
		}
		got := tt.answer.ProtoReflect().New().Interface()
		if err := s.RecvMsg(got); err != nil {
			t.Fatal(err)
		}
		if err := s.RecvMsg(got); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "etcd ended the stream") {
			t.Errorf("%s: ended with %v", tt.method, err)
		}
	}
}
