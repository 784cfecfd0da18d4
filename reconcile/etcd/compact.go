package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"gitopsd.dev/reconcile/etcd/registry"
	"gitopsd.dev/reconcile/etcdproxy/limit"
)

// Compactor compacts an etcd from time to time: at the lowest floor of its namespaces, or at the
// revision that it had [limit.MaxHistory] ago if that is higher. That affects every client of the
// etcd, so it needs [Config].MayCompact. Nobody else looks after the embedded etcd: while more than half
// of its quota is in use, its history is scarceHistory long at most, and once it was full, makeRoom
// defragments it.
type Compactor struct {
	admin *Admin
	now   func() time.Time

	mu      sync.Mutex
	samples []limit.Sample // since the start of the process, so history lasts longer after a restart
	last    int64

	// compacted: the embedded etcd was compacted while it was full, and not defragmented since.
	compacted bool
	// used is how many bytes were in use after the last try to make room by defragmenting, at tried; 0 if there
	// was room since.
	used  int64
	tried time.Time
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
// which it is compacted; 0 if it never was. Call it every few minutes. An error of the embedded etcd may
// also say that it is full.
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
	history := limit.MaxHistory
	if m := s.Server.Members[0]; s.Config.Embedded && m.InUse > m.Quota/2 {
		history = scarceHistory
	}
	revision := limit.Compaction(floors, c.samples, now, history, current)
	compacts := revision > c.last
	if compacts {
		if err := s.compact(ctx, revision); err != nil {
			return c.last, err
		}
		c.last = revision
	}
	if s.Config.Embedded {
		err = c.makeRoom(ctx, s, compacts)
	}
	return c.last, err
}

// scarceHistory is how much history the embedded etcd keeps at most while room is scarce. An API server
// keeps 5 to 10 minutes of its own.
const scarceHistory = 10 * time.Minute

// compact compacts the etcd. In the embedded one, old revisions are gone when compact returns.
func (s *session) compact(ctx context.Context, revision int64) error {
	var how []clientv3.CompactOption
	if s.Config.Embedded {
		how = append(how, clientv3.WithCompactPhysical())
	}
	if _, err := s.Client.Compact(ctx, revision, how...); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("etcd: compact at revision %d: %w", revision, err)
	}
	return nil
}

// makeRoom lets clients of the embedded etcd write again after its database reached its quota, which etcd
// does not do by itself. First it defragments the database if that may help, while etcd answers nobody.
// compacts reports whether the etcd was just compacted. If ctx ends while etcd defragments, the next call
// goes on. The error is errFull, or about etcd.
func (c *Compactor) makeRoom(ctx context.Context, s *session, compacts bool) error {
	alarms, err := s.AlarmList(ctx)
	if err != nil {
		return fmt.Errorf("etcd: its alarms: %w", err)
	}
	i := slices.IndexFunc(alarms.Alarms, func(a *etcdserverpb.AlarmMember) bool { return a.GetAlarm() == etcdserverpb.AlarmType_NOSPACE })
	if i < 0 {
		c.compacted, c.used = false, 0
		return nil // free pages are used again
	}
	c.compacted = c.compacted || compacts
	endpoint := s.Server.Members[0].Endpoint
	db, err := s.Status(ctx, endpoint)
	if err == nil && nearlyFull(db.DbSize, db.DbSizeQuota) && c.mayHelp(db.DbSizeInUse, db.DbSizeQuota) {
		c.used, c.tried = db.DbSizeInUse, c.now() // in case ctx ends
		if _, err := s.Defragment(ctx, endpoint); err != nil {
			return fmt.Errorf("etcd: defragment: %w", err)
		}
		c.compacted = false
		if db, err = s.Status(ctx, endpoint); err == nil {
			c.used = db.DbSizeInUse
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("etcd: its size: %w", err)
	case nearlyFull(db.DbSize, db.DbSizeQuota):
		return errFull
	}
	if _, err := s.AlarmDisarm(ctx, (*clientv3.AlarmMember)(alarms.Alarms[i])); err != nil {
		return fmt.Errorf("etcd: disarm the alarm NOSPACE: %w", err)
	}
	c.used = 0
	s.Config.Log.Warn("the embedded etcd was full, so that nobody could write; there is room again", "bytes", db.DbSize, "quota", db.DbSizeQuota)
	return nil
}

// mayHelp reports whether defragmenting may make room while etcd says that so many bytes are in use. After a
// compaction there may be fewer: it counts pages as free only some commits later. But an etcd full of keys is
// compacted all the time, so that after a try that made no room, compactions alone are no reason for another
// within retryFull.
func (c *Compactor) mayHelp(inUse, quota int64) bool {
	return !nearlyFull(inUse, quota) || c.compacted && (c.used == 0 || inUse < c.used-quota/10 || c.now().Sub(c.tried) >= retryFull)
}

const retryFull = 30 * time.Minute

// errFull says that defragmenting does not help.
var errFull = errors.New("etcd: the embedded etcd is full, so that nobody can write; if it stays full for more than ten minutes, delete keys (kubectl get etcdnamespaces shows who has many), or move to an etcd with more room")

// nearlyFull reports whether a tenth of the quota at most is left.
func nearlyFull(bytes, quota int64) bool { return quota > 0 && bytes > quota/10*9 }

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
