package linearizability

import (
	"fmt"
	"slices"
)

// event is a change as a watcher sees it, or as it is in etcd.
type event struct {
	revision int64
	key      string
	value    string // empty if it was deleted
	deleted  bool
	before   string // the previous value, for watchers that ask for it
}

// watched is everything that one watcher has seen.
type watched struct {
	name     string
	from     int64 // the first revision
	key, end string
	before   bool // whether it asked for previous values
	seen     []event
	// progress has the revisions of progress notifications, with the number of events
	// before each.
	progress []progress
}

type progress struct {
	revision int64
	after    int
}

// check returns how a watcher's events differ from the history of the namespace: they must be the changes of
// its keys from its first revision on, each once and in order, up to the last one that it saw. No progress
// notification may be ahead of the events.
func (w watched) check(history []event) error {
	var want []event
	for _, e := range history {
		if e.revision < w.from || e.key < w.key || w.end != "" && e.key >= w.end {
			continue
		}
		if !w.before {
			e.before = ""
		}
		want = append(want, e)
	}
	for i := range max(len(want), len(w.seen)) {
		if i >= len(want) {
			return fmt.Errorf("watcher %s: event %d %+v is more than the history has", w.name, i, w.seen[i])
		}
		if i >= len(w.seen) {
			return fmt.Errorf("watcher %s: event %d %+v is missing", w.name, i, want[i])
		}
		if w.seen[i] != want[i] {
			return fmt.Errorf("watcher %s: event %d is %+v, and %+v in the history", w.name, i, w.seen[i], want[i])
		}
	}
	for _, p := range w.progress {
		if i := slices.IndexFunc(w.seen[p.after:], func(e event) bool { return e.revision <= p.revision }); i >= 0 {
			return fmt.Errorf("watcher %s: told that it has everything up to revision %d, and got %+v afterwards", w.name, p.revision, w.seen[p.after+i])
		}
	}
	return nil
}
