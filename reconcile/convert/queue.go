package convert

import (
	"context"
	"net"
	"net/http"
	"sync"

	"golang.org/x/sync/semaphore"
)

// queue shares a number between clients: of bytes, or of conversions at a time. A client can
// make the server wait for bodies that do not come, or for objects that take seconds. Since
// clients take turns, an API server then waits for at most one of them; and for none while each
// client has a share that leaves room for others.
type queue struct {
	share int64
	all   *semaphore.Weighted

	mu sync.Mutex
	// clients are those that have or wait for a part, and spare are some that had.
	clients map[string]*client
	spare   sync.Pool
}

type client struct {
	*semaphore.Weighted
	requests int
}

// newQueue returns a queue of a size, of which one client may have a share.
func newQueue(size, share int64) *queue {
	q := &queue{share: share, all: semaphore.NewWeighted(size), clients: make(map[string]*client)}
	q.spare.New = func() any { return &client{Weighted: semaphore.NewWeighted(share)} }
	return q
}

// part is a part of a queue that a request of a client has. The zero value is none.
type part struct {
	of   *queue
	name string
	c    *client
	n    int64
}

// acquire waits for n, first among the requests of the same client, then among all clients.
// The error is the context's.
func (q *queue) acquire(ctx context.Context, name string, n int64) (part, error) {
	q.mu.Lock()
	c := q.clients[name]
	if c == nil {
		c = q.spare.Get().(*client)
		q.clients[name] = c
	}
	c.requests++
	q.mu.Unlock()
	if err := c.Acquire(ctx, n); err != nil {
		q.leave(name, c)
		return part{}, err
	}
	if err := q.all.Acquire(ctx, n); err != nil {
		c.Release(n)
		q.leave(name, c)
		return part{}, err
	}
	return part{q, name, c, n}, nil
}

// leave forgets a request of a client.
func (q *queue) leave(name string, c *client) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.requests--; c.requests == 0 {
		delete(q.clients, name)
		q.spare.Put(c)
	}
}

// release gives the part back.
func (p *part) release() {
	if p.of == nil {
		return
	}
	p.of.all.Release(p.n)
	p.c.Release(p.n)
	p.of.leave(p.name, p.c)
}

// clientOf returns the address of a request's client, without the port.
func clientOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
