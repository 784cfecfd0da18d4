package etcdproxy

import (
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gitopsd.dev/render/etcd"
)

// Counts are numbers about a tenant, since it is served.
type Counts struct {
	// Connections and Calls are those in progress; a stream is one call.
	Connections, Calls int64
	// Done are calls that ended, of which Failed with an error.
	Done, Failed int64
	// Refused are calls and requests that the proxy refused by itself.
	Refused int64
	// Foreign are responses that were not passed on, since they held something that is not
	// the tenant's. Anything but 0 is for the operator to look at.
	Foreign int64
	// Received and Sent are bytes of messages, of requests and of responses.
	Received, Sent int64
	// Ended are the calls that ended, by method and by the code that the client was told.
	Ended map[Ended]int64
}

// Ended is one way in which calls end.
type Ended struct {
	// Method is as in "/etcdserverpb.KV/Put".
	Method string
	Code   codes.Code
}

type counts struct {
	active, ended, failed, refused, foreign, received, sent atomic.Int64
	by                                                      sync.Map // Ended -> *atomic.Int64
}

// done counts the end of a call to one of the methods.
func (c *counts) done(method string, err error) {
	c.active.Add(-1)
	c.ended.Add(1)
	if err != nil {
		c.failed.Add(1)
	}
	key := Ended{method, status.Code(err)}
	n, ok := c.by.Load(key)
	if !ok {
		n, _ = c.by.LoadOrStore(key, new(atomic.Int64))
	}
	n.(*atomic.Int64).Add(1)
}

// endings returns the calls that ended.
func (c *counts) endings() map[Ended]int64 {
	all := make(map[Ended]int64)
	c.by.Range(func(key, n any) bool {
		all[key.(Ended)] = n.(*atomic.Int64).Load()
		return true
	})
	return all
}

// Counts returns the numbers of each tenant that is served.
func (p *Proxy) Counts() map[etcd.ID]Counts {
	p.mu.Lock()
	tenants := p.tenants
	p.mu.Unlock()
	all := make(map[etcd.ID]Counts, len(tenants))
	for _, t := range tenants {
		t.mu.Lock()
		connections := int64(len(t.sessions))
		t.mu.Unlock()
		c := &t.counts
		all[t.id] = Counts{
			Connections: connections, Calls: c.active.Load(), Done: c.ended.Load(), Failed: c.failed.Load(),
			Refused: c.refused.Load(), Foreign: c.foreign.Load(),
			Received: c.received.Load(), Sent: c.sent.Load(), Ended: c.endings(),
		}
	}
	return all
}
