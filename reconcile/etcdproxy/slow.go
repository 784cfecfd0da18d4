package etcdproxy

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	errSlow         = status.Error(codes.ResourceExhausted, "gitopsd: the client left the stream unread for too long; begin again, and read it")
	errTooManyCalls = status.Error(codes.ResourceExhausted, "gitopsd: the namespace has too many calls in progress")
)

// tell sends a part of a stream to the client, and notes if that takes the client too long. It is
// called by one goroutine.
// Meanwhile nothing is read from etcd: the little that is under way is all that is held for
// a slow client.
func (c *call) tell(out *frame) error {
	if c.patience == nil {
		c.patience = time.AfterFunc(c.cfg.Limits.Unread, func() {
			select {
			case c.slow <- struct{}{}:
			default:
			}
		})
	} else {
		c.patience.Reset(c.cfg.Limits.Unread)
	}
	defer c.patience.Stop()
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
