package h2

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// serverConn is a connection of a client.
type serverConn struct {
	server  *Server
	net     net.Conn
	auth    credentials.AuthInfo
	ctx     context.Context
	cancel  context.CancelFunc
	in      *reader
	out     *writer
	sending sending
	alive   *keepalive
	// answered reports whether headers or data were sent since the last ping.
	answered atomic.Bool

	mu       sync.Mutex
	streams  map[uint32]*Stream
	window   incoming
	last     uint32 // highest number of a stream
	running  int    // calls, including those with reset streams
	ended    *sync.Cond
	draining bool // streams after last are not served
	pinged   chan struct{}

	// Owned by the reader.
	waiting []*Stream // calls that have not begun
	strikes int
	ping    time.Time // the client's last ping
}

func newServerConn(s *Server, conn net.Conn, auth credentials.AuthInfo) *serverConn {
	c := &serverConn{
		server: s, net: conn, auth: auth,
		in: newReader(conn, readBuffer, s.Options), out: newWriter(conn), sending: newSending(),
		streams: make(map[uint32]*Stream), window: incoming{size: max(s.ConnWindow, initialWindow)},
		pinged: make(chan struct{}, 1),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.ended = sync.NewCond(&c.mu)
	return c
}

// kill ends the connection and its calls. The connection is closed first: otherwise clients would receive the
// status Canceled for their calls, as if they had canceled them.
func (c *serverConn) kill() {
	c.net.Close()
	c.cancel()
}

// serve serves the connection until it and all calls have ended.
func (c *serverConn) serve() {
	if err := c.begin(); err == nil {
		c.alive = newKeepalive(c.out, c.server.KeepaliveTime, c.server.KeepaliveTimeout, c.kill, nil)
		err := c.frames()
		c.alive.stop()
		if of, ok := errors.AsType[http2.ConnectionError](err); ok {
			c.cancel()
			defer time.AfterFunc(2*linger, c.kill).Stop() // if the client does not read
			c.goAway(http2.ErrCode(of), "", true)
			_, _ = io.Copy(io.Discard, c.in.buf) // until the client has read the reason; see hangUp
		}
	}
	c.kill()
	for _, s := range c.waiting {
		s.finish() // it never begins
	}
	c.mu.Lock()
	for c.running > 0 {
		c.ended.Wait()
	}
	c.mu.Unlock()
}

// begin exchanges the connection prefaces.
func (c *serverConn) begin() error {
	if err := c.net.SetReadDeadline(time.Now().Add(c.server.Setup)); err != nil {
		return err
	}
	c.out.control(func(fr *http2.Framer) error {
		return c.server.settings(fr, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: c.server.Streams})
	})
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c.in.buf, preface); err != nil {
		return err
	}
	if string(preface) != http2.ClientPreface {
		return errors.New("not HTTP/2")
	}
	first, err := c.in.read()
	if err != nil {
		return err
	}
	settings, ok := first.(*http2.SettingsFrame)
	if !ok {
		return errors.New("no settings")
	}
	if err := applySettings(settings, c.out, &c.sending); err != nil {
		return err
	}
	return c.net.SetReadDeadline(time.Time{})
}

// frames reads frames until the connection ends or the client breaks the rules.
func (c *serverConn) frames() error {
	for {
		if c.in.buf.Buffered() == 0 {
			c.startAll() // the next frame may take long
		}
		f, err := c.in.read()
		c.alive.heard()
		if err == nil {
			err = c.frame(f)
		}
		if of, ok := errors.AsType[http2.StreamError](err); ok {
			c.reset(of.StreamID, of.Code)
		} else if err != nil {
			return err
		}
	}
}

// frame handles a frame. The error ends the connection, unless it is an [http2.StreamError].
func (c *serverConn) frame(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		return c.headers(f)
	case *http2.DataFrame:
		return c.data(f)
	case *http2.RSTStreamFrame:
		if s := c.stream(f.StreamID); s != nil {
			c.drop(s)
		}
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return applySettings(f, c.out, &c.sending)
		}
	case *http2.PingFrame:
		return c.pings(f)
	case *http2.WindowUpdateFrame:
		return c.sending.grow(f.StreamID, f.Increment)
	}
	return nil
}

