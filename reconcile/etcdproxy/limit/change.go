package limit

import "hash/maphash"

// Change is one event of a namespace in etcd.
type Change struct {
	Key      []byte // without the prefix
	Value    int    // length of the new value
	Deleted  bool
	Revision int64
}

// Scan collects what a namespace holds at one revision, for [Usage.Replace].
type Scan struct {
	seed maphash.Seed
	live sizes
}

// Scan begins a new count. The old one stays until Replace.
func (u *Usage) Scan() *Scan {
	return &Scan{seed: u.seed, live: sizes{of: make(map[uint64]uint32)}}
}

// Add counts a key that exists.
func (s *Scan) Add(key []byte, value int) {
	s.live.set(maphash.Bytes(s.seed, key), len(key)+value)
}

// Replace makes a complete Scan what the namespace holds at a revision.
func (u *Usage) Replace(s *Scan, revision int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.live = s.live
	if revision < u.revision {
		u.done = 0 // etcd was restored from a snapshot
	}
	u.pinned = amount{}
	for key := range u.pins {
		u.pinned = u.pinned.plus(u.beyond(key))
	}
	u.reach(revision)
}

// Apply counts changes, in the order of their revisions. Changes that were counted before are ignored. revision is
// the revision up to which there are no other changes.
func (u *Usage) Apply(changes []Change, revision int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, c := range changes {
		if c.Revision <= u.revision {
			continue
		}
		key := maphash.Bytes(u.seed, c.Key)
		u.touch(key, func() {
			if c.Deleted {
				u.live.remove(key)
			} else {
				u.live.set(key, len(c.Key)+c.Value)
			}
		})
	}
	if revision > u.revision {
		u.reach(revision)
	}
}

// reach advances the revision, and releases the holds of writes that are counted now.
func (u *Usage) reach(revision int64) {
	u.revision = revision
	if u.moved != nil {
		close(u.moved)
		u.moved = nil
	}
	waiting := u.written
	u.written = nil
	for _, h := range waiting {
		if h.revision > revision {
			u.written = append(u.written, h)
		} else {
			h.release()
		}
	}
}

// Waits reports whether writes wait for the count to advance.
func (u *Usage) Waits() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.written) > 0 || u.moved != nil
}

// manyWritten is how many writes may wait to be counted while the count lags.
const manyWritten = 1000

// MayLag reports whether nothing needs a recent count: no write waits for it, few wait to be counted, and at least
// a quarter of the quota is free.
func (u *Usage) MayLag() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	used := u.live.amount.plus(u.pinned).plus(u.loose)
	near := func(used, quota int64) bool { return quota > 0 && used > quota-quota/4 }
	return u.moved == nil && len(u.written) < manyWritten && !near(used.bytes, u.quota.Storage) && !near(used.keys, u.quota.Keys)
}

// Waiting returns a channel that has an element when [Usage.Waits] may have become true.
func (u *Usage) Waiting() <-chan struct{} { return u.waiting }

func (u *Usage) wait() {
	select {
	case u.waiting <- struct{}{}:
	default:
	}
}

// SetCurrent says whether the count is followed and up to date. While it is not, writes that may make the
// namespace larger wait.
func (u *Usage) SetCurrent(current bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case current && !u.current:
		close(u.turned)
	case !current && u.current:
		u.turned = make(chan struct{})
	}
	u.current = current
}

func (s *sizes) set(key uint64, size int) {
	old, exists := s.of[key]
	if !exists {
		s.keys++
	}
	s.bytes += int64(size) - int64(old)
	s.of[key] = uint32(size)
}

func (s *sizes) remove(key uint64) {
	if old, exists := s.of[key]; exists {
		s.keys--
		s.bytes -= int64(old)
		delete(s.of, key)
	}
}
