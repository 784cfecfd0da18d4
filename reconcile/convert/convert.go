// Package convert answers the ConversionReviews by which API servers have objects of
// CustomResourceDefinitions converted, by conversion rules (render/conversion).
//
//   - [Table] has the rules that are served, by the path that a definition names.
//     Rules are replaced without a lost request: new ones are there before a definition
//     names them, and old ones for some time after.
//   - [Handler] is the HTTP handler (handler.go): it bounds bodies, time and
//     concurrency, and has clients take turns (queue.go). review.go reads reviews and
//     writes the answers, without decoding the objects. Rules fail no object; see
//     [conversion.Set].
//   - stats.go counts, for metrics.
//
// reconcile/convert/serve has what is around it: TLS, the ConfigMaps that rules come
// from, and the daemon's part.
package convert

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/converter"
)

// Linger is how long rules are served that nothing holds any more. API servers may
// still use a definition that was replaced.
const Linger = 10 * time.Minute

// Table has the rules that are served. Its zero value is empty. It is safe for
// concurrent use.
type Table struct {
	mu sync.Mutex
	// held has the sets of each holder, by name.
	held map[string]map[string]*conversion.Set
	// goes is when the first set goes that nothing holds; zero if all are held.
	goes time.Time
	// served is replaced as a whole, and never changed.
	served atomic.Pointer[map[string]served]

	now func() time.Time // nil means time.Now
}

type served struct {
	set *conversion.Set
	// until is when it goes; zero while something holds it.
	until time.Time
}

// Hold has the table serve sets as long as the holder does not hold others. What
// nothing holds any more is served for [Linger].
func (t *Table) Hold(holder string, sets []*conversion.Set) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held == nil {
		t.held = make(map[string]map[string]*conversion.Set)
	}
	named := make(map[string]*conversion.Set, len(sets))
	for _, s := range sets {
		named[converter.Argument(s)] = s
	}
	now := t.time()
	same := maps.EqualFunc(named, t.held[holder], func(_, _ *conversion.Set) bool { return true })
	if same && (t.goes.IsZero() || now.Before(t.goes)) {
		return // as after most commits, for each cluster
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
			s.until = now.Add(Linger)
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

// Holders returns who holds sets.
func (t *Table) Holders() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var names []string
	for name := range maps.Keys(t.held) {
		names = append(names, name)
	}
	return names
}

// Find returns the set with a name as [converter.Argument] returns it, nil if none is
// served.
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

// nameOf returns the name of the set that a path asks for; see [conversion.Path]. A
// server may be reached below a prefix. ok is false for any other path.
func nameOf(path string) (name string, ok bool) {
	parts := strings.Split(path, "/")
	n := len(parts)
	if n < 5 || parts[n-4] != "convert" || parts[n-3] == "" || parts[n-2] == "" || parts[n-1] == "" {
		return "", false
	}
	return parts[n-2] + "/" + parts[n-1], true
}
