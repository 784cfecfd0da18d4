package reconcile

import (
	"context"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/sources/clusters"
)

// origin is what a connection is made from; credentials is empty if unknown.
type origin struct {
	access      clusters.Access
	credentials string
}

// stale reports whether a connection must be made again from now.
func (o origin) stale(now origin) bool {
	return o.access != now.access || o.credentials != now.credentials && now.credentials != ""
}

// connect makes the worker's connection, and follows the unit through it.
func (ws *workers) connect(ctx context.Context, w *worker, want *desired.Unit) error {
	made := ws.originOf(want) // before connecting: a replacement meanwhile is noticed the next time
	conn, err := ws.cfg.Connect(ctx, want)
	if err != nil {
		return err
	}
	if made.credentials == "" {
		made = ws.originOf(want) // known since they were read
	}
	w.conn, w.made = conn, made
	w.unfollow = ws.beside(ctx, w, func(ctx context.Context) {
		conn.Follow(ctx, func() {
			select {
			case w.woken <- struct{}{}:
			default: // woken already
			}
		})
	})
	return nil
}

// beside calls run in a goroutine with a context that outlives the attempt with ctx. The
// returned function ends that context, and waits for run.
func (ws *workers) beside(ctx context.Context, w *worker, run func(context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(kube.Waiting(context.WithoutCancel(ctx)))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer ws.logPanic(w)
		run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// originOf returns the origin of a connection made now.
func (ws *workers) originOf(want *desired.Unit) origin {
	c := origin{access: want.Spec.Access()}
	if ws.cfg.Credentials != nil {
		if name, known := ws.cfg.Credentials(want.Cluster); known {
			c.credentials = "known as " + name // not empty even if there are none any more
		}
	}
	return c
}

// disconnect ends the worker's connection, if it has one.
func (w *worker) disconnect() {
	w.endHome() // after a panic it runs without one
	w.known = false
	if w.conn == nil {
		return
	}
	w.unfollow()
	w.conn.Close()
	w.conn = nil
}

// rest stops what the worker's connection does in a unit that is to be left alone.
func (w *worker) rest() {
	if w.conn != nil {
		w.conn.Rest()
	}
}
