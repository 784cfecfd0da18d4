// Package convert answers ConversionReviews: API servers send them to have objects of
// CustomResourceDefinitions converted, here by conversion rules (render/conversion).
//
//   - [Table] has the rules that are served, by the path that a definition names. No
//     request fails when rules are replaced: new ones are served before a definition names
//     them, and old ones for some time after.
//   - [Handler] is the HTTP handler (handler.go). It bounds bodies, time and concurrency, and
//     clients take turns (queue.go). review.go reads reviews and writes the answers, without
//     decoding the objects. A rule that fails does not fail the object; see
//     [conversion.Set].
//   - stats.go counts conversions for metrics.
//
// reconcile/convert/serve has the rest of a server: TLS, the ConfigMaps with the rules, and
// the daemon's part.
package convert

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/converter"
)

// linger is how long rules are served after nothing holds them any more, because API servers
// may still use a definition that was replaced.
const linger = 10 * time.Minute

// Table has the rules that are served. Its zero value is empty. It is safe for
// concurrent use.
type Table struct {
	mu sync.Mutex
	// held has the sets of each holder, by name.
	held map[string]map[string]*conversion.Set
	// goes is when the next set that nothing holds is removed; zero if all are held.
	goes time.Time
	// served is immutable, and replaced as a whole.
	served atomic.Pointer[map[string]served]

	now func() time.Time // nil means time.Now
}

type served struct {
	set *conversion.Set
	// until is when it is removed; zero while something holds it.
	until time.Time
}

// Hold replaces the sets of a holder. Sets are served while anything holds them, and ten
// minutes longer.
func (t *Table) Hold(holder string, sets []*conversion.Set) {
	t.hold(holder, sets, false)
}

// Add is like Hold, but what the holder had is served, too.
func (t *Table) Add(holder string, sets []*conversion.Set) { t.hold(holder, sets, true) }

func (t *Table) hold(holder string, sets []*conversion.Set, add bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held == nil {
		t.held = make(map[string]map[string]*conversion.Set)
	}
	named := make(map[string]*conversion.Set, len(sets))
	if add {
		maps.Copy(named, t.held[holder])
	}
	for _, s := range sets {
		named[converter.Argument(s)] = s
	}
	now := t.time()
	same := maps.EqualFunc(named, t.held[holder], func(_, _ *conversion.Set) bool { return true })
	if same && (t.goes.IsZero() || now.Before(t.goes)) {
		return // the usual case after a commit
	}
	if delete(t.held, holder); len(named) > 0 {
		t.held[holder] = named
	}
	t.goes = time.Time{}
	next := make(map[string]served)
	for _, sets := range t.held {
		for name, set := range sets {
			next[name] = served{set: set}
		}
	}
	for name, s := range t.all() {
		if _, held := next[name]; held {
			continue
		}
		if s.until.IsZero() {
			s.until = now.Add(linger)
		}
		if now.Before(s.until) {
			next[name] = s
			if t.goes.IsZero() || s.until.Before(t.goes) {
				t.goes = s.until
			}
		}
	}
	t.served.Store(&next)
}

// Holders returns the names of the holders of sets.
func (t *Table) Holders() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.held))
}

// Find returns the served set with a name from [converter.Argument]; nil if there is none.
func (t *Table) Find(name string) *conversion.Set {
	s, ok := t.all()[name]
	if !ok || !s.until.IsZero() && !t.time().Before(s.until) {
		return nil
	}
	return s.set
}

func (t *Table) all() map[string]served {
	if m := t.served.Load(); m != nil {
		return *m
	}
	return nil
}

func (t *Table) time() time.Time {
	if t.now != nil {
		return t.now()
	}
	return time.Now()
}

// nameOf returns the name of the set in a path; see [conversion.Path]. The path may have a
// prefix. ok is false for any other path.
func nameOf(path string) (name string, ok bool) {
	parts := strings.Split(path, "/")
	n := len(parts)
	if n < 5 || parts[n-4] != "convert" || parts[n-3] == "" || parts[n-2] == "" || parts[n-1] == "" {
		return "", false
	}
	return parts[n-2] + "/" + parts[n-1], true
}
