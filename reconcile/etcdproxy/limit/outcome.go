package limit

import "google.golang.org/protobuf/encoding/protowire"

// Outcome returns the revision in the header of a PutResponse, DeleteRangeResponse or TxnResponse, and whether a
// transaction succeeded. It parses nothing else.
func Outcome(response []byte) (revision int64, succeeded bool) {
	const (
		header, success = 1, 2 // of either response
		headerRevision  = 3
	)
	fields(response, func(num protowire.Number, v uint64, b []byte) {
		switch {
		case num == header:
			fields(b, func(num protowire.Number, v uint64, b []byte) {
				if num == headerRevision && b == nil {
					revision = int64(v)
				}
			})
		case num == success && b == nil: // a PutResponse has the previous value there
			succeeded = v != 0
		}
	})
	return revision, succeeded
}

// fields calls yield for the numbers, with a nil b, and the bytes in a message, up to the first malformed field.
func fields(message []byte, yield func(num protowire.Number, v uint64, b []byte)) {
	for len(message) > 0 {
		num, typ, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		message = message[n:]
		switch typ {
		case protowire.VarintType:
			var v uint64
			if v, n = protowire.ConsumeVarint(message); n >= 0 {
				yield(num, v, nil)
			}
		case protowire.BytesType:
			var b []byte
			if b, n = protowire.ConsumeBytes(message); n >= 0 {
				yield(num, 0, b[:len(b):len(b)])
			}
		default:
			n = protowire.ConsumeFieldValue(num, typ, message)
		}
		if n < 0 {
			return
		}
		message = message[n:]
	}
}
