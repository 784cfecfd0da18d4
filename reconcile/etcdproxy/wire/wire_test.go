package wire

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// pairs are the messages with etcd's types for them.
var requests, responses = []pair{
	{RangeRequest, &etcdserverpb.RangeRequest{}},
	{PutRequest, &etcdserverpb.PutRequest{}},
	{DeleteRangeRequest, &etcdserverpb.DeleteRangeRequest{}},
	{TxnRequest, &etcdserverpb.TxnRequest{}},
	{CompactionRequest, &etcdserverpb.CompactionRequest{}},
	{WatchRequest, &etcdserverpb.WatchRequest{}},
	{LeaseGrantRequest, &etcdserverpb.LeaseGrantRequest{}},
	{LeaseRevokeRequest, &etcdserverpb.LeaseRevokeRequest{}},
	{LeaseKeepAliveRequest, &etcdserverpb.LeaseKeepAliveRequest{}},
	{LeaseTimeToLiveRequest, &etcdserverpb.LeaseTimeToLiveRequest{}},
	{LeaseLeasesRequest, &etcdserverpb.LeaseLeasesRequest{}},
	{StatusRequest, &etcdserverpb.StatusRequest{}},
	{AlarmRequest, &etcdserverpb.AlarmRequest{}},
	{MemberListRequest, &etcdserverpb.MemberListRequest{}},
}, []pair{
	{RangeResponse, &etcdserverpb.RangeResponse{}},
	{RangeStreamResponse, &etcdserverpb.RangeStreamResponse{}},
	{PutResponse, &etcdserverpb.PutResponse{}},
	{DeleteRangeResponse, &etcdserverpb.DeleteRangeResponse{}},
	{TxnResponse, &etcdserverpb.TxnResponse{}},
	{WatchResponse, &etcdserverpb.WatchResponse{}},
	{LeaseGrantResponse, &etcdserverpb.LeaseGrantResponse{}},
	{LeaseRevokeResponse, &etcdserverpb.LeaseRevokeResponse{}},
	{LeaseKeepAliveResponse, &etcdserverpb.LeaseKeepAliveResponse{}},
	{LeaseTimeToLiveResponse, &etcdserverpb.LeaseTimeToLiveResponse{}},
}

type pair struct {
	table *Message
	typ   proto.Message
}

func (p pair) fresh() proto.Message { return p.typ.ProtoReflect().New().Interface() }

// The tables have exactly the fields of etcd's types, with the same kinds. A new version of etcd's API fails here
// first.
func TestTables(t *testing.T) {
	seen := make(map[*Message]bool)
	var walk func(m *Message, d protoreflect.MessageDescriptor)
	walk = func(m *Message, d protoreflect.MessageDescriptor) {
		if seen[m] {
			return
		}
		seen[m] = true
		if string(d.Name()) != m.name {
			t.Errorf("%s is called %s", d.Name(), m.name)
		}
		for i := range d.Fields().Len() {
			f := d.Fields().Get(i)
			have := m.field(f.Number())
			in := m.name + "." + string(f.Name())
			if have.kind == unknown {
				t.Errorf("%s is not in the table", in)
				continue
			}
			wantType := protowire.BytesType
			switch f.Kind() {
			case protoreflect.Int64Kind, protoreflect.Uint64Kind, protoreflect.BoolKind, protoreflect.EnumKind:
				wantType = protowire.VarintType
			}
			if have.kind != numbers && have.wireType() != wantType || have.repeated != f.IsList() || have.union != (f.ContainingOneof() != nil) {
				t.Errorf("%s: %+v", in, have)
			}
			if (f.Kind() == protoreflect.MessageKind) != (have.kind == message) || (f.Kind() == protoreflect.StringKind) != (have.kind == text) {
				t.Errorf("%s: %+v", in, have)
			}
			// What must be rewritten goes by these names in etcd's API.
			passes := have.kind == number || have.kind == numbers || have.kind == data
			if name := f.Name(); passes && (name == "key" || name == "keys" || name == "range_end" || name == "lease" || name == "ID") && m.name != "LeaseTimeToLiveRequest" {
				t.Errorf("%s passes as it is", in)
			}
			if have.kind == message {
				walk(have.of, f.Message())
			}
		}
		for n := range m.fields {
			if m.fields[n].kind != unknown && d.Fields().ByNumber(protowire.Number(n)) == nil {
				t.Errorf("%s has no field %d", m.name, n)
			}
		}
	}
	for _, p := range slices.Concat(requests, responses) {
		walk(p.table, p.typ.ProtoReflect().Descriptor())
	}
}

