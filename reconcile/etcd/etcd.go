// Package etcd provisions etcd namespaces, as the administrator of an etcd.
//
// An [Admin] owns
//   - the connection (connect.go) and what an etcd must be before anything is done in it
//     (check.go): its version, and authentication by client certificates. gitopsd changes
//     neither; it says what to do;
//   - what a namespace has in etcd (provision.go): its record in the registry, which is
//     the authority on numbers and prefixes, a role that is the range of the prefix, and
//     a user of that role without a password;
//   - its removal, with or without its keys (remove.go);
//   - compaction (compact.go), and what is there (status.go).
//
// Every step may be the last before a crash: each method may be called again, and goes on.
//
// Neighbours: registry reads and checks records, and is pure; identity keeps the
// certificates of a namespace; embedded is an etcd inside gitopsd. reconcile/etcdproxy
// serves namespaces, and render/etcd is their vocabulary.
package etcd

import (
	"log/slog"
	"time"

	"google.golang.org/grpc"

	"gitopsd.dev/render/etcd"
)

// Config configures an [Admin].
type Config struct {
	Log *slog.Logger
	// Endpoints are the client URLs of the members, all https.
	Endpoints []string
	// CAFile has the CAs of the members' certificates. CertFile and KeyFile are the
	// certificate of a user with etcd's root role. They are read for each operation, so
	// that they can be replaced at any time.
	CAFile, CertFile, KeyFile string
	// ClientCACertFile and ClientCAKeyFile are a CA that etcd trusts for clients. It
	// signs the certificates of namespaces' users.
	ClientCACertFile, ClientCAKeyFile string
	// Fleet distinguishes the records of this fleet from those of others.
	Fleet string
	// MayCompact reports whether gitopsd may compact the etcd, which it does for
	// everybody in it.
	MayCompact bool
	// DialTimeout bounds how long a member may take to answer at first, and Timeout a
	// whole operation. Zero means 5 and 30 seconds.
	DialTimeout, Timeout time.Duration

	// intercept are called around each request, in tests.
	intercept []grpc.UnaryClientInterceptor
}

// Admin administers an etcd. Its methods connect anew each time, and may be called at
// the same time.
type Admin struct{ cfg Config }

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

// Server is an etcd that may be used.
type Server struct {
	// Members are those that answered.
	Members []Member
	// Notes say what people should know, such as members that do not answer.
	Notes []string
}

// Member is a member of an etcd.
type Member struct {
	Endpoint, Version string
	// Bytes is the size of its database and Quota the largest that it may have.
	Bytes, Quota int64
	// Revision is the newest that it has.
	Revision int64
}