// applySettings applies settings of the other side. The error is an [http2.ConnectionError].
func applySettings(f *http2.SettingsFrame, out *writer, s *sending) error {
	if f.HasDuplicates() { // each would cause work for each stream
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	err := f.ForeachSetting(func(is http2.Setting) error {
		if err := is.Valid(); err != nil {
			return err
		}
		switch is.ID {
		case http2.SettingInitialWindowSize:
			return s.restart(is.Val)
		case http2.SettingHeaderTableSize:
			out.tableSize(min(is.Val, 4<<10))
		}
		return nil
	})
	if err == nil {
		out.control((*http2.Framer).WriteSettingsAck)
	}
	return err
}

// headers begins a stream.
func (c *serverConn) headers(f *http2.MetaHeadersFrame) error {
	id := f.StreamID
	if f.Truncated {
		c.reset(id, http2.ErrCodeFrameSize)
		return nil
	}
	if id%2 != 1 || id <= c.last {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	r, no := parse(f.Fields)
	s := &Stream{outgoing: outgoing{id: id}, conn: c, request: r, in: incoming{size: c.server.StreamWindow}, more: make(chan struct{}, 1), started: true}
	c.mu.Lock()
	served, full := !c.draining, uint32(len(c.streams)) >= c.server.Streams
	if served {
		c.last = id
	}
	if served && !full && (no == nil || no.status != nil) {
		c.streams[id] = s
	}
	c.mu.Unlock()
	switch {
	case !served:
		return nil // the client knows
	case full:
		c.reset(id, http2.ErrCodeRefusedStream)
		return nil
	case no != nil && no.status == nil:
		c.reset(id, http2.ErrCodeProtocol)
		return nil
	}
	if f.StreamEnded() {
		s.receive(nil, 0, true)
	}
	if no != nil {
		s.ctx, s.cancel = c.ctx, func() {}
		s.end(no.status, no.http)
		return nil
	}
	if r.timed {
		s.ctx, s.cancel = context.WithTimeout(c.ctx, r.timeout)
	} else {
		s.ctx, s.cancel = context.WithCancel(c.ctx)
	}
	c.sending.open(&s.outgoing)
	s.started = false
	c.waiting = append(c.waiting, s)
	if f.StreamEnded() {
		c.startAll()
	}
	return nil
}

// data hands data to its stream.
func (c *serverConn) data(f *http2.DataFrame) error {
	size := f.Header().Length
	c.mu.Lock()
	fits := c.window.receive(size)
	back := c.window.read(size) // the windows of streams bound unread data
	s, last := c.streams[f.StreamID], c.last
	c.mu.Unlock()
	if !fits {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	if back > 0 {
		c.out.control(func(fr *http2.Framer) error { return fr.WriteWindowUpdate(0, back) })
	}
	switch {
	case s == nil && f.StreamID > last:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case s == nil:
		return nil // the stream has ended
	case s.clientEnded():
		c.reset(s.id, http2.ErrCodeStreamClosed)
		return nil
	}
	c.mu.Lock()
	fits = s.in.receive(size)
	c.mu.Unlock()
	if !fits {
		c.reset(s.id, http2.ErrCodeFlowControl)
		return nil
	}
	c.giveBack(s, s.receive(f.Data(), size, f.StreamEnded()))
	if !s.started && s.ready() {
		c.startAll()
	}
	return nil
}

// giveBack notes that bytes of a stream were read, which may grow its window.
func (c *serverConn) giveBack(s *Stream, n uint32) {
	c.mu.Lock()
	back := s.in.read(n)
	open := c.streams[s.id] == s
	c.mu.Unlock()
	if back > 0 && open {
		c.out.control(func(fr *http2.Framer) error { return fr.WriteWindowUpdate(s.id, back) })
	}
}

// startAll begins the waiting calls, in order.
func (c *serverConn) startAll() {
	for i, s := range c.waiting {
		c.waiting[i] = nil
		s.started = true
		c.start(s)
	}
	c.waiting = c.waiting[:0]
}

// start begins a call. It blocks, and reading with it, while as many calls run as the client may have streams:
// calls of reset streams count until they end.
func (c *serverConn) start(s *Stream) {
	if s.ctx.Err() != nil && c.stream(s.id) == nil {
		s.finish() // reset before it began
		return
	}
	c.mu.Lock()
	for c.running >= int(c.server.Streams) {
		c.ended.Wait()
	}
	c.running++
	c.mu.Unlock()
	c.server.run(s)
}

// call runs a call to its end.
func (c *serverConn) call(s *Stream) {
	err := s.request.unserved()
	if err == nil {
		err = c.server.Handle(s)
	}
	is, ok := status.FromError(err)
	if !ok {
		is = status.FromContextError(err)
	}
	s.end(is, 200)
	c.mu.Lock()
	c.running--
	c.ended.Broadcast()
	c.mu.Unlock()
}

// finish frees the resources of a call that has ended.
func (s *Stream) finish() {
	s.cancel()
	s.conn.sending.close(&s.outgoing)
	s.discard()
}

func (c *serverConn) stream(id uint32) *Stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams[id]
}

// forget removes a stream, and reports whether it was there.
func (c *serverConn) forget(s *Stream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams[s.id] != s {
		return false
	}
	delete(c.streams, s.id)
	return true
}

// drop ends a stream that was reset, and cancels its call.
func (c *serverConn) drop(s *Stream) {
	if c.forget(s) {
		s.cancel()
		c.leave()
	}
}

// reset resets a stream.
func (c *serverConn) reset(id uint32, code http2.ErrCode) {
	if s := c.stream(id); s != nil {
		c.drop(s)
	}
	c.out.control(func(fr *http2.Framer) error { return fr.WriteRSTStream(id, code) })
}

// maxStrikes is how many pings may come too early.
const maxStrikes = 2

// pings handles a ping or an answer to one. Too many pings end the connection; without calls few are allowed.
func (c *serverConn) pings(f *http2.PingFrame) error {
	if f.IsAck() {
		if f.Data == drainPing {
			select {
			case c.pinged <- struct{}{}:
			default:
			}
		}
		return nil
	}
	c.out.pong(f.Data)
	now, before := time.Now(), c.ping
	c.ping = now
	if c.answered.Swap(false) {
		c.strikes = 0
		return nil
	}
	const withoutCalls = 2 * time.Hour
	pause := c.server.PingPause
	c.mu.Lock()
	if len(c.streams) == 0 {
		pause = withoutCalls
	}
	c.mu.Unlock()
	if now.Sub(before) < pause {
		c.strikes++
	}
	if c.strikes > maxStrikes {
		c.goAway(http2.ErrCodeEnhanceYourCalm, "too_many_pings", true)
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	return nil
}

// goAway tells the client that streams after the last one seen are not served. If ends, the connection ends
// after that, and its calls with it.
func (c *serverConn) goAway(code http2.ErrCode, why string, ends bool) {
	c.mu.Lock()
	c.draining = true
	last := c.last
	c.mu.Unlock()
	c.out.lock(nil)
	_ = c.out.framer.WriteGoAway(last, code, []byte(why)) // into memory
	if ends && c.out.err == nil {
		c.out.end = func() { hangUp(c.net) }
	}
	c.out.flush()
}

// drainPing follows the first GOAWAY of drain: its answer shows that the client has received that.
var drainPing = [8]byte{'d', 'r', 'a', 'i', 'n'}

// drainPatience is how long to wait for the answer to drainPing.
const drainPatience = 5 * time.Second

// drain asks the client to begin no more calls, serves those that it had begun before, and ends the connection.
func (c *serverConn) drain() {
	c.out.control(func(fr *http2.Framer) error {
		return errors.Join(fr.WriteGoAway(maxWindow, http2.ErrCodeNo, []byte("graceful_stop")), fr.WritePing(false, drainPing))
	})
	patience := time.NewTimer(drainPatience)
	defer patience.Stop()
	select {
	case <-c.pinged:
	case <-patience.C:
	case <-c.ctx.Done():
		return
	}
	c.goAway(http2.ErrCodeNo, "graceful_stop", false)
	c.leave()
}

// leave ends a draining connection without streams.
func (c *serverConn) leave() {
	c.mu.Lock()
	ends := c.draining && len(c.streams) == 0
	c.mu.Unlock()
	if !ends {
		return
	}
	c.out.mu.Lock()
	if c.out.err == nil {
		c.out.end = func() { hangUp(c.net) }
	}
	c.out.flush()
}
