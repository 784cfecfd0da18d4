package limit

import (
	"sync"
	"time"
)

// Leases caps how many leases a namespace has. It knows those that were granted by this
// proxy, until they are revoked or have not been renewed here for longer than they live.
// It is safe for concurrent use.
type Leases struct {
	mu      sync.Mutex
	ends    map[int64]lease // by ID
	pending int
}

type lease struct {
	end time.Time
	ttl time.Duration
}

// Grant makes room for one more lease, or returns [ErrTooManyLeases]. Granted or Failed is
// to be called once.
func (l *Leases) Grant() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ends)+l.pending >= MaxLeases {
		now := time.Now()
		for id, is := range l.ends {
			if is.end.Before(now) {
				delete(l.ends, id)
			}
		}
	}
	if len(l.ends)+l.pending >= MaxLeases {
		return ErrTooManyLeases
	}
	l.pending++
	return nil
}

// Granted says that etcd granted a lease, which lives so many seconds.
func (l *Leases) Granted(id, seconds int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending--
	if l.ends == nil {
		l.ends = make(map[int64]lease)
	}
	// An absurd time to live must not overflow; etcd's largest is longer.
	ttl := time.Duration(min(max(seconds, 1), 1<<31)) * time.Second
	l.ends[id] = lease{time.Now().Add(ttl), ttl}
}

// Failed says that no lease was granted.
func (l *Leases) Failed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending--
}

// Renewed says that a lease was renewed.
func (l *Leases) Renewed(id int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if is, known := l.ends[id]; known {
		is.end = time.Now().Add(is.ttl)
		l.ends[id] = is
	}
}

// Revoked says that a lease is gone.
func (l *Leases) Revoked(id int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ends, id)
}

// Load returns how many leases are known.
func (l *Leases) Load() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	n := int64(l.pending)
	for _, is := range l.ends {
		if !is.end.Before(now) {
			n++
		}
	}
	return n
}
