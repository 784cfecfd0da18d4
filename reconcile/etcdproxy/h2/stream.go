package h2

import (
	"context"
	"io"
	"strings"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// Stream is a call of a client. Recv and Send may be called concurrently, but neither with itself.
type Stream struct {
	outgoing
	conn    *serverConn
	request request
	ctx     context.Context
	cancel  context.CancelFunc

	in      incoming // under the connection's lock
	started bool     // of the connection's reader

	mu      sync.Mutex
	partial message
	ended   bool          // the client sends no more
	queue   []mem.Buffer  // received messages
	formats []byte        // of the queue
	over    error         // what Recv returns after the queue; nil while there may be more
	more    chan struct{} // has an element when there is a message, or over is set
	unread  uint32        // bytes that were received but not given back to the window

	held bool // owned by the sender
	// Under the writer's lock: the first headers were sent; a message was sent in part; it will not be
	// completed; and the last headers, if they wait for a message.
	begun, amid, broken bool
	last                *fixed
}

// errEnded is the error of using a stream after its end.
var errEnded = status.Error(codes.Canceled, "the call has ended")

// Context returns a context that ends with the call, or with the client's deadline.
func (s *Stream) Context() context.Context { return s.ctx }

// Method returns the method, as in "/etcdserverpb.KV/Range".
func (s *Stream) Method() string { return s.request.path }

// AuthInfo returns the result of the connection's handshake.
func (s *Stream) AuthInfo() credentials.AuthInfo { return s.conn.auth }

// Values returns the values of a header. The header "host" stands for a missing ":authority".
func (s *Stream) Values(name string) []string {
	values := s.values(strings.ToLower(name))
	if len(values) == 0 && name == ":authority" {
		return s.values("host")
	}
	return values
}

func (s *Stream) values(name string) (values []string) {
	for _, f := range s.request.fields {
		if f.Name == name {
			values = append(values, f.Value)
		}
	}
	return values
}

// Hold has sent messages wait for the end of the call, unless they are large. It is for calls that end right
// after their only message.
func (s *Stream) Hold() { s.held = true }

// Recv returns the next message, which the caller frees. The error is [io.EOF] after the last message;
// otherwise a gRPC status.
func (s *Stream) Recv() (mem.Buffer, error) {
	for {
		s.mu.Lock()
		if len(s.queue) > 0 {
			return s.next()
		}
		over := s.over
		s.mu.Unlock()
		if over != nil {
			return nil, over
		}
		select {
		case <-s.more:
		case <-s.ctx.Done():
			return nil, status.FromContextError(s.ctx.Err()).Err()
		}
	}
}

// next takes a message from the queue. The caller holds s.mu; next unlocks it.
func (s *Stream) next() (mem.Buffer, error) {
	buf, format := s.queue[0], s.formats[0]
	s.queue, s.formats = s.queue[1:], s.formats[1:]
	back := s.unread
	if len(s.queue) > 0 {
		back = min(back, uint32(buf.Len()+prefixSize))
	}
	s.unread -= back
	s.mu.Unlock()
	s.conn.giveBack(s, back)
	return decompress(buf, format, s.request.encoding, s.conn.server.RequestBytes, s.conn.server.Pool)
}

// receive handles data of the client. The connection's reader calls it. It returns the number of bytes to give
// back to the stream's window: all, unless more than one message is queued.
func (s *Stream) receive(data []byte, size uint32, end bool) (back uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(data) > 0 && s.over == nil {
		rest, done, err := s.partial.add(data, s.conn.server.RequestBytes, s.conn.server.Pool)
		if err != nil {
			s.over = err
			break
		}
		if data = rest; done {
			buf, format := s.partial.take(s.conn.server.Pool)
			s.queue, s.formats = append(s.queue, buf), append(s.formats, format)
		}
	}
	if s.unread += size; len(s.queue) <= 1 {
		back, s.unread = s.unread, 0
	}
	s.ended = s.ended || end
	if end && s.over == nil {
		s.over = io.EOF
		if s.partial.have == prefixSize { // an incomplete prefix is ignored, as in grpc-go
			s.over = status.Error(codes.Internal, io.ErrUnexpectedEOF.Error())
		}
	}
	if len(s.queue) > 0 || s.over != nil {
		select {
		case s.more <- struct{}{}:
		default:
		}
	}
	return back
}

// ready reports whether there is a message, or there will be none.
func (s *Stream) ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue) > 0 || s.over != nil
}

// discard frees the messages that were not read.
func (s *Stream) discard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, buf := range s.queue {
		buf.Free()
	}
	s.queue = nil
	s.partial.discard(s.conn.server.Pool)
	s.over = errEnded
}

