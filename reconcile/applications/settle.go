package applications

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"gitopsd.dev/render/target/placement"
)

// Applications that arrive together are placed together, so that they are spread as the plan
// of a commit shows, in whatever order they are created and their targets become ready. No
// target is chosen until no application and no target has arrived for a settlePause, or while
// a new target is not ready; but never for longer than longestSettle.
const (
	settlePause   = time.Second
	longestSettle = 20 * time.Second
)

// open reports whether a target is to be chosen for an application.
func (k *known) open() bool {
	return k.app.Placed == "" && k.app.TargetRef == "" && k.err == nil && k.meta.DeletionTimestamp == nil
}

// settle returns the end of the wait before targets are chosen in a namespace; zero if there is
// none.
func (c *Controller) settle(namespace string, all []*known, targets map[string]*target, now time.Time) time.Time {
	var until time.Time
	later := func(t time.Time) {
		if t.After(until) {
			until = t
		}
	}
	waits := false
	for _, k := range all {
		if !k.open() {
			continue
		}
		waits = true
		later(k.seen.Add(settlePause))
		for _, t := range targets {
			if young := t.since.Add(longestSettle); t.unready != "" && now.Before(young) && k.app.Selector != nil && k.app.Selector.Matches(labels.Set(t.labels)) {
				k.decision = placement.Decision{Why: fmt.Sprintf("it waits for target %s, which was just made: %s", t.name, t.unready)}
				later(young)
			}
		}
	}
	for _, t := range targets {
		if t.unready == "" {
			later(t.since.Add(settlePause))
		}
	}
	began, settling := c.settling[namespace]
	switch {
	case !waits || !now.Before(until):
		delete(c.settling, namespace)
		return time.Time{}
	case !settling:
		began = now
		c.settling[namespace] = now
	case !now.Before(began.Add(longestSettle)):
		return time.Time{}
	}
	if most := began.Add(longestSettle); most.Before(until) {
		return most
	}
	return until
}
