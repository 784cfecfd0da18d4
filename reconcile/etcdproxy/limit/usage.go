package limit

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"gitopsd.dev/render/etcd"
)

// unknownFor is how long a write with an unknown outcome keeps its place. etcd gives up on proposals without
// agreement after seven seconds.
const unknownFor = 15 * time.Second

// Usage is what a namespace holds: the number of its keys, and their bytes with the values. It is true at a
// revision, which advances as changes are applied. Writes in flight count as if they succeeded: a key costs the
// largest of its current size and the sizes that writes in flight may give it.
//
// It remembers the size of each key under a 64-bit hash with a seed of its own, in 20 to 40 bytes a key. Two of a
// million keys share a hash once in 30 million namespaces; then one of them is not counted.
//
// It is safe for concurrent use.
type Usage struct {
	seed maphash.Seed

	mu    sync.Mutex
	quota etcd.Quota
	live  sizes
	pins  map[uint64][]int64 // sizes that writes in flight may give to a key, or unpriced
	// pinned is the cost of the pins beyond what exists, and loose the growth by transactions
	// that may put different keys.
	pinned, loose amount
	revision      int64
	current       bool          // the count is followed, and up to date
	turned        chan struct{} // closed once current
	done          int64         // the revision of the newest change that a client knows of
	moved         chan struct{} // closed when revision advances; nil if nobody waits
	waiting       chan struct{} // receives a token when something begins to wait
	written       []*Hold       // released when revision reaches theirs
	unknown       []*Hold       // in the order of their ends
}

// sizes are the sizes of the keys that exist, and their sum.
type sizes struct {
	of map[uint64]uint32
	amount
}

type amount struct {
	bytes, keys int64
}

func (a amount) plus(b amount) amount {
	return amount{a.bytes + b.bytes, a.keys + b.keys}
}

func (a amount) minus(b amount) amount {
	return amount{a.bytes - b.bytes, a.keys - b.keys}
}

// NewUsage returns the Usage of a namespace that is not counted yet.
func NewUsage(q etcd.Quota) *Usage {
	return &Usage{
		seed:   maphash.MakeSeed(),
		quota:  q,
		live:   sizes{of: make(map[uint64]uint32)},
		pins:   make(map[uint64][]int64),
		turned: make(chan struct{}),

		waiting: make(chan struct{}, 1),
	}
}

// SetQuota replaces the quota. What already exists stays.
func (u *Usage) SetQuota(q etcd.Quota) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.quota = q
}

// State is a namespace's use of its quota.
type State struct {
	// Bytes and Keys exist. Reserved are the bytes that writes in flight may add.
	Bytes, Keys, Reserved int64
	// Revision is the revision of etcd that the numbers are for.
	Revision int64
	// Current reports whether the namespace is counted and followed.
	Current bool
	Quota   etcd.Quota
}

// Full reports whether nothing more fits into the quota.
func (s State) Full() bool {
	return s.Quota.Storage > 0 && s.Bytes >= s.Quota.Storage || s.Quota.Keys > 0 && s.Keys >= s.Quota.Keys
}

// State returns the current state.
func (u *Usage) State() State {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.expire()
	return State{
		Bytes: u.live.bytes, Keys: u.live.keys, Reserved: u.pinned.bytes + u.loose.bytes,
		Revision: u.revision, Current: u.current, Quota: u.quota,
	}
}

// Hold is the place of a write in flight in the quota. The nil Hold has none. One of its methods must be called,
// once.
type Hold struct {
	usage    *Usage
	pins     []pin
	same     map[string]int64 // sizes of keys whose value is kept, where they are certain
	loose    amount
	revision int64
	until    time.Time
}

type pin struct {
	key  uint64
	size int64 // or unpriced
}

// Admit decides whether a write may be sent to etcd: it must make nothing larger, or fit into the quota together
// with all others in flight. If a comparison decides what a transaction puts, the largest growth counts. Deletions
// in the same transaction make no room for its puts.
//
// A namespace without a quota of storage or keys admits everything. Otherwise Admit waits up to [MaxCountWait] until
// the namespace is counted, and until changes that clients know of ([Usage.Done]) are counted if they may make room.
// The error is [ErrNoSpace], [ErrCounting], or the context's.
func (u *Usage) Admit(ctx context.Context, w Write) (*Hold, error) {
	if !w.Puts() || w.exempt() {
		return nil, nil
	}
	deadline := time.Now().Add(MaxCountWait)
	for {
		hold, wait, err := u.admit(w)
		if wait == nil {
			return hold, err
		}
		timeout := time.NewTimer(time.Until(deadline))
		select {
		case <-wait:
		case <-timeout.C:
			return nil, err
		case <-ctx.Done():
			timeout.Stop()
			return nil, ctx.Err()
		}
		timeout.Stop()
	}
}

// admit decides with the current count. If that may still change the decision, it returns a channel to wait for.
func (u *Usage) admit(w Write) (*Hold, <-chan struct{}, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	bounded := u.quota.Storage > 0 || u.quota.Keys > 0
	switch {
	case !bounded && (u.quota.WriteBytesPerSecond <= 0 || !u.current):
		return nil, nil, nil
	case !u.current:
		return nil, u.turned, ErrCounting
	}
	u.expire()
	grows := u.growth(w)
	used := u.live.amount.plus(u.pinned).plus(u.loose)
	if grows.bytes > 0 && u.quota.Storage > 0 && used.bytes+grows.bytes > u.quota.Storage ||
		grows.keys > 0 && u.quota.Keys > 0 && used.keys+grows.keys > u.quota.Keys {
		return nil, u.moves(), ErrNoSpace
	}
	return u.hold(w, grows), nil, nil
}