func TestSpan(t *testing.T) {
	s := NewSpace("/p/", 1)
	for _, tt := range []struct{ key, end, wantKey, wantEnd string }{
		{"a", "", "/p/a", ""},
		{"a", "b", "/p/a", "/p/b"},
		{"a", "\x00", "/p/a", "/p0"},                     // from a key on
		{"\x00", "\x00", "/p/\x00", "/p0"},               // all
		{"a", "\xff\xff\xff", "/p/a", "/p/\xff\xff\xff"}, // beyond every key of the tenant
		{"a", "\x00\x00", "/p/\x00", "/p/\x00"},          // ends before it begins
		{"b", "a", "/p/\x00", "/p/\x00"},
		{"b", "b", "/p/\x00", "/p/\x00"},
		{"", "", "", ""},  // etcd refuses it
		{"", "z", "", ""}, // so does it this
		{"", "\x00", "", ""},
		{"/p/a", "", "/p//p/a", ""}, // a key in etcd is no key of the tenant
		{"../x", "", "/p/../x", ""},
	} {
		from, to := s.span([]byte(tt.key), []byte(tt.end))
		if have := string(from.head) + string(from.tail); have != tt.wantKey {
			t.Errorf("span(%q, %q) begins at %q, want %q", tt.key, tt.end, have, tt.wantKey)
		}
		if have := string(to.head) + string(to.tail); have != tt.wantEnd {
			t.Errorf("span(%q, %q) ends at %q, want %q", tt.key, tt.end, have, tt.wantEnd)
		}
	}
}

func TestLeases(t *testing.T) {
	for _, number := range []int64{1, 77, 1<<20 - 1} {
		s := NewSpace("/p/", number)
		for _, id := range []int64{1, 2, 1 << 40, MaxLease} {
			in := s.Lease(id)
			if in <= 0 {
				t.Errorf("number %d: lease %d is %d in etcd", number, id, in)
			}
			if own, ok := s.Own(in); !ok || own != id {
				t.Errorf("number %d: lease %d comes back as %d, %t", number, id, own, ok)
			}
			for _, other := range []int64{number - 1, number + 1} {
				if _, ok := NewSpace("/p/", other).Own(in); ok {
					t.Errorf("lease %d of %d is one of %d", id, number, other)
				}
			}
			for _, beyond := range []int64{-1, math.MinInt64, MaxLease + 1, math.MaxInt64, in} {
				if beyond == in && in <= MaxLease {
					continue
				}
				if have := s.Lease(beyond); have == in || have>>43 != number {
					t.Errorf("number %d: lease %d is %d in etcd", number, beyond, have)
				}
			}
			if s.compared(math.MaxInt64) <= in || s.compared(-1) >= in || s.compared(0) >= in {
				t.Errorf("number %d: the order around %d is lost", number, id)
			}
		}
		if s.Lease(0) != 0 {
			t.Errorf("no lease is %d", s.Lease(0))
		}
	}
}

