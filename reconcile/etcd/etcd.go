// Package etcd provisions etcd namespaces, as the administrator of an etcd.
//
// An [Admin] owns
//   - what a namespace has in etcd (provision.go): its record in the registry, which is
//     the authority on numbers and prefixes, a role that is the range of the prefix, and
//     a user of that role without a password;
//   - its removal, with or without its keys (remove.go);
//   - compaction (compact.go), and what is there (status.go), with the sizes of
//     namespaces (measure.go).
//
// Every step may be the last before a crash: each method may be called again, and goes on.
//
// Neighbours: connect connects, and finds out whether an etcd can be used; registry reads
// and checks records, and is pure; identity keeps the certificates of a namespace; embedded
// is an etcd inside gitopsd. reconcile/etcdproxy serves namespaces, and render/etcd is
// their vocabulary.
package etcd

import (
	"context"

	"gitopsd.dev/reconcile/etcd/connect"
	"gitopsd.dev/render/etcd"
)

// What an etcd is and how it is reached is told by package connect.
type (
	Config = connect.Config
	Server = connect.Server
	Member = connect.Member
)

// Admin administers an etcd. Its methods connect anew each time, and may be called at
// the same time.
type Admin struct {
	cfg   Config
	sizes *sizes
}

// Open makes an Admin. It reads no file and asks nobody.
func Open(c Config) (*Admin, error) {
	c, err := c.Complete()
	if err != nil {
		return nil, err
	}
	return &Admin{cfg: c, sizes: newSizes()}, nil
}

// session is one operation's connection.
type session struct {
	*connect.Session
	// made reports whether something of the namespace at hand was made in etcd.
	made bool
}

// connect connects for one operation. The caller closes the session.
func (a *Admin) connect(ctx context.Context) (*session, error) {
	s, err := connect.Connect(ctx, a.cfg)
	if err != nil {
		return nil, err
	}
	return &session{Session: s}, nil
}

// Check reports whether the etcd can be used, and who it is. The error says what to do;
// nothing is changed.
func (a *Admin) Check(ctx context.Context) (Server, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	s, err := a.connect(ctx)
	if err != nil {
		return Server{}, err
	}
	defer s.Close()
	return s.Server, nil
}

// Snapshot writes a snapshot of the whole etcd into a new file.
func (a *Admin) Snapshot(ctx context.Context, file string) error {
	return connect.Snapshot(ctx, a.cfg, file)
}

// Wanted is a namespace that is to be there.
type Wanted struct {
	ID etcd.ID
	// UID is that of the EtcdNamespace; see [registry.Owner].
	UID string
	// Prefix is where the keys are; empty means the default.
	Prefix string
	// Adopt takes over a record of another fleet or object, and keys that are there
	// without a record.
	Adopt bool
}

// Provisioned is what came of a Wanted.
type Provisioned struct {
	ID     etcd.ID
	Number int64
	Prefix string
	// Repaired says what somebody had changed and was changed back.
	Repaired []string
	// Err is why the namespace cannot be used; it says what to do.
	Err error
}

// Deletion is what happens to the keys of a namespace that is no longer declared.
type Deletion string

// Deletions.
const (
	Retain Deletion = "Retain"
	Delete Deletion = "Delete"
)

// Removal is how far a removal got.
type Removal struct {
	// Done reports whether nothing is left to do. If not, remove again.
	Done bool
	// Deleted is how many keys this call deleted, and Left how many are still there.
	Deleted, Left int64
}
