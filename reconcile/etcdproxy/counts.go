package etcdproxy

import (
	"sync/atomic"

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
}

type counts struct{ active, ended, failed, refused, foreign atomic.Int64 }

// done counts the end of a call.
func (c *counts) done(err error) {
	c.active.Add(-1)
	c.ended.Add(1)
	if err != nil {
		c.failed.Add(1)
	}
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
		}
	}
	return all
}
