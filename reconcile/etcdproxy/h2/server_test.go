package h2

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"
)

// Clients of grpc-go are served: messages of any size, compressed or not, in both directions.
func TestServer(t *testing.T) {
	t.Parallel()
	s := serve(t, echo)
	c := dial(t, s.addr)
	var all sync.WaitGroup
	for _, size := range []int{0, 1, 5, 1000, 16 << 10, 100_000, 3 << 20} {
		for range 3 {
			all.Go(func() {
				in := bytes.Repeat([]byte("x"), size)
				for _, opts := range [][]grpc.CallOption{nil, {grpc.UseCompressor(gzip.Name)}} {
					if out, err := invoke(t.Context(), c, in, opts...); err != nil || !bytes.Equal(in, out) {
						t.Errorf("%d bytes: %d, %v", size, len(out), err)
					}
				}
			})
		}
	}
	all.Wait()
	stream, err := c.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/s/m")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		in, out := bytes.Repeat([]byte{byte(i)}, i*1000), []byte(nil)
		if err := errors.Join(stream.SendMsg(&in), stream.RecvMsg(&out)); err != nil || !bytes.Equal(in, out) {
			t.Fatalf("message %d: %d bytes, %v", i, len(out), err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(new([]byte)); !errors.Is(err, io.EOF) {
		t.Errorf("ended with %v", err)
	}
}

// Errors arrive unchanged, with any text. A call ends with the client's deadline or cancellation.
func TestErrors(t *testing.T) {
	t.Parallel()
	texts := []string{"", "plain", "50 %", "%41", "größer", "line\nbreak", "\x00", "世界", strings.Repeat("long ", 10_000)}
	ended := make(chan error, 1)
	s := serve(t, func(s *Stream) error {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		if text := string(m.ReadOnlyData()); text != "wait" {
			return status.Error(codes.OutOfRange, text)
		}
		<-s.Context().Done()
		ended <- s.Context().Err()
		return s.Context().Err()
	})
	c := dial(t, s.addr)
	for _, text := range texts {
		if _, err := invoke(t.Context(), c, []byte(text)); status.Code(err) != codes.OutOfRange || status.Convert(err).Message() != text {
			t.Errorf("%q became %v", text, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := invoke(ctx, c, []byte("wait")); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a deadline: %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("the call went on")
	}
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := invoke(ctx, c, []byte("wait")); status.Code(err) != codes.Canceled {
		t.Errorf("canceled: %v", err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the call ended with %v", err)
	}
}

// plainServer is grpc-go's with the same handler and limits.
func plainServer(t *testing.T) string {
	t.Helper()
	s := grpc.NewServer(grpc.ForceServerCodecV2(bytesCodec{}), grpc.MaxRecvMsgSize(messageBytes), grpc.MaxHeaderListSize(16<<10), grpc.MaxConcurrentStreams(streams),
		grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			for {
				var m []byte
				if err := s.RecvMsg(&m); err == io.EOF {
					return nil
				} else if err != nil {
					return err
				}
				if err := s.SendMsg(&m); err != nil {
					return err
				}
			}
		}))
	l := listen(t)
	go s.Serve(l)
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

// without returns the headers of a call with some replaced, or removed without a value.
func without(pairs ...string) []string {
	fields := slices.Clone(good)
	for i := 0; i < len(pairs); i += 2 {
		at := slices.Index(fields, pairs[i])
		switch {
		case at < 0:
			fields = append(fields, pairs[i], pairs[i+1])
		case pairs[i+1] == "":
			fields = slices.Delete(fields, at, at+2)
		default:
			fields[at+1] = pairs[i+1]
		}
	}
	return fields
}

// Invalid calls get the answers of grpc-go.
func TestAnswers(t *testing.T) {
	t.Parallel()
	plain, ours := plainServer(t), serve(t, echo).addr
	one := framed("m")
	for name, tt := range map[string]struct {
		fields []string
		data   []byte
	}{
		"a call":                        {nil, one},
		"two messages":                  {nil, framed("a", "b")},
		"part of a prefix":              {nil, one[:3]},
		"part of a message":             {nil, framed("message")[:8]},
		"too large a message":           {nil, []byte{0, 0x10, 0, 0, 0}},
		"compressed without encoding":   {nil, []byte{1, 0, 0, 0, 1, 'x'}},
		"an unknown format":             {nil, []byte{7, 0, 0, 0, 1, 'x'}},
		"compressed and garbled":        {without("grpc-encoding", "gzip"), []byte{1, 0, 0, 0, 1, 'x'}},
		"an encoding that is not used":  {without("grpc-encoding", "gzip"), []byte{0, 0, 0, 0, 0}},
		"identity":                      {without("grpc-encoding", "identity"), one},
		"an unknown encoding":           {without("grpc-encoding", "zip"), one},
		"a subtype":                     {without("content-type", "application/grpc+proto"), one},
		"a parameter":                   {without("content-type", "application/grpc;x"), one},
		"another type":                  {without("content-type", "application/json"), one},
		"almost the type":               {without("content-type", "application/grpcx"), one},
		"no type":                       {without("content-type", ""), one},
		"GET":                           {without(":method", "GET"), nil},
		"no authority":                  {without(":authority", ""), one},
		"a host":                        {without(":authority", "", "host", "h"), one},
		"both":                          {without("host", "h"), one},
		"two hosts":                     {append(without("host", "h"), "host", "i"), one},
		"connection":                    {without("connection", "close"), one},
		"a timeout":                     {without("grpc-timeout", "60S"), one},
		"a timeout of nothing":          {without("grpc-timeout", "0n"), one},
		"a timeout for ever":            {without("grpc-timeout", "99999999H"), one},
		"a timeout without a unit":      {without("grpc-timeout", "60"), one},
		"a timeout without a number":    {without("grpc-timeout", "S"), one},
		"a timeout that is too long":    {without("grpc-timeout", "100000000S"), one},
		"a negative timeout":            {without("grpc-timeout", "-1S"), one},
		"binary":                        {without("x-bin", "AQI"), one},
		"padded":                        {without("x-bin", "AQI="), one},
		"not binary":                    {without("x-bin", "?"), one},
		"a method without a service":    {without(":path", "/m"), one},
		"a method without a slash":      {without(":path", "m"), one},
		"no method":                     {without(":path", "/"), one},
		"an unknown header":             {without("x", "y"), one},
		"no te":                         {without("te", ""), one},
		"a header in capitals":          {without("X", "y"), one},
		"a pseudo header amid others":   {append(slices.Clone(good), ":x", "y"), one},
		"an unknown pseudo header":      {append([]string{":x", "y"}, good...), one},
		"a header that is not a header": {without("x", "a\x00b"), one},
		"too many headers":              {without("x", strings.Repeat("x", 17<<10)), one},
	} {
		var got [2]string
		for i, addr := range []string{plain, ours} {
			p := client(t, addr)
			fields := tt.fields
			if fields == nil {
				fields = good
			}
			block := p.fields(fields...)
			first := block[:min(len(block), maxFrame)]
			p.must(p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: first, EndStream: tt.data == nil, EndHeaders: len(first) == len(block)}))
			if len(first) < len(block) {
				p.must(p.WriteContinuation(1, true, block[len(first):]))
			}
			if tt.data != nil {
				p.must(p.WriteData(1, true, tt.data))
			}
			got[i] = p.answer(1)
			p.Conn.Close()
		}
		if got[0] != got[1] {
			t.Errorf("%s:\ngrpc-go %s\nours    %s", name, got[0], got[1])
		}
	}
}

// A client that violates the protocol loses its connection; others are served.
func TestBreaks(t *testing.T) {
	t.Parallel()
	s, hasty := serve(t, echo), serve(t, echo, func(c *ServerConfig) { c.Setup = 200 * time.Millisecond })
	other := dial(t, s.addr)
	window, once := http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}
	for name, tt := range map[string]struct {
		code string
		do   func(*peer)
	}{
		"an even number":    {"PROTOCOL_ERROR", func(p *peer) { p.open(2, true) }},
		"a number again":    {"PROTOCOL_ERROR", func(p *peer) { p.open(3, true); p.open(1, true) }},
		"trailers":          {"PROTOCOL_ERROR", func(p *peer) { p.open(1, false); p.open(1, true, "x", "y") }},
		"data out of place": {"PROTOCOL_ERROR", func(p *peer) { p.WriteData(7, true, []byte("x")) }},
		"data of no stream": {"PROTOCOL_ERROR", func(p *peer) { p.WriteData(0, true, []byte("x")) }},
		"a frame amid headers": {"PROTOCOL_ERROR", func(p *peer) {
			p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.fields(good...)})
			p.WriteData(1, true, []byte("x"))
		}},
		"another stream's headers amid headers": {"PROTOCOL_ERROR", func(p *peer) {
			p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.fields(good...)})
			p.WriteContinuation(3, true, p.fields("x", "y"))
		}},
		"headers that continue nothing": {"PROTOCOL_ERROR", func(p *peer) { p.WriteContinuation(1, true, p.fields("x", "y")) }},
		"headers without end": {"PROTOCOL_ERROR", func(p *peer) {
			err := p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.fields("x", strings.Repeat("x", 8000))})
			for err == nil {
				err = p.WriteContinuation(1, false, p.fields("y", strings.Repeat("y", 8000)))
			}
		}},
		"empty headers without end": {"", func(p *peer) {
			// They cost nothing, and nothing else is read meanwhile.
			err := p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.fields(good...)})
			for i := 0; err == nil && i < 1000; i++ {
				err = p.WriteContinuation(1, false, nil)
			}
			p.Conn.Close()
		}},
		"garbled headers": {"COMPRESSION_ERROR", func(p *peer) {
			p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff}, EndHeaders: true})
		}},
		"a frame that is too large":      {"", func(p *peer) { p.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, maxFrame+1)) }},
		"a window beyond its end":        {"FLOW_CONTROL_ERROR", func(p *peer) { p.WriteWindowUpdate(0, maxWindow); p.WriteWindowUpdate(0, maxWindow) }},
		"a window that grows by nothing": {"PROTOCOL_ERROR", func(p *peer) { p.WriteRawFrame(http2.FrameWindowUpdate, 0, 0, make([]byte, 4)) }},
		"a setting beyond its end":       {"FLOW_CONTROL_ERROR", func(p *peer) { p.WriteSettings(window) }},
		"a setting twice":                {"PROTOCOL_ERROR", func(p *peer) { p.WriteSettings(once, once) }},
		"settings of a stream":           {"PROTOCOL_ERROR", func(p *peer) { p.WriteRawFrame(http2.FrameSettings, 0, 1, nil) }},
		"a ping that is no ping":         {"FRAME_SIZE_ERROR", func(p *peer) { p.WriteRawFrame(http2.FramePing, 0, 0, []byte("x")) }},
		"pings without end": {"ENHANCE_YOUR_CALM", func(p *peer) {
			for i := 0; i < 10; i++ {
				p.WritePing(false, [8]byte{byte(i)})
			}
		}},
		"no settings": {"no reason", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p *peer
			if tt.do == nil {
				c, err := net.Dial("tcp", hasty.addr)
				if err != nil {
					t.Fatal(err)
				}
				p = newPeer(t, c)
				_, err = io.WriteString(c, http2.ClientPreface)
				p.must(err)
			} else {
				p = client(t, s.addr)
				tt.do(p)
			}
			if code := p.broken(); tt.code != "" && code != tt.code {
				t.Errorf("it ends with %s, want %s", code, tt.code)
			}
			if _, err := invoke(t.Context(), other, []byte("m")); err != nil {
				t.Errorf("another client: %v", err)
			}
		})
	}
}

