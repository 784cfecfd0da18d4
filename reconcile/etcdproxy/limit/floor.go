package limit

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Floor is the revision to which a namespace is compacted: for its tenant, earlier revisions are gone, whether
// or not etcd still has them. It is unknown before Reset. It is safe for concurrent use.
type Floor struct {
	revision atomic.Int64
	once     sync.Once
	known    chan struct{}
}

// NewFloor returns an unknown Floor.
func NewFloor() *Floor { return &Floor{known: make(chan struct{})} }

// Wait waits until the floor is known, and returns it; 0 if there is none. The error is [ErrFloorUnknown] if
// that takes longer than [MaxCountWait], or the context's.
func (f *Floor) Wait(ctx context.Context) (int64, error) {
	select {
	case <-f.known:
		return f.Load(), nil
	default:
	}
	timeout := time.NewTimer(MaxCountWait)
	defer timeout.Stop()
	select {
	case <-f.known:
		return f.Load(), nil
	case <-timeout.C:
		return 0, ErrFloorUnknown
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// Raise sets the floor if it is higher than before.
func (f *Floor) Raise(revision int64) {
	for {
		old := f.revision.Load()
		if revision <= old || f.revision.CompareAndSwap(old, revision) {
			return
		}
	}
}

// Reset sets the floor, which may be lower than before: etcd may have been restored from a snapshot.
func (f *Floor) Reset(revision int64) {
	f.revision.Store(revision)
	f.once.Do(func() { close(f.known) })
}

// Load returns the floor; 0 if there is none or it is unknown.
func (f *Floor) Load() int64 {
	return f.revision.Load()
}

// MaxHistory is how long etcd keeps its history for a namespace that does not compact.
const MaxHistory = time.Hour

// Sample is etcd's revision at a time.
type Sample struct {
	Time     time.Time
	Revision int64
}

// Compaction returns the revision to which an etcd may be compacted: the lowest floor of its namespaces, but at
// least the newest sample that is older than maxAge, and at most the current revision. The floor of a namespace
// that never compacted is 0. Compaction returns 0 if there is nothing to compact. Samples are in any order.
func Compaction(floors []int64, samples []Sample, now time.Time, maxAge time.Duration, current int64) int64 {
	lowest := int64(0)
	if len(floors) > 0 {
		lowest = max(slices.Min(floors), 0)
	}
	for _, s := range samples {
		if now.Sub(s.Time) >= maxAge {
			lowest = max(lowest, s.Revision)
		}
	}
	return min(lowest, current)
}

// Trim returns the samples that [Compaction] may still need: those younger than maxAge, and the newest of the
// others.
func Trim(samples []Sample, now time.Time, maxAge time.Duration) []Sample {
	sorted := slices.SortedFunc(slices.Values(samples), func(a, b Sample) int { return a.Time.Compare(b.Time) })
	young := slices.IndexFunc(sorted, func(s Sample) bool { return now.Sub(s.Time) < maxAge })
	switch {
	case young < 0 && len(sorted) > 0:
		young = len(sorted)
	case young <= 0:
		return sorted
	}
	return sorted[young-1:]
}

// FloorKey returns the key in etcd with the floor of a namespace: the prefix itself. The user of the namespace may
// write it, so any proxy can raise the floor, and it outlives restarts. No tenant can name the key: it would be
// the empty one, which etcd does not have. It is deleted with the namespace's keys.
func FloorKey(prefix string) []byte { return []byte(prefix) }

// FormatFloor returns the value at [FloorKey] for a revision.
func FormatFloor(revision int64) []byte { return strconv.AppendInt(nil, revision, 10) }

// ParseFloor parses the value at [FloorKey], given etcd's current revision. It returns 0 and false, for no floor,
// if the value is not a revision that could have been compacted to.
func ParseFloor(value []byte, current int64) (int64, bool) {
	revision, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil || revision < 1 || revision > current {
		return 0, false
	}
	return revision, true
}
