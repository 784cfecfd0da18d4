package etcd

import (
	"context"
	"errors"
)

var errNotYet = errors.New("not yet")

// Open makes an Admin. It reads no file and asks nobody.
func Open(c Config) (*Admin, error) { return &Admin{c}, nil }

// Check reports whether the etcd can be used. The error says what to do.
func (a *Admin) Check(ctx context.Context) (Server, error) { return Server{}, errNotYet }

// Provision makes what the namespaces have in etcd. The error is about the etcd; what is
// about one namespace is in its Provisioned.
func (a *Admin) Provision(ctx context.Context, wanted []Wanted) ([]Provisioned, error) {
	return nil, errNotYet
}

// Remove removes a namespace, with its keys or without. It does a bounded amount of work.
func (a *Admin) Remove(ctx context.Context, w Wanted, how Deletion) (Removal, error) {
	return Removal{}, errNotYet
}

// Compact compacts the etcd at a revision.
func (a *Admin) Compact(ctx context.Context, revision int64) error { return errNotYet }

// EnsureStatus returns what the etcd has of this fleet's namespaces.
func (a *Admin) EnsureStatus(ctx context.Context) ([]Status, error) { return nil, errNotYet }
