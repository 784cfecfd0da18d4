package etcdproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"gitopsd.dev/reconcile/etcdproxy/wire"
)

// Calls with one response go to etcd without grpc-go once there is a connection, and streams go with it.
func TestFastPath(t *testing.T) {
	t.Parallel()
	r, x := startRogue(t)
	p := serve(t, Config{}, x)
	conn := p.plain(t, x.certificate(t))
	r.answer = func(string) (proto.Message, error) { return &pb.RangeResponse{}, nil }
	last := func() metadata.MD {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.metadata[len(r.metadata)-1]
	}
	waitFor(t, "a call without grpc-go", func() bool {
		if _, err := pb.NewKVClient(conn).Range(t.Context(), &pb.RangeRequest{Key: []byte("k")}); err != nil {
			t.Fatal(err)
		}
		return last()["user-agent"][0] == "gitopsd"
	})
	r.answer = func(string) (proto.Message, error) {
		return &pb.RangeStreamResponse{RangeResponse: &pb.RangeResponse{}}, nil
	}
	s, err := pb.NewKVClient(conn).RangeStream(t.Context(), &pb.RangeRequest{Key: []byte("k")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	if agent := last()["user-agent"]; agent[0] == "gitopsd" {
		t.Errorf("a stream came from %v", agent)
	}
}

// transports are two proxies of the same tenants, one for each transport.
type transports struct {
	t           testing.TB
	plain, fast *grpc.ClientConn // of one tenant
	other       *grpc.ClientConn // of the other, fast
}

func newTransports(t testing.TB) *transports {
	a, b := newTenantIn(t, "a"), newTenantIn(t, "b")
	limits := Limits{RequestBytes: 100_000, ResponseBytes: 200_000}
	plain, fast := serve(t, Config{GRPCGo: true, Limits: limits}, a, b), serve(t, Config{Limits: limits}, a, b)
	x := &transports{t: t, plain: plain.plain(t, a.certificate(t)), fast: fast.plain(t, a.certificate(t)), other: fast.plain(t, b.certificate(t))}
	for i := range 20 {
		put, err := proto.Marshal(&pb.PutRequest{Key: fmt.Append(nil, "k", i%3), Value: fmt.Append(nil, i), PrevKv: true})
		if err != nil {
			t.Fatal(err)
		}
		x.compare("/etcdserverpb.KV/Put", put, 0)
		time.Sleep(5 * time.Millisecond) // until the fast one is connected
	}
	return x
}

// kinds are methods with their requests and responses.
var kinds = []struct {
	method            string
	request           *wire.Message
	wanted            proto.Message // an example
	response          proto.Message
	streams, stateful bool
}{
	{"KV/Range", wire.RangeRequest, &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")}, &pb.RangeResponse{}, false, false},
	{"KV/RangeStream", wire.RangeRequest, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}, &pb.RangeStreamResponse{}, true, false},
	{"KV/Put", wire.PutRequest, &pb.PutRequest{Key: []byte("k1"), Value: []byte("v"), PrevKv: true}, &pb.PutResponse{}, false, true},
	{"KV/DeleteRange", wire.DeleteRangeRequest, &pb.DeleteRangeRequest{Key: []byte("k2"), PrevKv: true}, &pb.DeleteRangeResponse{}, false, true},
	{"KV/Txn", wire.TxnRequest, nested(2, putOp("k3", "")), &pb.TxnResponse{}, false, true},
	{"KV/Txn", wire.TxnRequest, nested(3, rangeOp("k", "l")), &pb.TxnResponse{}, false, false},
	{"Lease/LeaseGrant", wire.LeaseGrantRequest, &pb.LeaseGrantRequest{TTL: 1000, ID: 5}, &pb.LeaseGrantResponse{}, false, true},
	{"Lease/LeaseRevoke", wire.LeaseRevokeRequest, &pb.LeaseRevokeRequest{ID: 5}, &pb.LeaseRevokeResponse{}, false, true},
	{"Lease/LeaseTimeToLive", wire.LeaseTimeToLiveRequest, &pb.LeaseTimeToLiveRequest{ID: 5, Keys: true}, &pb.LeaseTimeToLiveResponse{}, false, true},
	{"Lease/LeaseKeepAlive", wire.LeaseKeepAliveRequest, &pb.LeaseKeepAliveRequest{ID: 5}, &pb.LeaseKeepAliveResponse{}, true, true},
	{"Watch/Watch", wire.WatchRequest, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte("k")}}}, &pb.WatchResponse{}, true, false},
	{"Cluster/MemberList", wire.MemberListRequest, &pb.MemberListRequest{}, &pb.MemberListResponse{}, false, false},
	{"Maintenance/Alarm", wire.AlarmRequest, &pb.AlarmRequest{}, &pb.AlarmResponse{}, false, false},
	{"Maintenance/Snapshot", nil, &pb.SnapshotRequest{}, &pb.SnapshotResponse{}, true, false},
	{"Auth/UserList", nil, &pb.AuthUserListRequest{}, &pb.AuthUserListResponse{}, false, false},
	{"KV/None", nil, &pb.RangeRequest{}, &pb.RangeResponse{}, false, false},
}

