package turn

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A slot that was lent is taken back before the next request.
func TestTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := New(1)
		waits := func(bool) {}
		slow, err := turns.Take(t.Context(), false, waits)
		if err != nil {
			t.Fatal(err)
		}
		pace := slow.Pace()
		for range 10 { // it answers
			time.Sleep(LendAfter / 2)
			pace.After()
		}
		if len(turns.slots) != 1 {
			t.Error("a slot of somebody who makes progress was lent")
		}
		time.Sleep(LendAfter)
		synctest.Wait()
		other, err := turns.Take(t.Context(), false, waits)
		if err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := pace.Before(short); err == nil {
			t.Error("a request went out without a slot")
		}
		other.End()
		var two sync.WaitGroup
		for range 2 {
			two.Go(func() {
				if err := pace.Before(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		two.Wait()
		if !slow.End() || len(turns.slots) != 0 {
			t.Errorf("%d slots are taken at the end", len(turns.slots))
		}
	})
}
