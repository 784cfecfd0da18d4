package h2

import (
	"context"
	"io"
	"strings"
	"sync"
	"time"

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
	queue   []queued      // received messages
	rest    []byte        // received after a full queue
	over    error         // what Recv returns after the queue; nil while there may be more
	more    chan struct{} // has an element when there is a message, or over is set
	unread  uint32        // bytes that were received but not given back to the window
	takes   int           // memory of the queue
	counted int           // memory that the server was told of
	until   time.Time     // when the partial message has to be whole, or larger by progress; zero if there is none
	waited  int           // the bytes of the partial message when until was set
	late    *time.Timer   // calls giveUp then

	held bool // owned by the sender
	// Under the writer's lock: the first headers were sent; a message was sent in part; it will not be
	// completed; and the last headers, if they wait for a message.
	begun, amid, broken bool
	last                *fixed
}

// queued is a message that was received, in a format; see [message.take].
type queued struct {
	buf    mem.Buffer
	format byte
	room   int // memory that it takes
}

const (
	// maxQueued is how many messages are queued. A small one takes much more memory than its bytes, which
	// are what the window bounds, so what comes after them is kept as it came.
	maxQueued = 32
	// uncounted is how much memory the messages of a stream may take before [ServerConfig.Count] is told.
	uncounted = maxFrame
	// progress is how much of a large message has to come within [ServerConfig.Patience].
	progress = 64 << 10
)

var (
	// errEnded is the error of using a stream after its end.
	errEnded = status.Error(codes.Canceled, "the call has ended")
	errLate  = status.Error(codes.ResourceExhausted, "gitopsd: the rest of a message did not come in time")
)

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
	m := s.queue[0]
	s.queue = s.queue[1:]
	s.takes -= m.room
	if len(s.rest) > 0 {
		s.rest = s.parse(s.rest)
	}
	if len(s.queue) <= 1 && !s.until.IsZero() {
		s.expect() // its window was closed until now
	}
	s.settle()
	back := s.unread
	if len(s.queue) > 0 {
		back = min(back, uint32(m.buf.Len()+prefixSize))
	}
	s.unread -= back
	s.mu.Unlock()
	s.conn.giveBack(s, back)
	return decompress(m.buf, m.format, s.request.encoding, s.conn.server.RequestBytes, s.conn.server.Pool)
}

// receive handles data of the client. The connection's reader calls it. It returns the number of bytes to give
// back to the stream's window: all, unless more than one message is queued.
func (s *Stream) receive(data []byte, size uint32, end bool) (back uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.rest) > 0 {
		s.rest = append(s.rest, data...)
	} else {
		s.rest = append(s.rest, s.parse(data)...)
	}
	s.ended = s.ended || end
	s.settle()
	if s.unread += size; len(s.queue) <= 1 {
		back, s.unread = s.unread, 0
	}
	s.signal()
	return back
}

// parse queues the messages in data until the queue is full, and returns the rest; nil for none.
func (s *Stream) parse(data []byte) []byte {
	pool := s.conn.server.Pool
	for len(data) > 0 && s.over == nil {
		if len(s.queue) == maxQueued {
			return data
		}
		var done bool
		if data, done, s.over = s.partial.add(data, s.conn.server.RequestBytes, pool); !done {
			continue
		}
		m := queued{room: cap(*s.partial.room)}
		m.buf, m.format = s.partial.take(pool)
		s.queue = append(s.queue, m)
		s.takes += m.room
		if !s.until.IsZero() {
			s.until = time.Time{}
			s.late.Stop()
		}
	}
	return nil
}

// settle notes the end of the messages, counts their memory, and begins to wait for the rest of one.
func (s *Stream) settle() {
	if s.ended && s.over == nil && len(s.rest) == 0 {
		s.over = io.EOF
		if s.partial.have == prefixSize { // an incomplete prefix is ignored, as in grpc-go
			s.over = status.Error(codes.Internal, io.ErrUnexpectedEOF.Error())
		}
	}
	takes := s.takes + cap(s.rest)
	if s.partial.room != nil {
		takes += cap(*s.partial.room)
	}
	if err := s.count(max(takes-uncounted, 0)); err != nil {
		s.drop(err)
	}
	if s.partial.have > 0 && s.over == nil && (s.until.IsZero() || s.partial.received() >= s.waited+progress) {
		s.expect()
	}
}

// count tells the server how much memory the messages take.
func (s *Stream) count(takes int) error {
	if takes == s.counted || s.conn.server.Count == nil {
		return nil
	}
	err := s.conn.server.Count(s.conn.auth, takes-s.counted)
	if err == nil {
		s.counted = takes
	}
	return err
}

// expect gives the client time for the rest of a message, or for progress.
func (s *Stream) expect() {
	s.waited = s.partial.received()
	s.until = time.Now().Add(s.conn.server.Patience)
	if s.late == nil {
		s.late = time.AfterFunc(s.conn.server.Patience, s.giveUp)
	} else {
		s.late.Reset(s.conn.server.Patience)
	}
}

// giveUp ends the messages if the rest of one did not come in time, though the client may send it.
func (s *Stream) giveUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.until.IsZero() || s.over != nil || time.Now().Before(s.until):
	case len(s.queue) > 1:
		s.expect() // the window may be closed
	default:
		s.drop(errLate)
		s.signal()
	}
}

// signal wakes Recv if it has something to return.
func (s *Stream) signal() {
	if len(s.queue) > 0 || s.over != nil {
		select {
		case s.more <- struct{}{}:
		default:
		}
	}
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
	s.drop(errEnded)
}

// drop frees the messages that were not read; Recv returns err from now on.
func (s *Stream) drop(err error) {
	for _, m := range s.queue {
		m.buf.Free()
	}
	s.queue, s.rest, s.takes = nil, nil, 0
	s.partial.discard(s.conn.server.Pool)
	s.over = err
	if s.late != nil {
		s.late.Stop()
	}
	_ = s.count(0) // less is no error
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
