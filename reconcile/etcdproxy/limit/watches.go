package limit

import "sync/atomic"

// Watches bounds how many watches a namespace has. It is safe for concurrent use.
type Watches struct {
	n   atomic.Int64
	max atomic.Int64
}

// SetMax replaces the bound. Existing watches stay.
func (w *Watches) SetMax(n int64) { w.max.Store(n) }

// Take counts one more watch, or returns [ErrTooManyWatches].
func (w *Watches) Take() error {
	if n := w.n.Add(1); n > w.max.Load() {
		w.n.Add(-1)
		return ErrTooManyWatches
	}
	return nil
}

// Ended counts one watch less.
func (w *Watches) Ended() { w.n.Add(-1) }

// Load returns the number of watches.
func (w *Watches) Load() int64 { return w.n.Load() }
