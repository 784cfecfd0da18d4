// Package wire rewrites the messages of etcd's API between a tenant's view of its keys and leases
// and etcd's.
//
// Each message has a table with the kind of each field: a key, the end of a range, the ID of a
// lease, a message inside, or nothing that matters here. [Space.Request] adds the prefix to each
// key and the namespace's number to each lease. [Space.Response] removes them, and fails if
// anything in a response is not the namespace's. Both fail for a field that is not in the table:
// a newer etcd may carry a key in it.
//
//   - space.go: [Space], keys, ranges and leases
//   - table.go: the types of tables
//   - requests.go, responses.go: the tables
//   - rewrite.go: the loop over fields, and [Notes]
//   - watch.go: messages of the proxy's own
//   - texts.go: texts of etcd that a tenant may see
//
// The package is pure. It works on bytes: values, which are most of each message, are copied
// once and never decoded.
package wire

import (
	"bytes"

	"gitopsd.dev/render/etcd"
)

// Space is where a namespace's keys and leases are in etcd.
type Space struct {
	prefix, end []byte // its keys are in [prefix, end)
	number      int64
}

// NewSpace returns the space of a namespace with a prefix and a number; see [etcd.Namespace]. The prefix has a
// byte other than 0xff.
func NewSpace(prefix string, number int64) *Space {
	end := []byte(prefix)
	for end[len(end)-1] == 0xff {
		end = end[:len(end)-1]
	}
	end[len(end)-1]++
	return &Space{prefix: []byte(prefix), end: end, number: number}
}

// point is a key in etcd, in two parts; the zero point is no key.
type point struct{ head, tail []byte }

// span returns the range in etcd for a tenant's key and end of a range.
//
// An empty key stays empty, without an end: etcd refuses it, as it would refuse the tenant's. An empty range,
// whose end is not after the key, becomes an empty range inside the namespace that ends where it begins: etcd's
// permission check accepts it.
func (s *Space) span(key, end []byte) (from, to point) {
	switch {
	case len(key) == 0:
		return point{}, point{}
	case len(end) == 0:
		return point{s.prefix, key}, point{}
	case isOpen(end):
		return point{s.prefix, key}, point{s.end, nil}
	case bytes.Compare(key, end) >= 0:
		return point{s.prefix, first}, point{s.prefix, first}
	}
	return point{s.prefix, key}, point{s.prefix, end}
}

// watchSpan is span for a watch, where an empty key stands for the first key.
func (s *Space) watchSpan(key, end []byte) (from, to point) {
	if len(key) == 0 {
		key = first
	}
	return s.span(key, end)
}

// first is the first of all keys.
var first = []byte{0}

// isOpen reports whether the end of a range stands for the end of all keys.
func isOpen(end []byte) bool { return len(end) == 1 && end[0] == 0 }

const (
	// leaseMask is the part of a lease's ID in etcd that is the tenant's.
	leaseMask = 1<<etcd.LeaseBits - 1
	// MaxLease is the largest ID that a tenant's lease may have.
	MaxLease = leaseMask - 1
	// noLease is an ID that no lease has. It stands for IDs that the tenant cannot have.
	noLease = leaseMask
)

// Lease returns the ID in etcd of a tenant's lease; 0 is no lease. An ID that a tenant's lease cannot have
// becomes one that does not exist.
func (s *Space) Lease(id int64) int64 {
	switch {
	case id == 0:
		return 0
	case id < 0 || id > MaxLease:
		id = noLease
	}
	return s.number<<etcd.LeaseBits | id
}

// compared returns the number in etcd for a number that a transaction compares leases with. It keeps the order
// among the tenant's leases.
func (s *Space) compared(id int64) int64 {
	if id < 0 {
		return id
	}
	return s.Lease(id)
}

// Own returns the tenant's ID of a lease in etcd, and reports whether the lease is the tenant's.
func (s *Space) Own(id int64) (own int64, ok bool) {
	if id == 0 {
		return 0, true
	}
	return id & leaseMask, id>>etcd.LeaseBits == s.number
}

// All returns the range in etcd of the namespace's keys.
func (s *Space) All() (key, end []byte) { return bytes.Clone(s.prefix), bytes.Clone(s.end) }
