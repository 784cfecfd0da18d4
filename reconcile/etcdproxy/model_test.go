package etcdproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"gitopsd.dev/testscripts/etcdserver"
)

// model makes the same random requests to the proxy, as a tenant, and to an etcd of its own.
type model struct {
	t             *testing.T
	random        *rand.Rand
	tenant, alone *grpc.ClientConn
	// revs are revisions that the tenant's writes made, at both: others write between them.
	revs []revs
	// aloneAt is the revision of alone for the tenant's.
	aloneAt map[int64]int64
	// watches are the same watches at the tenant and at alone, and events what was read of
	// them so far, by watch.
	watches [2]pb.Watch_WatchClient
	events  [2]map[int64][]string
}

type revs struct{ tenant, alone int64 }

// All responses are the same, except for IDs of cluster and member, and the counting of revisions.
func TestModel(t *testing.T) { all(t, testModel) }

func testModel(t *testing.T) {
	t.Parallel()
	x := newTenantIn(t, "model")
	p := serve(t, Config{Limits: Limits{Unread: time.Hour}}, x) // watches are read at the end
	alone, err := etcdserver.StartOpen()                        // without users, proxy and neighbours
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(alone.Close)
	m := &model{
		t: t, random: rand.New(rand.NewPCG(1, 1)), aloneAt: make(map[int64]int64),
		tenant: p.plain(t, x.certificate(t)), alone: alone.Root.ActiveConnection(),
	}
	m.watch()
	for i := range 3000 {
		m.step(i)
		if t.Failed() {
			return
		}
	}
	m.compareEvents()
	if n := p.Counts()[x.ID].Foreign; n != 0 {
		t.Errorf("%d responses were not passed on", n)
	}
}

var modelKeys = []string{"", "\x00", "a", "ab", "b", "b\x00", "c/d", "\xff", "\xff\xff", "/gitopsd.dev/ns/"}

func (m *model) pick(of ...string) []byte { return []byte(of[m.random.IntN(len(of))]) }
func (m *model) key() []byte {
	if m.random.IntN(10) == 0 {
		return m.pick(modelKeys...)
	}
	return m.pick("a", "ab", "b", "c/d", "\xff")
}
func (m *model) end() []byte {
	if m.random.IntN(3) == 0 {
		return nil
	}
	return m.pick(modelKeys...)
}
func (m *model) flip() bool { return m.random.IntN(2) == 0 }
func (m *model) lease() int64 {
	if m.random.IntN(3) > 0 {
		return 0
	}
	return []int64{1, 2, 3, 1 << 42, 1<<43 - 2, 1 << 43, -1}[m.random.IntN(7)]
}

// number returns a small number, or a revision that differs between the two.
func (m *model) number() int64 { return int64(m.random.IntN(4)) - 1 }

