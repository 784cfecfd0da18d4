package limit

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// What is read of a response is what etcd's own types say.
func FuzzOutcome(f *testing.F) {
	header := &pb.ResponseHeader{ClusterId: 1, MemberId: 2, Revision: 77, RaftTerm: 3}
	for _, m := range []proto.Message{
		&pb.PutResponse{Header: header, PrevKv: &mvccpb.KeyValue{Key: []byte("k"), ModRevision: 5}},
		&pb.TxnResponse{Header: header, Succeeded: true, Responses: []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: &pb.TxnResponse{Succeeded: true}}}}},
		&pb.TxnResponse{Header: header, Responses: []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: &pb.TxnResponse{Succeeded: true}}}}},
		&pb.DeleteRangeResponse{Header: header, Deleted: 3},
		&pb.TxnResponse{},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("\n\x100000\x1800000\x1a\x040000")) // bytes, too, where the revision is
	f.Fuzz(func(t *testing.T, b []byte) {
		revision, succeeded := Outcome(b)
		var put pb.PutResponse
		if proto.Unmarshal(b, &put) == nil && put.GetHeader().GetRevision() != revision {
			t.Errorf("a put at %d, read as %d", put.GetHeader().GetRevision(), revision)
		}
		var txn pb.TxnResponse
		if proto.Unmarshal(b, &txn) == nil && (txn.GetHeader().GetRevision() != revision || txn.GetSucceeded() != succeeded) {
			t.Errorf("a transaction at %d, %v, read as %d, %v", txn.GetHeader().GetRevision(), txn.GetSucceeded(), revision, succeeded)
		}
	})
}
