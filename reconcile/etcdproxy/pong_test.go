package etcdproxy

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// written is a connection that keeps what is written to it.
type written struct {
	net.Conn
	mu     sync.Mutex
	writes [][]byte
	err    error
}

func (w *written) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	w.writes = append(w.writes, slices.Clone(b))
	return len(b), nil
}

func (w *written) all() [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.writes)
}

// answer returns the answer to a ping.
func answer(id byte) []byte { return append(slices.Clone(pong), id, 0, 0, 0, 0, 0, 0, 0) }

// The answer to a ping goes with the next write, or after pongDelay by itself.
func TestPongs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testPongs)
}

func testPongs(t *testing.T) {
	to := new(written)
	p := &pongs{session: &session{Conn: to}}
	write := func(b []byte) {
		t.Helper()
		if n, err := p.Write(b); n != len(b) || err != nil {
			t.Fatalf("%d of %d bytes: %v", n, len(b), err)
		}
	}
	write([]byte("settings"))
	write(answer(1))
	write(answer(2))
	write([]byte("headers"))
	write([]byte("more"))
	want := [][]byte{[]byte("settings"), slices.Concat(answer(1), answer(2), []byte("headers")), []byte("more")}
	if have := to.all(); !slices.EqualFunc(have, want, bytes.Equal) {
		t.Fatalf("writes\n%q, want\n%q", have, want)
	}
	time.Sleep(pongDelay / 2) // the timer was set for answers that have gone
	for range 2 {
		before := len(to.all())
		write(answer(3))
		time.Sleep(pongDelay - time.Nanosecond)
		if have := to.all(); len(have) != before {
			t.Fatalf("writes %q, want none before pongDelay", have[before:])
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if have := to.all(); len(have) != before+1 || !bytes.Equal(have[before], answer(3)) {
			t.Fatalf("writes %q, want the answer alone", have[before:])
		}
	}
	to.mu.Lock()
	to.err = errors.New("gone")
	to.mu.Unlock()
	_, _ = p.Write(answer(4))
	if _, err := p.Write([]byte("headers")); err == nil {
		t.Error("a write to a failed connection succeeds")
	}
}

// All bytes keep their order, whatever their length and content.
func TestPongsKeepOrder(t *testing.T) {
	t.Parallel()
	to := new(written)
	p := &pongs{session: &session{Conn: to}}
	var all []byte
	held := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.held)
	}
	most := 0
	for i := range 5000 {
		var b []byte
		switch rand.N(4) {
		case 0:
			b = bytes.Repeat([]byte{byte(i)}, 1+rand.N(9000))
		case 1:
			b = answer(byte(i))[:1+rand.N(pongLength)]
		default:
			b = answer(byte(i))
		}
		all = append(all, b...)
		if _, err := p.Write(b); err != nil {
			t.Fatal(err)
		}
		most = max(most, held())
	}
	for range 3 * maxPongs {
		_, _ = p.Write(answer(0))
		all = append(all, answer(0)...)
		most = max(most, held())
	}
	_, _ = p.Write([]byte("end"))
	if have := bytes.Join(to.all(), nil); !bytes.Equal(have, append(all, "end"...)) {
		t.Error("what was written is not what comes")
	}
	if most > maxPongs*pongLength {
		t.Errorf("%d bytes were held, want %d at most", most, maxPongs*pongLength)
	}
}
