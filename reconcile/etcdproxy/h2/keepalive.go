package h2

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

// keepalive detects that the other side of a connection is gone: it is silent for a time, and then does not
// answer a ping; or it reads nothing for a time, whatever it sends.
type keepalive struct {
	out           *writer
	time, timeout time.Duration
	gone          func()
	idle          func() bool  // reports whether not to ping; nil for never
	last          atomic.Int64 // when something was received

	mu    sync.Mutex
	timer *time.Timer // nil once stopped
	// asked is the value of last when the ping in progress was sent, and since the time; 0 for none.
	asked int64
	since time.Time
	// write is the write in progress at the last check, and writing when it was first seen.
	write   uint64
	writing time.Time
}

func newKeepalive(out *writer, every, timeout time.Duration, gone func(), idle func() bool) *keepalive {
	k := &keepalive{out: out, time: every, timeout: timeout, gone: gone, idle: idle}
	k.heard()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer = time.AfterFunc(every, k.check)
	return k
}

// heard notes that something was received.
func (k *keepalive) heard() { k.last.Store(time.Now().UnixNano()) }

func (k *keepalive) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer.Stop()
	k.timer = nil
}

func (k *keepalive) check() {
	k.mu.Lock()
	if k.timer == nil {
		k.mu.Unlock()
		return
	}
	last := k.last.Load()
	silent := time.Since(time.Unix(0, last))
	switch {
	case k.stuck():
		k.mu.Unlock()
		k.gone()
		return
	case k.asked == last:
		left := k.timeout - time.Since(k.since)
		if left > 0 {
			k.timer.Reset(min(left, k.time))
		}
		k.mu.Unlock()
		if left <= 0 {
			k.gone()
		}
		return
	case silent < k.time:
		k.timer.Reset(k.time - silent)
		k.mu.Unlock()
		return
	case k.idle != nil && k.idle():
		k.timer.Reset(k.time)
		k.mu.Unlock()
		return
	}
	k.asked, k.since = last, time.Now()
	k.timer.Reset(min(k.time, k.timeout)) // before the write, which may block
	k.mu.Unlock()
	k.out.control(func(fr *http2.Framer) error { return fr.WritePing(false, [8]byte{}) })
}

// stuck reports whether one write has been in progress for as long as the other side may be silent.
func (k *keepalive) stuck() bool {
	n := k.out.underWay()
	if n == 0 || n != k.write {
		k.write, k.writing = n, time.Now()
		return false
	}
	return time.Since(k.writing) >= k.time
}
