package xpkg

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"sync"

	"golang.org/x/sync/semaphore"

	"gitopsd.dev/sources"
)

// Memory is the process's, and so is what bounds it: packages are not trusted,
// any number of them may be as large as their limits allow, and whoever publishes
// eight of these must not get the daemon killed for all clusters.

// parsing bounds the values of all batches that are being decoded, at some 200
// bytes each until the decoder is done with them.
var parsing = &room{values: semaphore.NewWeighted(maxParsing)}

const maxParsing = 750_000

type room struct{ values *semaphore.Weighted }

// enter waits for room for some values, and returns what gives it back. Whoever
// is inside does not wait for anything, so that there always will be.
func (r *room) enter(values int) (leave func()) {
	n := int64(min(values, maxParsing))
	_ = r.values.Acquire(context.Background(), n) // its only error is the context's
	return func() { r.values.Release(n) }
}

// held is what the packages in memory take, until nothing refers to them.
var held = &ledger{limit: memoryForPackages()}

// memoryForPackages is a third of the memory that the process may use
// (GOMEMLIMIT), or 4 GiB if nobody says. The rest is for what is rendered from
// them, and for the collector to work in.
func memoryForPackages() int64 {
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		return limit / 3
	}
	return 4 << 30
}

type ledger struct {
	mu    sync.Mutex
	limit int64
	sum   int64
}

func (l *ledger) add(n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > 0 && l.sum+n > l.limit {
		return false
	}
	l.sum += n
	return true
}

// claim is what one package takes.
type claim struct {
	from *ledger
	mu   sync.Mutex
	sum  int64
}

func newClaim(from *ledger) *claim { return &claim{from: from} }

// errNoRoom says that the other packages leave no memory for this one, which is no
// fault of its own.
var errNoRoom = errors.New("the packages that are in use leave no memory for it")

// add claims n bytes more.
func (c *claim) add(n int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sum+n > MaxPackageMemory {
		return tooMuch("its objects need more than %d MiB of memory", MaxPackageMemory>>20)
	}
	if !c.from.add(n) {
		return fmt.Errorf("%w: all of them together may take %d MiB, a third of what GOMEMLIMIT gives the process; give it more, or use fewer types", errNoRoom, c.from.limit>>20)
	}
	c.sum += n
	return nil
}

// free gives up what was claimed.
func (c *claim) free() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.from.add(-c.sum)
	c.sum = 0
}

// passTo keeps what was claimed until nothing refers to the package any more.
func (c *claim) passTo(p *sources.Package) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from := c.from
	runtime.AddCleanup(p, func(n int64) { from.add(-n) }, c.sum)
	c.sum = 0
}
