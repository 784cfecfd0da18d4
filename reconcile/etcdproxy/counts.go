package etcdproxy

import (
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gitopsd.dev/render/etcd"
)

// Counts are the numbers of a tenant, from the time it was first served.
type Counts struct {
	// Connections are open, and Calls are in progress; a stream is one call.
	Connections, Calls int64
	// Done calls have ended; Failed of them with an error.
	Done, Failed int64
	// Refused calls and requests were refused by the proxy itself.
	Refused int64
	// Foreign responses were not passed on, since they had something that is not the tenant's.
	// An operator should look at anything but 0.
	Foreign int64
	// Received and Sent are the bytes of requests and of responses.
	Received, Sent int64
	// Ended counts the calls that have ended, by method and code.
	Ended map[Ended]int64
}

// Ended is a method with the code of its result.
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

// endings returns [Counts].Ended.
func (c *counts) endings() map[Ended]int64 {
	all := make(map[Ended]int64)
	c.by.Range(func(key, n any) bool {
		all[key.(Ended)] = n.(*atomic.Int64).Load()
		return true
	})
	return all
}

// Counts returns the numbers of each tenant.
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
