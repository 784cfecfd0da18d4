// Package inprocess connects clients and a server of gRPC that are in the same process, without
// sockets and without encryption, but with all that TLS finds out about the other side.
//
// A connection has two pipes. A handshake of TLS, with the certificates of both sides, takes one.
// Once a side is satisfied, it uses the other, which carries messages as they are: they never leave
// the memory of the process. So a server knows its client's user as it does by a socket, and
// refuses whom it refuses there.
package inprocess

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"
)

// What a pipe holds until it is read.
const (
	messageBytes   = 32 << 10
	handshakeBytes = 16 << 10
)

// Listener accepts connections of this process. It implements [net.Listener].
type Listener struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// Listen returns a listener.
func Listen() *Listener {
	return &Listener{accept: make(chan net.Conn), closed: make(chan struct{})}
}

// Accept implements [net.Listener]. The error is [net.ErrClosed].
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener]. Connections stay.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements [net.Listener].
func (l *Listener) Addr() net.Addr { return addr{} }

type addr struct{}

func (addr) Network() string { return "inprocess" }
func (addr) String() string  { return "inprocess" }

// Dial opens a connection. The error is [net.ErrClosed] or the context's.
func (l *Listener) Dial(ctx context.Context) (net.Conn, error) {
	client, server := Pair()
	select {
	case l.accept <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Pair returns both sides of a connection.
func Pair() (client, server net.Conn) {
	var a, b conn
	a.Conn, b.Conn = pipe(messageBytes)
	a.handshake, b.handshake = pipe(handshakeBytes)
	return &a, &b
}

// pipe returns both ends of one.
func pipe(size int) (client, server net.Conn) {
	l := bufconn.Listen(size)
	defer l.Close()
	dialed := make(chan net.Conn)
	go func() {
		c, _ := l.Dial() // which fails for a listener that is closed
		dialed <- c
	}()
	server, _ = l.Accept()
	return <-dialed, server
}

// conn is one side of a connection.
type conn struct {
	net.Conn
	handshake net.Conn
}

// Close ends the handshake, too.
func (c *conn) Close() error {
	c.handshake.Close()
	return c.Conn.Close()
}

// SetDeadline is for the handshake, too.
func (c *conn) SetDeadline(t time.Time) error {
	if err := c.handshake.SetDeadline(t); err != nil {
		return err
	}
	return c.Conn.SetDeadline(t)
}

// Credentials returns credentials of TLS that make a handshake beside the messages where both are
// in this process, and leave other connections as they are. The server's configuration is to
// give out no tickets of sessions: nobody reads them.
func Credentials(tls credentials.TransportCredentials) credentials.TransportCredentials {
	return beside{tls}
}

type beside struct {
	credentials.TransportCredentials
}

// ClientHandshake implements [credentials.TransportCredentials].
func (b beside) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := raw.(*conn)
	if !ok {
		return b.TransportCredentials.ClientHandshake(ctx, authority, raw)
	}
	_, info, err := b.TransportCredentials.ClientHandshake(ctx, authority, c.handshake)
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return c, info, nil
}

// ServerHandshake implements [credentials.TransportCredentials].
func (b beside) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := raw.(*conn)
	if !ok {
		return b.TransportCredentials.ServerHandshake(raw)
	}
	_, info, err := b.TransportCredentials.ServerHandshake(c.handshake)
	if err != nil {
		c.Close() // the client hears of it by that
		return nil, nil, err
	}
	return c, info, nil
}

// Clone implements [credentials.TransportCredentials].
func (b beside) Clone() credentials.TransportCredentials {
	return beside{b.TransportCredentials.Clone()}
}
