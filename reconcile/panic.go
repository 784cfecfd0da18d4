package reconcile

import (
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/sources/errgroup"
)

// A panic while one cluster is worked on is that cluster's error.

// logPanic is deferred by goroutines of a worker's. It keeps a panic there.
func (ws *workers) logPanic(w *worker) {
	if v := recover(); v != nil {
		ws.tellPanic(w, errgroup.Recovered(v))
	}
}

func (ws *workers) tellPanic(w *worker, p *errgroup.PanicError) {
	ws.cfg.Log.Error(p.Error()+"; the daemon goes on", "cluster", w.name, "stack", string(p.Stack))
}

// panicked is the outcome of an attempt that panicked. Nobody knows what the target
// was at, so the next attempt makes another one.
func (ws *workers) panicked(w *worker, p *errgroup.PanicError) Outcome {
	ws.tellPanic(w, p)
	if target, unfollow := w.target, w.unfollow; target != nil {
		w.target = nil
		// It may hold a lock that its end waits for.
		go func() {
			defer ws.logPanic(w)
			unfollow()
			target.Close()
		}()
	}
	return Outcome{Phase: status.Failed, Message: p.Error() + "; the log has its stack"}
}