// An error of a stream ends only the stream.
func TestStreamErrors(t *testing.T) {
	t.Parallel()
	s := serve(t, func(s *Stream) error {
		if s.Method() == "/s/wait" {
			<-s.Context().Done()
		}
		return echo(s)
	})
	wait := without(":path", "/s/wait")
	for name, tt := range map[string]struct {
		code http2.ErrCode
		do   func(*peer)
	}{
		"a window beyond its end": {http2.ErrCodeFlowControl, func(p *peer) {
			p.open(1, false)
			p.must(errors.Join(p.WriteWindowUpdate(1, maxWindow), p.WriteWindowUpdate(1, maxWindow)))
		}},
		"a window that grows by nothing": {http2.ErrCodeProtocol, func(p *peer) {
			p.open(1, false)
			p.must(p.WriteRawFrame(http2.FrameWindowUpdate, 0, 1, make([]byte, 4)))
		}},
		"more than its window": {http2.ErrCodeFlowControl, func(p *peer) {
			p.open(1, false, wait...)
			for range 2<<20/maxFrame + 1 { // of messages that nobody reads
				p.must(p.WriteData(1, false, framed(strings.Repeat("x", maxFrame-prefixSize))))
			}
		}},
		"data after the end": {http2.ErrCodeStreamClosed, func(p *peer) {
			p.open(1, false, wait...)
			p.must(errors.Join(p.WriteData(1, true, framed("m")), p.WriteData(1, true, framed("m"))))
		}},
	} {
		p := client(t, s.addr)
		tt.do(p)
		if got, want := p.answer(1), "reset "+tt.code.String(); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		p.open(3, false)
		p.must(p.WriteData(3, true, framed("m")))
		if got := p.answer(3); !strings.Contains(got, "grpc-status=0") {
			t.Errorf("%s: the next stream: %s", name, got)
		}
	}
	p := client(t, s.addr)
	for i := range uint32(streams) {
		p.open(2*i+1, false, wait...)
	}
	p.open(2*streams+1, true)
	if got := p.answer(2*streams + 1); got != "reset REFUSED_STREAM" {
		t.Errorf("a stream too many: %s", got)
	}
}

