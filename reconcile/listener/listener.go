// Package listener keeps servers accepting connections.
package listener

import (
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
)

// Patient returns a listener from which a server accepts until the listener is closed. net/http,
// grpc-go and reconcile/etcdproxy/h2 pause after a temporary error, and stop serving after any
// other. To the net package few errors of accept(2) are temporary: not the want of memory, nor
// the network errors of a connection, after which accept(2) says to try again. The first of several
// errors in a row is logged.
func Patient(l net.Listener, log *slog.Logger) net.Listener {
	return &patient{Listener: l, log: log}
}

type patient struct {
	net.Listener
	log    *slog.Logger
	failed atomic.Bool // the last Accept
}

// Accept implements [net.Listener]. Its errors are temporary, except of a closed listener.
func (p *patient) Accept() (net.Conn, error) {
	conn, err := p.Listener.Accept()
	if err == nil {
		p.failed.Store(false)
		return conn, nil
	}
	if errors.Is(err, net.ErrClosed) {
		return nil, err
	}
	if !p.failed.Swap(true) {
		p.log.Warn("a connection could not be accepted; it is tried again", "address", p.Addr().String(), "error", err)
	}
	return nil, temporary{err}
}

// temporary is a temporary [net.Error].
type temporary struct{ error }

func (temporary) Temporary() bool { return true }
func (temporary) Timeout() bool   { return false }
func (t temporary) Unwrap() error { return t.error }
