// Package inprocess connects gRPC clients and a gRPC server in the same process, without sockets
// and encryption, but with TLS authentication.
//
// A connection has two pipes. The TLS handshake, with the certificates of both sides, uses one.
// After it the plain messages use the other, and never leave the memory of the process. So the
// server authenticates and refuses clients as it does over sockets.
package inprocess

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"
)

// Sizes of the buffers of pipes.
const (
	messageBytes   = 32 << 10
	handshakeBytes = 16 << 10
)

// Listener accepts connections from this process. It implements [net.Listener].
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

// Close implements [net.Listener]. Connections stay open.
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

// pipe returns both ends of a pipe.
func pipe(size int) (client, server net.Conn) {
	l := bufconn.Listen(size)
	defer l.Close()
	dialed := make(chan net.Conn)
	go func() {
		c, _ := l.Dial() // fails only if the listener is closed
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

// Close closes both pipes.
func (c *conn) Close() error {
	c.handshake.Close()
	return c.Conn.Close()
}

// SetDeadline sets the deadline of both pipes.
func (c *conn) SetDeadline(t time.Time) error {
	if err := c.handshake.SetDeadline(t); err != nil {
		return err
	}
	return c.Conn.SetDeadline(t)
}

// Credentials returns TLS credentials for connections of this package; for other connections they are the given
// ones. The server's configuration must disable session tickets, which no client would read.
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
		c.Close() // the client's handshake fails, too
		return nil, nil, err
	}
	return c, info, nil
}

// Clone implements [credentials.TransportCredentials].
func (b beside) Clone() credentials.TransportCredentials {
	return beside{b.TransportCredentials.Clone()}
}
