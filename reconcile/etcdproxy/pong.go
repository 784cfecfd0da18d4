package etcdproxy

import (
	"bytes"
	"sync"
	"time"
)

// Answers to pings wait for what is sent next, for pongDelay at most, and no more than maxPongs at a
// time; they are copied before what is sent if both have no more than maxHeld bytes. See [pongs].
const (
	pongDelay = 20 * time.Millisecond
	maxPongs  = 32
	maxHeld   = 4 << 10
)

// pong is how the answer to a ping begins, and pongLength its length.
var pong = []byte{0, 0, 8, 6, 1, 0, 0, 0, 0}

const pongLength = 9 + 8

// pongs is a session that gRPC writes to. Its peers send a ping with most of what they send, as soon as
// the last was answered, to measure the way, and gRPC writes out each answer by itself: of three writes
// for a call, one was that. Here an answer goes with the next write.
//
// All bytes keep their order, so that nothing is lost if what looks like an answer is something else.
type pongs struct {
	*session

	mu    sync.Mutex
	held  []byte
	since time.Time   // the first of them is
	timer *time.Timer // for those that nothing goes with; nil if there never was one
	timed bool        // it runs
}

// Write implements [net.Conn].
func (p *pongs) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(b) == pongLength && bytes.HasPrefix(b, pong) && len(p.held) < maxPongs*pongLength {
		if len(p.held) == 0 {
			p.since = time.Now()
		}
		p.held = append(p.held, b...)
		switch {
		case p.timed:
		case p.timer == nil:
			p.timer = time.AfterFunc(pongDelay, p.late)
		default:
			p.timer.Reset(pongDelay)
		}
		p.timed = true
		return len(b), nil
	}
	small := len(p.held) > 0 && len(p.held)+len(b) <= maxHeld
	if small {
		p.held = append(p.held, b...)
	}
	if err := p.flush(); err != nil {
		return 0, err
	}
	if small {
		return len(b), nil
	}
	return p.session.Write(b)
}

// flush writes out what is held. The lock is held, too.
func (p *pongs) flush() error {
	if len(p.held) == 0 {
		return nil
	}
	_, err := p.session.Write(p.held)
	p.held = p.held[:0]
	return err
}

// late sends answers that have waited long enough.
func (p *pongs) late() {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := pongDelay - time.Since(p.since)
	if p.timed = len(p.held) > 0 && left > 0; p.timed { // the ones that it was for have gone
		p.timer.Reset(left)
		return
	}
	_ = p.flush() // if it fails, so does the next write
}