// A client that opens streams and resets them at once, or makes the server reset them, has no more calls in
// progress than it may have streams, and is served again afterwards.
func TestRapidReset(t *testing.T) {
	t.Parallel()
	for name, reset := range map[string]func(p *peer, id uint32) error{
		"by the client": func(p *peer, id uint32) error { return p.WriteRSTStream(id, http2.ErrCodeCancel) },
		"by the server": func(p *peer, id uint32) error {
			return p.WriteRawFrame(http2.FrameWindowUpdate, 0, id, make([]byte, 4))
		},
	} {
		t.Run(name, func(t *testing.T) { testRapidReset(t, reset) })
	}
}

func testRapidReset(t *testing.T, reset func(p *peer, id uint32) error) {
	t.Parallel()
	var running, most, begun atomic.Int64
	release := make(chan struct{})
	s := serve(t, func(s *Stream) error {
		if s.Method() != "/s/slow" {
			return echo(s)
		}
		begun.Add(1)
		n := running.Add(1)
		defer running.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		<-release // slow to notice that it was reset
		return nil
	})
	p := client(t, s.addr)
	slow := without(":path", "/s/slow")
	const resets = 2000
	sent := make(chan error, 1)
	go func() {
		for i := range uint32(resets) {
			err := p.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: p.fields(slow...), EndHeaders: true, EndStream: true})
			if err = errors.Join(err, reset(p, 2*i+1)); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	waitFor(t, "as many calls as there may be", func() bool { return running.Load() == streams })
	close(release)
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	p.open(2*resets+1, false)
	p.must(p.WriteData(2*resets+1, true, framed("m")))
	if got := p.answer(2*resets + 1); !strings.Contains(got, `data="\x00\x00\x00\x00\x01m"`) {
		t.Errorf("afterwards: %s", got)
	}
	if most.Load() > streams {
		t.Errorf("%d calls were in progress", most.Load())
	}
}

