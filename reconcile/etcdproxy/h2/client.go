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
	// Dial opens a connection that speaks HTTP/2 and belongs to the place that calls are to go
	// to; required. It is called in the background, until ctx ends.
	Dial func(ctx context.Context) (net.Conn, error)
	// Authority is that of requests, and UserAgent says who makes them.
	Authority, UserAgent string
	// Pause is how long to wait after a connection that could not be opened; 1 second if 0.
	Pause time.Duration
	// KeepaliveTime is after which silence, with calls in progress, the server is asked whether it
	// is there, and KeepaliveTimeout how long it may take to answer; 10 seconds if 0.
	KeepaliveTime, KeepaliveTimeout time.Duration
	// Idle is how long a connection without calls stays open; 5 minutes if 0.
	Idle time.Duration
}

// Client makes calls that have one request and one response, by one connection. It makes none while
// there is no connection: its user has another way then.
type Client struct {
	ClientConfig
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	conn    *clientConn // nil if there is none that takes calls
	dialing bool
	after   time.Time // when to dial again
	open    sync.WaitGroup
}

// NewClient returns a client, which connects when it is first asked to make a call.
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
	c.cancel()
	c.mu.Lock()
	conn := c.conn
	c.conn = nil
	c.mu.Unlock()
	if conn != nil {
		conn.fail(errClosing)
	}
	c.open.Wait()
}

// Retire makes no more calls. Those in progress go on.
func (c *Client) Retire() {
	c.cancel()
	c.mu.Lock()
	conn := c.conn
	c.conn = nil
	c.mu.Unlock()
	if conn != nil {
		conn.retire()
	}
}

// Call makes a call. If it is not made, it certainly never reached the server's user, and may be made
// in another way. The error is a status of gRPC. A response of more than most bytes is left to the
// server. The headers are those beside the ones that gRPC needs.
func (c *Client) Call(ctx context.Context, method string, headers map[string]string, request []byte, most int) (response mem.Buffer, made bool, err error) {
	conn := c.ready()
	if conn == nil {
		return nil, false, nil
	}
	return conn.do(ctx, method, headers, request, most)
}

// ready returns the connection. Without one it has one opened.
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
