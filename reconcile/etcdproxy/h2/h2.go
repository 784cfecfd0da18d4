// Package h2 speaks gRPC over frames of HTTP/2, with no more than a proxy of small calls needs.
// Of grpc-go's transport it leaves out what costs most there: the queue and the goroutine between
// whoever has something to send and the connection. Here who sends writes to the connection, with
// what others have for it at that moment.
//
//   - writer.go: frames on their way out
//   - reader.go: frames on their way in
//   - flow.go: what may be sent and received before the other side reads
//   - message.go: messages of gRPC in the data of a stream
//   - headers.go: headers of requests and responses
//   - server.go, serverconn.go, stream.go: a [Server], its connections and their streams
//   - client.go, call.go: a [Client] for calls with one request and one response
//
// Frames and headers are read and written by golang.org/x/net/http2, which bounds them. The package
// knows nothing of etcd.
package h2

import (
	"cmp"
	"net"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/mem"
)

// Options are those of both sides of a connection.
type Options struct {
	// HeaderBytes is the size of the largest list of headers that is received; 16 KiB if 0.
	HeaderBytes uint32
	// StreamWindow and ConnWindow are what one stream, and all of a connection together, may
	// have received before it is read; 64 KiB if 0.
	StreamWindow, ConnWindow uint32
	// Pool is where messages are; gRPC's own if nil.
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
	// initialWindow and maxFrame are what HTTP/2 begins with.
	initialWindow = 1<<16 - 1
	maxFrame      = 1 << 14
	// maxWindow is the largest window that HTTP/2 has.
	maxWindow = 1<<31 - 1
	// readBuffer is what is read of a connection at a time, at least.
	readBuffer = 4 << 10
	// linger is how long the other side has to read the last frames, once it was told that the
	// connection ends.
	linger = time.Second
)

// hangUp closes a connection to which all was written that is to be. A connection that is closed
// with something unread may take away what was written last: the other side gets time to close.
func hangUp(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_ = conn.SetReadDeadline(time.Now().Add(linger)) // the reader closes it
		return
	}
	conn.Close()
}

// settings begins a connection.
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
