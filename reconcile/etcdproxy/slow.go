package etcdproxy

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

var (
	errSlow         = status.Error(codes.ResourceExhausted, "gitopsd: the client left the stream unread for too long; begin again, and read it")
	errUnread       = status.Error(codes.ResourceExhausted, "gitopsd: the namespace's clients left unread as much as is held for them; read the responses")
	errTooManyCalls = status.Error(codes.ResourceExhausted, "gitopsd: the namespace has too many calls in progress")
)

// tell sends a part of a stream to the client, and notes if that takes the client too long.
// Meanwhile nothing is read from etcd: the little that is under way is all that is held for
// a slow client.
func (c *call) tell(out *frame) error {
	slow := time.AfterFunc(c.cfg.Limits.Unread, func() {
		select {
		case c.slow <- struct{}{}:
		default:
		}
	})
	defer slow.Stop()
	return c.client.SendMsg(out)
}

// attended runs what serves a stream, and ends the call when the client is too slow. What
// it runs ends soon after, as the call's streams do.
func (c *call) attended(serve func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- serve() }()
	select {
	case err := <-ended:
		return err
	case <-c.slow:
		return errSlow
	}
}

// unread counts the bytes of responses that a tenant's clients have not been sent: gRPC takes a
// response whole, and frees it when the client has read it.
type unread struct{ *tenant }

// Get implements [mem.BufferPool].
func (u unread) Get(size int) *[]byte { return pool.Get(size) }

// Put implements [mem.BufferPool]; it is called when a response is no longer needed.
func (u unread) Put(room *[]byte) {
	u.held.Add(int64(-cap(*room)))
	pool.Put(room)
}

// hold counts a response from now on.
func (u unread) hold(room *[]byte) mem.Buffer {
	if mem.IsBelowBufferPoolingThreshold(cap(*room)) {
		return mem.NewBuffer(room, pool)
	}
	u.held.Add(int64(cap(*room)))
	return mem.NewBuffer(room, u)
}

// readsAll reports an error if too much is held for the tenant's clients to ask for more.
func (c *call) readsAll() error {
	if c.tenant.held.Load() > int64(c.cfg.Limits.UnreadBytes) {
		return errUnread
	}
	return nil
}
