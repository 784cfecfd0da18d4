package reconcile

import (
	"context"

	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/unit"
)

// keepHome runs the controllers of a cluster, if an attempt at its unit found that it is a
// home. They go on while the unit is left alone because of errors, and end with its
// connection.
func (ws *workers) keepHome(ctx context.Context, w *worker, j *job, o unit.Outcome) {
	switch {
	case ws.cfg.Home == nil || j.want.ID.Name != "" || o.Home && w.home != nil:
		return
	case !o.Home:
		if o.Actions != nil { // otherwise it is not known
			w.endHome()
		}
		return
	}
	name := w.id.String()
	h, err := ws.cfg.Home(ctx, j.want, func(problems []problem.Problem) { ws.cfg.Board.Home(name, problems) })
	if err != nil {
		ws.cfg.Log.Error("the controllers of targets, applications and etcd namespaces do not run", "cluster", name, "error", err)
		return
	}
	h.Set(ws.fleet(j))
	end := ws.beside(ctx, w, h.Run)
	w.home = h
	w.unhome = func() {
		end()
		ws.cfg.Board.Home(name, nil)
	}
}

// tellHome gives running controllers the state of an attempt before it begins, so that an
// object that it deletes does not look as if others had deleted it. They do not get what
// the gate holds back.
func (ws *workers) tellHome(w *worker, j *job) {
	if w.home != nil {
		w.home.Set(ws.fleet(j))
	}
}

// fleet returns the state of the fleet at a job.
func (ws *workers) fleet(j *job) home.Fleet {
	return home.Fleet{Registry: j.of.state.Registry, State: ws.cfg.Board.State, Objects: j.want.Objects, Keeps: j.want.Keeps}
}

// endHome ends the controllers of a worker's cluster, if they run.
func (w *worker) endHome() {
	if w.home == nil {
		return
	}
	w.unhome()
	w.home = nil
}
