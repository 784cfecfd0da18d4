// Package embedded is an etcd of one member inside gitopsd, in a directory.
package embedded

import (
	"context"
	"errors"
	"log/slog"

	admin "gitopsd.dev/reconcile/etcd"
)

// Config configures a [Server].
type Config struct {
	Log *slog.Logger
	// Dir has everything: data, certificates and keys. It is made with mode 0700.
	Dir string
	// Listen is the address for clients, as host:port; empty means 127.0.0.1:0.
	Listen string
	// Names are further DNS names and IP addresses that clients use.
	Names []string
	// QuotaBytes is the largest size of the database; zero means 2 GiB.
	QuotaBytes int64
}

// Server is a running etcd.
type Server struct{}

// Start starts the etcd, and prepares it if it is new. It returns once it serves.
func Start(ctx context.Context, c Config) (*Server, error) { return nil, errors.New("not yet") }

// Admin returns how to administer the etcd; without what is the caller's: Log and Fleet.
func (s *Server) Admin() admin.Config { return admin.Config{} }

// Done is closed when the etcd has stopped, by Close or by a failure.
func (s *Server) Done() <-chan struct{} { return nil }

// Close stops the etcd and waits until it has. It returns why it had stopped before.
func (s *Server) Close() error { return nil }

// Snapshot writes a snapshot of an etcd into a new file.
func Snapshot(ctx context.Context, c admin.Config, file string) error { return errors.New("not yet") }

// Restore makes the directory of an embedded etcd from a snapshot. The directory must be
// empty or not exist.
func Restore(ctx context.Context, c Config, file string) error { return errors.New("not yet") }
