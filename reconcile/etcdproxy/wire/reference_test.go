package wire

import (
	"bytes"
	"fmt"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// reference rewrites messages decoded into etcd's own types: slowly, and independently of the tables.
type reference struct {
	prefix string
	number int64
}

func (r reference) space() *Space { return NewSpace(r.prefix, r.number) }

// prefixEnd returns the first key after all keys with the prefix.
func (r reference) prefixEnd() []byte {
	b := []byte(r.prefix)
	for i := len(b) - 1; ; i-- {
		if b[i] < 0xff {
			return append(b[:i:i], b[i]+1)
		}
	}
}

// span changes a key and the end of its range.
func (r reference) span(key, end *[]byte) {
	k, e := string(*key), string(*end)
	if k == "" {
		*key, *end = nil, nil
		return
	}
	*key = []byte(r.prefix + k)
	switch {
	case e == "":
	case e == "\x00":
		*end = r.prefixEnd()
	case e <= k: // nothing
		*key, *end = []byte(r.prefix+"\x00"), []byte(r.prefix+"\x00")
	default:
		*end = []byte(r.prefix + e)
	}
}

func (r reference) watchSpan(key, end *[]byte) {
	if len(*key) == 0 {
		*key = []byte{0}
	}
	r.span(key, end)
}

func (r reference) lease(id int64) int64 {
	if id == 0 {
		return 0
	}
	if id < 0 || id >= 1<<43-1 {
		id = 1<<43 - 1
	}
	return r.number*(1<<43) + id
}

// request rewrites a request in place.
func (r reference) request(m proto.Message) {
	switch m := m.(type) {
	case *etcdserverpb.RangeRequest:
		r.span(&m.Key, &m.RangeEnd)
	case *etcdserverpb.PutRequest:
		var none []byte
		r.span(&m.Key, &none)
		m.Lease = r.lease(m.Lease)
	case *etcdserverpb.DeleteRangeRequest:
		r.span(&m.Key, &m.RangeEnd)
	case *etcdserverpb.TxnRequest:
		for _, c := range m.Compare {
			r.span(&c.Key, &c.RangeEnd)
			if l, ok := c.TargetUnion.(*etcdserverpb.Compare_Lease); ok && l.Lease > 0 {
				l.Lease = r.lease(l.Lease)
			}
		}
		for _, ops := range [][]*etcdserverpb.RequestOp{m.Success, m.Failure} {
			for _, op := range ops {
				switch op := op.Request.(type) {
				case *etcdserverpb.RequestOp_RequestRange:
					r.request(op.RequestRange)
				case *etcdserverpb.RequestOp_RequestPut:
					r.request(op.RequestPut)
				case *etcdserverpb.RequestOp_RequestDeleteRange:
					r.request(op.RequestDeleteRange)
				case *etcdserverpb.RequestOp_RequestTxn:
					r.request(op.RequestTxn)
				}
			}
		}
	case *etcdserverpb.WatchRequest:
		if c, ok := m.RequestUnion.(*etcdserverpb.WatchRequest_CreateRequest); ok {
			r.watchSpan(&c.CreateRequest.Key, &c.CreateRequest.RangeEnd)
		}
	case *etcdserverpb.LeaseGrantRequest:
		m.ID = 0
	case *etcdserverpb.LeaseRevokeRequest:
		m.ID = r.lease(m.ID)
	case *etcdserverpb.LeaseKeepAliveRequest:
		m.ID = r.lease(m.ID)
	case *etcdserverpb.LeaseTimeToLiveRequest:
		m.ID = r.lease(m.ID)
	}
}

// response rewrites a response in place.
func (r reference) response(m proto.Message) (err error) {
	each := func(errs ...error) {
		for _, e := range errs {
			if err == nil {
				err = e
			}
		}
	}
	switch m := m.(type) {
	case *etcdserverpb.RangeResponse:
		each(r.kvs(m.Kvs...))
	case *etcdserverpb.RangeStreamResponse:
		if m.RangeResponse != nil {
			each(r.response(m.RangeResponse))
		}
	case *etcdserverpb.PutResponse:
		each(r.kvs(m.PrevKv))
	case *etcdserverpb.DeleteRangeResponse:
		each(r.kvs(m.PrevKvs...))
	case *etcdserverpb.TxnResponse:
		for _, op := range m.Responses {
			switch op := op.Response.(type) {
			case *etcdserverpb.ResponseOp_ResponseRange:
				each(r.response(op.ResponseRange))
			case *etcdserverpb.ResponseOp_ResponsePut:
				each(r.response(op.ResponsePut))
			case *etcdserverpb.ResponseOp_ResponseDeleteRange:
				each(r.response(op.ResponseDeleteRange))
			case *etcdserverpb.ResponseOp_ResponseTxn:
				each(r.response(op.ResponseTxn))
			}
		}
	case *etcdserverpb.WatchResponse:
		for _, e := range m.Events {
			each(r.kvs(e.Kv), r.kvs(e.PrevKv))
		}
		m.CancelReason = Text(m.CancelReason)
	case *etcdserverpb.LeaseGrantResponse:
		each(r.own(&m.ID))
		m.Error = Text(m.Error)
	case *etcdserverpb.LeaseKeepAliveResponse:
		each(r.own(&m.ID))
	case *etcdserverpb.LeaseTimeToLiveResponse:
		each(r.own(&m.ID))
		for i := range m.Keys {
			each(r.strip(&m.Keys[i]))
		}
	}
	return err
}

func (r reference) kvs(kvs ...*mvccpb.KeyValue) error {
	for _, kv := range kvs {
		if kv == nil {
			continue
		}
		if err := r.strip(&kv.Key); err != nil {
			return err
		}
		if r.own(&kv.Lease) != nil {
			kv.Lease = 1<<43 - 1
		}
	}
	return nil
}

func (r reference) strip(key *[]byte) error {
	own, ok := bytes.CutPrefix(*key, []byte(r.prefix))
	if !ok || len(own) == 0 {
		return fmt.Errorf("key %q", *key)
	}
	*key = own
	return nil
}

func (r reference) own(id *int64) error {
	if *id == 0 {
		return nil
	}
	if *id/(1<<43) != r.number || *id < 0 {
		return fmt.Errorf("lease %d", *id)
	}
	*id %= 1 << 43
	return nil
}

// inside returns an error for the first key or lease in a request that is outside of the namespace. It knows no
// messages, and checks every field named key, range_end, lease or ID.
func (r reference) inside(m protoreflect.Message) (err error) {
	from, to := r.prefix, string(r.prefixEnd())
	name := m.Descriptor().Name()
	key := m.Descriptor().Fields().ByName("key")
	if key != nil {
		k, e := string(m.Get(key).Bytes()), ""
		if end := m.Descriptor().Fields().ByName("range_end"); end != nil {
			e = string(m.Get(end).Bytes())
		}
		if k == "" && (e != "" || name == "WatchCreateRequest") {
			return fmt.Errorf("%s: a range from the first key to %q", name, e)
		}
		if k != "" && (k < from || k >= to) || e != "" && (e < from || e > to) {
			return fmt.Errorf("%s: key %q to %q", name, k, e)
		}
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Kind() == protoreflect.MessageKind && f.IsList():
			for i := range v.List().Len() {
				if err = r.inside(v.List().Get(i).Message()); err != nil {
					return false
				}
			}
		case f.Kind() == protoreflect.MessageKind:
			err = r.inside(v.Message())
		case f.Name() == "lease" && name != "Compare" || f.Name() == "ID":
			if v.Int()>>43 != r.number {
				err = fmt.Errorf("%s: lease %d", name, v.Int())
			}
		}
		return err == nil
	})
	return err
}

// unknownFields reports whether there are fields that etcd's types do not have.
func unknownFields(m protoreflect.Message) bool {
	if len(m.GetUnknown()) > 0 {
		return true
	}
	found := false
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Kind() == protoreflect.MessageKind && f.IsList():
			for i := range v.List().Len() {
				found = found || unknownFields(v.List().Get(i).Message())
			}
		case f.Kind() == protoreflect.MessageKind:
			found = found || unknownFields(v.Message())
		}
		return !found
	})
	return found
}
