package h2

import (
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// counter is a server's Count with a limit; 0 for none.
type counter struct {
	now, most atomic.Int64
	limit     int64
}

func (c *counter) count(_ credentials.AuthInfo, more int) error {
	now := c.now.Add(int64(more))
	if more > 0 && c.limit > 0 && now > c.limit {
		c.now.Add(int64(-more))
		return status.Error(codes.ResourceExhausted, "too much")
	}
	for most := c.most.Load(); now > most && !c.most.CompareAndSwap(most, now); most = c.most.Load() {
	}
	return nil
}

// sendAll sends data on a stream, without regard to the window.
func (p *peer) sendAll(id uint32, end bool, data []byte) {
	p.t.Helper()
	for ; len(data) > maxFrame; data = data[maxFrame:] {
		p.must(p.WriteData(id, false, data[:maxFrame]))
	}
	p.must(p.WriteData(id, end, data))
}

// Many small messages that nobody reads take about as much memory as the window. Once they are read they arrive in
// order, and the window opens again.
func TestSmallMessages(t *testing.T) {
	t.Parallel()
	const window = 1 << 20
	text := func(i int) string { return strings.Repeat("x", i%7) }
	var data []byte
	messages := 0
	for ; len(data) < 3*window/2; messages++ {
		data = append(data, framed(text(messages))...)
	}
	begun, read, ended := make(chan *Stream, 1), make(chan struct{}), make(chan error, 1)
	var c counter
	pool, err := mem.NewBinaryTieredBufferPool(10)
	if err != nil {
		t.Fatal(err)
	}
	for range 8 { // large messages of others
		pool.Put(new(make([]byte, 8*window)))
	}
	s := serve(t, func(s *Stream) error {
		begun <- s
		<-read
		for i := 0; ; i++ {
			m, err := s.Recv()
			if err == io.EOF && i == messages {
				err = nil
			} else if err == nil && string(m.ReadOnlyData()) == text(i) {
				m.Free()
				continue
			}
			ended <- err
			return err
		}
	}, func(cfg *ServerConfig) { cfg.Count, cfg.Pool = c.count, pool })
	p := client(t, s.addr)
	p.open(1, false)
	p.sendAll(1, false, data[:window-100])
	call := <-begun
	waitFor(t, "the window to be full", func() bool {
		call.mu.Lock()
		defer call.mu.Unlock()
		return call.unread > window-2*maxFrame
	})
	if most := c.most.Load(); most < window/2 || most > 2*window {
		t.Errorf("%d bytes are held for a window of %d", most, window)
	}
	close(read)
	for room := uint32(0); room < window/2; {
		f, err := p.ReadFrame()
		p.must(err)
		if f, ok := f.(*http2.WindowUpdateFrame); ok && f.StreamID == 1 {
			room += f.Increment
		}
	}
	p.sendAll(1, true, data[window-100:])
	if err := <-ended; err != nil {
		t.Errorf("the call received %v", err)
	}
	if got := p.answer(1); !strings.Contains(got, "grpc-status=0") {
		t.Errorf("the call ended with %s", got)
	}
	waitFor(t, "nothing to be held", func() bool { return c.now.Load() == 0 })
}

// The memory of messages that nobody reads, or that are not complete, is counted until the call ends, however it
// ends.
func TestCount(t *testing.T) {
	t.Parallel()
	const half = 1 << 19
	part := framed(strings.Repeat("x", 2*half))[:half]
	for name, end := range map[string]func(*peer){
		"reset":      func(p *peer) { p.must(p.WriteRSTStream(1, http2.ErrCodeCancel)) },
		"hung up":    func(p *peer) { p.Conn.Close() },
		"broken":     func(p *peer) { p.must(p.WriteWindowUpdate(0, 0)) },
		"whole":      func(p *peer) { p.sendAll(1, false, framed(strings.Repeat("x", 2*half))[half:]) },
		"incomplete": func(p *peer) { p.must(p.WriteData(1, true, nil)) },
	} {
		var c counter
		s := serve(t, echo, func(cfg *ServerConfig) { cfg.Count = c.count })
		p := client(t, s.addr)
		p.open(1, false)
		p.sendAll(1, false, part)
		waitFor(t, name+": to be counted", func() bool { return c.now.Load() >= half-uncounted-prefixSize })
		end(p)
		waitFor(t, name+": to be let go", func() bool { return c.now.Load() == 0 })
	}

	// A call that has not begun when its connection ends.
	var c counter
	s := serve(t, echo, func(cfg *ServerConfig) { cfg.Count = c.count })
	conn, other := net.Pipe()
	other.Close()
	x := newServerConn(s.Server, conn, nil)
	x.waiting = []*Stream{{conn: x, cancel: func() {}, more: make(chan struct{}, 1)}}
	x.waiting[0].receive(part, half, false)
	x.serve()
	if c.most.Load() == 0 || c.now.Load() != 0 {
		t.Errorf("a call that never began: counted %d, %d at the end", c.most.Load(), c.now.Load())
	}

	limited := counter{limit: 2 * half}
	s = serve(t, echo, func(cfg *ServerConfig) { cfg.Count = limited.count })
	p := client(t, s.addr)
	for id := uint32(1); id <= 5; id += 2 {
		p.open(id, false)
		p.sendAll(id, false, part)
	}
	if got := p.answer(5); !strings.Contains(got, "too much") {
		t.Errorf("beyond the limit: %s", got)
	}
	if limited.most.Load() > limited.limit {
		t.Errorf("%d bytes are held", limited.most.Load())
	}
	p.open(7, false)
	p.must(p.WriteData(7, true, framed("m")))
	if got := p.answer(7); !strings.Contains(got, "grpc-status=0") {
		t.Errorf("a small message beside: %s", got)
	}
}

// A large message may take longer as long as enough of it arrives in time.
func TestProgress(t *testing.T) {
	t.Parallel()
	s := serve(t, echo, func(cfg *ServerConfig) { cfg.Patience = time.Hour })
	conn, other := net.Pipe()
	defer conn.Close()
	defer other.Close()
	call := &Stream{conn: newServerConn(s.Server, conn, nil), more: make(chan struct{}, 1)}
	data := framed(strings.Repeat("x", 3*progress+1))
	receive := func(n int) {
		call.receive(data[:n], uint32(n), false)
		data = data[n:]
	}
	// extended reports whether the time is longer since the last call.
	over := time.Now()
	extended := func() bool {
		call.mu.Lock()
		defer call.mu.Unlock()
		was := call.until
		call.until = over
		return !was.Equal(over)
	}
	receive(prefixSize + 1)
	if !extended() {
		t.Fatal("the rest is not expected")
	}
	for range 2 {
		receive(progress - 1)
		if extended() {
			t.Error("a byte too few gets more time")
		}
		receive(1)
		if !extended() {
			t.Error("progress gets no more time")
		}
	}
	receive(progress)
	if call.giveUp(); call.over != nil || len(call.queue) != 1 {
		t.Errorf("%d messages, %v", len(call.queue), call.over)
	}
	call.discard()
}

// A call ends when the rest of a message does not come in time, unless the server has closed the window.
func TestPatience(t *testing.T) {
	t.Parallel()
	s := serve(t, echo, func(cfg *ServerConfig) { cfg.Patience = 20 * time.Millisecond })
	for name, data := range map[string][]byte{
		"a prefix in part":  framed("message")[:2],
		"a message in part": framed("message")[:8],
		"after another":     framed("m", "message")[:10],
	} {
		p := client(t, s.addr)
		p.open(1, false)
		p.must(p.WriteData(1, false, data))
		if got := p.answer(1); !strings.Contains(got, "did not come in time") {
			t.Errorf("%s: %s", name, got)
		}
	}
	begun, read := make(chan *Stream, 1), make(chan struct{})
	s = serve(t, func(s *Stream) error {
		begun <- s
		<-read
		return echo(s)
	})
	p := client(t, s.addr)
	p.open(1, false)
	p.must(p.WriteData(1, false, framed("a", "b", "message")[:15]))
	call := <-begun
	// late does what happens when the time is over.
	late := func() {
		call.mu.Lock()
		waits := !call.until.IsZero()
		if waits {
			call.until = time.Now()
		}
		call.mu.Unlock()
		if !waits {
			t.Error("the rest of a message is not expected")
		}
		call.giveUp()
	}
	late()
	close(read)
	waitFor(t, "two messages to be read", func() bool {
		call.mu.Lock()
		defer call.mu.Unlock()
		return len(call.queue) == 0
	})
	p.must(p.WriteData(1, true, framed("a", "b", "message")[15:]))
	if got := p.answer(1); !strings.Contains(got, `message"`) || !strings.Contains(got, "grpc-status=0") {
		t.Errorf("after the window was closed: %s", got)
	}
}

// A message takes no more memory than about twice its size, whatever the pool has of larger ones.
func TestMemoryOfOthers(t *testing.T) {
	const large = 16 << 20
	pool, err := mem.NewBinaryTieredBufferPool(10, 20)
	if err != nil {
		t.Fatal(err)
	}
	for size, most := range map[int]int{0: 0, 1: 1 << 10, 1<<20 + 1: 2<<20 + 2, 3 << 20: 6 << 20} {
		for range 8 {
			pool.Put(new(make([]byte, large)))
		}
		var m message
		m.grow(size, pool)
		if got := cap(*m.room); got < size || got > most {
			t.Errorf("a message of %d bytes takes %d", size, got)
		}
	}
}
