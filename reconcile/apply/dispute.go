package apply

import (
	"fmt"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// Two writers that undo each other's work would write forever: another manager of
// the same field, somebody who deletes a desired object, or creates a pruned one.
// After a few corrections of the same subject in a row the next one has to wait,
// longer each time, and the plan reports it.
const (
	disputeAfter   = 3                // corrections in a row
	disputeMemory  = 10 * time.Minute // without a correction ends the row
	firstBackoff   = 30 * time.Second
	longestBackoff = 10 * time.Minute
)

// subject is the subject of a dispute: an object's fields (Configure), its existence
// (Create), or its absence (Prune).
type subject struct {
	id    manifest.ID
	about plan.Action
}

// dispute is the recent corrections of a subject. It is guarded by the Applier's
// mutex.
type dispute struct {
	corrections int
	first, last time.Time
}

// backoff is how long the next correction has to wait after the last one.
func (d *dispute) backoff() time.Duration {
	if d.corrections < disputeAfter {
		return 0
	}
	return min(firstBackoff<<min(d.corrections-disputeAfter, 10), longestBackoff)
}

// over reports whether nothing was corrected for long enough to end the dispute.
func (d *dispute) over(now time.Time) bool { return now.Sub(d.last) > disputeMemory+d.backoff() }

// vanished notes that somebody else deleted a member, or took it over. The mutex
// is held.
func (a *Applier) vanished(id manifest.ID) {
	c := subject{id, plan.Create}
	if a.disputes[c] == nil {
		now := time.Now()
		a.disputes[c] = &dispute{first: now, last: now}
	}
}

// corrected notes a correction.
func (a *Applier) corrected(c subject, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := a.disputes[c]
	if d == nil || d.over(now) {
		d = &dispute{first: now}
		a.disputes[c] = d
	}
	d.corrections++
	d.last = now
}

// tally notes what a pass corrected. Creating an object is a correction only where
// it existed before. A prune ends a dispute about existence, and a creation one
// about absence.
func (x *execution) tally(now time.Time) {
	for i := range x.results {
		r := &x.results[i]
		if r.Outcome != Done {
			continue
		}
		switch s := r.Step; {
		case s.Drift:
			x.corrected(subject{s.ID, plan.Configure}, now)
		case s.Action == plan.Create:
			if x.settled(subject{s.ID, plan.Prune}); x.disputedBefore(subject{s.ID, plan.Create}) {
				x.corrected(subject{s.ID, plan.Create}, now)
			}
		case s.Action == plan.Prune:
			x.settled(subject{s.ID, plan.Create})
			x.corrected(subject{s.ID, plan.Prune}, now)
		}
	}
}

func (a *Applier) disputedBefore(c subject) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.disputes[c] != nil
}

func (a *Applier) settled(c subject) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.disputes, c)
}

// held returns why a subject is not corrected now; "" if it is. what describes the
// corrected difference, undone how it was undone each time, and do the advice.
func (d *dispute) held(what, undone, do string, now time.Time) string {
	next := d.last.Add(d.backoff())
	if !now.Before(next) {
		return ""
	}
	// A time, not a duration: the text stays the same, and is reported once.
	return fmt.Sprintf("%s %d times in %s, and %s, so that the next correction waits until %s: %s",
		what, d.corrections, d.last.Sub(d.first).Round(time.Second), undone, next.UTC().Format("15:04:05 MST"), do)
}

// findDisputes notes the objects that somebody deleted, and those that must not be
// corrected now. It forgets the disputes that are over.
func (a *Applier) findDisputes(v *view, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	v.live.Vanished = make(map[manifest.ID]bool)
	for c, d := range a.disputes {
		if d.over(now) {
			delete(a.disputes, c)
			continue
		}
		wanted, there := v.desired.Get(c.id) != nil, v.live.Objects[c.id] != nil
		why := ""
		switch drift, drifted := v.live.Drifted[c.id]; {
		case c.about == plan.Configure && drifted:
			why = d.held("drift: "+drift+"; "+kube.FieldManager+" corrected it", "it was changed again each time",
				"remove the field from the repository, or stop the other writer", now)
		case c.about == plan.Create && wanted && !there:
			v.live.Vanished[c.id] = true
			why = d.held("it is gone; "+kube.FieldManager+" created it again", "it was deleted again each time",
				"remove it from the repository, or stop whoever deletes it", now)
		case c.about == plan.Prune && !wanted && there:
			why = d.held("kept: "+kube.FieldManager+" pruned it", "somebody created it again each time",
				"stop whoever creates it, or add it to the repository", now)
		}
		if why != "" {
			v.live.Disputed[c.id] = why
		}
	}
}