// step makes one random request.
func (m *model) step(i int) {
	kv, lease := "/etcdserverpb.KV/", "/etcdserverpb.Lease/"
	var out proto.Message
	switch m.random.IntN(20) {
	case 0, 1, 2, 3, 4:
		r := m.rangeRequest()
		revision := revs{}
		if m.random.IntN(4) == 0 && len(m.revs) > 0 {
			revision = m.revs[m.random.IntN(len(m.revs))]
		}
		out = m.both(i, kv+"Range", r, &pb.RangeResponse{}, func(r proto.Message, tenant bool) {
			r.(*pb.RangeRequest).Revision = revision.alone
			if tenant {
				r.(*pb.RangeRequest).Revision = revision.tenant
			}
		})
	case 5:
		m.stream(i)
	case 6, 7, 8, 9:
		out = m.both(i, kv+"Put", m.putRequest(), &pb.PutResponse{}, nil)
	case 10:
		out = m.both(i, kv+"DeleteRange", m.deleteRequest(), &pb.DeleteRangeResponse{}, nil)
	case 11, 12, 13:
		out = m.both(i, kv+"Txn", m.txnRequest(2), &pb.TxnResponse{}, nil)
	case 14:
		// Leases that live until the test ends, or fail at once.
		out = m.both(i, lease+"LeaseGrant", &pb.LeaseGrantRequest{ID: []int64{1, 2, 3, 1 << 42, 1<<43 - 2}[m.random.IntN(5)], TTL: []int64{5000, 9_000_000_001}[m.random.IntN(2)]}, &pb.LeaseGrantResponse{}, nil)
	case 15:
		out = m.both(i, lease+"LeaseRevoke", &pb.LeaseRevokeRequest{ID: m.lease()}, &pb.LeaseRevokeResponse{}, nil)
	case 16:
		out = m.both(i, lease+"LeaseTimeToLive", &pb.LeaseTimeToLiveRequest{ID: max(m.lease(), 1) & (1<<43 - 1), Keys: m.flip()}, &pb.LeaseTimeToLiveResponse{}, nil)
	case 17:
		out = m.both(i, lease+"LeaseLeases", &pb.LeaseLeasesRequest{}, &pb.LeaseLeasesResponse{}, nil)
	case 18:
		if len(m.revs) > 20 && m.random.IntN(20) == 0 {
			revision := m.revs[m.random.IntN(len(m.revs))]
			// An etcd looks up the value before an event when it sends the event. What is
			// compacted until then is missing.
			m.readEvents()
			out = m.both(i, kv+"Compact", &pb.CompactionRequest{}, &pb.CompactionResponse{}, func(r proto.Message, tenant bool) {
				r.(*pb.CompactionRequest).Revision = revision.alone
				if tenant {
					r.(*pb.CompactionRequest).Revision = revision.tenant
				}
			})
		}
	}
	_ = out
}

func (m *model) rangeRequest() *pb.RangeRequest {
	r := &pb.RangeRequest{
		Key: m.key(), RangeEnd: m.end(), Limit: m.number(), Serializable: false, KeysOnly: m.random.IntN(4) == 0, CountOnly: m.random.IntN(4) == 0,
		SortOrder: pb.RangeRequest_SortOrder(m.random.IntN(3)), SortTarget: pb.RangeRequest_SortTarget(m.random.IntN(5)),
	}
	if m.random.IntN(30) == 0 {
		r.SortTarget = 9
	}
	return r
}

func (m *model) putRequest() *pb.PutRequest {
	return &pb.PutRequest{Key: m.key(), Value: m.pick("", "v", "w"), Lease: m.lease(), PrevKv: m.flip(), IgnoreValue: m.random.IntN(8) == 0, IgnoreLease: m.random.IntN(8) == 0}
}

func (m *model) deleteRequest() *pb.DeleteRangeRequest {
	return &pb.DeleteRangeRequest{Key: m.key(), RangeEnd: m.end(), PrevKv: m.flip()}
}

func (m *model) txnRequest(depth int) *pb.TxnRequest {
	t := &pb.TxnRequest{}
	for range m.random.IntN(3) {
		c := &pb.Compare{Key: m.key(), RangeEnd: m.end(), Result: pb.Compare_CompareResult(m.random.IntN(4)), Target: pb.Compare_CompareTarget(m.random.IntN(5))}
		switch c.Target {
		case pb.Compare_VERSION:
			c.TargetUnion = &pb.Compare_Version{Version: m.number()}
		case pb.Compare_CREATE:
			c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: 0} // others differ
		case pb.Compare_MOD:
			c.TargetUnion = &pb.Compare_ModRevision{ModRevision: 0}
		case pb.Compare_VALUE:
			c.TargetUnion = &pb.Compare_Value{Value: m.pick("", "v", "w")}
		case pb.Compare_LEASE:
			c.TargetUnion = &pb.Compare_Lease{Lease: m.lease()}
		}
		t.Compare = append(t.Compare, c)
	}
	for range m.random.IntN(3) {
		t.Success = append(t.Success, m.op(depth))
	}
	for range m.random.IntN(3) {
		t.Failure = append(t.Failure, m.op(depth))
	}
	return t
}

func (m *model) op(depth int) *pb.RequestOp {
	switch n := m.random.IntN(16); {
	case n < 5:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: m.rangeRequest()}}
	case n < 10:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: m.putRequest()}}
	case n < 12:
		// etcd overlooks that a delete of all keys from one on overlaps a put; with the end of the
		// namespace in its place it does not.
		d := m.deleteRequest()
		if string(d.RangeEnd) == "\x00" {
			d.RangeEnd = nil
		}
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: d}}
	case n < 15 && depth > 0:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: m.txnRequest(depth - 1)}}
	}
	return &pb.RequestOp{} // nothing in it
}

