package guard

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"gitopsd.dev/reconcile/etcdproxy/limit"
	"gitopsd.dev/reconcile/etcdproxy/wire"
)

// randomTxn returns a transaction with nested ones, and what it may put.
func randomTxn(random *rand.Rand, depth int) (*pb.TxnRequest, [2]limit.Write) {
	var t pb.TxnRequest
	var may [2]limit.Write
	for i, ops := range []*[]*pb.RequestOp{&t.Success, &t.Failure} {
		var inside [][2]limit.Write
		for range random.IntN(4) {
			switch {
			case depth > 0 && random.IntN(3) == 0:
				nested, w := randomTxn(random, depth-1)
				inside = append(inside, w)
				*ops = append(*ops, &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: nested}})
			case random.IntN(3) == 0:
				*ops = append(*ops, &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("k")}}})
			default:
				p := &pb.PutRequest{Key: fmt.Append(nil, "k", random.IntN(100)), Value: make([]byte, random.IntN(50)), IgnoreValue: random.IntN(4) == 0}
				may[i].Put(string(p.Key), len(p.Value), p.IgnoreValue)
				*ops = append(*ops, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: p}})
			}
		}
		for _, w := range slices.Backward(inside) {
			may[i].Either(w[0], w[1])
		}
	}
	return &t, may
}

// The notes of a rewritten request say what it may put: each key in its branch.
func TestWriteOf(t *testing.T) {
	t.Parallel()
	space := wire.NewSpace("/a/", 1)
	notesOf := func(m *wire.Message, request proto.Message) *wire.Notes {
		message, err := proto.Marshal(request)
		if err != nil {
			t.Fatal(err)
		}
		var notes wire.Notes
		if _, err := space.Request(nil, m, message, &notes); err != nil {
			t.Fatal(err)
		}
		return &notes
	}
	random := rand.New(rand.NewPCG(1, 2))
	puts := 0
	for range 2000 {
		request, branches := randomTxn(random, 3)
		var want limit.Write
		want.Either(branches[0], branches[1])
		if got := writeOf(notesOf(wire.TxnRequest, request)); !reflect.DeepEqual(got, want) {
			t.Fatalf("%s\nmay put %+v, want %+v", prototext.Format(request), got, want)
		}
		if want.Puts() {
			puts++
		}
	}
	if puts < 1000 {
		t.Errorf("only %d of the transactions put something", puts)
	}
	var want limit.Write
	want.Put("k", 3, true)
	if got := writeOf(notesOf(wire.PutRequest, &pb.PutRequest{Key: []byte("k"), Value: []byte("abc"), IgnoreValue: true})); !reflect.DeepEqual(got, want) {
		t.Errorf("a put may put %+v, want %+v", got, want)
	}
	if got := writeOf(notesOf(wire.RangeRequest, &pb.RangeRequest{Key: []byte("k")})); got.Puts() {
		t.Errorf("a range may put %+v", got)
	}
}
