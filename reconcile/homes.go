package reconcile

import (
	"context"

	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/unit"
)

// keepHome runs the controllers of a cluster that is a home after an attempt at its unit
// that found or left targets in it, with the registry of the attempt's commit. They go on
// while the unit is left alone because of errors, and end with its connection.
func (ws *workers) keepHome(ctx context.Context, w *worker, j *job, o unit.Outcome) {
	switch {
	case ws.cfg.Home == nil || j.want.ID.Name != "":
		return
	case !o.Home:
		if o.Actions != nil { // else it is not known
			w.endHome()
		}
		return
	}
	if w.home != nil {
		return
	}
	name := w.id.String()
	h, err := ws.cfg.Home(ctx, j.want, func(problems []problem.Problem) { ws.cfg.Board.Home(name, problems) })
	if err != nil {
		ws.cfg.Log.Error("the controllers of targets, applications and etcd namespaces do not run", "cluster", name, "error", err)
		return
	}
	h.Set(ws.fleet(j))
	running, cancel := context.WithCancel(kube.Waiting(context.WithoutCancel(ctx)))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer ws.logPanic(w)
		h.Run(running)
	}()
	w.home = h
	w.unhome = func() {
		cancel()
		<-ended
		ws.cfg.Board.Home(name, nil)
	}
}

// tellHome tells the controllers that run already what an attempt is for, before it
// begins: an object that it deletes must not look as if somebody else had deleted it.
// What the gate holds back, they do not see either.
func (ws *workers) tellHome(w *worker, j *job) {
	if w.home != nil {
		w.home.Set(ws.fleet(j))
	}
}

// fleet is what controllers know of the fleet at a job.
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