// moves returns a channel that is closed when more is counted; nil if every change that a client knows of is
// counted.
func (u *Usage) moves() <-chan struct{} {
	if u.revision >= u.done {
		return nil
	}
	if u.moved == nil {
		u.moved = make(chan struct{})
		u.wait()
	}
	return u.moved
}

// Done notes that a client knows of a change at a revision, which may have made room.
func (u *Usage) Done(revision int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.done = max(u.done, revision)
}

// growth returns by how much a write can raise the cost of the namespace. Bytes and keys are each the largest,
// perhaps of different branches.
func (u *Usage) growth(w Write) amount {
	var sum amount
	for _, p := range w.puts {
		if p.keep {
			continue
		}
		has, exists := u.cost(u.hash(p.key))
		if !exists {
			sum.keys++
		}
		sum.bytes += max(p.size-has, 0)
	}
	for _, e := range w.either {
		a, b := u.growth(e[0]), u.growth(e[1])
		sum = sum.plus(amount{max(a.bytes, b.bytes), max(a.keys, b.keys)})
	}
	return sum
}

// unpriced is the size in a pin that costs nothing: it only tells keep that the key is written to.
const unpriced = -1

// hold takes the place of a write. If the keys are known, they are pinned at their new sizes. Otherwise existing
// keys are pinned at their cost, so that the growth stays right if they shrink meanwhile, and the growth belongs
// to no key.
func (u *Usage) hold(w Write, grows amount) *Hold {
	h := &Hold{usage: u}
	chooses := w.chooses()
	w.each(func(p put) bool {
		key := u.hash(p.key)
		has, exists := u.cost(key)
		size := p.size
		if p.keep {
			u.keep(h, p.key, key)
		}
		switch {
		case !exists && (p.keep || chooses):
			size = unpriced
		case p.keep:
			size = has
		case chooses:
			size = min(size, has)
		}
		h.pins = append(h.pins, pin{key, size})
		return true
	})
	for _, p := range h.pins {
		u.touch(p.key, func() { u.pins[p.key] = append(u.pins[p.key], p.size) })
	}
	if chooses {
		h.loose = grows
		u.loose = u.loose.plus(grows)
	}
	return h
}

// keep notes the size of a key whose value a write keeps, if it is certain: no other write of the key is in flight
// or still to be counted. It is 0 if the key does not exist: etcd refuses the write. Another proxy may enlarge the value
// meanwhile, but then only one write costs too little.
func (u *Usage) keep(h *Hold, name string, key uint64) {
	if !u.current || len(u.pins[key]) > 0 {
		return
	}
	if h.same == nil {
		h.same = make(map[string]int64)
	}
	h.same[name] = int64(u.live.of[key])
}

// kept returns the size of a key whose value is kept, or the largest if that is not certain.
func (h *Hold) kept(key string) int64 {
	if h != nil {
		if size, certain := h.same[key]; certain {
			return size
		}
	}
	return int64(len(key)) + maxValue
}

// Release gives the place back: nothing was put.
func (h *Hold) Release() {
	if h == nil {
		return
	}
	h.usage.mu.Lock()
	defer h.usage.mu.Unlock()
	h.release()
}

// Written gives the place back once the changes up to a revision are counted, at which etcd applied the write.
func (h *Hold) Written(revision int64) {
	if h == nil {
		return
	}
	u := h.usage
	u.mu.Lock()
	defer u.mu.Unlock()
	if revision <= u.revision {
		h.release()
		return
	}
	h.revision = revision
	u.written = append(u.written, h)
	u.wait()
}

// Unknown keeps the place as long as the write may still happen: etcd's answer was lost.
func (h *Hold) Unknown() {
	if h == nil {
		return
	}
	u := h.usage
	u.mu.Lock()
	defer u.mu.Unlock()
	h.until = time.Now().Add(unknownFor)
	u.unknown = append(u.unknown, h)
}

func (h *Hold) release() {
	u := h.usage
	for _, p := range h.pins {
		u.touch(p.key, func() {
			sizes := u.pins[p.key]
			i := slices.Index(sizes, p.size)
			if sizes = slices.Delete(sizes, i, i+1); len(sizes) > 0 {
				u.pins[p.key] = sizes
			} else {
				delete(u.pins, p.key)
			}
		})
	}
	u.loose = u.loose.minus(h.loose)
}

// expire releases the holds with unknown outcome after their time.
func (u *Usage) expire() {
	now := time.Now()
	for len(u.unknown) > 0 && u.unknown[0].until.Before(now) {
		u.unknown[0].release()
		u.unknown = u.unknown[1:]
	}
}

// touch changes the size or the pins of a key, and updates u.pinned.
func (u *Usage) touch(key uint64, change func()) {
	u.pinned = u.pinned.minus(u.beyond(key))
	change()
	u.pinned = u.pinned.plus(u.beyond(key))
}

// beyond returns what the pins of a key cost beyond what exists.
func (u *Usage) beyond(key uint64) amount {
	cost, counts := u.cost(key)
	size, exists := u.live.of[key]
	if counts && !exists {
		return amount{cost, 1}
	}
	return amount{cost - int64(size), 0}
}

// cost returns the cost of a key, and reports whether it exists or may be put by a write in flight.
func (u *Usage) cost(key uint64) (int64, bool) {
	size, exists := u.live.of[key]
	cost := int64(size)
	for _, p := range u.pins[key] {
		if p != unpriced {
			cost, exists = max(cost, p), true
		}
	}
	return cost, exists
}

func (u *Usage) hash(key string) uint64 {
	return maphash.String(u.seed, key)
}
