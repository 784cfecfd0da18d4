// Package await is for tests of what runs beside them: they wait for conditions, and read logs
// that are being written.
package await

import (
	"bytes"
	"sync"
	"testing"
	"time"
)

// patience is how long a condition may take on a busy machine.
const patience = time.Minute

// True waits until done returns true, and fails the test if that takes longer than a minute.
func True(t testing.TB, what string, done func() bool) {
	t.Helper()
	if !Soon(done) {
		t.Fatalf("not within %s: %s", patience, what)
	}
}

// Soon waits until done returns true, and reports whether that took less than a minute.
func Soon(done func() bool) bool {
	deadline := time.Now().Add(patience)
	for pause := 5 * time.Millisecond; !done(); pause = min(2*pause, 50*time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(pause)
	}
	return true
}

// Log is a log that can be read while it is written to. The zero Log is empty.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
