package xpkg

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"weak"

	"golang.org/x/sync/semaphore"

	"gitopsd.dev/sources"
)

// Memory is the process's, and so is what bounds it: packages are not trusted,
// any number of them may be as large as their limits allow, and whoever publishes
// eight of these must get neither the daemon killed nor other packages refused.
//
// While a package is read it takes one of a few small shares of the room. One
// that needs more waits for the only large share, until its context ends. What
// it may need is known before each batch of it is decoded. Whoever has the large
// share waits for nobody but the decoders, and these for nobody, so that there is
// always one that gets on. Only what was read completely counts against others,
// for as long as it is in use.
const (
	// smallShare is what a package may take besides the one that is larger.
	smallShare = 16 << 20
	// maxReading is how many packages are decoded at a time.
	maxReading = 8
	// maxParsing bounds the values that are being decoded in all of them, at some
	// 200 bytes each until the decoder is done with them.
	maxParsing = 750_000
	// valueBytes is the most that a value takes for each character that can
	// separate two: a mapping of its own with one key, which is two.
	valueBytes = 300
)

// memory is the process's.
var memory = newRoom(memoryForPackages())

// memoryForPackages is a third of the memory that the process may use
// (GOMEMLIMIT), or 4 GiB if nobody says. The rest is for packages that are being
// read, for what is rendered from them, and for the collector to work in.
func memoryForPackages() int64 {
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		return limit / 3
	}
	return 4 << 30
}

type room struct {
	reading *semaphore.Weighted // the small shares
	large   *semaphore.Weighted // the large one
	parsing *semaphore.Weighted // values

	limit int64 // for packages that were read
	mu    sync.Mutex
	inUse []inUse
}

// inUse is a package that was read, and what it takes in memory.
type inUse struct {
	pkg   weak.Pointer[sources.Package]
	bytes int64
}

func newRoom(limit int64) *room {
	return &room{
		reading: semaphore.NewWeighted(maxReading),
		large:   semaphore.NewWeighted(1),
		parsing: semaphore.NewWeighted(maxParsing),
		limit:   limit,
	}
}

// share is what one package may take while it is read.
type share struct {
	of  *room
	ctx context.Context // of the package

	mu    sync.Mutex
	large bool
	taken int64 // by what was decoded
	most  int64 // that what is being decoded may take
}

// enter waits for a small share.
func (r *room) enter(ctx context.Context) (*share, error) {
	if r.reading.Acquire(ctx, 1) != nil {
		return nil, isFull(ctx)
	}
	return &share{of: r, ctx: ctx}, nil
}

// isFull is the error of a package that waited until its context ended.
func isFull(ctx context.Context) error {
	return fmt.Errorf("%w: others are being read, of the large ones one at a time: %w", sources.ErrNoRoom, context.Cause(ctx))
}

// leave gives the share back. A package that was read is kept before.
func (s *share) leave() {
	if s.large {
		s.of.large.Release(1)
	}
	s.of.reading.Release(1)
}

// decode waits until so many values, of a text of some bytes, may be decoded, and
// decodes them: do returns the bytes that they take in memory.
func (s *share) decode(values, text int, do func() (int64, error)) error {
	most := int64(values)*valueBytes + int64(text)
	if err := s.reserve(most); err != nil {
		return err
	}
	n := int64(min(values, maxParsing))
	if s.of.parsing.Acquire(s.ctx, n) != nil {
		return isFull(s.ctx)
	}
	bytes, err := do()
	s.of.parsing.Release(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most -= most
	s.taken += bytes
	if err == nil && s.taken > MaxPackageMemory {
		return tooMuch("its objects need more than %d MiB of memory", MaxPackageMemory>>20)
	}
	return err
}

// reserve waits for the large share if the small one is not enough for n bytes
// more.
func (s *share) reserve(n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most += n; s.large || s.taken+s.most <= smallShare {
		return nil
	}
	if s.of.large.Acquire(s.ctx, 1) != nil {
		return isFull(s.ctx)
	}
	s.large = true
	return nil
}

// keep counts a package that was read for as long as something refers to it. It
// may have half of what the others leave, so that large ones do not keep small
// ones out.
func (s *share) keep(p *sources.Package) error {
	r := s.of
	r.mu.Lock()
	defer r.mu.Unlock()
	left := r.left()
	if s.taken > left/2 {
		runtime.GC() // for what was in use until a moment ago
		left = r.left()
	}
	if s.taken > left/2 {
		return fmt.Errorf("%w: it needs %d MiB of the %d that those in use leave of %d, and may have half; a third of GOMEMLIMIT is for packages: give it more, or use fewer types",
			sources.ErrNoRoom, s.taken>>20+1, left>>20, r.limit>>20)
	}
	r.inUse = append(r.inUse, inUse{weak.Make(p), s.taken})
	return nil
}

// left is what packages in use leave of the room.
func (r *room) left() int64 {
	left := r.limit
	r.inUse = slices.DeleteFunc(r.inUse, func(u inUse) bool { return u.pkg.Value() == nil })
	for _, u := range r.inUse {
		left -= u.bytes
	}
	return left
}
