package reconcile

import (
	"context"
	"strings"
	"time"

	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/unit"
)

// A unit that depends on others gets what a commit wants of it when these are
// ready with what the same commit wants of them. The gate decides this for each
// job, and every attempt passes it: those of passes, retries and wakings. Until
// then the unit is kept at what it was allowed last; after a restart that is not
// known, and nothing is done.
//
// The gate stays shut for everything that is not Ready: also for a unit that is
// suspended, and one whose registration has errors, since nothing was verified
// there.

// drop ends a job that will not be tried, for another one takes its place. Whoever
// waits for it waits for that one, if it is for the same.
func (j *job) drop(instead *job) {
	if instead != nil && instead.want == j.want {
		j.instead = instead
	}
	close(j.tried)
}

// tellAfter is how long something may be waited for before the status says so.
const tellAfter = 2 * time.Second

// gate waits for the attempts at the clusters that a job depends on, and says what
// the job has to wait for beyond that; "" lets it through. Once a job was let
// through, so are later ones for the same.
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

// awaitReady waits for the attempt at another cluster, and reports whether that is
// ready. What the own cluster asks for meanwhile, it gets.
func (ws *workers) awaitReady(ctx context.Context, w *worker, dep *job) bool {
	late, told := time.After(tellAfter), false
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

// pauseBrake waits for as long as the next waking has to, or until ctx ends.
func (ws *workers) pauseBrake(ctx context.Context, w *worker) bool {
	select {
	case <-time.After(w.brake):
		return true
	case <-ctx.Done():
		return false
	}
}

// keepAllowed makes an attempt at what the cluster was allowed last, if that is
// known. ok is false where nothing came of it.
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
	o.Checkpoint = nil // which would be that of the older commit
	return o
}

// show says what a worker waits for, or that it goes on.
func (ws *workers) show(w *worker, phase status.Phase, message string) {
	ws.cfg.Board.Update(w.id.String(), func(c *status.Unit) { c.Phase, c.Message = phase, message })
}
