// Package etcd provisions etcd namespaces, as the administrator of an etcd.
//
// An [Admin] owns
//   - a namespace's record in the registry, which decides on numbers and prefixes, its role for
//     the range of the prefix, and its user without a password (provision.go);
//   - its removal, with or without its keys (remove.go);
//   - compaction (compact.go);
//   - the status of namespaces (status.go), with their sizes (measure.go);
//   - access to the keys of a namespace (inside.go).
//
// Any step may be the last before a crash: each method may be called again, and continues.
//
// Neighbours: connect connects to an etcd, and checks that it can be used; registry reads and
// checks records, and is pure; identity keeps the certificates of a namespace; namespaces
// reconciles EtcdNamespaces; publish writes into the namespaces of clusters; embedded is an etcd
// inside gitopsd. reconcile/etcdproxy serves namespaces, and render/etcd has their types.
package etcd

import (
	"context"

	"gitopsd.dev/reconcile/etcd/connect"
	"gitopsd.dev/render/etcd"
)

// Types of package connect.
type (
	Config = connect.Config
	Server = connect.Server
	Member = connect.Member
)

// Admin administers an etcd. Its methods connect anew each time, and may be called concurrently.
type Admin struct {
	cfg   Config
	sizes *sizes
}

// Open returns an Admin. It reads no file and sends nothing.
func Open(c Config) (*Admin, error) {
	c, err := c.Complete()
	if err != nil {
		return nil, err
	}
	return &Admin{cfg: c, sizes: newSizes()}, nil
}

// session is the connection of one operation.
type session struct {
	*connect.Session
	// made reports whether a part of the current namespace was created in etcd.
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

// Check returns the etcd if it can be used. The error says what to do. Check changes nothing.
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

// Wanted is a declared namespace.
type Wanted struct {
	ID etcd.ID
	// UID identifies the cluster; see [registry.Owner].
	UID string
	// Prefix is the prefix of the keys; empty means the default.
	Prefix string
	// Adopt takes over the record of another fleet or cluster, and existing keys without a record.
	Adopt bool
}

// Provisioned is the result for a Wanted.
type Provisioned struct {
	ID     etcd.ID
	Number int64
	Prefix string
	// Repaired lists changes by others that were reverted.
	Repaired []string
	// Err is why the namespace cannot be used, and what to do.
	Err error
}

// Deletion says what happens to the keys of a namespace that is no longer declared.
type Deletion string

// Deletions.
const (
	Retain Deletion = "Retain"
	Delete Deletion = "Delete"
)

// Removal is the progress of a removal.
type Removal struct {
	// Done reports whether the removal is complete. If not, remove again.
	Done bool
	// Deleted is how many keys this call deleted, and Left how many are left.
	Deleted, Left int64
}
