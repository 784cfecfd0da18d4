package cli

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress shows the current step on a terminal once it takes more than a second.
type progress struct {
	w       io.Writer
	mu      sync.Mutex
	what    string
	since   time.Time
	shown   bool
	stopped chan struct{}
	done    chan struct{}
}

// startProgress returns a progress. The caller must call stop.
func startProgress(w io.Writer) *progress {
	p := &progress{w: w, since: time.Now(), stopped: make(chan struct{}), done: make(chan struct{})}
	if !isTerminal(w) {
		close(p.done)
		return p
	}
	go func() {
		defer close(p.done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-p.stopped:
				return
			case <-tick.C:
				p.show()
			}
		}
	}()
	return p
}

func (p *progress) show() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if took := time.Since(p.since); p.what != "" && took > time.Second {
		fmt.Fprintf(p.w, "\r\x1b[2K%s … %s", p.what, took.Round(time.Second))
		p.shown = true
	}
}

// step sets the current step.
func (p *progress) step(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.what, p.since = fmt.Sprintf(format, args...), time.Now()
}

// line writes a line that stays, also if there is no terminal: it is for waits of a minute.
func (p *progress) line(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[2K")
		p.shown = false
	}
	fmt.Fprintf(p.w, format+"\n", args...)
}

// stop clears the line. It may be called twice.
func (p *progress) stop() {
	p.mu.Lock()
	select {
	case <-p.stopped:
	default:
		close(p.stopped)
	}
	p.mu.Unlock()
	<-p.done
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[2K")
		p.shown = false
	}
}
