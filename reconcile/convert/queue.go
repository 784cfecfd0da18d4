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
// clients take turns, an API server then waits for at most one of them.
type queue struct {
	size int64
	all  *semaphore.Weighted

	mu sync.Mutex
	// clients are those that have or wait for a part.
	clients map[string]*client
}

type client struct {
	*semaphore.Weighted
	requests int
}

func newQueue(size int64) *queue {
	return &queue{size: size, all: semaphore.NewWeighted(size), clients: make(map[string]*client)}
}

// acquire waits for n, first among the requests of the same client, then among all clients.
// The error is the context's.
func (q *queue) acquire(ctx context.Context, name string, n int64) (release func(), err error) {
	q.mu.Lock()
	c := q.clients[name]
	if c == nil {
		c = &client{Weighted: semaphore.NewWeighted(q.size)}
		q.clients[name] = c
	}
	c.requests++
	q.mu.Unlock()
	leave := func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if c.requests--; c.requests == 0 {
			delete(q.clients, name)
		}
	}
	if err := c.Acquire(ctx, n); err != nil {
		leave()
		return nil, err
	}
	if err := q.all.Acquire(ctx, n); err != nil {
		c.Release(n)
		leave()
		return nil, err
	}
	return func() {
		q.all.Release(n)
		c.Release(n)
		leave()
	}, nil
}

// clientOf returns the address of a request's client, without the port.
func clientOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
