package convert

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/render/conversion"
)

// stats counts conversions by definition and pair of versions.
type stats struct {
	mu    sync.Mutex
	pairs map[[3]string]*status.Conversions
}

// unknown stands for all versions that a definition does not have: clients can make up any
// number of them.
const unknown = "unknown"

func (s *stats) add(set *conversion.Set, from, to string, took time.Duration, report *conversion.Report, err error) {
	for _, version := range []*string{&from, &to} {
		if !slices.Contains(set.Versions(), *version) {
			*version = unknown
		}
	}
	key := [3]string{set.Name(), from, to}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pairs[key]
	if p == nil {
		if s.pairs == nil {
			s.pairs = make(map[[3]string]*status.Conversions)
		}
		p = &status.Conversions{Definition: set.Name(), From: from, To: to}
		s.pairs[key] = p
	}
	p.Observe(took)
	if err != nil {
		p.Refused++
	}
	p.Stashed += uint64(len(report.Stashed))
	p.Restored += uint64(len(report.Restored))
	p.Dropped += uint64(len(report.Dropped))
	p.FailedRules += uint64(len(report.Failed))
}

// Conversions returns the counts, sorted by definition and versions.
func (h *Handler) Conversions() []status.Conversions {
	h.stats.mu.Lock()
	defer h.stats.mu.Unlock()
	list := make([]status.Conversions, 0, len(h.stats.pairs))
	for _, p := range h.stats.pairs {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b status.Conversions) int {
		return cmp.Or(cmp.Compare(a.Definition, b.Definition), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	return list
}
