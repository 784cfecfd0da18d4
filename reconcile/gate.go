package reconcile

import (
	"context"
	"time"

	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/turn"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/sources"
)

// A unit that depends on others gets the objects of a commit only when these others are Ready
// with the same commit, or would be if their applications were healthy. The gate decides this
// for each job, and every attempt passes it: those of a pass, a retry and a wake-up. Until then
// the unit is kept at the last commit that was let through. After a restart that commit is
// unknown, and nothing is done, unless a checkpoint says that the unit had come to rest with the
// same commit. Nor is anything done if that commit empties the unit, or reaches it in another
// way, and the newest one does not.
//
// A unit that is suspended, or has errors in its registration, is not Ready: nothing was
// verified there.

// drop ends a job that will not be tried because another one replaces it. Its waiters wait
// for the other one if that has the same want.
func (j *job) drop(instead *job) {
	switch {
	case instead == nil: // the worker ends
	case instead.want == j.want:
		j.instead = instead
	default:
		j.givenUp = true
	}
	close(j.tried)
}

// gate waits for the attempts at the clusters that a job depends on, and returns why the job
// must still wait, and for which cluster; an empty why lets it through, and later jobs of the
// same commit that want the same too.
func (ws *workers) gate(ctx context.Context, w *worker, j *job) (why, on string) {
	switch {
	case w.allowed != nil && (w.allowed.want == j.want || w.allowed.of.commit.Hash == j.of.commit.Hash && w.allowed.wantsSame(j)):
		return "", ""
	case j.held != "":
		return j.held, ""
	case j.broken != "":
		return "waits for cluster " + j.broken + ", whose registration has errors", j.broken
	case w.allowed == nil && ws.reached(j):
		return "", ""
	}
	for _, dep := range j.after {
		on := dep.want.ID.String()
		switch {
		case ws.awaitReady(ctx, w, j, dep):
		case dep.want.Suspend:
			return "waits for cluster " + on + ", which is suspended", on
		default:
			return "waits for cluster " + on, on
		}
	}
	return "", ""
}

// reached reports whether the process before left the unit at rest with what the job asks
// for, so that the gate let that through already.
func (ws *workers) reached(j *job) bool {
	return len(j.after) > 0 && ws.cfg.Checkpoints != nil && j.of.input != "" && ws.cfg.Checkpoints.Load(j.want.ID.String(), j.of.input) != nil
}

// awaitReady has a job wait for the attempt at another cluster, and reports whether that
// cluster is ready. If that attempt is given up, so is the job: the worker must be free to wait
// for the newer one. Meanwhile it handles the wake-ups of the worker's own cluster.
func (ws *workers) awaitReady(ctx context.Context, w *worker, j, dep *job) bool {
	late, told := time.After(turn.TellAfter), false
	keep := func() {
		select {
		case <-time.After(w.brake):
		case <-ctx.Done():
			return
		}
		o, _ := ws.keepAllowed(ctx, w)
		w.lookAgain(o.Again)
		w.brake = nextBrake(w.brake, o.Changed, ws.cfg.Interval)
	}
	for {
		select {
		case <-dep.tried:
			if dep.instead == nil {
				if told && dep.ready {
					ws.show(w, status.Applying, "")
				}
				j.givenUp = dep.givenUp
				return dep.ready
			}
			dep = dep.instead
		case <-w.woken:
			keep()
		case <-w.due():
			keep()
		case <-late:
			told = true
			ws.show(w, status.Waiting, "waits for cluster "+dep.want.ID.String())
			if w.allowed == nil {
				_ = ws.serve(ctx, w, j) // it is told when the wait is over
			}
		case <-ctx.Done():
			return false
		}
	}
}

// keepAllowed makes an attempt with the last job that was let through. ok is false if that
// job is unknown or the attempt was given up.
func (ws *workers) keepAllowed(ctx context.Context, w *worker) (o unit.Outcome, ok bool) {
	if w.allowed == nil || w.allowed.at() != nil {
		return unit.Outcome{}, false
	}
	return ws.try(ctx, w, w.allowed)
}

// heldBack returns the outcome of a job that the gate holds back, for the cluster on.
func (ws *workers) heldBack(ctx context.Context, w *worker, why, on string) unit.Outcome {
	o, ok := ws.keepAllowed(ctx, w)
	if !ok {
		return unit.Outcome{Phase: status.Waiting, Message: why, WaitsFor: on}
	}
	o.WaitsFor = on
	if o.Phase != status.Unreachable {
		o.Phase = status.Waiting
	}
	why += "; is kept at commit " + sources.ShortHash(w.allowed.of.commit.Hash)
	if o.Message != "" {
		why += ": " + o.Message
	}
	o.Message = why
	o.Checkpoint, o.Elsewhere = nil, false // they would be the older commit's
	return o
}

// show sets the phase and the message of a worker's unit in the status.
func (ws *workers) show(w *worker, phase status.Phase, message string) {
	ws.cfg.Board.Update(w.id.String(), func(c *status.Unit) { c.Phase, c.Message, c.WaitsFor = phase, message, "" })
}