// Messages that are ambiguous or have unknown fields are refused, even though protobuf's library parses them.
func TestRefused(t *testing.T) {
	tag := protowire.AppendTag
	key := slices.Clip(appendBytes(nil, 1, []byte("k")))
	nested := func(depth int) []byte {
		m := &etcdserverpb.TxnRequest{}
		for range depth {
			m = &etcdserverpb.TxnRequest{Success: []*etcdserverpb.RequestOp{{Request: &etcdserverpb.RequestOp_RequestTxn{RequestTxn: m}}}}
		}
		b, _ := proto.Marshal(m)
		return b
	}
	many := func(n int) []byte {
		b, _ := proto.Marshal(&etcdserverpb.TxnRequest{Compare: slices.Repeat([]*etcdserverpb.Compare{{Key: []byte("k")}}, n)})
		return b
	}
	for _, tt := range []struct {
		name    string
		table   *Message
		src     []byte
		want    string // "" if it passes
		tooMany bool
	}{
		{"good", RangeRequest, key, "", false},
		{"a field of a newer etcd", RangeRequest, appendNumber(key, 14, 1), "field 14 is not known", false},
		{"a large number of a field", RangeRequest, appendNumber(key, 536870911, 1), "not known", false},
		{"field 64 elsewhere", RangeRequest, appendBytes(key, 64, []byte("z")), "field 64 is not known", false},
		{"a key twice", RangeRequest, append(slices.Clone(key), key...), "field 1 is there twice", false},
		{"an end twice", RangeRequest, appendBytes(appendBytes(key, 2, []byte("l")), 2, []byte{0}), "field 2 is there twice", false},
		{"a key as a number", RangeRequest, appendNumber(nil, 1, 5), "wrong type", false},
		{"a limit as bytes", RangeRequest, appendBytes(key, 3, []byte("5")), "wrong type", false},
		{"a group", RangeRequest, tag(key, 1, protowire.StartGroupType), "wrong type", false},
		{"a fixed number", RangeRequest, protowire.AppendFixed64(tag(key, 3, protowire.Fixed64Type), 5), "wrong type", false},
		{"cut off in a tag", RangeRequest, append(slices.Clone(key), 0x80), "not a message", false},
		{"cut off in a field", RangeRequest, key[:2], "ends too early", false},
		{"field 0", RangeRequest, []byte{0, 0}, "not a message", false},
		{"two operations in one", TxnRequest, appendBytes(nil, 2, appendBytes(appendBytes(nil, 1, key), 2, key)), "excludes", false},
		{"two targets in a comparison", TxnRequest, appendBytes(nil, 1, appendNumber(appendNumber(nil, 4, 1), 8, 1)), "excludes", false},
		{"two requests for watches in one", WatchRequest, appendBytes(appendBytes(nil, 1, key), 3, nil), "excludes", false},
		{"nested as deep as allowed", TxnRequest, nested(maxDepth), "", false},
		{"nested deeper", TxnRequest, nested(maxDepth + 1), "nested", true},
		{"nested very deep", TxnRequest, nested(200), "nested", true},
		{"as many operations as allowed", TxnRequest, many(maxOperations), "", false},
		{"more operations", TxnRequest, many(maxOperations + 1), "operations", true},
		{"filters one by one", WatchRequest, appendBytes(nil, 1, appendNumber(appendNumber(key, 5, 0), 5, 1)), "", false},
		{"filters at once", WatchRequest, appendBytes(nil, 1, appendBytes(key, 5, []byte{0, 1})), "", false},
		{"filters as fixed numbers", WatchRequest, appendBytes(nil, 1, protowire.AppendFixed32(tag(key, 5, protowire.Fixed32Type), 5)), "wrong type", false},
	} {
		var notes Notes
		_, err := NewSpace("/p/", 1).Request(nil, tt.table, tt.src, &notes)
		switch {
		case tt.want == "" && err != nil, tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.want)
		case tt.want != "":
			var e *Error
			if !errors.As(err, &e) || e.TooMany != tt.tooMany {
				t.Errorf("%s: %#v", tt.name, err)
			}
		}
	}
}

