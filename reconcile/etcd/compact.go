package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"gitopsd.dev/reconcile/etcd/registry"
	"gitopsd.dev/reconcile/etcdproxy/limit"
)

// Compactor compacts an etcd from time to time: at the lowest floor of its namespaces, or at the
// revision that it had [limit.MaxHistory] ago if that is higher. That affects every client of the
// etcd, so it needs [Config].MayCompact.
type Compactor struct {
	admin *Admin
	now   func() time.Time

	mu      sync.Mutex
	samples []limit.Sample // since the start of the process, so history lasts longer after a restart
	last    int64
}

// Compactor returns a Compactor, or an error if gitopsd may not compact the etcd. A nil now means
// [time.Now].
func (a *Admin) Compactor(now func() time.Time) (*Compactor, error) {
	if !a.cfg.MayCompact {
		return nil, errors.New("etcd: gitopsd was not told that it may compact this etcd; whoever reaches it past the proxies would be compacted, too")
	}
	if now == nil {
		now = time.Now
	}
	return &Compactor{admin: a, now: now}, nil
}

// Compact compacts the etcd if there is something to compact, and returns the revision at
// which it is compacted; 0 if it never was. Call it every few minutes.
func (c *Compactor) Compact(ctx context.Context) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, c.admin.cfg.Timeout)
	defer cancel()
	s, err := c.admin.connect(ctx)
	if err != nil {
		return c.last, err
	}
	defer s.Close()
	floors, current, err := s.floors(ctx)
	if err != nil {
		return c.last, err
	}
	now := c.now()
	if n := len(c.samples); n > 0 && c.samples[n-1].Revision > current {
		c.samples, c.last = nil, 0 // etcd was restored from a snapshot
	}
	c.samples = limit.Trim(append(c.samples, limit.Sample{Time: now, Revision: current}), now, limit.MaxHistory)
	revision := limit.Compaction(floors, c.samples, now, limit.MaxHistory, current)
	if revision <= c.last {
		return c.last, nil
	}
	if _, err := s.Client.Compact(ctx, revision); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return c.last, fmt.Errorf("etcd: compact at revision %d: %w", revision, err)
	}
	c.last = revision
	return revision, nil
}

// floors returns the floors of the active namespaces that clusters declare, and the current
// revision. A cluster's own has none to count: no proxy raises it, and readers can begin with the newest
// revision (see publish.Read). The floor of a damaged record is 0: its namespace may
// need everything.
func (s *session) floors(ctx context.Context) ([]int64, int64, error) {
	known, current, err := s.registry(ctx)
	if err != nil {
		return nil, 0, err
	}
	floors := make([]int64, len(known.Damaged()))
	for _, r := range known.All() {
		if r.State != registry.Active || r.ID.Name == "" {
			continue
		}
		kv, err := s.Get(ctx, string(limit.FloorKey(r.Prefix)))
		if err != nil {
			return nil, 0, fmt.Errorf("etcd namespace %s: its floor: %w", r.ID, err)
		}
		current = max(current, kv.Header.GetRevision())
		floor := int64(0)
		if len(kv.Kvs) > 0 {
			floor, _ = limit.ParseFloor(kv.Kvs[0].GetValue(), kv.Header.GetRevision())
		}
		floors = append(floors, floor)
	}
	return floors, current, nil
}
