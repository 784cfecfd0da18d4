package reconcile

import (
	"context"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/sources/clusters"
)

// origin is what a connection is made from; credentials are empty if not known.
type origin struct {
	access      clusters.Access
	credentials string
}

// stale reports whether now differs.
func (o origin) stale(now origin) bool {
	return o.access != now.access || o.credentials != now.credentials && now.credentials != ""
}

// connect makes the worker's connection, and follows the unit.
func (ws *workers) connect(ctx context.Context, w *worker, want *desired.Unit) error {
	made := ws.originOf(want) // before connecting: a replacement meanwhile is noticed the next time
	conn, err := ws.cfg.Connect(ctx, want)
	if err != nil {
		return err
	}
	if made.credentials == "" {
		made = ws.originOf(want) // known since they were read
	}
	// The attempt ends before the connection does.
	following, cancel := context.WithCancel(kube.Waiting(context.WithoutCancel(ctx)))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer ws.logPanic(w)
		conn.Follow(following, func() {
			select {
			case w.woken <- struct{}{}:
			default: // woken already
			}
		})
	}()
	w.conn, w.made = conn, made
	w.unfollow = func() {
		cancel()
		<-ended
	}
	return nil
}

// originOf returns what a connection would be made from now.
func (ws *workers) originOf(want *desired.Unit) origin {
	c := origin{access: want.Spec.Access()}
	if ws.cfg.Credentials != nil {
		if name, known := ws.cfg.Credentials(want.Cluster); known {
			c.credentials = "known as " + name // also where there are none any more
		}
	}
	return c
}

// disconnect ends the worker's connection, if it has one.
func (w *worker) disconnect() {
	if w.conn == nil {
		return
	}
	w.endHome()
	w.unfollow()
	w.conn.Close()
	w.conn = nil
}

// rest has the worker's connection do nothing in the unit that is to be left alone.
func (w *worker) rest() {
	if w.conn != nil {
		w.conn.Rest()
	}
}