// Answers are sent as the client has room for them, however little. A stream without room holds up no other, and
// ends when it is reset.
func TestWindows(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	s := serve(t, func(s *Stream) error {
		err := echo(s)
		if s.Method() == "/s/large" {
			ended <- err
		}
		return err
	})
	p := client(t, s.addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	p.open(1, false)
	message := framed("a message that comes byte by byte")
	p.must(p.WriteData(1, true, message))
	for range message {
		p.must(p.WriteWindowUpdate(1, 1))
	}
	got := ""
	for !strings.Contains(got, "grpc-status") {
		f, err := p.next()
		p.must(err)
		switch f := f.(type) {
		case *http2.DataFrame:
			got += string(f.Data())
		case *http2.MetaHeadersFrame:
			if f.StreamEnded() {
				got += " grpc-status"
			}
		}
	}
	if got != string(message)+" grpc-status" {
		t.Errorf("got %q", got)
	}
	p.open(3, false, without(":path", "/s/large")...)
	p.must(p.WriteData(3, true, message))
	p.open(5, false) // while 3 waits
	p.must(errors.Join(p.WriteData(5, true, framed("m")), p.WriteWindowUpdate(5, 100)))
	if got := p.answer(5); !strings.Contains(got, "grpc-status=0") {
		t.Errorf("beside a stream without a window: %s", got)
	}
	p.must(p.WriteRSTStream(3, http2.ErrCodeCancel))
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Errorf("a call that was reset while it sent: %v", err)
	}
	// A window that shrinks below nothing opens again.
	p = client(t, s.addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3})
	p.open(1, false)
	p.must(p.WriteData(1, true, framed("m")))
	p.must(errors.Join(p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}), p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 50})))
	if got := p.answer(1); !strings.Contains(got, "grpc-status=0") {
		t.Errorf("after settings: %s", got)
	}
}

