package namespaces

import (
	"context"
	"slices"
	"sync"
	"time"

	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/etcd/registry"
)

// Share returns an Admin for several homes. They share an Overview, which is read again after a pause
// or after a change by one of them.
func Share(a Admin) Admin { return &shared{Admin: a} }

type shared struct {
	Admin

	mu   sync.Mutex
	last admin.Overview
	at   time.Time // of last; zero if it is out of date
}

// Overview implements [Admin].
func (s *shared) Overview(ctx context.Context) (admin.Overview, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.at.IsZero() && time.Since(s.at) < countPause {
		return s.last, nil
	}
	now, err := s.Admin.Overview(ctx)
	if err == nil {
		s.last, s.at = now, time.Now()
	}
	return now, err
}

// Provision implements [Admin].
func (s *shared) Provision(ctx context.Context, wanted []admin.Wanted) ([]admin.Provisioned, error) {
	all, err := s.Admin.Provision(ctx, wanted)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range all {
		if !slices.ContainsFunc(s.last.Namespaces, func(n admin.Status) bool { return n.ID == p.ID && n.State == registry.Active }) {
			s.at = time.Time{}
		}
	}
	return all, err
}

// Remove implements [Admin].
func (s *shared) Remove(ctx context.Context, w admin.Wanted, how admin.Deletion) (admin.Removal, error) {
	defer s.outdated()
	return s.Admin.Remove(ctx, w, how)
}

func (s *shared) outdated() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = time.Time{}
}
