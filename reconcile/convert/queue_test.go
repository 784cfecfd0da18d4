package convert

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"gitopsd.dev/render/conversion"
)

// handlerOf returns a handler of one set of rules, and a function that sends it reviews from
// an address.
func handlerOf(t *testing.T, set *conversion.Set) (*Handler, func(from string, size int, body io.Reader) (int, string)) {
	table := &Table{}
	table.Hold("test", []*conversion.Set{set})
	h, err := New(Config{Table: table, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return h, func(from string, size int, body io.Reader) (int, string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path(set), body)
		r.Header.Set("Content-Type", "application/json")
		r.RemoteAddr, r.ContentLength = from, int64(size)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
}

// A client that does not send its large bodies keeps an API server waiting for one of them at
// most, however many it has begun.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	set := widgets(t, "count")
	synctest.Test(t, func(t *testing.T) {
		h, send := handlerOf(t, set)
		var bodies []*io.PipeWriter
		for range 6 {
			read, write := io.Pipe()
			bodies = append(bodies, write)
			go send("10.0.0.1:1000", maxBody, read)
			synctest.Wait() // the first is read, and the others wait
		}
		answered := false
		go func() {
			review := reviewOf("u", "example.io/v2", v1("a", "3")+strings.Repeat(" ", smallBody))
			if status, text := send("10.0.0.2:1000", len(review), strings.NewReader(review)); status != http.StatusOK || !strings.Contains(text, `"Success"`) {
				t.Errorf("%d %.200s", status, text)
			}
			answered = true
		}()
		synctest.Wait()
		bodies[0].Close()
		synctest.Wait()
		if !answered {
			t.Error("the review waits for more than one body of another client")
		}
		for _, body := range bodies {
			body.Close()
		}
		synctest.Wait()
		if !answered || len(h.large.clients) > 0 {
			t.Errorf("answered: %t; %d clients are remembered", answered, len(h.large.clients))
		}
	})
}

// Objects of one client that take long, in any number, keep an API server waiting for one of
// them at most.
func TestSlowObjects(t *testing.T) {
	t.Parallel()
	set := widgets(t, "count")
	synctest.Test(t, func(t *testing.T) {
		h, send := handlerOf(t, set)
		end := make(chan struct{})
		for range 4 * maxWorking { // all conversions at a time, and many that wait
			go func() {
				turn, err := h.working.acquire(t.Context(), "10.0.0.1", 1)
				if err != nil {
					t.Error(err)
					return
				}
				<-end
				turn.release()
			}()
		}
		synctest.Wait()
		status := 0
		go func() {
			review := reviewOf("u", "example.io/v2", v1("a", "3"))
			status, _ = send("10.0.0.2:1000", len(review), strings.NewReader(review))
		}()
		synctest.Wait()
		if status != 0 {
			t.Errorf("status %d while all conversions are under way", status)
		}
		end <- struct{}{}
		synctest.Wait()
		if status != http.StatusOK {
			t.Errorf("status %d after one object of another client, want 200", status)
		}
		close(end)
		synctest.Wait()
		if len(h.working.clients) > 0 {
			t.Errorf("%d clients are remembered", len(h.working.clients))
		}
	})
}

// waiting is a body that does not come until end is closed.
type waiting struct {
	begun *atomic.Int64 // the bodies that are read
	end   chan struct{}
}

func (w waiting) Read([]byte) (int, error) {
	w.begun.Add(1)
	<-w.end
	return 0, io.EOF
}

// Small bodies that do not come take a bounded part of the memory, however many clients begin
// them, and a client alone cannot keep an API server waiting by them.
func TestSlowSmallBodies(t *testing.T) {
	t.Parallel()
	set := widgets(t, "count")
	for _, tt := range []struct {
		size        int
		share, most int64 // of bodies that are read
	}{
		{smallBody, smallShare / smallBody, maxSmall / smallBody},
		{1, smallShare / leastBody, maxSmall / leastBody},
	} {
		synctest.Test(t, func(t *testing.T) {
			h, send := handlerOf(t, set)
			body := waiting{new(atomic.Int64), make(chan struct{})}
			begin := func(from string) {
				for range tt.share + 1 {
					go send(from, tt.size, body)
				}
				synctest.Wait()
			}
			begin("10.0.0.1:1000")
			if n := body.begun.Load(); n != tt.share {
				t.Errorf("%d bodies of one client are read, want %d", n, tt.share)
			}
			review := reviewOf("u", "example.io/v2", v1("a", "3"))
			if status, text := send("10.0.0.2:1000", len(review), strings.NewReader(review)); status != http.StatusOK {
				t.Errorf("%d %.200s", status, text)
			}
			for i := range 8 {
				begin(fmt.Sprintf("10.0.1.%d:1000", i))
			}
			if n := body.begun.Load(); n != tt.most {
				t.Errorf("%d bodies are read, want %d", n, tt.most)
			}
			close(body.end)
			synctest.Wait()
			if len(h.small.clients) > 0 {
				t.Errorf("%d clients are remembered", len(h.small.clients))
			}
		})
	}
}