// both makes a request to both, and compares the responses.
func (m *model) both(i int, method string, request, response proto.Message, with func(r proto.Message, tenant bool)) proto.Message {
	ctx := m.t.Context()
	have, want := response, response.ProtoReflect().New().Interface()
	forTenant, forAlone := proto.Clone(request), request
	if with != nil {
		with(forTenant, true)
		with(forAlone, false)
	}
	haveErr := m.tenant.Invoke(ctx, method, forTenant, have)
	wantErr := m.alone.Invoke(ctx, method, forAlone, want)
	m.same(fmt.Sprintf("request %d: %s %v", i, method, forAlone), have, want, haveErr, wantErr)
	return have
}

func (m *model) same(what string, have, want proto.Message, haveErr, wantErr error) {
	m.t.Helper()
	if errors.Is(haveErr, rpctypes.ErrGRPCCompacted) && status.Code(wantErr) == codes.InvalidArgument {
		return // two things are wrong, and the proxy finds the other one first
	}
	if status.Code(haveErr) != status.Code(wantErr) || haveErr != nil && status.Convert(haveErr).Message() != status.Convert(wantErr).Message() {
		m.t.Errorf("%s: error %v, want %v", what, haveErr, wantErr)
		return
	}
	if wantErr != nil {
		return
	}
	m.learn(have, want)
	m.normalize(have.ProtoReflect(), true)
	m.normalize(want.ProtoReflect(), false)
	if !proto.Equal(have, want) {
		m.t.Errorf("%s:\n%s\nwant\n%s", what, prototext.Format(have), prototext.Format(want))
	}
}

type withHeader interface{ GetHeader() *pb.ResponseHeader }

// learn remembers the revision that a write made.
func (m *model) learn(have, want proto.Message) {
	h, w := have.(withHeader).GetHeader(), want.(withHeader).GetHeader()
	last := revs{}
	if len(m.revs) > 0 {
		last = m.revs[len(m.revs)-1]
	}
	if w.GetRevision() > last.alone {
		m.revs = append(m.revs, revs{h.GetRevision(), w.GetRevision()})
		m.aloneAt[h.GetRevision()] = w.GetRevision()
	}
	if h.GetRevision() < last.tenant {
		m.t.Errorf("the tenant's revision went back from %d to %d", last.tenant, h.GetRevision())
	}
}

// normalize removes differences that are expected.
func (m *model) normalize(msg protoreflect.Message, tenant bool) {
	msg.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch f.Name() {
		case "header":
			msg.Clear(f)
			return true
		case "TTL":
			if v.Int() > 0 {
				msg.Set(f, protoreflect.ValueOfInt64(1))
			}
		case "create_revision", "mod_revision":
			if tenant {
				msg.Set(f, protoreflect.ValueOfInt64(m.aloneAt[v.Int()]))
			}
		case "leases":
			leases := msg.Interface().(*pb.LeaseLeasesResponse).Leases
			slices.SortFunc(leases, func(a, b *pb.LeaseStatus) int { return int(a.ID>>20 - b.ID>>20 + (a.ID - b.ID)) })
		case "keys":
			keys := msg.Interface().(*pb.LeaseTimeToLiveResponse).Keys
			slices.SortFunc(keys, slices.Compare)
		}
		switch {
		case f.Kind() == protoreflect.MessageKind && f.IsList():
			for i := range v.List().Len() {
				m.normalize(v.List().Get(i).Message(), tenant)
			}
		case f.Kind() == protoreflect.MessageKind:
			m.normalize(v.Message(), tenant)
		}
		return true
	})
}

