package h2

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// connected is a client of an address with a connection.
func connected(t testing.TB, addr string, change ...func(*ClientConfig)) *Client {
	t.Helper()
	cfg := ClientConfig{
		Options:   Options{StreamWindow: 1 << 20, ConnWindow: 4 << 20},
		Dial:      func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", addr) },
		Authority: "a", UserAgent: "test",
	}
	for _, c := range change {
		c(&cfg)
	}
	c := NewClient(cfg)
	t.Cleanup(c.Close)
	waitFor(t, "a connection", func() bool { return c.ready() != nil })
	return c
}

// text makes a call, and returns the response as text.
func text(ctx context.Context, c *Client, in string, most int) (out string, made bool, err error) {
	buf, made, err := c.Call(ctx, "/s/m", map[string]string{"x": "y"}, []byte(in), most)
	if buf != nil {
		out = string(buf.ReadOnlyData())
		buf.Free()
	}
	return out, made, err
}

// Concurrent calls of any size work, with grpc-go's server and with ours.
func TestClient(t *testing.T) {
	t.Parallel()
	for name, addr := range map[string]string{"grpc-go": plainServer(t), "ours": serve(t, echo, func(c *ServerConfig) { c.Streams = 1000 }).addr} {
		c := connected(t, addr)
		var all sync.WaitGroup
		for i, size := range []int{0, 1, 1000, maxFrame - prefixSize, maxFrame, 100_000, 3 << 20} {
			for range 2 {
				all.Go(func() {
					in := strings.Repeat(string(rune('a'+i)), size)
					for made := false; !made; {
						var out string
						var err error
						if out, made, err = text(t.Context(), c, in, messageBytes); made && (err != nil || out != in) {
							t.Errorf("%s: %d bytes: %d, %v", name, size, len(out), err)
						}
					}
				})
			}
		}
		all.Wait()
		// Errors are those of grpc-go.
		if _, _, err := text(t.Context(), c, "message", 6); err == nil || !strings.Contains(err.Error(), "grpc: received message larger than max (7 vs. 6)") {
			t.Errorf("%s: a response that is too large: %v", name, err)
		}
		if _, _, err := text(t.Context(), c, strings.Repeat("x", messageBytes+1), messageBytes); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%s: a request that is too large: %v", name, err)
		}
		if out, made, err := text(t.Context(), c, "after", messageBytes); !made || err != nil || out != "after" {
			t.Errorf("%s: afterwards: %q, %t, %v", name, out, made, err)
		}
	}
}

// scripted is a server that does what a script says with the streams of one connection.
func scripted(t *testing.T, script func(p *peer), change ...func(*ClientConfig)) *Client {
	t.Helper()
	l := listen(t)
	go func() {
		for first := true; ; first = false {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if !first {
				c.Close()
				continue
			}
			p := newPeer(t, c)
			if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
				return
			}
			if err := p.WriteSettings(); err != nil {
				return
			}
			script(p)
		}
	}()
	return connected(t, l.Addr().String(), change...)
}

// begun waits until a number of streams have begun, and returns the last frame.
func (p *peer) begun(n int) {
	for n > 0 {
		f, err := p.next()
		if err != nil {
			return
		}
		if _, ok := f.(*http2.MetaHeadersFrame); ok {
			n--
		}
	}
}

// respond sends a response of some data.
func (p *peer) respond(id uint32, data []byte, trailers ...string) {
	p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.fields(":status", "200", "content-type", "application/grpc"), EndHeaders: true})
	if data != nil {
		p.WriteData(id, false, data)
	}
	if trailers != nil {
		p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.fields(trailers...), EndHeaders: true, EndStream: true})
	}
}

