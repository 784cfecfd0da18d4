package git

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gitopsd.dev/sources"
	"gitopsd.dev/testscripts/gitserver"

	"github.com/go-git/go-git/v5/plumbing"
)

// A small change of a large file costs a small fetch: the server sends a delta
// on what is there already, and the pack in the cache is one that git accepts.
func TestThinPacks(t *testing.T) {
	t.Parallel()
	for _, w := range remoteWays() {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, w)
			cfg := f.cfg
			cfg.Dir = t.TempDir()
			r := f.openWith(cfg)
			files := make(map[string]string)
			for n := range 5 {
				files[fmt.Sprint("large-", n)] = noise(100_000, byte(n))
			}
			f.commit("Large", files)
			c := f.poll(r, "")
			for n := range 3 {
				for name := range files {
					files[name] = fmt.Sprint(n) + files[name]
				}
				f.commit("Small changes", files)
				c = f.poll(r, c.Hash)
				wantFiles(t, c, files)
			}
			packs, err := filepath.Glob(filepath.Join(cfg.Dir, "objects-1", "pack-*.pack"))
			if err != nil || len(packs) != 4 {
				t.Fatalf("%v, %v, want four packs", packs, err)
			}
			for _, name := range packs {
				run(t, cfg.Dir, "verify-pack", name)
			}
		})
	}
}

// packOf returns a pack made by git of everything in f, with flags of git
// pack-objects.
func (f *fixture) packOf(flags ...string) []byte {
	f.Helper()
	cmd := exec.CommandContext(f.Context(), "git", append([]string{"pack-objects", "--quiet", "--stdout", "--all"}, flags...)...)
	cmd.Dir, cmd.Env = f.repo.Dir, gitserver.Env(f.repo.Dir)
	pack, err := cmd.Output()
	if err != nil {
		f.Fatal(err)
	}
	return pack
}

// indexPack reads a pack as a store does.
func indexPack(t testing.TB, pack []byte, outside lookup) (map[plumbing.Hash]bool, error) {
	file, err := os.CreateTemp(t.TempDir(), "pack")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	scan, err := scanPack(file, bytes.NewReader(pack))
	if err != nil {
		return nil, err
	}
	idx, err := scan.resolve(outside)
	if err != nil {
		return nil, err
	}
	have := make(map[plumbing.Hash]bool)
	entries, err := idx.Entries()
	if err != nil {
		return nil, err
	}
	for {
		e, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return have, nil
		} else if err != nil {
			return nil, err
		}
		have[e.Hash] = true
	}
}

func nothingOutside(h plumbing.Hash) (plumbing.ObjectType, []byte, error) {
	return 0, nil, errors.New("nothing is outside")
}

func TestPack(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	for n := range 30 { // versions of one file, for chains of deltas
		f.commit("Version", map[string]string{"file": strings.Repeat(fmt.Sprintf("line of %d\n", n%7), 50) + noise(2000+n, 1), "dir/other": fmt.Sprint(n)})
	}
	f.git("tag", "-a", "-m", "A tag", "v1")
	want := strings.Fields(f.git("rev-list", "--all", "--objects", "--no-object-names"))
	for _, flags := range [][]string{{"--delta-base-offset"}, {}, {"--depth=2"}, {"--window=0"}} {
		have, err := indexPack(t, f.packOf(flags...), nothingOutside)
		if err != nil {
			t.Errorf("%v: %v", flags, err)
		}
		for _, h := range want {
			if !have[plumbing.NewHash(h)] {
				t.Errorf("%v: %s is not in the index", flags, h)
			}
		}
		if len(have) != len(want) {
			t.Errorf("%v: %d objects, want %d", flags, len(have), len(want))
		}
	}

	whole := f.packOf("--delta-base-offset")
	for n := 1; n < len(whole); n += 1 + len(whole)/50 {
		if _, err := indexPack(t, whole[:n], nothingOutside); err == nil {
			t.Fatalf("the first %d bytes were taken for a pack of %d", n, len(whole))
		}
		garbled := bytes.Clone(whole)
		garbled[n] ^= 0x55
		if _, err := indexPack(t, garbled, nothingOutside); err == nil {
			t.Fatalf("a pack with byte %d garbled was taken", n)
		}
	}
	if _, err := indexPack(t, append(bytes.Clone(whole), "more"...), nothingOutside); err == nil {
		t.Error("a pack with more behind it was taken")
	}
}

// Packs that promise more than is read.
func TestPackLimits(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	huge := strings.Repeat("\x00", MaxFile+1)
	f.commit("Huge", map[string]string{"a": huge})
	f.commit("Huge", map[string]string{"a": huge + "x"})
	_, err := indexPack(t, f.packOf("--delta-base-offset"), nothingOutside)
	wantError(t, err, "64.0 MiB are more than the 64 MiB that are read of one file")
	if !errors.Is(err, sources.ErrLimit) {
		t.Errorf("%v is not ErrLimit", err)
	}
	header := func(count uint32) []byte {
		return append([]byte("PACK\x00\x00\x00\x02"), byte(count>>24), byte(count>>16), byte(count>>8), byte(count))
	}
	_, err = indexPack(t, header(maxObjects+1), nothingOutside)
	wantError(t, err, "2000001 objects")
	// One blob that says it has 2^40 bytes.
	_, err = indexPack(t, append(header(1), 0xb0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01), nothingOutside)
	wantError(t, err, "MiB inflated")
}

func FuzzPack(f *testing.F) {
	blob := newRawObject(plumbing.BlobObject, []byte("content"))
	pack, err := encodePack([]rawObject{blob, newRawObject(plumbing.TreeObject, nil)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(pack)
	f.Add([]byte("PACK\x00\x00\x00\x02\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, pack []byte) {
		have, err := indexPack(t, pack, nothingOutside)
		if err == nil && len(pack) < 32 {
			t.Errorf("%d objects in %d bytes", len(have), len(pack))
		}
	})
}

func FuzzParseTree(f *testing.F) {
	hash := strings.Repeat("\x01", 20)
	f.Add([]byte("100644 a\x00" + hash + "40000 b\x00" + hash))
	f.Add([]byte("100644 a"))
	f.Fuzz(func(t *testing.T, content []byte) {
		entries, err := parseTree(content)
		if err != nil {
			return
		}
		end := 0
		for _, e := range entries {
			if e.start != end {
				t.Fatalf("entry %q starts at %d, the one before ends at %d", e.name, e.start, end)
			}
			end = e.end
		}
		if end != len(content) {
			t.Fatalf("the last entry ends at %d of %d", end, len(content))
		}
		// Writing an entry back changes nothing but its hash.
		for _, e := range entries {
			if !bytes.Equal(e.putInto(content, entries), content) {
				t.Fatalf("entry %q written back changes the tree", e.name)
			}
		}
	})
}
