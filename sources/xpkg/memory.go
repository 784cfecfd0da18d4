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

// The process's memory for packages is bounded. Packages are not trusted and may be as
// large as their limits allow. Several large ones must not get the daemon killed, or other
// packages refused.
//
// While a package is read, it has one of a few small shares of the memory. If it needs
// more, which is known before each batch is decoded, it waits for the only large share
// until its context ends. The package with the large share waits only for decoders, which
// wait for nothing, so that one package always makes progress. A package that was read
// takes its memory from the limit for as long as it is in use.
const (
	// smallShare is the memory that a package without the large share may take.
	smallShare = 16 << 20
	// maxReading bounds the packages that are decoded at a time.
	maxReading = 8
	// maxParsing bounds the values that are decoded at a time, at some 200 bytes each in
	// the decoder.
	maxParsing = 750_000
	// valueBytes bounds the memory for each character that can separate two values. The
	// largest is for a mapping with one key, which has two values.
	valueBytes = 300
)

// memory is the process's memory for packages.
var memory = newRoom(memoryForPackages())

// memoryForPackages returns a third of the memory that the process may use (GOMEMLIMIT),
// or 4 GiB if there is no limit. The rest is for packages that are being read, rendered
// objects, and garbage.
func memoryForPackages() int64 {
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		return limit / 3
	}
	return 4 << 30
}

type room struct {
	reading *semaphore.Weighted // the small shares
	large   *semaphore.Weighted // the large share
	parsing *semaphore.Weighted // values

	limit int64 // for packages that were read
	mu    sync.Mutex
	inUse []inUse
}

// inUse is a package that was read, and its memory.
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

// share is the memory of one package while it is read.
type share struct {
	of  *room
	ctx context.Context // for the time that the package is read

	mu    sync.Mutex
	large bool
	taken int64 // memory of decoded documents
	most  int64 // bound of the memory for documents that are being decoded
}

// enter waits for a small share.
func (r *room) enter(ctx context.Context) (*share, error) {
	if r.reading.Acquire(ctx, 1) != nil {
		return nil, isFull(ctx)
	}
	return &share{of: r, ctx: ctx}, nil
}

// isFull returns the error for a package that waited until its context ended.
func isFull(ctx context.Context) error {
	return fmt.Errorf("%w: large packages are read one at a time, and this one waited too long: %w", sources.ErrNoRoom, context.Cause(ctx))
}

// leave releases the share. If the package was read, call keep first.
func (s *share) leave() {
	if s.large {
		s.of.large.Release(1)
	}
	s.of.reading.Release(1)
}

// decode waits until there is memory for a text with so many values and bytes, and calls
// do, which decodes it and returns the memory in bytes.
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
	if err == nil && s.taken > maxPackageMemory {
		return tooMuch("its objects need more than %d MiB of memory", maxPackageMemory>>20)
	}
	return err
}

// reserve waits for the large share if the small one is too small for n more bytes.
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

// keep counts the memory of a package that was read, for as long as it is referred to. A
// package may have half of the memory that others leave, so that large packages do not
// exclude small ones.
func (s *share) keep(p *sources.Package) error {
	r := s.of
	r.mu.Lock()
	defer r.mu.Unlock()
	left := r.left()
	if s.taken > left/2 {
		runtime.GC() // some packages may not be in use any more
		left = r.left()
	}
	if s.taken > left/2 {
		return fmt.Errorf("%w: it needs %d MiB of the %d that those in use leave of %d, and may have half; a third of GOMEMLIMIT is for packages: give it more, or use fewer types",
			sources.ErrNoRoom, s.taken>>20+1, left>>20, r.limit>>20)
	}
	r.inUse = append(r.inUse, inUse{weak.Make(p), s.taken})
	return nil
}

// left returns the memory that packages in use leave.
func (r *room) left() int64 {
	left := r.limit
	r.inUse = slices.DeleteFunc(r.inUse, func(u inUse) bool { return u.pkg.Value() == nil })
	for _, u := range r.inUse {
		left -= u.bytes
	}
	return left
}
