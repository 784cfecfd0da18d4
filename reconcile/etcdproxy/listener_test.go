package etcdproxy

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// connect opens a TCP connection.
func (r running) connect(t testing.TB) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// authenticated opens a TLS connection of a tenant's client.
func (r running) authenticated(t testing.TB, x tenantIn) *tls.Conn {
	t.Helper()
	c := tls.Client(r.connect(t), &tls.Config{
		RootCAs: r.ca.Pool(), ServerName: "127.0.0.1", NextProtos: []string{"h2"}, Certificates: []tls.Certificate{x.certificate(t)},
	})
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	return c
}

// closes reports whether the other side closes a connection.
func closes(t testing.TB, c net.Conn) bool {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	_, err := io.Copy(io.Discard, c)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// Connections that send nothing, too slowly, or nonsense are closed, before and after authentication, while a
// client is served.
func TestGarbage(t *testing.T) { both(t, testGarbage) }

func testGarbage(t *testing.T) {
	t.Parallel()
	a := newTenantIn(t, "a")
	p := serve(t, Config{Limits: Limits{Handshake: 300 * time.Millisecond}}, a)
	c := p.client(t, a)
	if _, err := c.Get(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 1<<16)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	for name, conn := range map[string]func(t *testing.T) net.Conn{
		"sends nothing": func(t *testing.T) net.Conn { return p.connect(t) },
		"dribbles": func(t *testing.T) net.Conn {
			c := p.connect(t)
			go func() { // a record of the largest size, byte by byte
				for _, b := range append([]byte{22, 3, 1, 0x40, 0}, bytes.Repeat([]byte{1}, 1<<14)...) {
					if _, err := c.Write([]byte{b}); err != nil {
						return
					}
					time.Sleep(10 * time.Millisecond)
				}
			}()
			return c
		},
		"sends noise": func(t *testing.T) net.Conn {
			c := p.connect(t)
			go c.Write(noise)
			return c
		},
		"speaks HTTP without TLS": func(t *testing.T) net.Conn {
			c := p.connect(t)
			go io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			return c
		},
		"authenticates and sends nothing": func(t *testing.T) net.Conn { return p.authenticated(t, a) },
		"authenticates and sends noise": func(t *testing.T) net.Conn {
			c := p.authenticated(t, a)
			go c.Write(noise)
			return c
		},
		"sends a frame that is too large": func(t *testing.T) net.Conn {
			c := p.authenticated(t, a)
			go func() {
				io.WriteString(c, http2.ClientPreface)
				http2.NewFramer(c, c).WriteSettings()
				c.Write(append([]byte{0xff, 0xff, 0xff, byte(http2.FrameData), 0, 0, 0, 0, 1}, noise...))
			}()
			return c
		},
		"sends headers without end": func(t *testing.T) net.Conn {
			c := p.authenticated(t, a)
			go func() {
				io.WriteString(c, http2.ClientPreface)
				f := http2.NewFramer(c, c)
				f.WriteSettings()
				var block bytes.Buffer
				hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("x", 8000)})
				err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes()})
				for err == nil {
					err = f.WriteContinuation(1, false, block.Bytes())
				}
			}()
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !closes(t, conn(t)) {
				t.Error("stays connected")
			}
			if _, err := c.Get(t.Context(), "k"); err != nil {
				t.Errorf("a client meanwhile: %v", err)
			}
		})
	}
}

// The number of connections that are not authenticated is limited, and does not keep a client out.
func TestHandshakes(t *testing.T) { both(t, testHandshakes) }

