package limit

import "sync/atomic"

// Count caps how many of something a namespace has. It is safe for concurrent use.
type Count struct {
	n   atomic.Int64
	max atomic.Int64
}

// SetMax replaces the cap. What is there stays.
func (c *Count) SetMax(n int64) {
	c.max.Store(n)
}

// Take counts one more, or returns full if there are as many as there may be.
func (c *Count) Take(full error) error {
	if n := c.n.Add(1); n > c.max.Load() {
		c.n.Add(-1)
		return full
	}
	return nil
}

// Add changes the count without asking: by what was found to be there, or has ended.
func (c *Count) Add(n int64) {
	c.n.Add(n)
}

// Load returns the count.
func (c *Count) Load() int64 {
	return c.n.Load()
}
