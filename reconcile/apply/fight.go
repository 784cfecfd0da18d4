package apply

import (
	"fmt"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
)

// Two managers that overwrite each other write for ever, and to no avail. After a
// few corrections of the same object in a row the next one has to wait, each time
// for longer, and people are told who the two are.
const (
	fightAfter  = 3                // corrections in a row
	fightMemory = 10 * time.Minute // without a correction ends the row
	firstTruce  = 30 * time.Second
	longTruce   = 10 * time.Minute
)

// fight is an object that was corrected a short while ago. It is guarded by the
// Applier's mutex.
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

// corrected notes that drift of an object was put right.
func (a *Applier) corrected(id manifest.ID, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, f := range a.fights {
		if now.Sub(f.last) > fightMemory+f.truce() {
			delete(a.fights, id)
		}
	}
	f := a.fights[id]
	if f == nil {
		f = &fight{first: now}
		a.fights[id] = f
	}
	f.corrections++
	f.last = now
}

// disputed says why drift of an object is not put right now; "" when it is. by is
// what the drift is, with who caused it.
func (a *Applier) disputed(id manifest.ID, by string, now time.Time) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.fights[id]
	if f == nil {
		return ""
	}
	next := f.last.Add(f.truce())
	if !now.Before(next) {
		return ""
	}
	// The time, and not what is left of it: the same is told once.
	return fmt.Sprintf("drift: %s; %s put it right %d times in %s, and it was changed again each time, so that the next correction waits until %s: take the field out of the repository, or stop the other writer",
		by, kube.FieldManager, f.corrections, f.last.Sub(f.first).Round(time.Second), next.UTC().Format("15:04:05 MST"))
}
