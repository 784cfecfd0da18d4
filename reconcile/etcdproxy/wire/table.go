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
	granted              // the ID that a lease is to have: noted and left out, for the caller to add
)

// field is a field of a message.
type field struct {
	kind kind
	// repeated fields may come more than once. Any other that does is refused, also where
	// protobuf would merge or take the last: there is one way to say what is meant.
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

// Message is the table of a message: its fields by their numbers.
type Message struct {
	name string
	// fields are those with small numbers.
	fields []field
	// last is the field 64, the end of a compared range, as etcd has it.
	last field
	// key and end are the numbers of the key and of the end of a range; 0 for none. A
	// response is to have a key then.
	key, end protowire.Number
	// span says how they belong together in a request, as [Space.span].
	span func(s *Space, key, end []byte) (from, to point)
	// put marks a request to put a key, of which [Notes] have a list.
	put bool
	// ops is how many operations of a transaction one of these is.
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

// note is what is remembered of a field; see [Notes].
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