// Anything in a response that is not the namespace's is an error, which does not quote it.
func TestForeign(t *testing.T) {
	s := NewSpace("/p/", 5)
	secret := &mvccpb.KeyValue{Key: []byte("/q/secret"), Value: []byte("secret")}
	own := &mvccpb.KeyValue{Key: []byte("/p/k")}
	for name, m := range map[string]struct {
		table *Message
		of    proto.Message
	}{
		"range":        {RangeResponse, &etcdserverpb.RangeResponse{Kvs: []*mvccpb.KeyValue{own, secret}}},
		"no key":       {RangeResponse, &etcdserverpb.RangeResponse{Kvs: []*mvccpb.KeyValue{{Value: []byte("secret")}}}},
		"stream":       {RangeStreamResponse, &etcdserverpb.RangeStreamResponse{RangeResponse: &etcdserverpb.RangeResponse{Kvs: []*mvccpb.KeyValue{secret}}}},
		"put":          {PutResponse, &etcdserverpb.PutResponse{PrevKv: secret}},
		"delete":       {DeleteRangeResponse, &etcdserverpb.DeleteRangeResponse{PrevKvs: []*mvccpb.KeyValue{secret}}},
		"event":        {WatchResponse, &etcdserverpb.WatchResponse{Events: []*mvccpb.Event{{Kv: secret}}}},
		"event before": {WatchResponse, &etcdserverpb.WatchResponse{Events: []*mvccpb.Event{{Kv: own, PrevKv: secret}}}},
		"granted":      {LeaseGrantResponse, &etcdserverpb.LeaseGrantResponse{ID: 6 << 43}},
		"renewed":      {LeaseKeepAliveResponse, &etcdserverpb.LeaseKeepAliveResponse{ID: 7}},
		"negative":     {LeaseKeepAliveResponse, &etcdserverpb.LeaseKeepAliveResponse{ID: -7}},
		"attached":     {LeaseTimeToLiveResponse, &etcdserverpb.LeaseTimeToLiveResponse{ID: 5<<43 | 1, Keys: [][]byte{[]byte("/p/k"), []byte("/p")}}},
		"nested": {TxnResponse, &etcdserverpb.TxnResponse{Responses: []*etcdserverpb.ResponseOp{{Response: &etcdserverpb.ResponseOp_ResponseTxn{
			ResponseTxn: &etcdserverpb.TxnResponse{Responses: []*etcdserverpb.ResponseOp{{Response: &etcdserverpb.ResponseOp_ResponseRange{
				ResponseRange: &etcdserverpb.RangeResponse{Kvs: []*mvccpb.KeyValue{secret}}}}}}}}}}},
	} {
		src, err := proto.Marshal(m.of)
		if err != nil {
			t.Fatal(err)
		}
		var notes Notes
		out, err := s.Response(nil, m.table, src, &notes)
		if err == nil || out != nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "/q") {
			t.Errorf("%s: %q, %v", name, out, err)
		}
	}
	// A key of the tenant's that somebody else attached to a lease can be read; the lease is none
	// that the tenant could use.
	src, _ := proto.Marshal(&etcdserverpb.RangeResponse{Kvs: []*mvccpb.KeyValue{{Key: []byte("/p/k"), Lease: 9 << 43}}})
	var notes Notes
	out, err := s.Response(nil, RangeResponse, src, &notes)
	var have etcdserverpb.RangeResponse
	if err != nil || proto.Unmarshal(out, &have) != nil || have.Kvs[0].Lease != MaxLease+1 {
		t.Errorf("a foreign lease on a key: %v, %v", &have, err)
	}
	// Texts pass if etcd gives them to everybody.
	src, _ = proto.Marshal(&etcdserverpb.WatchResponse{CancelReason: "user gitopsd-other has no right to /q/secret"})
	out, err = s.Response(nil, WatchResponse, src, &notes)
	var watch etcdserverpb.WatchResponse
	if err != nil || proto.Unmarshal(out, &watch) != nil || watch.CancelReason != HiddenText {
		t.Errorf("a text that is not known: %v, %v", &watch, err)
	}
}

// Random messages are rewritten as the reference does.
func TestRandom(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	ref := reference{prefix: "/gitopsd.dev/ns/a/", number: 12345}
	for range 200 {
		for _, p := range requests {
			m := p.fresh()
			fill(random, m.ProtoReflect(), 0, ref)
			src, err := proto.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			if err := compareRequest(ref, p, src); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range responses {
			m := p.fresh()
			fill(random, m.ProtoReflect(), 0, ref)
			src, err := proto.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			if err := compareResponse(ref, p, src); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// fill sets random fields, often to special values: keys with and without the prefix, special ends of ranges,
// leases of this namespace and of others.
func fill(random *rand.Rand, m protoreflect.Message, depth int, ref reference) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if random.IntN(3) == 0 || depth > 8 || f.ContainingOneof() != nil && m.WhichOneof(f.ContainingOneof()) != nil {
			continue
		}
		n := 1
		if f.IsList() {
			n = random.IntN(4)
		}
		for range n {
			if f.Kind() == protoreflect.MessageKind {
				var sub protoreflect.Message
				if f.IsList() {
					sub = m.Mutable(f).List().AppendMutable().Message()
				} else {
					sub = m.Mutable(f).Message()
				}
				fill(random, sub, depth+1, ref)
				continue
			}
			v := scalar(random, f, ref)
			if f.IsList() {
				m.Mutable(f).List().Append(v)
			} else {
				m.Set(f, v)
			}
		}
	}
}

func scalar(random *rand.Rand, f protoreflect.FieldDescriptor, ref reference) protoreflect.Value {
	keys := []string{"", "\x00", "\x00\x00", "a", "b", "ab", "\xff", "\xff\xff", ref.prefix, ref.prefix + "a", ref.prefix + "\x00", string(ref.prefixEnd()), strings.Repeat("k", 120), strings.Repeat("v", 16380)}
	if random.IntN(4) > 0 { // mostly what a response may have
		keys = []string{ref.prefix + "a", ref.prefix + strings.Repeat("k", 130), ref.prefix + "\x00"}
	}
	numbers := []int64{0, 1, -1, 2, 127, 128, 1 << 42, MaxLease, MaxLease + 1, ref.number<<43 | 5, ref.number << 43, (ref.number + 1) << 43, math.MaxInt64, math.MinInt64}
	n := numbers[random.IntN(len(numbers))]
	switch f.Kind() {
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(keys[random.IntN(len(keys))]))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString([]string{"", "etcdserver: permission denied", "/q/secret"}[random.IntN(3)])
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(random.IntN(2) == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(random.IntN(4)))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(n))
	}
	return protoreflect.ValueOfInt64(n)
}

