package limit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// calls lets calls of a namespace in and notes who came when.
type calls struct {
	mu    sync.Mutex
	order []string
}

func (c *calls) enter(t *testing.T, s *Share, name string, takes time.Duration, bytes int) {
	turn, err := s.Enter(t.Context())
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	c.mu.Lock()
	c.order = append(c.order, name)
	c.mu.Unlock()
	time.Sleep(takes)
	turn.Done(bytes)
}

// came returns who came until now.
func (c *calls) came() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.order)
}

// A namespace with few calls does not wait behind the many of another.
func TestQueueFair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(2)
		a, b := q.Share(10, 100, 100), q.Share(10, 100, 100)
		var c calls
		for range 80 {
			go c.enter(t, a, "a", 10*time.Millisecond, 0)
		}
		synctest.Wait() // two are in progress, and 78 wait
		for range 5 {
			go c.enter(t, b, "b", 10*time.Millisecond, 0)
		}
		time.Sleep(time.Second)
		last, order := 0, c.came()
		for i, name := range order {
			if name == "b" {
				last = i
			}
		}
		if len(order) != 85 || last > 2+2*5 {
			t.Errorf("the last of b's 5 calls was number %d of %d; they go in turns: %v", last, len(order), order)
		}
	})
}

// Who waits long gets turns by weight.
func TestQueueWeights(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(1)
		heavy, light := q.Share(30, 100, 200), q.Share(10, 100, 200)
		var c calls
		for range 150 {
			go c.enter(t, heavy, "heavy", time.Millisecond, 0)
			go c.enter(t, light, "light", time.Millisecond, 0)
		}
		time.Sleep(100*time.Millisecond + time.Microsecond)
		n := 0
		for _, name := range c.came()[:100] {
			if name == "heavy" {
				n++
			}
		}
		if n < 74 || n > 76 {
			t.Errorf("%d of 100 turns went to who has three quarters of the weight", n)
		}
		time.Sleep(time.Second)
	})
}

// Who gets large answers gets fewer turns.
func TestQueueLargeAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(1)
		lists, gets := q.Share(10, 100, 200), q.Share(10, 100, 200)
		var c calls
		for range 100 {
			go c.enter(t, lists, "list", time.Millisecond, 9*answerUnit)
			go c.enter(t, gets, "get", time.Millisecond, 0)
		}
		time.Sleep(100*time.Millisecond + time.Microsecond)
		n := len(slices.DeleteFunc(c.came()[:100], func(s string) bool { return s == "get" }))
		if n < 9 || n > 11 {
			t.Errorf("%d of 100 turns went to calls that weigh ten times as much", n)
		}
		time.Sleep(time.Second)
	})
}

// A namespace has no more in progress than it may, and leaves the other slots to others.
func TestQueueConcurrent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(10)
		a, b := q.Share(10, 3, 100), q.Share(10, 3, 100)
		var c calls
		for range 9 {
			go c.enter(t, a, "a", time.Second, 0)
		}
		synctest.Wait()
		if s := a.State(); s.Running != 3 || s.Waiting != 6 {
			t.Errorf("%+v, and 3 may run", s)
		}
		go c.enter(t, b, "b", time.Second, 0)
		synctest.Wait()
		if s := b.State(); s.Running != 1 {
			t.Error("b waits although slots are free")
		}
		time.Sleep(4 * time.Second)
		if s := a.State(); s.Running != 0 || s.Passed != 9 {
			t.Errorf("at the end %+v", s)
		}
	})
}

// A client that reads its answer slowly keeps its place among its own namespace's calls,
// and no slot.
func TestQueueAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(1)
		a, b := q.Share(10, 1, 10), q.Share(10, 1, 10)
		slow, err := a.Enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		slow.Answered()
		other, err := b.Enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		other.Done(0)
		if _, err := a.Enter(t.Context()); !errors.Is(err, ErrTooManyRequests) {
			t.Errorf("a second call of one that may have one: %v", err)
		}
		slow.Done(0)
		slow.Done(0)
		if q.busy != 0 || a.State().Running != 0 {
			t.Errorf("%d slots are taken at the end", q.busy)
		}
	})
}