func testHandshakes(t *testing.T) {
	t.Parallel()
	a := newTenantIn(t, "a")
	p := serve(t, Config{Limits: Limits{Handshakes: 5, Handshake: time.Minute}}, a)
	var idle []net.Conn
	for i := range 5 {
		idle = append(idle, p.connect(t))
		waitFor(t, "the handshake to begin", func() bool { return p.handshakes.count() == i+1 })
	}
	if p.connect(t); !closes(t, idle[0]) {
		t.Error("the oldest stays although there is one connection more than may be")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := p.client(t, a).Get(ctx, "k"); err != nil {
		t.Errorf("a client meanwhile: %v", err)
	}
	if !closes(t, idle[1]) {
		t.Error("the client took nobody's place")
	}
}

// pending is a connection from an address.
type pending struct {
	net.Conn
	from   string
	closed bool
}

func (p *pending) RemoteAddr() net.Addr { return &net.UnixAddr{Name: p.from} }

func (p *pending) Close() error {
	p.closed = true
	return nil
}

// Of the connections that are not authenticated, the oldest of the client with the most is closed.
func TestGreedyHandshakes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, from string // "-a" ends the oldest connection of a
		closed     []int
	}{
		{"as many as may be", "a a b c", nil},
		{"one client", "a a a a a a", []int{0, 1}},
		{"a new client", "a a b a c d", []int{0, 1}},
		{"a greedy one comes last", "a b a b b", []int{1}},
		{"one has ended", "a a a a -a b", nil},
		{"some have ended", "a b b -a b b", nil},
		{"all have ended", "a b c d -a -b -c -d e e e e e", []int{4}},
	} {
		h := handshakes{most: 4}
		var all []*pending
		ends := make(map[string][]func())
		for _, from := range strings.Fields(tt.from) {
			if name, over := strings.CutPrefix(from, "-"); over {
				ends[name][0]()
				ends[name] = ends[name][1:]
				continue
			}
			c := &pending{from: from + ":1000"}
			all = append(all, c)
			ends[from] = append(ends[from], h.begin(c))
		}
		var closed []int
		for i, c := range all {
			if c.closed {
				closed = append(closed, i)
			}
		}
		if !slices.Equal(closed, tt.closed) {
			t.Errorf("%s: closed %v, want %v", tt.name, closed, tt.closed)
		}
		for _, each := range ends {
			for _, end := range each {
				end()
			}
		}
		if h.count() > 0 || len(h.of) > 0 {
			t.Errorf("%s: %d connections are remembered, of %d clients", tt.name, h.count(), len(h.of))
		}
	}
}

// Messages and headers that are too large are refused, and the connection goes on.
func TestOversize(t *testing.T) { both(t, testOversize) }

func testOversize(t *testing.T) {
	t.Parallel()
	a := newTenantIn(t, "a")
	p := serve(t, Config{Limits: Limits{RequestBytes: 10_000, ResponseBytes: 20_000}}, a)
	conn := p.raw(t, a)
	kv := etcdserverpb.NewKVClient(conn)
	ctx := t.Context()
	put := func(size int) error {
		_, err := kv.Put(ctx, &etcdserverpb.PutRequest{Key: []byte("k"), Value: make([]byte, size)})
		return err
	}
	if err := put(11_000); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a request that is too large: %v", err)
	}
	if err := put(9000); err != nil {
		t.Errorf("one that is not: %v", err)
	}
	large := metadata.AppendToOutgoingContext(ctx, "x", strings.Repeat("x", 20_000))
	if _, err := kv.Range(large, &etcdserverpb.RangeRequest{Key: []byte("k")}); err == nil {
		t.Error("headers that are too large pass")
	}
	c := p.client(t, a)
	for _, key := range []string{"k1", "k2", "k3"} {
		if _, err := c.Put(ctx, key, strings.Repeat("v", 9000)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Get(ctx, "k", clientv3.WithPrefix()); err == nil || !strings.Contains(err.Error(), "use a limit") {
		t.Errorf("a response that is too large: %v", err)
	}
	if _, err := c.Get(ctx, "k", clientv3.WithPrefix(), clientv3.WithLimit(1)); err != nil {
		t.Error(err)
	}
	bomb := &etcdserverpb.PutRequest{Key: []byte("k"), Value: make([]byte, 1<<20)} // a kilobyte when compressed
	if _, err := kv.Put(ctx, bomb, grpc.UseCompressor(gzip.Name)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a request that is too large when it is no longer compressed: %v", err)
	}
}