// Variations of a call.
const (
	compressed = 1 << iota
	needsLeader
	forged
	garbled
	empty
)

// answered makes a call with a message, and returns what came back: messages and the error.
func answered(ctx context.Context, conn *grpc.ClientConn, method string, message []byte, how byte) (messages [][]byte, err error) {
	watches := strings.HasSuffix(method, "/Watch") // which may say nothing
	patience := time.Minute
	if watches {
		patience = 200 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	opts := []grpc.CallOption{grpc.ForceCodecV2(codec{})}
	for bit, add := range map[byte]func(){
		compressed:  func() { opts = append(opts, grpc.UseCompressor(gzip.Name)) },
		needsLeader: func() { ctx = metadata.AppendToOutgoingContext(ctx, "hasleader", "true") },
		forged:      func() { ctx = metadata.AppendToOutgoingContext(ctx, "token", "root", "x-bin", "\x00\xff") },
		garbled:     func() { ctx = metadata.AppendToOutgoingContext(ctx, "connection", "close") },
	} {
		if how&bit != 0 {
			add()
		}
	}
	s, err := conn.NewStream(ctx, bothStreams, method, opts...)
	if err != nil {
		return nil, err
	}
	if how&empty == 0 {
		in, err := rewritten(len(message), func(dst []byte) ([]byte, error) { return append(dst, message...), nil })
		if err != nil {
			return nil, err
		}
		if err := s.SendMsg(&in); err != nil && err != io.EOF {
			return nil, err
		}
	}
	if err := s.CloseSend(); err != nil {
		return nil, err
	}
	for len(messages) < 3 {
		var got frame
		if err := s.RecvMsg(&got); err != nil {
			return messages, err
		}
		messages = append(messages, bytes.Clone(got.bytes()))
		got.free()
		if watches {
			return messages, nil
		}
	}
	return messages, errors.New("more messages")
}

// compare makes a call through both, and fails the test if the answers differ. Each makes writes to a tenant of
// its own.
func (x *transports) compare(method string, message []byte, how byte) {
	x.t.Helper()
	for _, k := range kinds {
		if "/etcdserverpb."+k.method != method {
			continue
		}
		var notes wire.Notes
		_, invalid := error(nil), error(nil)
		if k.request != nil {
			_, invalid = wire.NewSpace("/x/", 1).Request(nil, k.request, message, &notes)
		}
		writes := invalid == nil && k.request != nil && how&(garbled|empty) == 0 && (k.stateful || len(notes.Puts) > 0 || notes.Deletes > 0)
		fast := x.fast
		if writes {
			fast = x.other
			if !comparable(k.request, message) {
				return
			}
		}
		want, wantErr := answered(x.t.Context(), x.plain, method, message, how)
		got, gotErr := answered(x.t.Context(), fast, method, message, how)
		a, b := status.Convert(wantErr), status.Convert(gotErr)
		if a.Code() == codes.DeadlineExceeded || b.Code() == codes.DeadlineExceeded {
			return
		}
		if a.Code() != b.Code() || a.Message() != b.Message() {
			x.t.Fatalf("%s %x (%06b): grpc-go %v, fast %v", method, message, how, wantErr, gotErr)
		}
		if len(want) != len(got) {
			x.t.Fatalf("%s %x (%06b): %d responses, fast %d", method, message, how, len(want), len(got))
		}
		for i := range want {
			a, b := readable(x.t, k.response, want[i]), readable(x.t, k.response, got[i])
			if a != b {
				x.t.Fatalf("%s %x (%06b):\ngrpc-go %s\nfast    %s", method, message, how, a, b)
			}
		}
		return
	}
	x.t.Fatalf("no call %s", method)
}

// comparable reports whether a write has the same result at any revision of etcd, without a random lease ID.
func comparable(m *wire.Message, message []byte) bool {
	switch m {
	case wire.TxnRequest:
		var r pb.TxnRequest
		text := ""
		if proto.Unmarshal(message, &r) == nil {
			text = prototext.Format(&r)
		}
		return !bytes.Contains([]byte(text), []byte("revision")) && !bytes.Contains([]byte(text), []byte("compare"))
	case wire.LeaseGrantRequest:
		var r pb.LeaseGrantRequest
		return proto.Unmarshal(message, &r) == nil && r.ID != 0 && r.TTL > 100
	}
	return true
}

// readable returns a response as text, without revisions, terms and the remaining lifetimes of leases.
func readable(t testing.TB, of proto.Message, message []byte) string {
	t.Helper()
	m := of.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(message, m); err != nil {
		t.Fatal(err)
	}
	clearRevisions(m.ProtoReflect())
	if lease, ok := m.(*pb.LeaseTimeToLiveResponse); ok {
		slices.SortFunc(lease.Keys, bytes.Compare) // etcd has them in no order
	}
	text, err := prototext.MarshalOptions{}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes.ReplaceAll(text, []byte("  "), []byte(" "))) // which it varies on purpose
}

