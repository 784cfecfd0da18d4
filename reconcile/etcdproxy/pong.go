package etcdproxy

import (
	"bytes"
	"sync"
	"time"
)

// At most maxPongs answers to pings wait for the next write, for up to pongDelay. Answers and write are
// joined by copying if they have at most maxHeld bytes together. See [pongs].
const (
	pongDelay = 20 * time.Millisecond
	maxPongs  = 32
	maxHeld   = 4 << 10
)

// pong is the frame header of an answer to a ping, and pongLength the length of the frame.
var pong = []byte{0, 0, 8, 6, 1, 0, 0, 0, 0}

const pongLength = 9 + 8

// pongs is a session that grpc-go's server writes to. grpc-go's clients send a ping with most of the data
// that they receive, once the last ping was answered, to estimate the bandwidth. The server sends each
// answer in a write of its own, one of three writes for a call. Here answers go with the next write.
//
// All bytes keep their order, so nothing breaks if other bytes look like an answer.
type pongs struct {
	*session

	mu    sync.Mutex
	held  []byte
	since time.Time   // when the first of them came
	timer *time.Timer // calls late; nil before the first answer
	timed bool        // timer runs
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

// flush writes the held bytes. The caller holds p.mu.
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
	if p.timed = len(p.held) > 0 && left > 0; p.timed { // those that it was set for have gone
		p.timer.Reset(left)
		return
	}
	_ = p.flush() // if it fails, so does the next write
}
