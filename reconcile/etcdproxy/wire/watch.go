package wire

import (
	"bytes"

	"google.golang.org/protobuf/encoding/protowire"
)

// WatchNothing appends a request to create a watch that never has an event: it filters out both kinds. The ID
// is left out if it is 0.
func (s *Space) WatchNothing(dst []byte, id int64) []byte {
	create := appendBytes(nil, 1, append(bytes.Clone(s.prefix), first...))
	create = appendBytes(create, 5, []byte{0, 1}) // NOPUT, NODELETE
	if id != 0 {
		create = appendNumber(create, 7, id)
	}
	return appendBytes(dst, Create, create)
}

// CancelWatch appends a request to cancel a watch.
func CancelWatch(dst []byte, id int64) []byte {
	return appendBytes(dst, Cancel, appendNumber(nil, 1, id))
}

// CanceledWatch appends a response that cancels a watch, with the compact revision, unless it is 0, and the
// reason, unless it is empty.
func CanceledWatch(dst, header []byte, id, compacted int64, reason string) []byte {
	dst = appendBytes(dst, 1, header)
	dst = appendNumber(dst, 2, id)
	dst = appendNumber(dst, 4, 1)
	if compacted != 0 {
		dst = appendNumber(dst, 5, compacted)
	}
	if reason != "" {
		dst = appendBytes(dst, 6, []byte(reason))
	}
	return dst
}

// AppendLease appends the ID of the lease to a request to grant a lease. The ID is the tenant's.
func (s *Space) AppendLease(dst []byte, id int64) []byte {
	return appendNumber(dst, 2, s.Lease(id))
}

func appendNumber(dst []byte, num protowire.Number, v int64) []byte {
	dst = protowire.AppendTag(dst, num, protowire.VarintType)
	return protowire.AppendVarint(dst, uint64(v))
}
