package h2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
)

// streams and messageBytes are limits of the servers in these tests.
const (
	streams      = 20
	messageBytes = 4 << 20
)

// served is a server with its address.
type served struct {
	*Server
	addr  string
	ended chan error
}

// serve runs a server until the test ends.
func serve(t testing.TB, handle func(*Stream) error, change ...func(*ServerConfig)) *served {
	t.Helper()
	cfg := ServerConfig{
		Options:     Options{StreamWindow: 1 << 20, ConnWindow: 4 << 20},
		Credentials: insecure.NewCredentials(), Handle: handle,
		RequestBytes: messageBytes, ResponseBytes: messageBytes, Streams: streams,
	}
	for _, c := range change {
		c(&cfg)
	}
	s := &served{Server: NewServer(cfg), ended: make(chan error, 1)}
	l := listen(t)
	s.addr = l.Addr().String()
	go func() { s.ended <- s.Serve(l) }()
	t.Cleanup(s.Stop)
	return s
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// echo sends back each message.
func echo(s *Stream) error {
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(m); err != nil {
			return err
		}
	}
}

// bytesOf returns a message.
func bytesOf(b []byte) mem.Buffer { return mem.SliceBuffer(b) }

// dial connects with grpc-go.
func dial(t testing.TB, addr string) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bytesCodec{}), grpc.MaxCallRecvMsgSize(2*messageBytes)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// bytesCodec has messages of type *[]byte.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}
func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}
func (bytesCodec) Name() string { return "proto" }

// peer is the other side of a connection, frame by frame.
type peer struct {
	t testing.TB
	net.Conn
	*http2.Framer
	block bytes.Buffer
	enc   *hpack.Encoder
	// last is the last stream in the latest GOAWAY frame.
	last uint32
}

func newPeer(t testing.TB, c net.Conn) *peer {
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	p := &peer{t: t, Conn: c, Framer: http2.NewFramer(c, c)}
	p.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.AllowIllegalWrites = true
	p.enc = hpack.NewEncoder(&p.block)
	return p
}

// client connects to a server, and sends the preface.
func client(t testing.TB, addr string, settings ...http2.Setting) *peer {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	p := newPeer(t, c)
	_, err = io.WriteString(c, http2.ClientPreface)
	p.must(errors.Join(err, p.WriteSettings(settings...)))
	return p
}

func (p *peer) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// fields returns headers by their names and values.
func (p *peer) fields(pairs ...string) []byte {
	p.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		p.must(p.enc.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]}))
	}
	return bytes.Clone(p.block.Bytes())
}

// good are the headers of a call of a service.
var good = []string{":method", "POST", ":scheme", "http", ":path", "/s/m", ":authority", "a", "content-type", "application/grpc", "te", "trailers"}

// open begins a stream.
func (p *peer) open(id uint32, end bool, pairs ...string) {
	p.t.Helper()
	if len(pairs) == 0 {
		pairs = good
	}
	p.must(p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.fields(pairs...), EndStream: end, EndHeaders: true}))
}

// framed returns messages with their prefixes.
func framed(messages ...string) []byte {
	var b []byte
	for _, m := range messages {
		head := prefix(len(m), false)
		b = append(append(b, head[:]...), m...)
	}
	return b
}

// next returns the next frame that is not about the connection alone, and answers pings and settings.
func (p *peer) next() (http2.Frame, error) {
	for {
		f, err := p.ReadFrame()
		if err != nil {
			return nil, err
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = p.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				err = p.WritePing(true, f.Data)
			}
		case *http2.WindowUpdateFrame:
		case *http2.GoAwayFrame:
			p.last = f.LastStreamID
		default:
			return f, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// answer returns the frames of a stream until its end, as text.
func (p *peer) answer(id uint32) string {
	p.t.Helper()
	var b strings.Builder
	for {
		f, err := p.next()
		if err != nil {
			fmt.Fprintf(&b, "the connection ends")
			return b.String()
		}
		if f.Header().StreamID != id {
			continue
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			for _, h := range f.Fields {
				fmt.Fprintf(&b, "%s=%s ", h.Name, h.Value)
			}
			if f.StreamEnded() {
				return b.String() + "end"
			}
		case *http2.DataFrame:
			fmt.Fprintf(&b, "data=%q ", f.Data())
		case *http2.RSTStreamFrame:
			return b.String() + "reset " + f.ErrCode.String()
		}
	}
}

// broken returns the code with which the connection ends, and fails if it does not end.
func (p *peer) broken() string {
	p.t.Helper()
	code := "no reason"
	for {
		f, err := p.ReadFrame()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			p.t.Fatal("the connection does not end")
		}
		if err != nil {
			return code
		}
		if g, ok := f.(*http2.GoAwayFrame); ok {
			code = g.ErrCode.String()
		}
	}
}

func waitFor(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited for %s", what)
		}
	}
}

// invoke makes a call with one message in each direction.
func invoke(ctx context.Context, c *grpc.ClientConn, in []byte, opts ...grpc.CallOption) ([]byte, error) {
	var out []byte
	err := c.Invoke(ctx, "/s/m", &in, &out, opts...)
	return out, err
}
