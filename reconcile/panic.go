package reconcile

import (
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/sources/errgroup"
)

// A panic in the work on a unit is an error of that unit.

// logPanic recovers and logs a panic. Goroutines of a worker defer it.
func (ws *workers) logPanic(w *worker) {
	if v := recover(); v != nil {
		ws.tellPanic(w, errgroup.Recovered(v))
	}
}

func (ws *workers) tellPanic(w *worker, p *errgroup.PanicError) {
	ws.cfg.Log.Error(p.Error()+"; the daemon goes on", "cluster", w.id.String(), "stack", string(p.Stack))
}

// panicked returns the outcome of an attempt that panicked. Its connection may be in any
// state, so the next attempt makes another one.
func (ws *workers) panicked(w *worker, p *errgroup.PanicError) unit.Outcome {
	ws.tellPanic(w, p)
	if conn, unfollow := w.conn, w.unfollow; conn != nil {
		w.conn = nil
		// Ending it may block on a lock that it holds.
		go func() {
			defer ws.logPanic(w)
			unfollow()
			conn.Close()
		}()
	}
	return unit.Outcome{Phase: status.Failed, Message: p.Error() + "; the log has its stack"}
}