// Calls are refused when too many wait or one waits too long, and one that gives up
// leaves nothing behind.
func TestQueueFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(1)
		a, b := q.Share(10, 10, 2), q.Share(10, 10, 2)
		first, err := a.Enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		results := make(chan error, 2)
		go func() {
			_, err := a.Enter(ctx)
			results <- err
		}()
		synctest.Wait()
		begun := time.Now()
		go func() {
			_, err := a.Enter(t.Context())
			results <- err
		}()
		synctest.Wait()
		if _, err := a.Enter(t.Context()); !errors.Is(err, ErrTooManyRequests) || time.Since(begun) != 0 {
			t.Errorf("a third that waits: %v", err)
		}
		cancel()
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Errorf("who gave up: %v", err)
		}
		if err := <-results; !errors.Is(err, ErrTooManyRequests) || time.Since(begun) != MaxWait {
			t.Errorf("who waited %v: %v", time.Since(begun), err)
		}
		first.Done(0)
		turn, err := b.Enter(t.Context())
		if err != nil || len(q.ready) != 0 || q.busy != 1 {
			t.Errorf("afterwards: %v, %d ready, %d busy", err, len(q.ready), q.busy)
		}
		turn.Done(0)
	})
}

// Many that come and go at once lose no slot.
func TestQueueConcurrently(t *testing.T) {
	t.Parallel()
	q := NewQueue(3)
	var all sync.WaitGroup
	for i := range 20 {
		s := q.Share(int64(i), 2, 5)
		for j := range 10 {
			all.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if j%3 == 0 {
					go cancel()
				}
				for range 50 {
					if turn, err := s.Enter(ctx); err == nil {
						turn.Answered()
						turn.Done(j)
					}
				}
			})
		}
	}
	all.Wait()
	if q.busy != 0 || len(q.ready) != 0 {
		t.Errorf("%d slots are taken and %d shares wait", q.busy, len(q.ready))
	}
}

// A rate delays first and refuses when the delay is too long.
func TestBucket(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := NewBucket(10)
		begun := time.Now()
		at := func(want time.Duration) {
			t.Helper()
			if got := time.Since(begun).Round(time.Millisecond); got != want {
				t.Errorf("went through after %v, want %v", got, want)
			}
		}
		wait := func(n int64) {
			t.Helper()
			if err := b.Wait(t.Context(), n); err != nil {
				t.Error(err)
			}
		}
		for range 11 { // a second's worth, and one begins as the second ends
			wait(1)
			at(0)
		}
		wait(1)
		at(100 * time.Millisecond)
		wait(50)
		at(200 * time.Millisecond)
		if err := b.Wait(t.Context(), 1); err != nil {
			t.Errorf("a wait of just MaxWait: %v", err)
		}
		at(200*time.Millisecond + 5*time.Second)
		wait(1000)
		if err := b.Wait(t.Context(), 1); !errors.Is(err, ErrTooManyRequests) {
			t.Errorf("100 seconds ahead: %v", err)
		}
		b.SetRate(0)
		wait(1 << 40)

		// A higher rate helps at once.
		b = NewBucket(1)
		wait(100)
		if err := b.Wait(t.Context(), 1); !errors.Is(err, ErrTooManyRequests) {
			t.Errorf("100 seconds ahead: %v", err)
		}
		b.SetRate(100)
		begun = time.Now()
		wait(1)
		wait(1)
		at(10 * time.Millisecond)

		// One that gives up takes nothing.
		b = NewBucket(1)
		wait(2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := b.Wait(ctx, 3); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		begun = time.Now()
		wait(1)
		at(999 * time.Millisecond)
	})
}
