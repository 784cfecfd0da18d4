package wire

import (
	"bytes"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Bounds of transactions.
const (
	// maxDepth is how deep transactions may be nested.
	maxDepth = 16
	// maxOperations is the largest number of comparisons and operations, in both branches and nested
	// transactions. etcd by default allows 128 on each level.
	maxOperations = 4096
)

// Error says why a message is not passed on.
type Error struct {
	// TooMany reports whether a transaction is too large.
	TooMany bool
	text    string
}

func (e *Error) Error() string { return e.text }

func errorf(format string, args ...any) error {
	return &Error{text: fmt.Sprintf(format, args...)}
}

// Notes say what was seen in a message while it was rewritten. Slices are parts of the message.
type Notes struct {
	// Puts are the keys that the request may put, in both branches of transactions. Txns says which
	// branch each transaction is in: the request itself first, and outer before inner ones.
	Puts []Put
	Txns []Branch
	// Deletes is the number of delete operations in transactions.
	Deletes int
	// Values is the number of operations that return values, and Wide reports whether there is a
	// range of keys. Together they say whether the response may be large.
	Values int
	Wide   bool
	// Member is the kind of a request of a stream of watches: [Create], [Cancel] or [Progress];
	// 0 for none of them.
	Member protowire.Number
	// Revision is the lowest revision above 0 that the request reads at, watches from or compacts to.
	Revision int64
	// Watch is the ID of a watch.
	Watch int64
	// Lease is the ID of a lease before rewriting: the tenant's in a request, etcd's in a response.
	Lease int64
	// Action is the action of a request about alarms.
	Action int64
	// Header is the header of a response.
	Header []byte
	// Created and Canceled are fields of a response about a watch, and Reason is etcd's reason to
	// cancel it.
	Created, Canceled bool
	Reason            []byte
}

// Put is a key to put.
type Put struct {
	// Key is the tenant's.
	Key []byte
	// Bytes is the size of the value; Same reports whether an existing value stays.
	Bytes int
	Same  bool
	// Branch is the branch that the put is in.
	Branch
}

// Branch is a branch of a transaction.
type Branch struct {
	// Txn is the index of the transaction in [Notes.Txns]; -1 for outside of transactions.
	Txn int
	// Else reports whether it is the branch for a comparison that fails.
	Else bool
}

// Kinds of requests of a stream of watches.
const (
	Create   = 1
	Cancel   = 2
	Progress = 3
)

func (n *Notes) take(f field, num protowire.Number, v uint64, b []byte) {
	switch f.note {
	case noteHeader:
		n.Header = b
	case noteMember:
		n.Member = num
	case noteRevision:
		if v := int64(v); v > 0 && (n.Revision == 0 || v < n.Revision) {
			n.Revision = v
		}
	case noteWatch:
		n.Watch = int64(v)
	case noteLease:
		n.Lease = int64(v)
	case noteCreated:
		n.Created = v != 0
	case noteCanceled:
		n.Canceled = v != 0
	case noteReason:
		n.Reason = b
	case noteAction:
		n.Action = int64(v)
	case noteDeletes:
		n.Deletes++
	case noteValues:
		n.Values++
	case notePrevious:
		if v != 0 {
			n.Values++
		}
	}
}

// Request appends the request for etcd that stands for a tenant's request. Errors are of type [*Error].
func (s *Space) Request(dst []byte, m *Message, src []byte, notes *Notes) ([]byte, error) {
	r := rewrite{space: s, notes: notes, request: true, branch: Branch{Txn: -1}}
	return r.message(dst, m, src, 0)
}

// Response appends the response for a tenant that stands for etcd's response, and is about as large. Errors are
// of type [*Error], and say nothing about the content.
func (s *Space) Response(dst []byte, m *Message, src []byte, notes *Notes) ([]byte, error) {
	r := rewrite{space: s, notes: notes}
	return r.message(dst, m, src, 0)
}

// rewrite rewrites one message with those inside.
type rewrite struct {
	space      *Space
	notes      *Notes
	request    bool
	operations int
	branch     Branch // of a request
}

// fields are the fields of a message seen so far.
type fields struct {
	seen     uint64 // a bit for each number
	union    bool
	key, end []byte
	put      Put
}

func (r *rewrite) message(dst []byte, m *Message, src []byte, depth int) ([]byte, error) {
	if err := r.bound(m, depth); err != nil {
		return nil, err
	}
	within := r.branch
	if m.nests && r.request {
		r.branch = Branch{Txn: len(r.notes.Txns)}
		r.notes.Txns = append(r.notes.Txns, within)
	}
	var have fields
	passed := 0 // where the fields that pass unchanged begin
	for at := 0; at < len(src); {
		num, typ, n := protowire.ConsumeTag(src[at:])
		if n < 0 {
			return nil, errorf("%s: not a message of protobuf", m.name)
		}
		body := at + n
		f := m.field(num)
		if err := have.check(m, f, num, typ); err != nil {
			return nil, err
		}
		v, b, n := consume(typ, src[body:])
		if n < 0 {
			return nil, errorf("%s: field %d ends too early", m.name, num)
		}
		r.notes.take(f, num, v, b)
		next := body + n
		if f.kind == number || f.kind == numbers || f.kind == data {
			have.note(m, num, v, b)
			at = next
			continue
		}
		dst = append(dst, src[passed:at]...)
		if m.nests {
			r.branch.Else = num == txnFailure
		}
		var err error
		if dst, err = r.field(dst, f, num, v, b, &have, depth); err != nil {
			return nil, err
		}
		at, passed = next, next
	}
	dst = append(dst, src[passed:]...)
	r.branch = within
	if !r.request {
		if m.key != 0 && have.key == nil {
			return nil, errorf("%s: without a key", m.name)
		}
		return dst, nil
	}
	if m.put {
		have.put.Key, have.put.Branch = have.key, r.branch
		r.notes.Puts = append(r.notes.Puts, have.put)
	}
	if m.span != nil {
		r.notes.Wide = r.notes.Wide || len(have.end) > 0
		from, to := m.span(r.space, have.key, have.end)
		dst = appendPoint(appendPoint(dst, m.key, from), m.end, to)
	}
	return dst, nil
}

// bound counts operations and depth.
func (r *rewrite) bound(m *Message, depth int) error {
	if m.nests && depth > 2*maxDepth { // each is inside an operation
		return &Error{TooMany: true, text: fmt.Sprintf("transactions are nested more than %d deep", maxDepth)}
	}
	if r.operations += m.ops; r.operations > maxOperations {
		return &Error{TooMany: true, text: fmt.Sprintf("more than %d operations in a transaction", maxOperations)}
	}
	return nil
}

// check returns an error for a field that must not be there.
func (have *fields) check(m *Message, f field, num protowire.Number, typ protowire.Type) error {
	switch {
	case f.kind == unknown:
		return errorf("%s: field %d is not known to this proxy", m.name, num)
	case typ != f.wireType() && !(f.kind == numbers && typ == protowire.VarintType):
		return errorf("%s: field %d is of the wrong type", m.name, num)
	case f.repeated:
		return nil
	}
	bit := uint64(1) << (num % 64)
	if have.seen&bit != 0 {
		return errorf("%s: field %d is there twice", m.name, num)
	}
	have.seen |= bit
	if f.union && have.union {
		return errorf("%s: field %d is there beside one that excludes it", m.name, num)
	}
	have.union = have.union || f.union
	return nil
}

// note records a field that passes, if it matters for a put.
func (have *fields) note(m *Message, num protowire.Number, v uint64, b []byte) {
	if !m.put {
		return
	}
	switch num {
	case putValue:
		have.put.Bytes = len(b)
	case putIgnoreValue:
		have.put.Same = v != 0
	}
}

// field appends a field that is rewritten.
func (r *rewrite) field(dst []byte, f field, num protowire.Number, v uint64, b []byte, have *fields, depth int) ([]byte, error) {
	switch f.kind {
	case granted:
		return dst, nil
	case key:
		if r.request {
			have.key = b
			return dst, nil
		}
		have.key = b
		own, ok := bytes.CutPrefix(b, r.space.prefix)
		if !ok || len(own) == 0 { // the key at the prefix itself is the proxy's
			return nil, errorf("a key that is not the namespace's")
		}
		return appendBytes(dst, num, own), nil
	case end:
		have.end = b
		return dst, nil
	case text:
		return appendBytes(dst, num, []byte(Text(string(b)))), nil
	case message:
		return r.inside(dst, f, num, b, depth)
	}
	id, err := r.lease(f.kind, int64(v))
	if err != nil {
		return nil, err
	}
	dst = protowire.AppendTag(dst, num, protowire.VarintType)
	return protowire.AppendVarint(dst, uint64(id)), nil
}

func (r *rewrite) lease(k kind, id int64) (int64, error) {
	switch {
	case k == compared:
		return r.space.compared(id), nil
	case r.request:
		return r.space.Lease(id), nil
	}
	own, ok := r.space.Own(id)
	switch {
	case ok:
		return own, nil
	case k == attached:
		// A user with more rights attached the tenant's key to another lease.
		return noLease, nil
	}
	return 0, errorf("a lease that is not the namespace's")
}

// inside appends a field that is a message. Its length is known only afterwards, but rarely needs a different
// number of bytes.
func (r *rewrite) inside(dst []byte, f field, num protowire.Number, b []byte, depth int) ([]byte, error) {
	dst = protowire.AppendTag(dst, num, protowire.BytesType)
	guess := protowire.SizeVarint(uint64(len(b)))
	at := len(dst)
	dst = append(dst, zeros[:guess]...)
	dst, err := r.message(dst, f.of, b, depth+1)
	if err != nil {
		return nil, err
	}
	size := len(dst) - at - guess
	need := protowire.SizeVarint(uint64(size))
	if need > guess {
		dst = append(dst, zeros[:need-guess]...)
	}
	if need != guess {
		copy(dst[at+need:], dst[at+guess:at+guess+size])
		dst = dst[:at+need+size]
	}
	protowire.AppendVarint(dst[:at], uint64(size))
	return dst, nil
}

var zeros [10]byte

// appendPoint appends a key in etcd, unless it is the zero point.
func appendPoint(dst []byte, num protowire.Number, p point) []byte {
	if len(p.head) == 0 {
		return dst
	}
	dst = protowire.AppendTag(dst, num, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(len(p.head)+len(p.tail)))
	return append(append(dst, p.head...), p.tail...)
}

func appendBytes(dst []byte, num protowire.Number, b []byte) []byte {
	dst = protowire.AppendTag(dst, num, protowire.BytesType)
	return protowire.AppendBytes(dst, b)
}

// consume returns the content of a field and its size, which is negative if the field is cut off.
func consume(typ protowire.Type, src []byte) (v uint64, b []byte, n int) {
	if typ == protowire.VarintType {
		v, n = protowire.ConsumeVarint(src)
		return v, nil, n
	}
	b, n = protowire.ConsumeBytes(src)
	return 0, b, n
}
