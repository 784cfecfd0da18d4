package etcdproxy

import (
	"context"
	"fmt"
	"io"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"gitopsd.dev/reconcile/etcdproxy/member"
	"gitopsd.dev/testscripts/etcdserver"
)

// While etcd's users and roles change all the time, no call of a tenant fails, and no write is applied twice.
func TestUsersChange(t *testing.T) { all(t, testUsersChange) }

func testUsersChange(t *testing.T) {
	t.Parallel()
	s, err := etcdserver.Start() // other tests' clients of a shared one would notice
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	a := newTenantOf(t, s, "a")
	var cfg Config
	if isLocal(t) {
		if cfg.Member, err = member.Serve(s.Etcd()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cfg.Member.Stop)
	}
	p := serve(t, cfg, a)
	conn := p.plain(t, a.certificate(t))
	kv := pb.NewKVClient(conn)
	watches, err := pb.NewWatchClient(conn).Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	over, ended := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-over:
				ended <- nil
				return
			default:
			}
			_, err := s.Root.RoleGrantPermission(t.Context(), a.ID.User(), a.Prefix, clientv3.GetPrefixRangeEnd(a.Prefix), clientv3.PermissionType(clientv3.PermReadWrite))
			if err != nil {
				ended <- err
				return
			}
		}
	}()
	const writes = 100
	for i := range writes {
		put := &pb.PutRequest{Key: []byte("k"), Value: fmt.Append(nil, i), PrevKv: true}
		got, err := kv.Put(t.Context(), put)
		if err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
		if i > 0 && got.PrevKv.GetVersion() != int64(i) {
			t.Fatalf("write %d: there were %d before", i, got.PrevKv.GetVersion())
		}
		if _, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("k")}); err != nil {
			t.Fatalf("read %d: %v", i, err)
		}
		kvs, err := readAll(t.Context(), kv)
		if err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
		if len(kvs) != 1 || string(kvs[0].Key) != "k" || string(kvs[0].Value) != fmt.Sprint(i) {
			t.Fatalf("stream %d: %v", i, kvs)
		}
		if err := watches.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: fmt.Append(nil, "other", i), WatchId: int64(i + 1)}}}); err != nil {
			t.Fatal(err)
		}
		if r, err := watches.Recv(); err != nil || !r.Created || r.Canceled || r.WatchId != int64(i+1) {
			t.Fatalf("watch %d: %v, %v", i, r, err)
		}
	}
	close(over)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// readAll reads all keys as a range in parts.
func readAll(ctx context.Context, kv pb.KVClient) (kvs []*mvccpb.KeyValue, err error) {
	s, err := kv.RangeStream(ctx, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	if err != nil {
		return nil, err
	}
	for {
		r, err := s.Recv()
		if err == io.EOF {
			return kvs, nil
		}
		if err != nil {
			return nil, err
		}
		kvs = append(kvs, r.GetRangeResponse().GetKvs()...)
	}
}
