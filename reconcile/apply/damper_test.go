package apply

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Who writes without end is heard ever less often, and the last word is heard.
func TestDamper(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // notices come from timers' goroutines
		var all []time.Duration
		begun := time.Now()
		d := &damper{notify: func() {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, time.Since(begun))
		}}
		told := func() []time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(all)
		}
		for range 200 {
			d.tell(later)
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		heard, want := told(), []time.Duration{0, 1, 3, 7, 15, 30}
		if len(heard) != len(want) {
			t.Fatalf("heard at %v", heard)
		}
		for i, at := range want {
			if heard[i].Round(time.Second) != at*time.Second {
				t.Errorf("heard at %v, want %v s", heard, want)
			}
		}
		d.tell(atOnce)
		d.tell(later) // after a quiet minute
		synctest.Wait()
		if n := len(told()); n != len(want)+2 {
			t.Errorf("heard %d times", n)
		}
		d.tell(later)
		d.stop()
		time.Sleep(time.Minute)
		if len(told()) != len(want)+2 {
			t.Error("heard after the end")
		}
	})
}