// A call that the server certainly did not process is reported as not made, so that it is made in another way.
// Anything else is an error, since it may have been processed.
func TestNeverTwice(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		script func(*peer)
		made   bool
		code   codes.Code
	}{
		"refused":               {func(p *peer) { p.WriteRSTStream(1, http2.ErrCodeRefusedStream) }, false, codes.OK},
		"going away, before it": {func(p *peer) { p.WriteGoAway(0, http2.ErrCodeNo, nil) }, false, codes.OK},
		"going away, with it": {func(p *peer) {
			p.WriteGoAway(1, http2.ErrCodeNo, nil)
			p.respond(1, framed("r"), "grpc-status", "0")
		}, true, codes.OK},
		"going away, with it, and lost": {func(p *peer) { p.WriteGoAway(1, http2.ErrCodeNo, nil); p.Conn.Close() }, true, codes.Unavailable},
		"lost":                          {func(p *peer) { p.Conn.Close() }, true, codes.Unavailable},
		"lost amid the response":        {func(p *peer) { p.respond(1, framed("r")); p.Conn.Close() }, true, codes.Unavailable},
		"canceled":                      {func(p *peer) { p.WriteRSTStream(1, http2.ErrCodeCancel) }, true, codes.Canceled},
		"an internal error":             {func(p *peer) { p.WriteRSTStream(1, http2.ErrCodeInternal) }, true, codes.Internal},
		"reset before the end":          {func(p *peer) { p.respond(1, framed("r")); p.WriteRSTStream(1, http2.ErrCodeNo) }, true, codes.Internal},
		"too much at once":              {func(p *peer) { p.WriteRSTStream(1, http2.ErrCodeEnhanceYourCalm) }, true, codes.ResourceExhausted},
		"an error": {func(p *peer) {
			p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.fields(":status", "200", "content-type", "application/grpc", "grpc-status", "9", "grpc-message", "50 %25"), EndHeaders: true, EndStream: true})
		}, true, codes.FailedPrecondition},
		"an error after the response": {func(p *peer) { p.respond(1, framed("r"), "grpc-status", "14") }, true, codes.Unavailable},
		"no status":                   {func(p *peer) { p.respond(1, framed("r"), "x", "y") }, true, codes.Internal},
		"no response":                 {func(p *peer) { p.respond(1, nil, "grpc-status", "0") }, true, codes.Internal},
		"two responses":               {func(p *peer) { p.respond(1, framed("a", "b"), "grpc-status", "0") }, true, codes.Internal},
		"part of a response":          {func(p *peer) { p.respond(1, framed("response")[:9], "grpc-status", "0") }, true, codes.Internal},
		"compressed":                  {func(p *peer) { p.respond(1, []byte{1, 0, 0, 0, 1, 'x'}, "grpc-status", "0") }, true, codes.Internal},
		"data first":                  {func(p *peer) { p.WriteData(1, true, framed("r")) }, true, codes.Internal},
		"not gRPC": {func(p *peer) {
			p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.fields(":status", "503", "content-type", "text/html"), EndHeaders: true})
		}, true, codes.Unavailable},
		"more than the window": {func(p *peer) {
			p.respond(1, []byte{0, 0, 0x20, 0, 0})
			for range 6 << 20 / maxFrame { // and nobody lets it grow, had it not come
				if p.WriteData(1, false, make([]byte, maxFrame)) != nil {
					return
				}
			}
		}, true, codes.Internal},
		"garbage": {func(p *peer) { p.Conn.Write(bytes.Repeat([]byte{0xff}, 1000)) }, true, codes.Unavailable},
		"a window beyond its end": {func(p *peer) {
			p.WriteWindowUpdate(1, maxWindow)
			p.WriteWindowUpdate(1, maxWindow)
		}, true, codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := scripted(t, func(p *peer) { p.begun(1); tt.script(p) })
			out, made, err := text(t.Context(), c, "in", messageBytes)
			if made != tt.made || status.Code(err) != tt.code || made && err == nil && out != "r" {
				t.Errorf("%q, made %t, %v; want made %t, %v", out, made, err, tt.made, tt.code)
			}
		})
	}
}

// When the server goes away, calls that it did not begin are reported as not made, and the others complete.
func TestGoAway(t *testing.T) {
	t.Parallel()
	c := scripted(t, func(p *peer) {
		p.begun(3)
		p.WriteGoAway(3, http2.ErrCodeNo, nil)
		p.respond(1, framed("r"), "grpc-status", "0")
		p.respond(3, framed("r"), "grpc-status", "0")
	})
	results := make(chan bool, 3)
	for range 3 {
		go func() {
			out, made, err := text(t.Context(), c, "in", messageBytes)
			if made && (err != nil || out != "r") {
				t.Errorf("%q, %v", out, err)
			}
			results <- made
		}()
	}
	n := 0
	for range 3 {
		if <-results {
			n++
		}
	}
	if n != 2 {
		t.Errorf("%d calls were made", n)
	}
}

// A canceled call is reset, and the connection serves others. No more calls are in progress than the server
// allows.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	reset := make(chan http2.ErrCode, 1)
	settled := make(chan struct{})
	c := scripted(t, func(p *peer) {
		p.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
		for { // until that is known
			f, err := p.ReadFrame()
			if err != nil {
				return
			}
			if s, ok := f.(*http2.SettingsFrame); ok && s.IsAck() {
				if _, again := <-settled; !again {
					break
				}
			}
		}
		for {
			f, err := p.next()
			if err != nil {
				return
			}
			switch f := f.(type) {
			case *http2.RSTStreamFrame:
				reset <- f.ErrCode
			case *http2.DataFrame:
				if f.StreamID > 1 {
					p.respond(f.StreamID, framed("r"), "grpc-status", "0")
				}
			}
		}
	})
	settled <- struct{}{}
	close(settled)
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan error, 1)
	go func() { _, _, err := text(ctx, c, "in", messageBytes); waits <- err }()
	waitFor(t, "the call to begin", func() bool {
		conn := c.ready()
		conn.mu.Lock()
		defer conn.mu.Unlock()
		return len(conn.calls) == 1
	})
	if _, made, _ := text(t.Context(), c, "in", messageBytes); made {
		t.Error("a call more than may be was made")
	}
	cancel()
	if err := <-waits; status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	if code := <-reset; code != http2.ErrCodeCancel {
		t.Errorf("reset with %v", code)
	}
	if out, made, err := text(t.Context(), c, "in", messageBytes); !made || err != nil || out != "r" {
		t.Errorf("%q, %t, %v", out, made, err)
	}
}

