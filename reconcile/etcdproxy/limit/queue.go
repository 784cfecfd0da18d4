package limit

import (
	"container/heap"
	"context"
	"slices"
	"sync"
	"time"
)

// answerUnit is how many bytes of answers weigh as much as one call.
const answerUnit = 64 << 10

// Queue bounds how many calls are in progress at one etcd. Where several namespaces wait, each gets its share by
// weight, however many calls of the others wait: start-time fair queueing (Goyal, Vin, Cheng 1996). It is safe for
// concurrent use.
type Queue struct {
	mu    sync.Mutex
	slots int
	busy  int
	// clock is the virtual time: the tag of the last call that was let through.
	clock float64
	ready shares
}

// NewQueue returns a Queue with a number of slots.
func NewQueue(slots int) *Queue {
	return &Queue{slots: slots}
}

// Share is one namespace's share of a Queue.
type Share struct {
	queue      *Queue
	weight     float64
	concurrent int
	depth      int

	running int
	waiting []*Turn
	// end is the virtual time up to which the namespace has used its share, and tag is the tag of
	// its first waiting call.
	end, tag float64
	index    int // in queue.ready, or -1
	passed   uint64
}

// Share returns a new share, with the largest numbers of calls in progress and waiting.
func (q *Queue) Share(weight, concurrent, depth int64) *Share {
	s := &Share{queue: q, index: -1}
	s.Set(weight, concurrent, depth)
	return s
}

// Set replaces the limits of a share.
func (s *Share) Set(weight, concurrent, depth int64) {
	q := s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	s.weight, s.concurrent, s.depth = float64(max(weight, 1)), int(max(concurrent, 1)), int(max(depth, 1))
	q.offer(s)
	q.pass()
}

// Turn is a call that was let through.
type Turn struct {
	share *Share
	// passed is closed when the call is let through; nil if that was at once.
	passed chan struct{}
	begun  bool
	slot   bool
	ended  bool
}

// Enter waits until a call may be sent to etcd. The error is [ErrTooManyRequests] if too many wait or it takes
// longer than [MaxWait], or the context's.
func (s *Share) Enter(ctx context.Context) (*Turn, error) {
	t, err := s.enqueue()
	if err != nil {
		return nil, err
	}
	if t.passed == nil {
		return t, nil
	}
	timeout := time.NewTimer(MaxWait)
	defer timeout.Stop()
	select {
	case <-t.passed:
		return t, nil
	case <-timeout.C:
		err = ErrTooManyRequests
	case <-ctx.Done():
		err = ctx.Err()
	}
	if s.leave(t) {
		return nil, err
	}
	return t, nil // it was let through meanwhile
}

func (s *Share) enqueue() (*Turn, error) {
	q := s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(s.waiting) >= s.depth {
		return nil, ErrTooManyRequests
	}
	t := &Turn{share: s}
	s.waiting = append(s.waiting, t)
	q.offer(s)
	q.pass()
	if !t.begun {
		t.passed = make(chan struct{})
	}
	return t, nil
}

// leave removes a call that no longer waits, and reports whether it was still waiting.
func (s *Share) leave(t *Turn) bool {
	q := s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.begun {
		return false
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(w *Turn) bool { return w == t })
	if len(s.waiting) == 0 && s.index >= 0 {
		heap.Remove(&q.ready, s.index)
	}
	return true
}

// Answered gives the slot back when etcd has begun to answer: the rest waits for the client, which must not keep
// others waiting.
func (t *Turn) Answered() {
	q := t.share.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	t.giveBack()
	q.pass()
}

// Done ends the call, given the size of the answer. A large answer weighs as much as several calls.
func (t *Turn) Done(bytes int) {
	s := t.share
	q := s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.ended {
		return
	}
	t.ended = true
	t.giveBack()
	s.running--
	s.end += float64(bytes) / answerUnit / s.weight
	if s.index >= 0 {
		s.tag = max(s.tag, s.end)
		heap.Fix(&q.ready, s.index)
	}
	q.offer(s)
	q.pass()
}

func (t *Turn) giveBack() {
	if t.slot {
		t.slot = false
		t.share.queue.busy--
	}
}

// offer makes a share compete for slots if one of its calls may go.
func (q *Queue) offer(s *Share) {
	if s.index >= 0 || len(s.waiting) == 0 || s.running >= s.concurrent {
		return
	}
	s.tag = max(q.clock, s.end)
	heap.Push(&q.ready, s)
}

// pass lets calls through while there are slots.
func (q *Queue) pass() {
	for q.busy < q.slots && len(q.ready) > 0 {
		s := heap.Pop(&q.ready).(*Share)
		t := s.waiting[0]
		s.waiting = s.waiting[1:]
		q.clock = s.tag
		s.end = s.tag + 1/s.weight
		s.running++
		s.passed++
		q.busy++
		t.begun, t.slot = true, true
		if t.passed != nil {
			close(t.passed)
		}
		q.offer(s)
	}
}

// QueueState is the state of a share: the numbers of calls in progress, waiting, and let through so far.
type QueueState struct {
	Running, Waiting int
	Passed           uint64
}

// State returns the state of the share.
func (s *Share) State() QueueState {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return QueueState{Running: s.running, Waiting: len(s.waiting), Passed: s.passed}
}

// shares is a heap by tag.
type shares []*Share

func (h shares) Len() int           { return len(h) }
func (h shares) Less(i, j int) bool { return h[i].tag < h[j].tag }
func (h shares) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements [heap.Interface].
func (h *shares) Push(x any) {
	s := x.(*Share)
	s.index = len(*h)
	*h = append(*h, s)
}

// Pop implements [heap.Interface].
func (h *shares) Pop() any {
	old := *h
	s := old[len(old)-1]
	s.index = -1
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return s
}
