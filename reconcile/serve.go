package reconcile

import (
	"context"
	"time"

	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/sources/errgroup"
)

// Some of what a unit has in its cluster needs this process all the time: its definitions may
// name the daemon's converter, its API servers keep their data behind the daemon's etcd proxy,
// and its targets have tokens that expire. An attempt at the unit begins to serve all that, and
// it goes on while no attempt can be made: because the unit is suspended, does not render, or
// waits for others. A process that was started in that state serves it too, from what the unit
// has in its cluster.

// serve serves a unit that no attempt is made at, unless this process does already. It returns
// the problem if that failed; later jobs try again, at growing intervals.
func (ws *workers) serve(ctx context.Context, w *worker, j *job) []problem.Problem {
	switch want := j.want; {
	case ws.cfg.Home == nil, want.ID.Name != "", want.Remove, want.Suspend && !want.Spec.NeedsDaemon():
		return nil
	case w.served && (w.home == nil || !w.homeFrom.stale(ws.originOf(want))):
		return nil
	case time.Now().Before(w.serveAgain):
		return w.unserved
	}
	w.endHome()
	err := ws.serveOnce(ctx, w, j)
	if ctx.Err() != nil {
		return w.unserved
	}
	if w.served = err == nil; w.served {
		w.unserved, w.unservedFor, w.serveAgain = nil, 0, time.Time{}
		return nil
	}
	w.unservedFor++
	w.serveAgain = time.Now().Add(retryPause(ws.cfg.Interval, w.unservedFor))
	w.unserved = []problem.Problem{{
		Cluster: w.id.String(),
		Reason:  "the conversion rules, etcd namespaces and targets in the cluster cannot be read, and are not served since the daemon started: " + problem.Message(err),
	}}
	return w.unserved
}

func (ws *workers) serveOnce(ctx context.Context, w *worker, j *job) (err error) {
	t, err := ws.cfg.Turns.Take(ctx, true, func(bool) {})
	if err != nil {
		return err
	}
	defer t.End()
	defer func() {
		if v := recover(); v != nil {
			p := errgroup.Recovered(v)
			ws.cfg.Log.Error(p.Error()+"; the daemon goes on", "cluster", w.id.String(), "stack", string(p.Stack))
			err = p
		}
	}()
	limited, cancel := context.WithTimeout(kube.WithPace(ctx, t.Pace()), ws.cfg.ClusterTimeout)
	defer cancel()
	conn, err := ws.cfg.Connect(limited, j.want)
	if err != nil {
		return err
	}
	defer conn.Close()
	isHome, err := conn.Serve(limited, j.want)
	if err != nil || !isHome {
		return err
	}
	return ws.startHome(ctx, w, j, ws.unknownFleet(j))
}

// unknownFleet returns the state of the fleet at a job that the unit does not get. What is
// missing in it may be wanted.
func (ws *workers) unknownFleet(j *job) home.Fleet {
	registry := *j.of.state.Registry
	registry.Faulty = true
	return home.Fleet{Registry: &registry, State: ws.cfg.Board.State}
}

// mayWait reports whether the gate may hold back a job although it never let one through.
func (w *worker) mayWait(j *job) bool {
	return w.allowed == nil && (j.held != "" || j.broken != "" || len(j.after) > 0)
}

// unplanned reports whether an attempt failed before it had a plan.
func unplanned(o unit.Outcome) bool { return o.Phase == status.Failed && o.Actions == nil }