// A request is sent as the server has room for it, and no further once the server has answered.
func TestLargeRequest(t *testing.T) {
	t.Parallel()
	const size = initialWindow + 10_000
	got := make(chan int, 1)
	c := scripted(t, func(p *peer) {
		n := 0
		for n < size+prefixSize {
			f, err := p.next()
			if err != nil {
				break
			}
			if d, ok := f.(*http2.DataFrame); ok {
				if n += len(d.Data()); n == initialWindow {
					p.WriteWindowUpdate(0, 5000)
					p.WriteWindowUpdate(1, 7000)
					p.WriteWindowUpdate(0, 5000)
					p.WriteWindowUpdate(0, 5000)
					p.WriteWindowUpdate(1, 7000)
				}
			}
		}
		p.respond(1, framed("r"), "grpc-status", "0")
		p.begun(1)
		p.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: p.fields(":status", "200", "content-type", "application/grpc", "grpc-status", "3"), EndHeaders: true, EndStream: true})
		got <- n
	})
	if out, made, err := text(t.Context(), c, strings.Repeat("x", size), messageBytes); !made || err != nil || out != "r" {
		t.Errorf("%q, %t, %v", out, made, err)
	}
	if _, made, err := text(t.Context(), c, strings.Repeat("x", 10*size), messageBytes); !made || status.Code(err) != codes.InvalidArgument {
		t.Errorf("%t, %v", made, err)
	}
	if n := <-got; n != size+prefixSize {
		t.Errorf("the server got %d bytes", n)
	}
}

// The connection of a silent server ends while there are calls, and an idle connection is closed. The next call
// is not made, and opens another connection.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	quick := func(c *ClientConfig) {
		c.KeepaliveTime, c.KeepaliveTimeout, c.Idle, c.Pause = 50*time.Millisecond, 50*time.Millisecond, time.Millisecond, time.Millisecond
	}
	c := scripted(t, func(p *peer) {
		p.begun(1)
		io.Copy(io.Discard, p.Conn) // and answers no ping
	}, quick, func(c *ClientConfig) { c.Idle = time.Hour })
	if _, made, err := text(t.Context(), c, "in", messageBytes); !made || status.Code(err) != codes.Unavailable {
		t.Errorf("%t, %v", made, err)
	}
	c = connected(t, serve(t, echo).addr, quick)
	first := c.ready()
	waitFor(t, "the connection to be closed", func() bool { now := c.ready(); return now != nil && now != first })
	for {
		out, made, err := text(t.Context(), c, "in", messageBytes)
		if made {
			if err != nil || out != "in" {
				t.Errorf("%q, %v", out, err)
			}
			break
		}
	}
	c.Retire()
	if _, made, _ := text(t.Context(), c, "in", messageBytes); made {
		t.Error("a call was made by who is retired")
	}
}

// All pings of a server are answered in order: many at once, and a single one by itself.
func TestPings(t *testing.T) {
	t.Parallel()
	var got []byte
	c := scripted(t, func(p *peer) {
		p.begun(1)
		for i := range maxPongs + 1 {
			if p.WritePing(false, [8]byte{byte(i)}) != nil {
				return
			}
		}
		for len(got) <= maxPongs {
			f, err := p.ReadFrame()
			if err != nil {
				return
			}
			if f, ok := f.(*http2.PingFrame); ok && f.IsAck() {
				got = append(got, f.Data[0])
			}
		}
		p.respond(1, framed("out"), "grpc-status", "0")
	})
	if out, _, err := text(t.Context(), c, "in", messageBytes); err != nil || out != "out" {
		t.Fatalf("%q, %v", out, err)
	}
	for i, data := range got {
		if int(data) != i {
			t.Fatalf("answers to %d came in the order %v", maxPongs+1, got)
		}
	}
}

// Without a connection no call is made, and none waits.
func TestNoConnection(t *testing.T) {
	t.Parallel()
	dials := make(chan struct{}, 100)
	c := NewClient(ClientConfig{Pause: time.Millisecond, Dial: func(context.Context) (net.Conn, error) {
		dials <- struct{}{}
		return nil, errors.New("nobody is there")
	}})
	defer c.Close()
	for range 2 {
		waitFor(t, "an attempt to connect", func() bool {
			if _, made, err := text(t.Context(), c, "in", messageBytes); made || err != nil {
				t.Fatalf("%t, %v", made, err)
			}
			return len(dials) > 0
		})
		<-dials
	}
}
