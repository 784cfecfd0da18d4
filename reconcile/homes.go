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
	if err := ws.startHome(ctx, w, j, ws.fleet(j), false); err != nil {
		ws.cfg.Log.Error("the controllers of targets, applications and etcd namespaces do not run", "cluster", w.id.String(), "error", err)
	}
}

// startHome runs the controllers of a cluster, or only those that serve.
func (ws *workers) startHome(ctx context.Context, w *worker, j *job, fleet home.Fleet, only bool) error {
	name := w.id.String()
	from := ws.originOf(j.want)
	h, err := ws.cfg.Home(ctx, j.want, only, func(problems []problem.Problem) { ws.cfg.Board.Home(name, problems) })
	if err != nil {
		return err
	}
	h.Set(fleet)
	end := ws.beside(ctx, w, h.Run)
	w.home, w.from, w.only = h, from, only
	w.unhome = func() {
		end()
		ws.cfg.Board.Home(name, nil)
	}
	return nil
}

// tellHome gives running controllers the state of an attempt before it begins, so that an
// object that it deletes does not look as if others had deleted it. They do not get what
// the gate holds back.
func (ws *workers) tellHome(w *worker, j *job) {
	if w.home != nil && w.only {
		w.endHome() // those that the unit needs now begin after the attempt
	}
	if w.home != nil {
		w.home.Set(ws.fleet(j))
	}
}

// fleet returns the state of the fleet at a job.
func (ws *workers) fleet(j *job) home.Fleet {
	return home.Fleet{Registry: j.of.state.Registry, Before: j.of.before, State: ws.cfg.Board.State, Objects: j.want.Objects, Keeps: j.want.Keeps}
}

// endHome ends the controllers of a worker's cluster, if they run.
func (w *worker) endHome() {
	if w.home == nil {
		return
	}
	w.unhome()
	w.home, w.only = nil, false
}