func clearRevisions(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch name := f.Name(); {
		case name == "revision", name == "mod_revision", name == "create_revision", name == "compact_revision", name == "TTL", name == "clientURLs":
			m.Clear(f)
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				clearRevisions(v.List().Get(i).Message())
			}
		case f.Message() != nil:
			clearRevisions(v.Message())
		}
		return true
	})
}

// Both transports answer each call the same, in all variations, and a message with any byte changed or cut.
func TestTransports(t *testing.T) {
	t.Parallel()
	x := newTransports(t)
	for _, k := range kinds {
		message, err := proto.Marshal(k.wanted)
		if err != nil {
			t.Fatal(err)
		}
		for how := range byte(2 * empty) {
			x.compare("/etcdserverpb."+k.method, message, how)
		}
		for i := range message {
			if k.method == "Watch/Watch" && i%4 > 0 {
				continue // it takes long to say nothing
			}
			x.compare("/etcdserverpb."+k.method, message[:i], 0)
			changed := bytes.Clone(message)
			changed[i] ^= 0x81
			x.compare("/etcdserverpb."+k.method, changed, 0)
		}
	}
	for size := 99_900; size < 100_100; size += 10 {
		message := protoBytes(size)
		x.compare("/etcdserverpb.KV/Put", message, 0)
		x.compare("/etcdserverpb.KV/Put", message, compressed)
	}
}

// protoBytes returns a request to put a value, of a size.
func protoBytes(size int) []byte {
	message, _ := proto.Marshal(&pb.PutRequest{Key: []byte("k"), Value: bytes.Repeat([]byte("v"), size-8)})
	return message
}

// Both transports answer any request the same.
func FuzzTransports(f *testing.F) {
	for i, k := range kinds {
		message, err := proto.Marshal(k.wanted)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(i), byte(0), message)
		f.Add(byte(i), byte(compressed|needsLeader|forged), message)
	}
	f.Add(byte(0), byte(empty), []byte(nil))
	connected := newTransports(f)
	f.Fuzz(func(t *testing.T, call, how byte, message []byte) {
		x := *connected
		x.t = t
		x.compare("/etcdserverpb."+kinds[int(call)%len(kinds)].method, message, how%(2*empty))
	})
}
