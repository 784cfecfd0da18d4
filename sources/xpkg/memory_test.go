package xpkg

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"gitopsd.dev/sources"
)

// Packages in use are held against the process's memory, together; one that is
// refused, and one that nobody refers to any more, are not.
func TestMemory(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&text, "--- {a: [{x: %d}, {y: %d}]}\n", i, i)
	}
	of := &ledger{limit: 1 << 20}
	first := newClaim(of)
	if _, err := decode(strings.NewReader(text.String()), first); !errors.Is(err, errNoRoom) || !strings.Contains(err.Error(), "GOMEMLIMIT") {
		t.Fatalf("1,000 documents in a MiB: %v", err)
	}
	first.free()
	if of.sum != 0 {
		t.Errorf("%d bytes are held by a package that was refused", of.sum)
	}

	of.limit = 5 << 20 / 2
	p := new(sources.Package)
	var err error
	if p.Documents, err = decode(strings.NewReader(text.String()), first); err != nil {
		t.Fatal(err)
	}
	first.passTo(p)
	first.free()
	if of.sum < 1<<20 {
		t.Errorf("%d bytes are held, want more than a MiB", of.sum)
	}
	second := newClaim(of)
	if _, err := decode(strings.NewReader(text.String()), second); !errors.Is(err, errNoRoom) {
		t.Errorf("twice as much: %v", err)
	}
	second.free()
	runtime.KeepAlive(p)
	for empty := false; !empty && t.Context().Err() == nil; {
		runtime.GC()
		of.mu.Lock()
		empty = of.sum == 0
		of.mu.Unlock()
	}

	third := newClaim(&ledger{limit: 1 << 40})
	if err := third.add(MaxPackageMemory + 1); !errors.Is(named("x", err), sources.ErrLimit) {
		t.Errorf("a package that is too large: %v", err)
	}
}
