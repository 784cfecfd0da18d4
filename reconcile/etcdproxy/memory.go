package etcdproxy

import (
	"context"
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"gitopsd.dev/reconcile/etcdproxy/wire"
)

// What messages take of the process' memory is bounded, whatever tenants do: responses while they
// come from etcd by [Limits.LargeBytes], and until clients have read them by
// [Limits.UnreadBytes]; requests while they wait by the same number. Where all tenants together
// have more than that, those are refused that have more than an even share. What is not counted
// is small: responses up to smallResponse, one for each call that a gate lets be in progress, and
// one message of each stream.

// smallResponse is the size up to which a response is taken without asking for room: any value fits
// into it that was written through a proxy.
const smallResponse = 2 << 20

// fewValues is how many values the response of a write may have to be taken without asking for
// room.
const fewValues = 4

var (
	errUnread = status.Error(codes.ResourceExhausted, "gitopsd: the namespace's clients left unread as much as is held for them; read the responses")
	errAsked  = status.Error(codes.ResourceExhausted, "etcdserver: too many requests: those in progress hold as much as they may; wait for answers")
	errLarge  = status.Error(codes.ResourceExhausted, "etcdserver: too many requests: there are too many large responses at the same time; ask again, or with a limit")
)

// fetch sends a request to etcd, and frees it. Room for the response is given back by done, which is
// never nil. A response to a read that turns out to be large, when its first bytes come, is
// left to etcd, and asked for again once there is room for it: most are small, and need not wait.
// The error is what the tenant is told.
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
	for range 3 { // it may be larger the next time
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

// reads reports whether a request does no more than read.
func reads(method string, notes *wire.Notes) bool {
	switch method {
	case rangeMethod, timeToLiveMethod, statusMethod:
		return true
	case txnMethod:
		return len(notes.Puts) == 0 && notes.Deletes == 0
	}
	return false
}

// larger returns the size of a response that was larger than asked for; 0 if err is another error.
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

// room waits until there is room for a response of a size, which done gives back: for what is
// received and what is made of it.
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

// readsAll reports an error if too much is held for the tenant's clients to ask for more.
func (c *call) readsAll() error {
	if c.over(c.responses()) {
		return errUnread
	}
	return nil
}

// asksTooMuch reports whether the tenant's requests in progress hold too much for more of them.
func (c *call) asksTooMuch() bool { return c.over(c.requests()) }

// over reports whether the tenant has more than its share of what is too much in all.
func (c *call) over(h held) bool {
	most := int64(c.cfg.Limits.UnreadBytes)
	return h.all.Load() > most && h.tenant.Load() > most/max(c.served.Load(), 1)
}

// held counts the bytes of messages until they are no longer needed: gRPC takes a message whole,
// and frees it when it was read. It is a [mem.BufferPool].
type held struct{ tenant, all *atomic.Int64 }

func (c *call) responses() held { return held{&c.tenant.unread, &c.unread} }
func (c *call) requests() held  { return held{&c.tenant.asked, &c.asked} }

// Get implements [mem.BufferPool].
func (h held) Get(size int) *[]byte { return pool.Get(size) }

// Put implements [mem.BufferPool]; it is called when a message is no longer needed.
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
