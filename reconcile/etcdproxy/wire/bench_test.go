package wire

import (
	"bytes"
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// BenchmarkRewrite measures the rewriting of typical messages.
func BenchmarkRewrite(b *testing.B) {
	s := NewSpace("/gitopsd.dev/ns/prod/default/sample-apiserver/", 7)
	value := bytes.Repeat([]byte("v"), 1024)
	key := []byte("/registry/wardle.example.com/flunders/default/my-first-flunder")
	var kvs []*mvccpb.KeyValue
	for i := range 500 {
		kvs = append(kvs, &mvccpb.KeyValue{Key: fmt.Appendf(nil, "%s%s-%d", s.prefix, key, i), Value: value, ModRevision: 5, CreateRevision: 5, Version: 1})
	}
	for _, bb := range []struct {
		name    string
		table   *Message
		message proto.Message
		way     func(*Space, []byte, *Message, []byte, *Notes) ([]byte, error)
	}{
		{"get", RangeRequest, &etcdserverpb.RangeRequest{Key: key}, (*Space).Request},
		{"got", RangeResponse, &etcdserverpb.RangeResponse{Header: &etcdserverpb.ResponseHeader{Revision: 5}, Kvs: kvs[:1], Count: 1}, (*Space).Response},
		{"put", PutRequest, &etcdserverpb.PutRequest{Key: key, Value: value}, (*Space).Request},
		{"list", RangeResponse, &etcdserverpb.RangeResponse{Header: &etcdserverpb.ResponseHeader{Revision: 5}, Kvs: kvs, Count: 500}, (*Space).Response},
		{"update", TxnRequest, &etcdserverpb.TxnRequest{
			Compare: []*etcdserverpb.Compare{{Key: key, Target: etcdserverpb.Compare_MOD, TargetUnion: &etcdserverpb.Compare_ModRevision{ModRevision: 5}}},
			Success: []*etcdserverpb.RequestOp{{Request: &etcdserverpb.RequestOp_RequestPut{RequestPut: &etcdserverpb.PutRequest{Key: key, Value: value}}}},
			Failure: []*etcdserverpb.RequestOp{{Request: &etcdserverpb.RequestOp_RequestRange{RequestRange: &etcdserverpb.RangeRequest{Key: key}}}},
		}, (*Space).Request},
	} {
		b.Run(bb.name, func(b *testing.B) {
			src, err := proto.Marshal(bb.message)
			if err != nil {
				b.Fatal(err)
			}
			dst := make([]byte, 0, 2*len(src)+1024)
			b.ReportAllocs()
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				var notes Notes
				if _, err := bb.way(s, dst, bb.table, src, &notes); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
