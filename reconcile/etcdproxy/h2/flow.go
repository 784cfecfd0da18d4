package h2

import (
	"slices"
	"sync"

	"golang.org/x/net/http2"
)

// sending is how many bytes a connection may send.
type sending struct {
	mu      sync.Mutex
	window  int64 // of the connection
	initial int64 // of new streams
	streams map[uint32]*outgoing
	waiting []*outgoing // for a window
}

// outgoing is how many bytes a stream may send.
type outgoing struct {
	id     uint32
	window int64
	wake   chan struct{} // has an element when it may send more
	waits  bool          // is in sending.waiting
}

func newSending() sending {
	return sending{window: initialWindow, initial: initialWindow, streams: make(map[uint32]*outgoing)}
}

// open begins a stream.
func (s *sending) open(o *outgoing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.window = s.initial
	s.streams[o.id] = o
}

// close ends a stream.
func (s *sending) close(o *outgoing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, o.id)
	if o.waits {
		s.waiting = slices.DeleteFunc(s.waiting, func(w *outgoing) bool { return w == o })
	}
}

// take takes up to n bytes, and at most a frame, of the windows. If it returns 0, o.wake receives an element
// when there may be more.
func (s *sending) take(o *outgoing, n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, maxFrame, int(max(min(s.window, o.window), 0)))
	if n == 0 {
		if o.wake == nil {
			o.wake = make(chan struct{}, 1)
		}
		if !o.waits {
			o.waits = true
			s.waiting = append(s.waiting, o)
		}
		return 0
	}
	s.window -= int64(n)
	o.window -= int64(n)
	return n
}

// untake gives bytes back that a stream took before it ended.
func (s *sending) untake(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.window += int64(n)
	s.wakeAll()
}

// whole takes n bytes, or nothing.
func (s *sending) whole(o *outgoing, n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > maxFrame || int64(n) > min(s.window, o.window) {
		return false
	}
	s.window -= int64(n)
	o.window -= int64(n)
	return true
}

// grow makes a window larger. The error is an [http2.ConnectionError] or an [http2.StreamError].
func (s *sending) grow(stream uint32, by uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if stream == 0 {
		if s.window += int64(by); s.window > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		s.wakeAll()
		return nil
	}
	o := s.streams[stream]
	if o == nil {
		return nil // it has ended
	}
	if o.window += int64(by); o.window > maxWindow {
		return http2.StreamError{StreamID: stream, Code: http2.ErrCodeFlowControl}
	}
	o.notify()
	return nil
}

// restart changes the initial window of streams, and the windows of all streams by the same amount. The error
// is an [http2.ConnectionError].
func (s *sending) restart(initial uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	by := int64(initial) - s.initial
	s.initial = int64(initial)
	for _, o := range s.streams {
		if o.window += by; o.window > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		o.notify()
	}
	return nil
}

func (s *sending) wakeAll() {
	for i, o := range s.waiting {
		o.waits = false
		o.notify()
		s.waiting[i] = nil
	}
	s.waiting = s.waiting[:0]
}

func (o *outgoing) notify() {
	if o.wake == nil {
		return
	}
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// incoming is how many bytes a connection or a stream may receive.
type incoming struct {
	size uint32
	used uint32 // received, and not given back
	due  uint32 // to be given back
}

// receive counts bytes, and reports whether the other side may send them.
func (i *incoming) receive(n uint32) bool {
	if n > i.size-i.used {
		return false
	}
	i.used += n
	return true
}

// read notes that bytes were read, and returns by how much to grow the window now. Small amounts wait for
// more.
func (i *incoming) read(n uint32) uint32 {
	i.due += n
	if i.due < i.size/4 {
		return 0
	}
	n = i.due
	i.due = 0
	i.used -= n
	return n
}