// Send sends a message, and frees it. It waits until the client has room for it. The error is a gRPC status.
func (s *Stream) Send(buf mem.Buffer) error {
	if buf.Len() > s.conn.server.ResponseBytes {
		defer buf.Free()
		return status.Errorf(codes.ResourceExhausted, "grpc: trying to send message larger than max (%d vs. %d)", buf.Len(), s.conn.server.ResponseBytes)
	}
	name := s.request.compressor()
	compressed := name != "" && buf.Len() > 0
	if compressed {
		var err error
		if buf, err = compress(buf, name, s.conn.server.Pool); err != nil {
			return err
		}
	}
	defer buf.Free()
	head := prefix(buf.Len(), compressed)
	return s.send(head[:], buf.ReadOnlyData())
}

func (s *Stream) send(head, body []byte) error {
	c := s.conn
	for len(head)+len(body) > 0 {
		n := c.sending.take(&s.outgoing, len(head)+len(body))
		if n == 0 {
			if !s.wait() {
				return s.breakOff()
			}
			continue
		}
		locked := c.out.lock(s.ctx.Done())
		if locked && s.ctx.Err() != nil { // perhaps it was reset
			c.out.mu.Unlock()
			locked = false
		}
		if !locked {
			c.sending.untake(n)
			return s.breakOff()
		}
		s.begin()
		a := head[:min(n, len(head))]
		b := body[:n-len(a)]
		head, body = head[len(a):], body[len(b):]
		c.out.data(s.id, false, a, b)
		c.answered.Store(true)
		s.amid = len(head)+len(body) > 0
		switch {
		case !s.amid && s.last != nil: // the call ended meanwhile
			s.finishWith(s.last)
			return errEnded
		case s.held && !s.amid && !c.out.full():
			c.out.mu.Unlock() // the end of the call flushes
		default:
			c.out.flush()
		}
	}
	return nil
}

// breakOff gives up a message after the client, its deadline or the connection ended the call. If the call has
// returned, it resets the stream.
func (s *Stream) breakOff() error {
	s.conn.out.mu.Lock()
	s.broken = s.amid
	s.amid = false
	over := s.last != nil
	s.conn.out.mu.Unlock()
	if over {
		s.conn.reset(s.id, http2.ErrCodeCancel)
		s.finish()
	}
	return status.FromContextError(s.ctx.Err()).Err()
}

// wait waits for the client to have room. It returns false if the call ends before.
func (s *Stream) wait() bool {
	if s.held { // send what was held
		s.conn.out.mu.Lock()
		s.conn.out.flush()
	}
	select {
	case <-s.wake:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// begin adds the first headers. The caller holds the writer's lock.
func (s *Stream) begin() {
	if s.begun {
		return
	}
	s.begun = true
	if s.request.subtype == "" && s.request.compressor() == "" {
		s.conn.out.headers(s.id, false, startOK)
		return
	}
	fields := startFields(200, s.request.subtype)
	if name := s.request.compressor(); name != "" {
		fields = append(fields, hpack.HeaderField{Name: "grpc-encoding", Value: name})
	}
	s.conn.out.headers(s.id, false, nil, fields...)
}

// end ends the call with a status, unless the client or the connection has ended it. The rest of a message that
// was sent in part goes first, as the client has room for it.
func (s *Stream) end(st *status.Status, http int) {
	s.conn.out.lock(nil)
	fields := endOK
	if st.Code() != codes.OK || !s.begun {
		is := fixed(statusFields(st))
		if !s.begun {
			is = append(startFields(http, s.request.subtype), is...)
		}
		fields = &is
	}
	switch {
	case s.amid:
		s.last = fields
		s.conn.out.flush()
		s.discard()
	case s.broken:
		s.conn.out.mu.Unlock()
		s.conn.reset(s.id, http2.ErrCodeCancel)
		s.finish()
	default:
		s.finishWith(fields)
	}
}

// finishWith adds the last headers, if the stream is still there. The caller holds the writer's lock; finishWith
// unlocks it.
func (s *Stream) finishWith(fields *fixed) {
	c := s.conn
	// Forget the stream before the client can know that it may begin another.
	if !c.forget(s) {
		c.out.flush()
		s.finish()
		return
	}
	s.cancel() // nothing more is sent
	if fields == endOK {
		c.out.headers(s.id, true, fields)
	} else {
		c.out.headers(s.id, true, nil, *fields...)
	}
	if !s.clientEnded() {
		_ = c.out.framer.WriteRSTStream(s.id, http2.ErrCodeNo) // into memory
	}
	c.answered.Store(true)
	c.out.flush()
	s.finish()
	c.leave()
}

// clientEnded reports whether the client sends no more.
func (s *Stream) clientEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}
