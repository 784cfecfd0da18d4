package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git/objects"
	"gitopsd.dev/testscripts/gitserver"

	"github.com/go-git/go-git/v5/plumbing"
)

func wantError(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want one with %q", err, text)
	}
}

// repository makes one for tests of packs.
func repository(t *testing.T) *gitserver.Repo {
	t.Helper()
	s := gitserver.Start(t, gitserver.Config{})
	repo, err := s.Create(t.Context(), "fleet")
	if err != nil {
		t.Fatal(err)
	}
	return repo
}

func commit(t *testing.T, repo *gitserver.Repo, files map[string]string) {
	t.Helper()
	if _, err := repo.Commit(t.Context(), "main", "Commit", files); err != nil {
		t.Fatal(err)
	}
}

// packOf returns a pack made by git of everything in repo, with flags of git
// pack-objects.
func packOf(t *testing.T, repo *gitserver.Repo, flags ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"pack-objects", "--quiet", "--stdout", "--all"}, flags...)...)
	cmd.Dir, cmd.Env = repo.Dir, gitserver.Env(repo.Dir)
	pack, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
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
	repo := repository(t)
	for n := range 30 { // versions of one file, for chains of deltas
		commit(t, repo, map[string]string{"file": strings.Repeat(fmt.Sprintf("line of %d\n", n%7), 50) + strings.Repeat(fmt.Sprintf("%x", n*n), 100+n), "dir/other": fmt.Sprint(n)})
	}
	if _, err := repo.Git(t.Context(), "tag", "-a", "-m", "A tag", "v1"); err != nil {
		t.Fatal(err)
	}
	list, err := repo.Git(t.Context(), "rev-list", "--all", "--objects", "--no-object-names")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Fields(list)
	for _, flags := range [][]string{{"--delta-base-offset"}, {}, {"--depth=2"}, {"--window=0"}} {
		have, err := indexPack(t, packOf(t, repo, flags...), nothingOutside)
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

	whole := packOf(t, repo, "--delta-base-offset")
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
	repo := repository(t)
	huge := strings.Repeat("\x00", objects.MaxFile+1)
	commit(t, repo, map[string]string{"a": huge})
	commit(t, repo, map[string]string{"a": huge + "x"})
	_, err := indexPack(t, packOf(t, repo, "--delta-base-offset"), nothingOutside)
	wantError(t, err, "64.0 MiB is more than the 64 MiB allowed for a file")
	if !errors.Is(err, sources.ErrLimit) {
		t.Errorf("%v is not ErrLimit", err)
	}
	header := func(count uint32) []byte {
		return append([]byte("PACK\x00\x00\x00\x02"), byte(count>>24), byte(count>>16), byte(count>>8), byte(count))
	}
	_, err = indexPack(t, header(maxObjects+1), nothingOutside)
	wantError(t, err, "2000001 objects")
	// One blob that says it has 2^40 bytes, and one of nearly 2^63.
	_, err = indexPack(t, append(header(1), 0xbf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f), nothingOutside)
	wantError(t, err, "MiB inflated")
	_, err = indexPack(t, append(header(1), 0xb0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01), nothingOutside)
	wantError(t, err, "MiB inflated")
}

func FuzzPack(f *testing.F) {
	blob := objects.NewRaw(plumbing.BlobObject, []byte("content"))
	pack, err := objects.EncodePack([]objects.Raw{blob, objects.NewRaw(plumbing.TreeObject, nil)})
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
