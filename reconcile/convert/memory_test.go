package convert

import (
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"gitopsd.dev/render/conversion"
)

// TestMemory: reviews that are as large as they may be, and made of the smallest values,
// fit into the memory of a server together.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes 300 MiB")
	}
	const soft, hard = 440 << 20, 512 << 20 // as render/converter sets them
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(soft))
	s := newServer(t, false)
	set := widgets(t, "count")
	s.table.Hold("test", []*conversion.Set{set})
	numbers := strings.Repeat("1,", (maxBody-1000)/2) + "1"
	body := reviewOf("u", "example.io/v2", `{"apiVersion":"example.io/v1","kind":"Widget","metadata":{},"spec":[`+numbers+`]}`)
	stop, peak := make(chan struct{}), uint64(0)
	var clients, sampler sync.WaitGroup
	sampler.Go(func() {
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapInuse)
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	for range 2 {
		clients.Go(func() {
			status, text, _ := s.post(path(set), "application/json", body)
			for range 4 { // a slow machine has no time for both at first, which is no matter here
				if status != http.StatusServiceUnavailable {
					break
				}
				status, text, _ = s.post(path(set), "application/json", body)
			}
			if status != http.StatusOK {
				t.Errorf("%d %.100s", status, text)
			}
		})
	}
	clients.Wait()
	close(stop)
	sampler.Wait()
	if peak > hard {
		t.Errorf("the heap has %d MiB", peak>>20)
	}
	t.Logf("the heap has %d MiB", peak>>20)
}

// A machine of many cores does not have more converted at a time than fits into the
// memory of a server.
func TestManyCores(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(64))
	h := newServer(t, true).handler
	if h.working.share != maxWorking {
		t.Errorf("it is not %d objects at a time", maxWorking)
	}
}
