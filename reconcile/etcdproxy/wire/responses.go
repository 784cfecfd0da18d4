package wire

// Responses, as etcd 3.7 has them.
var (
	RangeResponse = &Message{name: "RangeResponse", fields: []field{
		1: {kind: message, note: noteHeader, of: responseHeader},
		2: {kind: message, repeated: true, of: keyValue},
		3: {kind: number}, // more
		4: {kind: number}, // count
	}}
	RangeStreamResponse = &Message{name: "RangeStreamResponse", fields: []field{
		1: {kind: message, of: RangeResponse},
	}}
	PutResponse = &Message{name: "PutResponse", fields: []field{
		1: {kind: message, note: noteHeader, of: responseHeader},
		2: {kind: message, of: keyValue},
	}}
	DeleteRangeResponse = &Message{name: "DeleteRangeResponse", fields: []field{
		1: {kind: message, note: noteHeader, of: responseHeader},
		2: {kind: number}, // deleted
		3: {kind: message, repeated: true, of: keyValue},
	}}
	TxnResponse   = &Message{name: "TxnResponse", nests: true} // filled in by init
	WatchResponse = &Message{name: "WatchResponse", fields: []field{
		1:  {kind: message, note: noteHeader, of: responseHeader},
		2:  {kind: number, note: noteWatch},
		3:  {kind: number, note: noteCreated},
		4:  {kind: number, note: noteCanceled},
		5:  {kind: number}, // compact_revision
		6:  {kind: text, note: noteReason},
		7:  {kind: number}, // fragment
		11: {kind: message, repeated: true, of: event},
	}}
	LeaseGrantResponse = &Message{name: "LeaseGrantResponse", fields: []field{
		1: {kind: message, note: noteHeader, of: responseHeader},
		2: {kind: lease, note: noteLease},
		3: {kind: number}, // TTL
		4: {kind: text},   // error
	}}
	LeaseRevokeResponse    = &Message{name: "LeaseRevokeResponse", fields: headerOnly}
	LeaseKeepAliveResponse = &Message{name: "LeaseKeepAliveResponse", fields: []field{
		1: {kind: message, note: noteHeader, of: responseHeader},
		2: {kind: lease, note: noteLease},
		3: {kind: number}, // TTL
	}}
	LeaseTimeToLiveResponse = &Message{name: "LeaseTimeToLiveResponse", fields: []field{
		1: {kind: message, note: noteHeader, of: responseHeader},
		2: {kind: lease, note: noteLease},
		3: {kind: number}, // TTL
		4: {kind: number}, // grantedTTL
		5: {kind: key, repeated: true},
	}}
)

var headerOnly = []field{1: {kind: message, note: noteHeader, of: responseHeader}}

var responseHeader = &Message{name: "ResponseHeader", fields: []field{
	1: {kind: number}, // cluster_id
	2: {kind: number}, // member_id
	3: {kind: number}, // revision
	4: {kind: number}, // raft_term
}}

var keyValue = &Message{name: "KeyValue", key: 1, fields: []field{
	1: {kind: key},
	2: {kind: number}, // create_revision
	3: {kind: number}, // mod_revision
	4: {kind: number}, // version
	5: {kind: data},   // value
	6: {kind: attached},
}}

var event = &Message{name: "Event", fields: []field{
	1: {kind: number}, // type
	2: {kind: message, of: keyValue},
	3: {kind: message, of: keyValue},
}}

var responseOp = &Message{name: "ResponseOp", ops: 1, fields: []field{
	1: {kind: message, union: true, of: RangeResponse},
	2: {kind: message, union: true, of: PutResponse},
	3: {kind: message, union: true, of: DeleteRangeResponse},
	4: {kind: message, union: true, of: TxnResponse},
}}
