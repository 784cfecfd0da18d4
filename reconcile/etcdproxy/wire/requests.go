package wire

// Requests, as etcd 3.7 has them (api/etcdserverpb/rpc.proto).
var (
	RangeRequest = &Message{name: "RangeRequest", key: 1, end: 2, span: (*Space).span, fields: []field{
		1:  {kind: key},
		2:  {kind: end},
		3:  {kind: number}, // limit
		4:  {kind: number, note: noteRevision},
		5:  {kind: number}, // sort_order
		6:  {kind: number}, // sort_target
		7:  {kind: number}, // serializable
		8:  {kind: number}, // keys_only
		9:  {kind: number}, // count_only
		10: {kind: number}, // min_mod_revision
		11: {kind: number}, // max_mod_revision
		12: {kind: number}, // min_create_revision
		13: {kind: number}, // max_create_revision
	}}
	PutRequest = &Message{name: "PutRequest", key: 1, span: (*Space).span, put: true, fields: []field{
		1:              {kind: key},
		putValue:       {kind: data},
		3:              {kind: lease},
		4:              {kind: number, note: notePrevious},
		putIgnoreValue: {kind: number},
		6:              {kind: number}, // ignore_lease
	}}
	DeleteRangeRequest = &Message{name: "DeleteRangeRequest", key: 1, end: 2, span: (*Space).span, fields: []field{
		1: {kind: key},
		2: {kind: end},
		3: {kind: number, note: notePrevious},
	}}
	TxnRequest        = &Message{name: "TxnRequest", nests: true} // filled in by init: it may be in itself
	CompactionRequest = &Message{name: "CompactionRequest", fields: []field{
		1: {kind: number, note: noteRevision},
		2: {kind: number}, // physical
	}}
	WatchRequest = &Message{name: "WatchRequest", fields: []field{
		Create:   {kind: message, union: true, note: noteMember, of: watchCreateRequest},
		Cancel:   {kind: message, union: true, note: noteMember, of: &Message{name: "WatchCancelRequest", fields: []field{1: {kind: number, note: noteWatch}}}},
		Progress: {kind: message, union: true, note: noteMember, of: &Message{name: "WatchProgressRequest"}},
	}}
	LeaseGrantRequest = &Message{name: "LeaseGrantRequest", fields: []field{
		1: {kind: number}, // TTL
		2: {kind: granted, note: noteLease},
	}}
	LeaseRevokeRequest     = &Message{name: "LeaseRevokeRequest", fields: leaseID}
	LeaseKeepAliveRequest  = &Message{name: "LeaseKeepAliveRequest", fields: leaseID}
	LeaseTimeToLiveRequest = &Message{name: "LeaseTimeToLiveRequest", fields: []field{
		1: {kind: lease, note: noteLease},
		2: {kind: number}, // keys
	}}
	// Requests that the proxy answers by itself.
	LeaseLeasesRequest = &Message{name: "LeaseLeasesRequest"}
	StatusRequest      = &Message{name: "StatusRequest"}
	AlarmRequest       = &Message{name: "AlarmRequest", fields: []field{
		1: {kind: number, note: noteAction},
		2: {kind: number}, // memberID
		3: {kind: number}, // alarm
	}}
	MemberListRequest = &Message{name: "MemberListRequest", fields: []field{1: {kind: number}}} // linearizable
)

// Fields of PutRequest and of TxnRequest.
const (
	putValue       = 2
	putIgnoreValue = 5
	txnFailure     = 3
)

var leaseID = []field{1: {kind: lease, note: noteLease}}

var watchCreateRequest = &Message{name: "WatchCreateRequest", key: 1, end: 2, span: (*Space).watchSpan, fields: []field{
	1: {kind: key},
	2: {kind: end},
	3: {kind: number, note: noteRevision},
	4: {kind: number},                  // progress_notify
	5: {kind: numbers, repeated: true}, // filters
	6: {kind: number},                  // prev_kv
	7: {kind: number, note: noteWatch},
	8: {kind: number}, // fragment
}}

var compare = &Message{name: "Compare", key: 3, end: lastNumber, span: (*Space).span, ops: 1, fields: []field{
	1: {kind: number}, // result
	2: {kind: number}, // target
	3: {kind: key},
	4: {kind: number, union: true}, // version
	5: {kind: number, union: true}, // create_revision
	6: {kind: number, union: true}, // mod_revision
	7: {kind: data, union: true},   // value
	8: {kind: compared, union: true},
}, last: field{kind: end}}

var requestOp = &Message{name: "RequestOp", ops: 1, fields: []field{
	1: {kind: message, union: true, of: RangeRequest, note: noteValues},
	2: {kind: message, union: true, of: PutRequest},
	3: {kind: message, union: true, of: DeleteRangeRequest, note: noteDeletes},
	4: {kind: message, union: true, of: TxnRequest},
}}

func init() {
	TxnRequest.fields = []field{
		1: {kind: message, repeated: true, of: compare},
		2: {kind: message, repeated: true, of: requestOp},

		txnFailure: {kind: message, repeated: true, of: requestOp},
	}
	TxnResponse.fields = []field{
		1: {kind: message, note: noteHeader, of: responseHeader},
		2: {kind: number}, // succeeded
		3: {kind: message, repeated: true, of: responseOp},
	}
}
