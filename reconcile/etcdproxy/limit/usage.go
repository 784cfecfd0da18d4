package limit

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"gitopsd.dev/render/etcd"
)

// unknownFor is how long a write is reckoned with whose outcome is unknown. etcd gives up
// on what it has not agreed on after seven seconds.
const unknownFor = 15 * time.Second

// Usage is what a namespace holds: how many keys, and how many bytes they and their values
// have. It is true at a revision, which moves on as changes are applied, and it reckons
// with the writes in flight as if each had its way: a key costs the largest of what it
// holds and of what any write in flight makes it hold.
//
// It remembers the size of each key under a hash of 64 bits with a seed of its own, which
// takes 20 to 40 bytes a key. Two of a million keys share a hash once in 30 million
// namespaces; then one of them is not counted.
//
// It is safe for concurrent use.
type Usage struct {
	seed maphash.Seed

	mu    sync.Mutex
	quota etcd.Quota
	live  sizes
	pins  map[uint64][]int64 // sizes that writes in flight may give to a key
	// pinned is what the pins cost beyond what exists, and loose what transactions may
	// add of which it is not known which keys they put.
	pinned, loose amount
	revision      int64
	current       bool          // the count is followed, and up to date
	turned        chan struct{} // closed once current
	done          int64         // the revision of the newest change that a client was told of
	moved         chan struct{} // closed when revision moves; nil if nobody waits
	waiting       chan struct{} // has a token when something began to wait
	written       []*Hold       // until revision has reached theirs
	unknown       []*Hold       // by the time at which they end
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

// State is what is known of a namespace's use of its quota.
type State struct {
	// Bytes and Keys exist. Reserved are the bytes that writes in flight may add.
	Bytes, Keys, Reserved int64
	// Revision is that of etcd at which the numbers were true.
	Revision int64
	// Current says that the namespace is counted and followed.
	Current bool
	Quota   etcd.Quota
}

// Full reports whether nothing more fits into the quota.
func (s State) Full() bool {
	return s.Quota.Storage > 0 && s.Bytes >= s.Quota.Storage || s.Quota.Keys > 0 && s.Keys >= s.Quota.Keys
}

// State returns what is known now.
func (u *Usage) State() State {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.expire()
	return State{
		Bytes: u.live.bytes, Keys: u.live.keys, Reserved: u.pinned.bytes + u.loose.bytes,
		Revision: u.revision, Current: u.current, Quota: u.quota,
	}
}

// Hold is the place that a write in flight takes in the quota. The nil Hold takes none.
// One of its methods is to be called once.
type Hold struct {
	usage    *Usage
	pins     []pin
	loose    amount
	revision int64
	until    time.Time
}

type pin struct {
	key  uint64
	size int64
}

// Admit decides whether a write may be sent to etcd: always if it makes nothing larger,
// else if it fits into the quota together with all others in flight. Where a comparison
// decides what a transaction puts, the largest growth counts. Deletions in the same
// transaction make no room for its puts.
//
// A namespace without a quota admits everything. One that is not counted waits for that up
// to [MaxCountWait], and so does a write that may fit once what is [Usage.Done] is counted.
// The error is ErrNoSpace, ErrCounting, or the context's.
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

// admit returns what to wait for if the count may still change the decision, which is the
// error until then.
func (u *Usage) admit(w Write) (*Hold, <-chan struct{}, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.quota.Storage <= 0 && u.quota.Keys <= 0 {
		return nil, nil, nil
	}
	if !u.current {
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

// moves returns what is closed when more is counted, or nil if all is counted that a client
// was told of.
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

// Done says that a client was told of a change at a revision. It may have made room.
func (u *Usage) Done(revision int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.done = max(u.done, revision)
}

// growth returns by how much a write can raise the cost of the namespace. Bytes and keys
// are each the largest, perhaps of different branches.
func (u *Usage) growth(w Write) amount {
	var sum amount
	for _, p := range w.puts {
		has, exists := u.cost(u.hash(p.key))
		if !exists && !p.keep {
			sum.keys++
		}
		if !p.keep {
			sum.bytes += max(p.size-has, 0)
		}
	}
	for _, e := range w.either {
		a, b := u.growth(e[0]), u.growth(e[1])
		sum = sum.plus(amount{max(a.bytes, b.bytes), max(a.keys, b.keys)})
	}
	return sum
}

// hold takes the place of a write. If it is known which keys the write puts, they are
// pinned at their new sizes. Else those that exist are pinned at what they are reckoned to
// hold, so that the growth stays true when they shrink meanwhile, and the growth itself
// belongs to no key.
func (u *Usage) hold(w Write, grows amount) *Hold {
	h := &Hold{usage: u}
	chooses := w.chooses()
	w.each(func(p put) bool {
		key := u.hash(p.key)
		has, exists := u.cost(key)
		size := p.size
		if chooses || p.keep {
			size = min(size, has)
		}
		if p.keep {
			size = has
		}
		if exists || !chooses && !p.keep {
			h.pins = append(h.pins, pin{key, size})
		}
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

// Release gives the place back: nothing was put.
func (h *Hold) Release() {
	if h == nil {
		return
	}
	h.usage.mu.Lock()
	defer h.usage.mu.Unlock()
	h.release()
}

// Written gives the place back once the changes of a revision are counted, at which etcd
// says that the write happened.
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

// Unknown keeps the place for as long as the write may still happen: etcd's answer was
// lost.
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

// expire ends the holds of unknown outcome whose time is over.
func (u *Usage) expire() {
	now := time.Now()
	for len(u.unknown) > 0 && u.unknown[0].until.Before(now) {
		u.unknown[0].release()
		u.unknown = u.unknown[1:]
	}
}

// touch changes what is known of a key, and keeps what the pins cost beyond it.
func (u *Usage) touch(key uint64, change func()) {
	u.pinned = u.pinned.minus(u.beyond(key))
	change()
	u.pinned = u.pinned.plus(u.beyond(key))
}

// beyond returns what the pins of a key cost beyond what exists.
func (u *Usage) beyond(key uint64) amount {
	if len(u.pins[key]) == 0 {
		return amount{}
	}
	cost, _ := u.cost(key)
	size, exists := u.live.of[key]
	if !exists {
		return amount{cost, 1}
	}
	return amount{cost - int64(size), 0}
}

// cost returns what a key is reckoned to hold, and whether it is reckoned to exist.
func (u *Usage) cost(key uint64) (int64, bool) {
	size, exists := u.live.of[key]
	cost := int64(size)
	for _, p := range u.pins[key] {
		cost, exists = max(cost, p), true
	}
	return cost, exists
}

func (u *Usage) hash(key string) uint64 {
	return maphash.String(u.seed, key)
}