// compareRequest rewrites a request both ways.
func compareRequest(ref reference, p pair, src []byte) error {
	var notes Notes
	before := bytes.Clone(src)
	out, err := ref.space().Request(nil, p.table, src, &notes)
	if !bytes.Equal(before, src) {
		return errorf("%s: %x was changed to %x", p.table.name, before, src)
	}
	want := p.fresh()
	known := proto.Unmarshal(src, want) == nil && !unknownFields(want.ProtoReflect())
	if err != nil {
		// What is written in the one way that everybody writes is not refused.
		var e *Error
		if canonical, _ := proto.Marshal(want); known && bytes.Equal(canonical, src) && !(errors.As(err, &e) && e.TooMany) {
			return errorf("%s: %x is refused: %v", p.table.name, src, err)
		}
		return nil
	}
	have := p.fresh()
	if proto.Unmarshal(out, have) != nil {
		if known {
			return errorf("%s: %x becomes %x, which is no message", p.table.name, src, out)
		}
		return nil
	}
	if err := ref.inside(have.ProtoReflect()); err != nil {
		return errorf("%s: %x becomes %x: %v", p.table.name, src, out, err)
	}
	ref.request(want)
	if !known || !proto.Equal(have, want) {
		return errorf("%s: %x becomes %v, want %v", p.table.name, src, have, want)
	}
	return nil
}

// compareResponse rewrites a response both ways.
func compareResponse(ref reference, p pair, src []byte) error {
	var notes Notes
	out, err := ref.space().Response(make([]byte, 0, len(src)), p.table, src, &notes)
	want := p.fresh()
	if proto.Unmarshal(src, want) != nil {
		return nil // etcd sends no such thing, and the tenant's library will not read it either
	}
	known := !unknownFields(want.ProtoReflect())
	canonical, _ := proto.Marshal(want)
	refErr := ref.response(want)
	if err != nil {
		var e *Error
		if known && refErr == nil && bytes.Equal(canonical, src) && !(errors.As(err, &e) && e.TooMany) {
			return errorf("%s: %x is refused: %v", p.table.name, src, err)
		}
		return nil
	}
	have := p.fresh()
	if err := proto.Unmarshal(out, have); err != nil {
		return errorf("%s: %x becomes %x: %v", p.table.name, src, out, err)
	}
	if !known || refErr != nil || !proto.Equal(have, want) {
		return errorf("%s: %x becomes %v, want %v, %v", p.table.name, src, have, want, refErr)
	}
	return nil
}

func FuzzRequest(f *testing.F)  { fuzz(f, requests, compareRequest) }
func FuzzResponse(f *testing.F) { fuzz(f, responses, compareResponse) }

func fuzz(f *testing.F, pairs []pair, compare func(reference, pair, []byte) error) {
	random := rand.New(rand.NewPCG(3, 4))
	ref := reference{prefix: "/p/", number: 7}
	for i, p := range pairs {
		for range 3 {
			m := p.fresh()
			fill(random, m.ProtoReflect(), 6, ref)
			src, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(byte(i), src)
		}
	}
	f.Fuzz(func(t *testing.T, which byte, src []byte) {
		if err := compare(ref, pairs[int(which)%len(pairs)], src); err != nil {
			t.Error(err)
		}
	})
}
