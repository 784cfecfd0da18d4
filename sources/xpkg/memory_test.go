package xpkg

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gitopsd.dev/sources"
)

// anyShare is for tests of what is decoded.
func anyShare() *share {
	s, err := newRoom(4 << 30).enter(context.Background())
	if err != nil {
		panic(err)
	}
	return s
}

// readWith reads a package that takes bytes, of some values that were counted.
func readWith(ctx context.Context, r *room, values int, bytes int64) (*sources.Package, error) {
	s, err := r.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer s.leave()
	if err := s.decode(values, 0, func() (int64, error) { return bytes, nil }); err != nil {
		return nil, err
	}
	p := &sources.Package{Repository: "registry.example.org/" + fmt.Sprint(bytes)}
	return p, s.keep(p)
}

// Packages in use are held against the process's memory, together; one that was
// refused, and one that nobody refers to any more, are not.
func TestMemory(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	r := newRoom(100 * mib)
	first, err := readWith(t.Context(), r, 1, 40*mib)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := readWith(t.Context(), r, 1, 40*mib); !errors.Is(err, sources.ErrNoRoom) || !strings.Contains(err.Error(), "GOMEMLIMIT") {
			t.Fatalf("40 MiB where 60 are left: %v", err)
		}
	}
	second, err := readWith(t.Context(), r, 1, 20*mib)
	if err != nil {
		t.Fatalf("20 MiB where 60 are left: %v", err)
	}
	runtime.KeepAlive(first)
	if _, err := readWith(t.Context(), r, 1, 40*mib); err != nil {
		t.Errorf("after the first is no longer in use: %v", err)
	}
	runtime.KeepAlive(second)
	if _, err := readWith(t.Context(), newRoom(4<<30), 1, maxPackageMemory+1); !errors.Is(named("x", err), sources.ErrLimit) {
		t.Errorf("a package that is too large: %v", err)
	}
}

// Eight packages that are larger than they may be, at once, and good ones, large
// and small: the eight are refused for what they are, and the others are read.
func TestMemoryAtOnce(t *testing.T) {
	t.Parallel()
	r := newRoom(600 << 20)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := readWith(t.Context(), r, maxParsing, maxPackageMemory+1); !errors.Is(named("x", err), sources.ErrLimit) {
				t.Errorf("a hostile package: %v", err)
			}
		})
	}
	packages := make([]*sources.Package, 3)
	for i, size := range []int64{100 << 20, 90 << 20, 1 << 20} {
		wg.Go(func() {
			p, err := readWith(t.Context(), r, int(size/valueBytes), size)
			if err != nil {
				t.Errorf("a good package: %v", err)
			}
			packages[i] = p
		})
	}
	wg.Wait()
	runtime.KeepAlive(packages)
}

// While a large package is read small ones are, and another large one waits until
// its time is over, or for the first to end.
func TestMemoryWaits(t *testing.T) {
	t.Parallel()
	const small, large = smallShare / valueBytes, smallShare/valueBytes + 1
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(4 << 30)
		first, err := r.enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := first.decode(large, 0, func() (int64, error) { return 1, nil }); err != nil {
			t.Fatal(err)
		}
		late, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := readWith(late, r, large, 1); !errors.Is(err, sources.ErrNoRoom) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a second large one: %v", err)
		}
		for range maxReading + 1 {
			if _, err := readWith(t.Context(), r, small, 1); err != nil {
				t.Errorf("a small one: %v", err)
			}
		}
		read := make(chan error)
		go func() {
			_, err := readWith(t.Context(), r, large, 1)
			read <- err
		}()
		synctest.Wait()
		first.leave()
		if err := <-read; err != nil {
			t.Errorf("after the first ended: %v", err)
		}
	})
}

// valueBytes bounds the memory that decoding a value counts.
func TestValueBytes(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]string{
		"mappings": "{a%d},", "scalars": "1%06d,", "lists": "[1%06d],", "strings": "k%d,", "nested": "{a%d: {b%[1]d}},",
	} {
		var text strings.Builder
		text.WriteString("a: [")
		for i := range 10_000 {
			fmt.Fprintf(&text, one, i)
		}
		text.WriteString("]\n")
		_, values := sources.CountYAML([]byte(text.String()))
		var dec sources.Decoder
		if _, err := dec.Decode(strings.NewReader(text.String()), sources.Limits{}); err != nil {
			t.Fatal(err)
		}
		if most := int64(values)*valueBytes + int64(text.Len()); dec.Cost() > most {
			t.Errorf("%s: %d bytes, at most %d were expected", name, dec.Cost(), most)
		}
	}
}
