// Package h2 speaks gRPC over frames of HTTP/2, as far as a proxy of small calls needs it. It
// leaves out the costliest part of grpc-go's transport: the queue and the goroutine between senders
// and the connection. Here senders write to the connection, each with the pending frames of others.
//
//   - writer.go: outgoing frames
//   - reader.go: incoming frames
//   - flow.go: flow control
//   - keepalive.go: detection of connections whose other side is gone
//   - message.go: messages of gRPC in the data of a stream
//   - headers.go: headers of requests and responses
//   - server.go, serverconn.go, stream.go: [Server], its connections and their streams
//   - client.go, call.go: [Client], for calls with one request and one response
//
// Package golang.org/x/net/http2 reads and writes frames and headers, and bounds them. This package
// knows nothing about etcd.
package h2

import (
	"cmp"
	"net"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/mem"
)

// Options configure a [Server] or a [Client].
type Options struct {
	// HeaderBytes is the size of the largest list of headers to receive; 16 KiB if 0.
	HeaderBytes uint32
	// StreamWindow and ConnWindow are how many bytes a stream and a connection may receive before
	// they are read; 64 KiB if 0.
	StreamWindow, ConnWindow uint32
	// Pool has the memory of messages; gRPC's default pool if nil.
	Pool mem.BufferPool
}

func (o Options) withDefaults() Options {
	o.HeaderBytes = cmp.Or(o.HeaderBytes, 16<<10)
	o.StreamWindow = cmp.Or(o.StreamWindow, initialWindow)
	o.ConnWindow = cmp.Or(o.ConnWindow, initialWindow)
	if o.Pool == nil {
		o.Pool = mem.DefaultBufferPool()
	}
	return o
}

const (
	// initialWindow and maxFrame are the initial values of HTTP/2.
	initialWindow = 1<<16 - 1
	maxFrame      = 1 << 14
	// maxWindow is the largest window of HTTP/2.
	maxWindow = 1<<31 - 1
	// readBuffer is the size of a server's read buffer, and half of a client's.
	readBuffer = 4 << 10
	// linger is how long the other side may take to read the last frames.
	linger = time.Second
)

// hangUp closes a connection after the last write. Closing a connection with unread data may discard the last
// writes, so the other side gets time to close first.
func hangUp(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_ = conn.SetReadDeadline(time.Now().Add(linger)) // then the reader closes it
		return
	}
	conn.Close()
}

// settings writes the first frames of a connection.
func (o Options) settings(fr *http2.Framer, more ...http2.Setting) error {
	err := fr.WriteSettings(append(more,
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: o.StreamWindow},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: o.HeaderBytes},
	)...)
	if err == nil && o.ConnWindow > initialWindow {
		err = fr.WriteWindowUpdate(0, o.ConnWindow-initialWindow)
	}
	return err
}