// Clients that do not read, or vanished, are disconnected; a client that answers pings stays.
func TestKeepalive(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 10)
	flood := func(s *Stream) error {
		for {
			if err := s.Send(bytesOf(make([]byte, 100_000))); err != nil {
				ended <- err
				return err
			}
		}
	}
	s := serve(t, flood, func(c *ServerConfig) { c.KeepaliveTime, c.KeepaliveTimeout = 50*time.Millisecond, 50*time.Millisecond })
	silent := client(t, s.addr)
	deaf(t, s)
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Errorf("what was sent to a client that reads nothing ended with %v", err)
	}
	talks := deaf(t, s)
	go func() {
		for talks.WriteWindowUpdate(3, 1) == nil {
			time.Sleep(10 * time.Millisecond)
		}
	}()
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Errorf("what was sent to a client that talks and reads nothing ended with %v", err)
	}
	silent.broken()
	alive := client(t, serve(t, echo, func(c *ServerConfig) { c.KeepaliveTime, c.KeepaliveTimeout = 20*time.Millisecond, time.Minute }).addr)
	for i := range uint32(5) {
		pings := 0
		for pings < 2 {
			f, err := alive.ReadFrame()
			alive.must(err)
			if f, ok := f.(*http2.PingFrame); ok && !f.IsAck() {
				pings++
				alive.must(alive.WritePing(true, f.Data))
			}
		}
		alive.open(2*i+1, false)
		alive.must(alive.WriteData(2*i+1, true, framed("m")))
		if got := alive.answer(2*i + 1); !strings.Contains(got, "grpc-status=0") {
			t.Fatalf("call %d: %s", i, got)
		}
	}
}

// deaf is a client that does not read the answer to its call.
func deaf(t *testing.T, s *served) *peer {
	t.Helper()
	p := client(t, s.addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
	p.must(p.WriteWindowUpdate(0, maxWindow-initialWindow))
	p.open(1, true)
	return p
}

// A client that violates the protocol and does not read loses its connection, too.
func TestBreaksUnread(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	s := serve(t, func(s *Stream) error {
		for {
			if err := s.Send(bytesOf(make([]byte, 100_000))); err != nil {
				return err
			}
			sent.Add(1)
		}
	})
	p := deaf(t, s)
	last := int64(-1)
	waitFor(t, "the client to have no more room", func() bool {
		now := sent.Load()
		defer func() { last = now }()
		time.Sleep(20 * time.Millisecond)
		return now > 0 && now == last
	})
	p.open(2, true)
	waitFor(t, "the connection to end", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.conns) == 0
	})
}

