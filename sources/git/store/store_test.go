package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"gitopsd.dev/sources/git/objects"

	"github.com/go-git/go-git/v5/plumbing"
)

// Many small packs make a store due for replacement too.
func TestStoreDue(t *testing.T) {
	t.Parallel()
	s, err := New(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	for n := range maxPacks {
		if s.Due() {
			t.Fatalf("due after %d packs", n)
		}
		blob := objects.NewRaw(plumbing.BlobObject, fmt.Append(nil, n))
		trees, err := objects.Graft(s, plumbing.ZeroHash, "dir/file", blob.Hash)
		if err != nil {
			t.Fatal(err)
		}
		c, err := objects.EncodeCommit("A", "a@example.com", "x", trees[len(trees)-1].Hash)
		if err != nil {
			t.Fatal(err)
		}
		pack, err := objects.EncodePack(append(trees, blob, c))
		if err != nil {
			t.Fatal(err)
		}
		err = s.Add(c.Hash, func(have []plumbing.Hash, sink func(io.Reader) error) error {
			if want := min(n, keptTips); len(have) != want {
				t.Errorf("%d commits are said to be there, want %d", len(have), want)
			}
			return sink(bytes.NewReader(pack))
		})
		if err != nil || !s.Has(c.Hash) {
			t.Fatal(err)
		}
	}
	if !s.Due() {
		t.Errorf("not due after %d packs", maxPacks)
	}
	// It opens as it was left, and not without one of its objects.
	if again, err := Open(s.Dir); err != nil || len(again.tips) != keptTips || len(again.packs) != maxPacks {
		t.Errorf("%v", err)
	}
	last := s.tips[len(s.tips)-1]
	for _, p := range s.packs {
		if ok, _ := p.index.Contains(last); ok {
			name := packName(plumbing.Hash(p.index.PackfileChecksum), ".idx")
			if err := os.Remove(filepath.Join(s.Dir, name)); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := Open(s.Dir); !errors.Is(err, ErrDamaged) {
		t.Errorf("without a commit: %v", err)
	}
}
