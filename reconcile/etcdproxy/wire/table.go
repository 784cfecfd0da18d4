package wire

import "google.golang.org/protobuf/encoding/protowire"

// kind is what a field holds.
type kind uint8

const (
	unknown  kind = iota // not in the table: refused
	number               // a number that passes
	numbers              // several, packed or not, that pass
	data                 // bytes that pass: a value
	key                  // a key
	end                  // the end of a range
	lease                // the ID of a lease
	compared             // a number that leases are compared with
	attached             // the ID of the lease that a key is attached to
	text                 // a text of etcd; replaced unless known
	message              // a message inside
	granted              // the ID for a new lease: noted and left out; the caller adds one
)

// field is a field of a message.
type field struct {
	kind kind
	// repeated fields may occur more than once. A repetition of any other field is refused, even
	// though protobuf would merge them or take the last.
	repeated bool
	// union fields of a message exclude each other.
	union bool
	note  note
	of    *Message // for messages
}

// wireType returns how a field is encoded.
func (f field) wireType() protowire.Type {
	switch f.kind {
	case number, lease, compared, attached, granted:
		return protowire.VarintType
	}
	return protowire.BytesType
}

// Message is the table of a message: its fields by number.
type Message struct {
	name string
	// fields are the fields with small numbers.
	fields []field
	// last is field 64: the end of a compared range.
	last field
	// key and end are the numbers of the key and of the end of a range; 0 for none. A response
	// with a key field must have the key.
	key, end protowire.Number
	// span returns the range in etcd for a request's key and end, as [Space.span].
	span func(s *Space, key, end []byte) (from, to point)
	// put marks a request to put a key; see [Notes].
	put bool
	// ops is the number of operations that the message counts as.
	ops int
	// nests marks a transaction, which may be inside another.
	nests bool
}

// lastNumber is the number of [Message.last].
const lastNumber = 64

func (m *Message) field(n protowire.Number) field {
	switch {
	case int(n) < len(m.fields):
		return m.fields[n]
	case n == lastNumber:
		return m.last
	}
	return field{}
}

// note says which of the [Notes] has the field.
type note uint8

const (
	_ note = iota
	noteHeader
	noteMember
	noteRevision
	noteWatch
	noteLease
	noteCreated
	noteCanceled
	noteReason
	noteDeletes
	noteAction
	noteValues
	notePrevious
)