// A stopping server tells its clients, serves the calls that they had begun, and then ends the connections.
func TestGracefulStop(t *testing.T) {
	t.Parallel()
	s := serve(t, echo)
	idle, busy := client(t, s.addr), client(t, s.addr)
	busy.open(1, false)
	busy.must(busy.WriteData(1, false, framed("a")))
	for range 2 { // headers and data: it has begun
		_, err := busy.next()
		busy.must(err)
	}
	stopped := make(chan struct{})
	go func() { s.GracefulStop(); close(stopped) }()
	first, err := busy.ReadFrame()
	for ; err == nil; first, err = busy.ReadFrame() {
		if g, ok := first.(*http2.GoAwayFrame); ok {
			if g.LastStreamID != maxWindow || g.ErrCode != http2.ErrCodeNo {
				t.Errorf("first: %v", g)
			}
			break
		}
	}
	busy.must(err)
	busy.open(3, false) // sent before the client could know
	busy.must(busy.WriteData(3, true, framed("b")))
	if got := busy.answer(3); !strings.Contains(got, "grpc-status=0") {
		t.Errorf("what was sent already: %s", got)
	}
	for busy.last == 0 {
		if f, err := busy.ReadFrame(); err != nil {
			t.Fatal(err)
		} else if g, ok := f.(*http2.GoAwayFrame); ok {
			busy.last = g.LastStreamID
		}
	}
	if busy.last != 3 {
		t.Errorf("the last stream is %d", busy.last)
	}
	busy.open(5, true) // is not served
	select {
	case <-stopped:
		t.Fatal("it stopped while a call was in progress")
	default:
	}
	busy.must(busy.WriteData(1, true, framed("c")))
	if got := busy.answer(1); got != `data="\x00\x00\x00\x00\x01c" grpc-status=0 grpc-message= end` {
		t.Errorf("what was in progress: %s", got)
	}
	if got := busy.answer(5); got != "the connection ends" {
		t.Errorf("what came too late: %s", got)
	}
	busy.Conn.Close()
	for {
		if _, err := idle.next(); err != nil {
			break
		}
	}
	idle.Conn.Close()
	<-stopped
	select {
	case s.work <- nil:
		t.Error("somebody still waits for calls to make")
	default:
	}
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", s.addr); err == nil {
		t.Error("it still listens")
	}
}

// The server survives anything that a client sends, and ends the connection.
func FuzzServer(f *testing.F) {
	var frames bytes.Buffer
	p := &peer{t: f, Framer: http2.NewFramer(&frames, nil)}
	p.AllowIllegalWrites = true
	p.enc = hpack.NewEncoder(&p.block)
	p.open(1, false)
	p.must(p.WriteData(1, false, framed("a", "b")))
	p.open(3, true)
	p.must(errors.Join(p.WriteWindowUpdate(1, 5), p.WriteRSTStream(1, http2.ErrCodeCancel), p.WritePing(false, [8]byte{}), p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize})))
	p.open(5, false)
	p.must(p.WriteData(5, true, framed("c")[:4]))
	f.Add(frames.Bytes())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		s := NewServer(ServerConfig{Handle: echo, RequestBytes: 1 << 16, ResponseBytes: 1 << 16, Streams: 4})
		near, far := net.Pipe()
		go io.Copy(io.Discard, far)
		c := newServerConn(s, near, nil)
		done := make(chan struct{})
		go func() { c.serve(); close(done) }()
		io.WriteString(far, http2.ClientPreface)
		http2.NewFramer(far, nil).WriteSettings()
		far.Write(data)
		far.Close()
		<-done
		if n := len(c.streams); n > 4 {
			t.Errorf("%d streams", n)
		}
	})
}
