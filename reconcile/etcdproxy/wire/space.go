// Package wire rewrites the messages of etcd's API between a tenant's view of its keys and leases
// and what etcd has.
//
// A table for each message says of each field what it is: a key, the end of a range, the ID of a
// lease, a message inside, or nothing that matters here. [Space.Request] puts the prefix before
// each key and turns leases into the namespace's own; [Space.Response] is the way back, and fails
// if there is anything in a response that is not the namespace's. A field that a table does not
// have fails both: a newer etcd may carry a key in it.
//
//   - space.go: [Space], keys, ranges and leases
//   - table.go: what tables are made of
//   - requests.go, responses.go: the tables
//   - rewrite.go: the one loop over fields, and what is noted on the way
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

// NewSpace returns the space of a namespace with a prefix, which is not empty and does not consist
// of 0xff, and a number; see [etcd.Namespace].
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

// span returns the key and the end of the range in etcd for those that a tenant gave.
//
// An empty key stays empty, and has no range: etcd refuses it, as it would have the tenant's. A
// range that is empty, since it ends where it begins or before, stays empty, but begins inside of
// the namespace and ends where it begins: etcd's check of permissions lets that pass.
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

// watchSpan is span for a watch, where an empty key is the first one.
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
	// noLease is an ID that no lease has: it stands for one that the tenant does not have.
	noLease = leaseMask
)

// Lease returns the ID in etcd of a tenant's lease; 0 is no lease. IDs that no tenant's lease can
// have become one that does not exist.
func (s *Space) Lease(id int64) int64 {
	switch {
	case id == 0:
		return 0
	case id < 0 || id > MaxLease:
		id = noLease
	}
	return s.number<<etcd.LeaseBits | id
}

// compared returns what stands for a number that a transaction compares leases with: the order
// between it and the tenant's leases stays.
func (s *Space) compared(id int64) int64 {
	if id < 0 {
		return id
	}
	return s.Lease(id)
}

// Own returns the tenant's ID of a lease in etcd, and reports whether it is one of the tenant's.
func (s *Space) Own(id int64) (own int64, ok bool) {
	if id == 0 {
		return 0, true
	}
	return id & leaseMask, id>>etcd.LeaseBits == s.number
}

// All returns the range in etcd of all the namespace's keys.
func (s *Space) All() (key, end []byte) { return bytes.Clone(s.prefix), bytes.Clone(s.end) }
