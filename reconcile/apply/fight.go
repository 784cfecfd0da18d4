package apply

import (
	"fmt"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// Two that undo each other's work write for ever, and to no avail: another manager
// of the same field, somebody who deletes what is wanted, or makes again what is
// not. After a few corrections of the same thing in a row the next one has to wait,
// each time for longer, and people are told.
const (
	fightAfter  = 3                // corrections in a row
	fightMemory = 10 * time.Minute // without a correction ends the row
	firstTruce  = 30 * time.Second
	longTruce   = 10 * time.Minute
)

// contest is what a fight is over: an object's fields (Configure), that it is
// there (Create), or that it is not (Prune).
type contest struct {
	id   manifest.ID
	over plan.Action
}

// fight is a contest in which something was put right a short while ago. It is
// guarded by the Applier's mutex.
type fight struct {
	corrections int
	first, last time.Time
}

// truce is how long the next correction has to wait after the last one.
func (f *fight) truce() time.Duration {
	if f.corrections < fightAfter {
		return 0
	}
	return min(firstTruce<<min(f.corrections-fightAfter, 10), longTruce)
}

// over says that there was nothing to put right for long.
func (f *fight) over(now time.Time) bool { return now.Sub(f.last) > fightMemory+f.truce() }

// vanished notes that somebody else deleted a member, or made it theirs. The mutex
// is held.
func (a *Applier) vanished(id manifest.ID) {
	c := contest{id, plan.Create}
	if a.fights[c] == nil {
		now := time.Now()
		a.fights[c] = &fight{first: now, last: now}
	}
}

// corrected notes that something was put right.
func (a *Applier) corrected(c contest, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.fights[c]
	if f == nil || f.over(now) {
		f = &fight{first: now}
		a.fights[c] = f
	}
	f.corrections++
	f.last = now
}

// tally notes what a pass put right. That an object is created is a correction
// only where it was there before, and what is wanted or not wanted any more ends
// the fight over the opposite.
func (x *execution) tally(now time.Time) {
	for i := range x.results {
		r := &x.results[i]
		if r.Outcome != Done {
			continue
		}
		switch s := r.Step; {
		case s.Drift:
			x.corrected(contest{s.ID, plan.Configure}, now)
		case s.Action == plan.Create:
			if x.settled(contest{s.ID, plan.Prune}); x.contested(contest{s.ID, plan.Create}) {
				x.corrected(contest{s.ID, plan.Create}, now)
			}
		case s.Action == plan.Prune:
			x.settled(contest{s.ID, plan.Create})
			x.corrected(contest{s.ID, plan.Prune}, now)
		}
	}
}

func (a *Applier) contested(c contest) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fights[c] != nil
}

func (a *Applier) settled(c contest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.fights, c)
}

// disputed says why something is not put right now; "" when it is. what says what
// is wrong and that it was put right so often, how that it was undone each time,
// and do what people can do.
func (f *fight) disputed(what, undone, do string, now time.Time) string {
	next := f.last.Add(f.truce())
	if !now.Before(next) {
		return ""
	}
	// The time, and not what is left of it: the same is told once.
	return fmt.Sprintf("%s %d times in %s, and %s, so that the next time waits until %s: %s",
		what, f.corrections, f.last.Sub(f.first).Round(time.Second), undone, next.UTC().Format("15:04:05 MST"), do)
}

// findFights notes what is not to be put right now, and forgets the fights that
// are over.
func (a *Applier) findFights(v *view, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c, f := range a.fights {
		if f.over(now) {
			delete(a.fights, c)
			continue
		}
		wanted, there := v.desired.Get(c.id) != nil, v.live.Objects[c.id] != nil
		why := ""
		switch drift, drifted := v.live.Drifted[c.id]; {
		case c.over == plan.Configure && drifted:
			why = f.disputed("drift: "+drift+"; "+kube.FieldManager+" put it right", "it was changed again each time",
				"take the field out of the repository, or stop the other writer", now)
		case c.over == plan.Create && wanted && !there:
			why = f.disputed("it is gone; "+kube.FieldManager+" created it anew", "it was deleted again each time",
				"take it out of the repository, or stop whoever deletes it", now)
		case c.over == plan.Prune && !wanted && there:
			why = f.disputed("kept: "+kube.FieldManager+" pruned it", "somebody made it again each time",
				"stop whoever makes it, or put it into the repository", now)
		}
		if why != "" {
			v.live.Disputed[c.id] = why
		}
	}
}
