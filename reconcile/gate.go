package reconcile

import (
	"context"
	"strings"
	"time"

	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/turn"
	"gitopsd.dev/reconcile/unit"
)

// A unit that depends on others gets a commit's objects when these are ready with
// theirs of the same commit. The gate decides this for each job, and every attempt
// passes it, whether it comes from a pass, a retry or a wake-up. Until then the unit
// is kept at the last commit that was let through; after a restart that is not known,
// and nothing is done.
//
// The gate stays shut unless all these units are Ready. A unit that is suspended, or
// whose registration has errors, is not: nothing was verified there.

// drop ends a job that will not be tried because another one takes its place. Its
// waiters wait for that one if it has the same want.
func (j *job) drop(instead *job) {
	if instead != nil && instead.want == j.want {
		j.instead = instead
	}
	close(j.tried)
}

// gate waits for the attempts at the clusters that a job depends on, and returns
// what else the job must wait for; "" lets it through. After that, later jobs with
// the same want pass too.
func (ws *workers) gate(ctx context.Context, w *worker, j *job) string {
	switch {
	case w.allowed != nil && w.allowed.want == j.want:
		return ""
	case j.held != "":
		return j.held
	case j.broken != "":
		return "waits for cluster " + j.broken + ", whose registration has errors"
	}
	for _, dep := range j.after {
		switch {
		case ws.awaitReady(ctx, w, dep):
		case dep.want.Suspend:
			return "waits for cluster " + dep.want.ID.String() + ", which is suspended"
		default:
			return "waits for cluster " + dep.want.ID.String()
		}
	}
	return ""
}

// awaitReady waits for the attempt at another cluster, and reports whether that
// cluster is ready. Meanwhile it serves the wake-ups of the worker's own cluster.
func (ws *workers) awaitReady(ctx context.Context, w *worker, dep *job) bool {
	late, told := time.After(turn.TellAfter), false
	keep := func() {
		if ws.pauseBrake(ctx, w) {
			o, _ := ws.keepAllowed(ctx, w)
			w.lookAgain(o.Again)
			w.brake = nextBrake(w.brake, o.Changed, ws.cfg.Interval)
		}
	}
	for {
		select {
		case <-dep.tried:
			if dep.instead == nil {
				if told && dep.ready {
					ws.show(w, status.Applying, "")
				}
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
		case <-ctx.Done():
			return false
		}
	}
}

// pauseBrake waits as long as the next wake-up must, or until ctx ends.
func (ws *workers) pauseBrake(ctx context.Context, w *worker) bool {
	select {
	case <-time.After(w.brake):
		return true
	case <-ctx.Done():
		return false
	}
}

// keepAllowed makes an attempt with the last job that was let through, if that is
// known. ok is false if nothing came of it.
func (ws *workers) keepAllowed(ctx context.Context, w *worker) (o unit.Outcome, ok bool) {
	if w.allowed == nil || w.allowed.at() != nil {
		return unit.Outcome{}, false
	}
	return ws.try(ctx, w, w.allowed)
}

// heldBack is the outcome of a job that the gate holds back for a reason.
func (ws *workers) heldBack(ctx context.Context, w *worker, why string) unit.Outcome {
	o, ok := ws.keepAllowed(ctx, w)
	if !ok {
		return unit.Outcome{Phase: status.Waiting, Message: why}
	}
	if o.Phase != status.Unreachable {
		o.Phase = status.Waiting
	}
	kept := "is kept at commit " + short(w.allowed.of.commit.Hash)
	if o.Message != "" {
		kept += ": " + o.Message
	}
	o.Message = strings.Join([]string{why, kept}, "; ")
	o.Checkpoint = nil // it would be the older commit's
	return o
}

// show puts into the status what a worker waits for, or that it goes on.
func (ws *workers) show(w *worker, phase status.Phase, message string) {
	ws.cfg.Board.Update(w.id.String(), func(c *status.Unit) { c.Phase, c.Message = phase, message })
}
