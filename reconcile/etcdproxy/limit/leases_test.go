package limit

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Leases that ended by themselves, were revoked, or not granted make room for others.
func TestLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l Leases
		grant := func(id, seconds int64) {
			t.Helper()
			if err := l.Grant(); err != nil {
				t.Fatalf("lease %d: %v", id, err)
			}
			l.Granted(id, seconds)
		}
		for id := range int64(maxLeases - 1) {
			grant(id, 1000)
		}
		grant(-1, 10)
		full := func(when string) {
			t.Helper()
			if err := l.Grant(); !errors.Is(err, ErrTooManyLeases) {
				t.Errorf("%s: got %v", when, err)
			}
		}
		full("as many as may be")
		time.Sleep(9 * time.Second)
		l.Renewed(-1)
		time.Sleep(9 * time.Second)
		full("one was renewed")
		time.Sleep(2 * time.Second)
		grant(-2, 1000)
		full("one ended")
		l.Revoked(5)
		if err := l.Grant(); err != nil {
			t.Errorf("one was revoked: %v", err)
		}
		full("one is being granted")
		l.Failed()
		grant(-3, 1<<62)
		time.Sleep(1001 * time.Second)
		if l.Load() != 1 {
			t.Errorf("%d leases are left", l.Load())
		}
	})
}

func TestWatches(t *testing.T) {
	t.Parallel()
	var c Watches
	c.SetMax(2)
	for i, want := range []error{nil, nil, ErrTooManyWatches} {
		if err := c.Take(); !errors.Is(err, want) {
			t.Errorf("number %d: got %v, want %v", i, err, want)
		}
	}
	c.SetMax(1)
	c.Ended()
	if err := c.Take(); err == nil {
		t.Error("took one more than there may be now")
	}
	if c.Load() != 1 {
		t.Errorf("%d are left", c.Load())
	}
}
