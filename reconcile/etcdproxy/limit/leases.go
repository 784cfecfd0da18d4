package limit

import (
	"sync"
	"time"
)

// Leases bounds how many leases a namespace has. It knows the leases that this proxy granted, until they are
// revoked or expire without being renewed here. It is safe for concurrent use.
type Leases struct {
	mu      sync.Mutex
	ends    map[int64]lease // by ID
	pending int
	swept   time.Time
}

type lease struct {
	end time.Time
	ttl time.Duration
}

// Grant makes room for a lease, or returns [ErrTooManyLeases]. Granted or Failed must be called afterwards, once.
func (l *Leases) Grant() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if len(l.ends)+l.pending >= maxLeases && now.Sub(l.swept) >= time.Second {
		l.swept = now
		for id, is := range l.ends {
			if is.end.Before(now) {
				delete(l.ends, id)
			}
		}
	}
	if len(l.ends)+l.pending >= maxLeases {
		return ErrTooManyLeases
	}
	l.pending++
	return nil
}

// Granted notes that etcd granted a lease with a time to live in seconds.
func (l *Leases) Granted(id, seconds int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending--
	if l.ends == nil {
		l.ends = make(map[int64]lease)
	}
	// A huge time to live must not overflow.
	ttl := time.Duration(min(max(seconds, 1), 1<<31)) * time.Second
	l.ends[id] = lease{time.Now().Add(ttl), ttl}
}

// Failed notes that no lease was granted.
func (l *Leases) Failed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending--
}

// Renewed notes that a lease was renewed.
func (l *Leases) Renewed(id int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if is, known := l.ends[id]; known {
		is.end = time.Now().Add(is.ttl)
		l.ends[id] = is
	}
}

// Revoked notes that a lease is gone.
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
