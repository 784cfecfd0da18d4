package h2

import (
	"cmp"
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/mem"
)

// ClientConfig configures a [Client].
type ClientConfig struct {
	Options
	// Dial opens a connection to the server, which speaks HTTP/2; required. It is called in the
	// background, until ctx ends.
	Dial func(ctx context.Context) (net.Conn, error)
	// Authority and UserAgent are headers of requests.
	Authority, UserAgent string
	// Pause is how long to wait after Dial has failed; 1 second if 0.
	Pause time.Duration
	// KeepaliveTime is how long the server may be silent, with calls in progress, before it is
	// pinged, and KeepaliveTimeout how long it may take to answer; 10 seconds if 0.
	KeepaliveTime, KeepaliveTimeout time.Duration
	// Idle is how long a connection without calls stays open; 5 minutes if 0.
	Idle time.Duration
}

// Client makes calls with one request and one response over one connection. It makes none while there is no
// connection: the caller needs another way then.
type Client struct {
	ClientConfig
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	conn    *clientConn // nil without one that takes calls
	dialing bool
	after   time.Time // when to dial again
	open    sync.WaitGroup
}

// NewClient returns a client, which connects at the first Call.
func NewClient(cfg ClientConfig) *Client {
	cfg.Options = cfg.Options.withDefaults()
	cfg.Pause = cmp.Or(cfg.Pause, time.Second)
	cfg.KeepaliveTime = cmp.Or(cfg.KeepaliveTime, 10*time.Second)
	cfg.KeepaliveTimeout = cmp.Or(cfg.KeepaliveTimeout, 10*time.Second)
	cfg.Idle = cmp.Or(cfg.Idle, 5*time.Minute)
	c := &Client{ClientConfig: cfg}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Close ends the calls in progress, and the connection.
func (c *Client) Close() {
	if conn := c.end(); conn != nil {
		conn.fail(errClosing)
	}
	c.open.Wait()
}

// Retire refuses new calls. Those in progress go on.
func (c *Client) Retire() {
	if conn := c.end(); conn != nil {
		conn.retire()
	}
}

// end has the client open no more connections, and returns the one that it has.
func (c *Client) end() *clientConn {
	c.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.conn
	c.conn = nil
	return conn
}

// Call makes a call. If it was not made, the server certainly did not process it, and the caller may make it
// in another way. The error is a gRPC status. A response of more than most bytes is an error. headers are
// added to those that gRPC needs.
func (c *Client) Call(ctx context.Context, method string, headers map[string]string, request []byte, most int) (response mem.Buffer, made bool, err error) {
	conn := c.ready()
	if conn == nil {
		return nil, false, nil
	}
	return conn.do(ctx, method, headers, request, most)
}

// ready returns the connection. Without one it begins to open one, and returns nil.
func (c *Client) ready() *clientConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil || c.dialing || c.ctx.Err() != nil || time.Now().Before(c.after) {
		return c.conn
	}
	c.dialing = true
	c.open.Go(func() {
		raw, err := c.Dial(c.ctx)
		var conn *clientConn
		if err == nil {
			conn = newClientConn(c, raw)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.dialing = false
		if err != nil {
			c.after = time.Now().Add(c.Pause)
			return
		}
		if c.ctx.Err() != nil {
			raw.Close()
			return
		}
		c.conn = conn
		c.open.Go(func() {
			conn.serve()
			c.gone(conn)
		})
	})
	return nil
}

// gone notes that a connection takes no more calls.
func (c *Client) gone(conn *clientConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == conn {
		c.conn = nil
		c.after = time.Now().Add(c.Pause / 10)
	}
}
