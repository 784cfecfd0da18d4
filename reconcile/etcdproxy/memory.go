package etcdproxy

import (
	"context"
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"gitopsd.dev/reconcile/etcdproxy/wire"
)

// The memory of messages is bounded, whatever tenants do. [Limits.LargeBytes] bounds responses while they come
// from etcd, and [Limits.UnreadBytes] until clients have read them; the latter also bounds the requests that
// come from clients or wait. When all tenants together exceed it, those with more than an even share are refused.
// Not counted are responses up to smallResponse, one for each call that a gate lets through at a time; the first
// 16 KiB of the requests of each call that come from its client; requests as they were before rewriting, each of
// which has about the size of one that is counted; and, with [Config.GRPCGo], requests until they are complete.

// smallResponse is the largest response that needs no room. It fits any value written through a proxy.
const smallResponse = 2 << 20

// fewValues is how many values the response of a write may have without room.
const fewValues = 4

var (
	errUnread = status.Error(codes.ResourceExhausted, "gitopsd: the namespace's clients left unread as much as is held for them; read the responses")
	errAsked  = status.Error(codes.ResourceExhausted, "etcdserver: too many requests: those in progress hold as much as they may; wait for answers")
	errLarge  = status.Error(codes.ResourceExhausted, "etcdserver: too many requests: there are too many large responses at the same time; ask again, or with a limit")
)

// fetch sends a request to etcd, and frees it. done, never nil, gives back the room for the response. Most
// responses are small, so reads do not wait for room at first: a response whose first bytes announce that it
// is large is dropped, and asked for again once there is room. The error is for the tenant.
func (c *call) fetch(method string, in, got *frame, notes *wire.Notes) (done func(), err error) {
	defer in.free()
	most := c.cfg.Limits.ResponseBytes
	invoke := func(size int) error {
		return c.tenant.upstream.invoke(c.ctx, method, in, got, size)
	}
	if !reads(method, notes) {
		done = func() {}
		if notes.Values > 0 && notes.Wide || notes.Values > fewValues {
			if done, err = c.room(most); err != nil {
				return done, err
			}
		}
		return done, c.told(c.tenant, method, invoke(most))
	}
	size := min(smallResponse, most)
	done, err = func() {}, invoke(size)
	for range 3 { // it may be larger next time
		is := larger(err)
		if is == 0 || is > most {
			break
		}
		done()
		size = min(is+is/4, most)
		if done, err = c.room(size); err != nil {
			return done, err
		}
		err = invoke(size)
	}
	return done, c.told(c.tenant, method, err)
}

// reads reports whether a request only reads.
func reads(method string, notes *wire.Notes) bool {
	switch method {
	case rangeMethod, timeToLiveMethod, statusMethod:
		return true
	case txnMethod:
		return len(notes.Puts) == 0 && notes.Deletes == 0
	}
	return false
}

// larger returns the size of a response that was too large; 0 if err is another error.
func larger(err error) (size int) {
	if status.Code(err) == codes.ResourceExhausted {
		var most int
		text := status.Convert(err).Message()
		if n, _ := fmt.Sscanf(text, "grpc: received message larger than max (%d vs. %d)", &size, &most); n == 2 {
			return size
		}
	}
	return 0
}

// room waits for room for a response, as received and as rewritten. done, never nil, gives it back.
func (c *call) room(size int) (done func(), err error) {
	weight := min(2*int64(size), int64(c.cfg.Limits.LargeBytes))
	ctx, cancel := context.WithTimeout(c.ctx, c.cfg.Limits.Unread)
	defer cancel()
	if err := c.large.Acquire(ctx, weight); err != nil {
		if c.ctx.Err() != nil {
			return func() {}, status.FromContextError(c.ctx.Err()).Err()
		}
		return func() {}, errLarge
	}
	done = func() { c.large.Release(weight) }
	return done, c.readsAll()
}

// readsAll returns an error if the tenant's clients have left too much unread to ask for more.
func (c *call) readsAll() error {
	if c.over(c.responses()) {
		return errUnread
	}
	return nil
}

// asksTooMuch reports whether the tenant's requests in progress hold too much memory for another.
func (c *call) asksTooMuch() bool { return c.over(c.requests()) }

// receiving counts the memory of requests that h2 has received in part, or before a call takes them. From then on
// [call.request] counts.
func (p *Proxy) receiving(auth credentials.AuthInfo, more int) error {
	s, _ := auth.(*session)
	if s == nil {
		return nil
	}
	h := held{&s.tenant.asked, &p.asked}
	if more > 0 && p.over(h) {
		return errAsked
	}
	h.add(more)
	return nil
}

// over reports whether all tenants hold too much, and this one more than an even share.
func (p *Proxy) over(h held) bool {
	most := int64(p.cfg.Limits.UnreadBytes)
	return h.all.Load() > most && h.tenant.Load() > most/max(p.served.Load(), 1)
}

// held counts the bytes of messages until they are freed. gRPC frees a message once it was read. It is a
// [mem.BufferPool].
type held struct{ tenant, all *atomic.Int64 }

func (c *call) responses() held { return held{&c.tenant.unread, &c.unread} }
func (c *call) requests() held  { return held{&c.tenant.asked, &c.asked} }

// Get implements [mem.BufferPool].
func (h held) Get(size int) *[]byte { return pool.Get(size) }

// Put implements [mem.BufferPool]. It is called when a message is freed.
func (h held) Put(room *[]byte) {
	h.add(-cap(*room))
	pool.Put(room)
}

func (h held) add(n int) {
	h.tenant.Add(int64(n))
	h.all.Add(int64(n))
}

// hold counts a message from now on.
func (h held) hold(room *[]byte) mem.Buffer {
	if mem.IsBelowBufferPoolingThreshold(cap(*room)) {
		return mem.NewBuffer(room, pool)
	}
	h.add(cap(*room))
	return mem.NewBuffer(room, h)
}
