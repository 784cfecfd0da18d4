package apply

import (
	"sync"
	"time"
)

// notice is how an event is answered.
type notice int

const (
	ignore notice = iota
	later         // somebody should look, and there is time
	atOnce        // somebody should look
)

// The pauses between notices that can wait.
const (
	firstDamping   = time.Second
	longestDamping = 15 * time.Second
)

// damper passes notices on. Those that can wait are passed on together, ever less
// often while they keep coming. The last one is never lost.
type damper struct {
	notify func()

	mu      sync.Mutex
	timer   *time.Timer // of a notice that waits; nil if there is none
	last    time.Time   // when the last one was passed on that might have waited
	pause   time.Duration
	stopped bool
}

func (d *damper) tell(n notice) {
	switch n {
	case atOnce:
		d.notify()
	case later:
		d.wait()
	}
}

func (d *damper) wait() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		return
	}
	since := time.Since(d.last)
	if since > 2*d.pause {
		d.pause = 0 // it has been quiet
	}
	d.timer = time.AfterFunc(d.pause-since, d.pass)
}

func (d *damper) pass() {
	d.mu.Lock()
	d.timer, d.last = nil, time.Now()
	d.pause = min(max(2*d.pause, firstDamping), longestDamping)
	stopped := d.stopped
	d.mu.Unlock()
	if !stopped {
		d.notify()
	}
}

// stop drops the notice that waits.
func (d *damper) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
	if d.timer != nil {
		d.timer.Stop()
	}
}
