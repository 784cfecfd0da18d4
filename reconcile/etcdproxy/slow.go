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

// tell sends a message of a stream to the client, and signals c.slow if that takes too long. It is called by
// one goroutine, which reads nothing from etcd meanwhile, so that little is held for a slow client.
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

// attended calls serve, and ends the call when the client is too slow. serve then ends soon after, with the
// call's streams.
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
