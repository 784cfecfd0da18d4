package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"slices"
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

// serving is what a process does for the cluster of a unit between attempts. Only the worker's
// goroutine uses it.
type serving struct {
	// home is nil unless the controllers run, and unhome ends them, and waits for that. from is
	// what their connection was made from. only reports whether they are those of
	// [Config.Home] that only serve.
	home   Home
	unhome func()
	from   origin
	only   bool
	// known reports whether an attempt or serve has read what there is to serve, with this
	// connection, and isHome whether the cluster then was a home.
	known, isHome bool
	// problem is why serve failed, misses times in a row. It does not try before retry, unless
	// missed is not the origin of connections any more.
	problem []problem.Problem
	misses  int
	retry   time.Time
	missed  origin
}

// goesOn reports whether everything that must be served is. from is the current origin of
// connections, and only whether nothing but serving is allowed.
func (s *serving) goesOn(from origin, only bool) bool {
	return s.known && (!s.isHome || s.home != nil && s.only == only && !s.from.stale(from))
}

// serveTimeout bounds a call of [Connection.Serve], which reads a few objects.
const serveTimeout = time.Minute

// unserved precedes the error for which serve failed.
const unserved = "the conversion rules, etcd namespaces and targets in the cluster cannot be read, and are not served since the daemon started: "

// serve serves the unit of a job without a plan, unless this process does already. It returns
// the problem if that failed; later jobs try again, at growing intervals.
func (ws *workers) serve(ctx context.Context, w *worker, j *job) []problem.Problem {
	want, only := j.want, j.want.Suspend || j.of.computing
	if only && !w.only {
		w.endHome()
	}
	switch {
	case ws.cfg.Home == nil, want.ID.Name != "", want.Remove, only && !want.Spec.NeedsDaemon():
		return nil
	case w.goesOn(ws.originOf(want), only):
		return nil
	case time.Now().Before(w.retry) && w.missed == ws.originOf(want):
		return w.problem
	}
	w.missed = ws.originOf(want)
	err := ws.serveOnce(ctx, w, j, only)
	if ctx.Err() != nil {
		return w.problem // given up for a newer job
	}
	if err == nil {
		w.problem, w.misses = nil, 0
		return nil
	}
	w.misses++
	w.retry = time.Now().Add(retryPause(ws.cfg.Interval, w.misses))
	w.problem = []problem.Problem{{Cluster: w.id.String(), Reason: unserved + problem.Message(err)}}
	return w.problem
}

func (ws *workers) serveOnce(ctx context.Context, w *worker, j *job, only bool) (err error) {
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
	limited, cancel := context.WithTimeout(kube.WithPace(ctx, t.Pace()), min(serveTimeout, ws.cfg.ClusterTimeout))
	defer cancel()
	conn, err := ws.cfg.Connect(limited, j.want)
	if err != nil {
		return err
	}
	defer conn.Close()
	isHome, err := conn.Serve(limited, j.want)
	if err != nil && !isHome {
		return err
	}
	if !isHome || w.only != only || w.from.stale(ws.originOf(j.want)) {
		w.endHome()
	}
	if isHome && w.home == nil {
		err = errors.Join(err, ws.startHome(ctx, w, j, ws.unknownFleet(j), only))
	}
	w.known, w.isHome = err == nil, isHome
	return err
}

// unknownFleet returns the state of the fleet for the controllers of a cluster that does not
// get a job's commit.
func (ws *workers) unknownFleet(j *job) home.Fleet {
	registry := *j.of.state.Registry
	if _, there := registry.Get(j.want.Name); !there {
		registry.Clusters = append(slices.Clone(registry.Clusters), j.want.Cluster)
	}
	return home.Fleet{Registry: &registry, Before: j.of.before, State: ws.cfg.Board.State, Unknown: true}
}

// serveLeft serves a unit that is left alone because its cluster's document has errors.
func (ws *workers) serveLeft(ctx context.Context, w *worker, j *job) {
	served := ws.serve(ctx, w, j)
	if ctx.Err() != nil {
		return
	}
	expire, _ := expiring(w.id.String(), w.certificates, time.Now())
	all := slices.Concat(served, expire)
	var before []problem.Problem
	ws.cfg.Board.Update(w.id.String(), func(c *status.Unit) { before, c.Problems = c.Problems, all })
	for _, p := range problem.News(all, before, problem.Problem.String) {
		ws.reports.take(ws.cfg.Log, report{w.id.String(), p, slog.LevelError})
	}
}

// unplanned reports whether an attempt ended before it had a plan, although the cluster
// answers, or none was made.
func unplanned(o unit.Outcome) bool {
	return o.Actions == nil && (o.Phase == status.Failed || o.Phase == status.Waiting || o.Phase == status.Suspended)
}