// stream compares the joined parts of a RangeStream.
func (m *model) stream(i int) {
	r := m.rangeRequest()
	all := func(conn *grpc.ClientConn) (*pb.RangeResponse, error) {
		out := new(pb.RangeResponse)
		s, err := pb.NewKVClient(conn).RangeStream(m.t.Context(), r)
		for err == nil {
			var part *pb.RangeStreamResponse
			if part, err = s.Recv(); err == nil {
				proto.Merge(out, part.RangeResponse)
			}
		}
		if err == io.EOF {
			err = nil
		}
		return out, err
	}
	have, haveErr := all(m.tenant)
	want, wantErr := all(m.alone)
	if status.Code(wantErr) == status.Code(haveErr) && wantErr != nil {
		return // texts of options that it does not have are not among etcd's errors
	}
	m.same(fmt.Sprintf("stream %d: %v", i, r), have, want, haveErr, wantErr)
}

// creates returns requests to create watches, some of which fail.
var creates = []*pb.WatchCreateRequest{
	{Key: []byte("a")},
	{Key: []byte{0}, RangeEnd: []byte{0}, PrevKv: true},
	{RangeEnd: []byte{0}, Fragment: true},
	{Key: []byte("a"), RangeEnd: []byte("b"), Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}},
	{Key: []byte("a"), RangeEnd: []byte("\xff"), Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NODELETE}, PrevKv: true},
	{Key: []byte("b"), RangeEnd: []byte("a")},
	{Key: []byte("b"), RangeEnd: []byte("b")},
	{Key: []byte("b"), WatchId: 77},
	{Key: []byte("b"), WatchId: 77},
	{Key: []byte("b"), StartRevision: -5},
	{},
}

// watch creates the same watches at both.
func (m *model) watch() {
	var said [2][]string
	for i, conn := range []*grpc.ClientConn{m.tenant, m.alone} {
		s, err := pb.NewWatchClient(conn).Watch(m.t.Context())
		if err != nil {
			m.t.Fatal(err)
		}
		m.watches[i], m.events[i] = s, make(map[int64][]string)
		for _, c := range creates {
			if err := s.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: c}}); err != nil {
				m.t.Fatal(err)
			}
			r, err := s.Recv()
			if err != nil {
				m.t.Fatal(err)
			}
			r.Header = nil
			said[i] = append(said[i], prototext.Format(r))
		}
	}
	if !slices.Equal(said[0], said[1]) {
		m.t.Errorf("watches were created as\n%v\nwant\n%v", said[0], said[1])
	}
}

// compareEvents compares the events of the watches.
func (m *model) compareEvents() {
	if len(m.revs) == 0 {
		m.t.Fatal("nothing was written")
	}
	m.readEvents()
	n := 0
	for id, want := range m.events[1] {
		n += len(want)
		if have := m.events[0][id]; !slices.Equal(have, want) {
			m.t.Errorf("watch %d has %d events, want %d:\n%v\nwant\n%v", id, len(have), len(want), have, want)
		}
	}
	if n < 1000 || len(m.events[0]) != len(m.events[1]) {
		m.t.Errorf("%d events in %d watches, of the tenant %d", n, len(m.events[1]), len(m.events[0]))
	}
}

// readEvents reads the events of all writes so far.
func (m *model) readEvents() {
	last := m.revs[len(m.revs)-1]
	for i, upTo := range []int64{last.tenant, last.alone} {
		m.readUpTo(i, upTo)
	}
}

func (m *model) readUpTo(i int, revision int64) {
	s := m.watches[i]
	ctx, cancel := context.WithCancel(m.t.Context())
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	asking.Go(func() { // until the watches have caught up
		for ctx.Err() == nil {
			s.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
			time.Sleep(20 * time.Millisecond)
		}
	})
	for {
		r, err := s.Recv()
		if err != nil {
			m.t.Fatal(err)
		}
		for _, e := range r.Events {
			m.normalize(e.ProtoReflect(), i == 0)
			m.events[i][r.WatchId] = append(m.events[i][r.WatchId], text(e))
		}
		if r.WatchId == -1 && len(r.Events) == 0 && r.Header.Revision >= revision {
			return
		}
	}
}

func text(e *mvccpb.Event) string {
	kv := func(k *mvccpb.KeyValue) string {
		if k == nil {
			return "-"
		}
		return fmt.Sprintf("%q=%q created %d modified %d version %d lease %d", k.Key, k.Value, k.CreateRevision, k.ModRevision, k.Version, k.Lease)
	}
	return e.Type.String() + " " + kv(e.Kv) + " before " + kv(e.PrevKv)
}
