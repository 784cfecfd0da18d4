package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-git/go-git/v5/plumbing"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git/objects"
	"gitopsd.dev/testscripts/gitserver"
)

// A cache that is not as it was left is made anew, and never in the way.
func TestDamagedCache(t *testing.T) {
	t.Parallel()
	packs := func(t *testing.T, dir, pattern string) []string {
		names, err := filepath.Glob(filepath.Join(dir, "objects-*", pattern))
		if err != nil || len(names) == 0 {
			t.Fatalf("no %s in the cache: %v", pattern, err)
		}
		return names
	}
	each := func(pattern string, do func(name string) error) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			for _, name := range packs(t, dir, pattern) {
				os.Chmod(name, 0o644)
				if err := do(name); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	overwrite := func(at int64) func(string) error {
		return func(name string) error {
			f, err := os.OpenFile(name, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			info, err := f.Stat()
			if err == nil {
				_, err = f.WriteAt(bytes.Repeat([]byte{0xff}, 64), (info.Size()+at)%info.Size())
			}
			return err
		}
	}
	for _, tt := range []struct {
		name   string
		damage func(t *testing.T, dir string)
	}{
		{name: "nothing", damage: func(*testing.T, string) {}},
		{name: "pack removed", damage: each("*.pack", os.Remove)},
		{name: "pack empty", damage: each("*.pack", func(n string) error { return os.Truncate(n, 0) })},
		{name: "pack cut", damage: each("*.pack", func(n string) error { return os.Truncate(n, 100) })},
		{name: "pack overwritten", damage: each("*.pack", overwrite(12))},
		{name: "pack overwritten further on", damage: each("*.pack", overwrite(-100))},
		{name: "index removed", damage: each("*.idx", os.Remove)},
		{name: "index empty", damage: each("*.idx", func(n string) error { return os.Truncate(n, 0) })},
		{name: "index overwritten", damage: each("*.idx", overwrite(-300))},
		{name: "tips removed", damage: each("tips", os.Remove)},
		{name: "tips garbled", damage: each("tips", func(n string) error { return os.WriteFile(n, []byte("main\n"), 0o600) })},
		{name: "tips of another repository", damage: each("tips", func(n string) error {
			return os.WriteFile(n, []byte(strings.Repeat("a", 40)+"\n"), 0o600)
		})},
		{name: "newer generation, half made", damage: func(t *testing.T, dir string) {
			half := filepath.Join(dir, "objects-99")
			if err := errors.Join(os.MkdirAll(half, 0o700), os.WriteFile(filepath.Join(half, "tmp_pack_1"), []byte("PACK"), 0o600)); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, wayBy("http"))
			first := f.commit("A fleet", fleet)
			cfg := f.cfg
			cfg.Dir = t.TempDir()
			r := f.openWith(cfg)
			c := f.poll(r, "")

			// While the daemon runs: a read may fail, the next poll repairs.
			tt.damage(t, cfg.Dir)
			err := fs.WalkDir(c.Files, ".", func(path string, d fs.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					_, err = fs.ReadFile(c.Files, path)
				}
				return err
			})
			if err != nil {
				wantError(t, err, "the cache is damaged; the next poll fetches it again")
				wantFiles(t, f.poll(r, first), fleet)
			} else if _, changed, err := r.Poll(t.Context(), first); changed || err != nil {
				t.Error(changed, err)
			}
			second := f.commit("Second", map[string]string{"a": "b"})
			if c := f.poll(r, first); c.Hash != second || read(t, c)["a"] != "b" {
				t.Errorf("%s with %v", c.Hash, read(t, c))
			}
			r.Close()

			// After a restart.
			tt.damage(t, cfg.Dir)
			r = f.openWith(cfg)
			c = f.poll(r, "")
			if have := read(t, c); c.Hash != second || have["a"] != "b" || len(have) != len(fleet)+1 {
				t.Errorf("%s with %v", c.Hash, have)
			}
			entries, err := os.ReadDir(cfg.Dir)
			if err != nil || len(entries) != 2 {
				t.Errorf("the cache directory holds %v, %v", entries, err)
			}
		})
	}
}

// The cache directory may be deleted while the daemon runs.
func TestDeletedCache(t *testing.T) {
	everyWay(t, func(t *testing.T, f *fixture) {
		last := f.commit("A fleet", fleet)
		cfg := f.cfg
		cfg.Dir = filepath.Join(t.TempDir(), "git", "fleet")
		r := f.openWith(cfg)
		old := f.poll(r, "")
		for n := range 2 {
			if err := os.RemoveAll(filepath.Dir(cfg.Dir)); err != nil {
				t.Fatal(err)
			}
			if _, changed, err := r.Poll(t.Context(), last); changed || err != nil {
				t.Errorf("without a new commit: changed %v, %v", changed, err)
			}
			f.commit("Another", map[string]string{"n": fmt.Sprint(n)})
			c := f.poll(r, last)
			wantContent(t, c.Files, "n", fmt.Sprint(n))
			last = c.Hash
		}
		wantFiles(t, old, fleet)
	})
}

// A deleted cache directory that was made again has one user, as before.
func TestDeletedCacheLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	f.commit("A fleet", fleet)
	cfg := f.cfg
	cfg.Dir = filepath.Join(t.TempDir(), "cache")
	r := f.openWith(cfg)
	last := f.poll(r, "").Hash
	inUse := "the cache directory " + cfg.Dir + " is in use by another `gitopsd run` of this repository: see `gitopsd status`"
	change := func(what string) {
		t.Helper()
		if err := os.RemoveAll(cfg.Dir); err != nil {
			t.Fatal(err)
		}
		f.commit("Another", map[string]string{"n": what})
	}

	change("made again")
	last = f.poll(r, last).Hash
	_, err := Open(cfg)
	wantError(t, err, inUse)

	change("taken")
	other := f.openWith(cfg)
	f.poll(other, "")
	_, _, err = r.Poll(t.Context(), last)
	wantError(t, err, inUse)
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	wantContent(t, f.poll(r, last).Files, "n", "taken")
	_, err = Open(cfg)
	wantError(t, err, inUse)
}

// TestMain lets the test binary be a daemon that is killed.
func TestMain(m *testing.M) {
	if url := os.Getenv("GITOPSD_TEST_POLL"); url != "" {
		r, err := Open(Config{URL: url, Branch: "main", Dir: os.Getenv("GITOPSD_TEST_DIR")})
		if err == nil {
			_, _, err = r.Poll(contextOfMain(), "")
		}
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// A daemon that is killed while it fetches gives back the cache directory, and
// leaves nothing in it that the next one trips over.
func TestKilledWhileFetching(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	f.commit("A fleet", fleet)
	cfg := f.cfg
	cfg.Dir = t.TempDir()
	f.server.Fail(gitserver.Fault{Service: "git-upload-pack", Before: func() error {
		// The second request is the fetch: by now its files are there.
		if left, _ := filepath.Glob(filepath.Join(cfg.Dir, "objects-*", "tmp_pack_*")); len(left) > 0 {
			<-t.Context().Done()
		}
		return nil
	}})
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	daemon := exec.CommandContext(t.Context(), exe)
	daemon.Env = append(os.Environ(), "GITOPSD_TEST_POLL="+cfg.URL, "GITOPSD_TEST_DIR="+cfg.Dir)
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	for {
		if left, _ := filepath.Glob(filepath.Join(cfg.Dir, "objects-*", "tmp_pack_*")); len(left) > 0 {
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("the daemon ended before it was killed: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	_, err = Open(cfg)
	wantError(t, err, "the cache directory "+cfg.Dir+" is in use by another `gitopsd run` of this repository: see `gitopsd status`")
	if err := daemon.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	f.server.Heal()
	wantFiles(t, f.poll(f.openWith(cfg), ""), fleet)
	if left, _ := filepath.Glob(filepath.Join(cfg.Dir, "objects-*", "tmp_*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A connection that breaks in the middle of a pack.
func TestCutWhileFetching(t *testing.T) {
	t.Parallel()
	for _, w := range remoteWays() {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, w)
			files := map[string]string{"noise": noise(200_000, 1)}
			first := f.commit("A fleet", files)
			r := f.open()
			f.server.Fail(gitserver.Fault{Service: "git-upload-pack", CutAfter: 100_000})
			for range 2 {
				if _, _, err := r.Poll(t.Context(), ""); err == nil {
					t.Fatal("half a pack was taken for a whole one")
				}
			}
			f.server.Heal()
			wantFiles(t, f.poll(r, ""), files)
			files["more"] = noise(200_000, 2)
			f.commit("More", map[string]string{"more": files["more"]})
			f.server.Fail(gitserver.Fault{Service: "git-upload-pack", CutAfter: 100_000, Times: 2})
			if _, _, err := r.Poll(t.Context(), first); err == nil {
				t.Fatal("half a pack was taken for a whole one")
			}
			f.server.Heal()
			wantFiles(t, f.poll(r, first), files)
		})
	}
}

// noise is text that does not compress, other text for each seed.
func noise(n int, seed byte) string {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	for i := range b {
		b[i] = 32 + b[i]%64
	}
	return string(b)
}

// The cache of a repository that changes for ever does not grow for ever, and
// snapshots that are in use are not pulled away.
func TestCacheStaysSmall(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	cfg := f.cfg
	cfg.Dir = t.TempDir()
	r := f.openWith(cfg)

	// All commits at once, so that each poll costs one git command.
	const each, count = 512 << 10, 20
	var commits strings.Builder
	for n := range count {
		fmt.Fprintf(&commits, "commit refs/heads/all\ncommitter A <a@example.com> 0 +0000\ndata 1\nx\nM 100644 inline noise\ndata %d\n%s\n", each, noise(each, byte(n)))
	}
	f.input(commits.String(), "fast-import", "--quiet")
	var last string
	var old sources.Commit
	for n, hash := range strings.Fields(f.git("rev-list", "--reverse", "all")) {
		f.git("update-ref", "refs/heads/main", hash)
		c := f.poll(r, last)
		last = c.Hash
		if n == 0 {
			old = c
		}
		if have, err := fs.ReadFile(c.Files, "noise"); err != nil || string(have) != noise(each, byte(n)) {
			t.Fatalf("commit %d: %d bytes, %v", n, len(have), err)
		}
		if size := sizeOf(t, cfg.Dir); size > (4+1)*each+4<<20 {
			t.Fatalf("after %d commits of %d bytes the cache has %d", n+1, each, size)
		}
	}
	if have, err := fs.ReadFile(old.Files, "noise"); err != nil || string(have) != noise(each, 0) {
		t.Errorf("an old commit: %d bytes, %v", len(have), err)
	}
	if now := f.origin(r).generations(); len(now) != 1 || now[0] == 1 {
		t.Errorf("generations %v, want one that is not the first", now)
	}
}

// A store that is due goes on if there is no room for a new one beside it.
func TestDueStoreGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	cfg := f.cfg
	cfg.Dir = t.TempDir()
	r := f.openWith(cfg)
	o := f.origin(r)
	const each = 2 << 20
	last := ""
	for n := 0; last == "" || !o.store.Due(); n++ {
		f.commit("Noise", map[string]string{"noise": noise(each, byte(n))})
		last = f.poll(r, last).Hash
	}
	o.dir = filepath.Join(cfg.Dir, "lock", "no directory")
	f.commit("More", map[string]string{"file": "more"})
	c := f.poll(r, last)
	if have, err := fs.ReadFile(c.Files, "file"); err != nil || string(have) != "more" {
		t.Errorf("%q, %v", have, err)
	}
	if _, err := o.snapshot(t.Context(), plumbing.NewHash(last)); err != nil {
		t.Errorf("the commit before: %v", err)
	}
}

// A small change of a file that is larger than what is read of a file ends nothing, if no
// cluster uses the file.
func TestLargeFile(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	large := make([]byte, objects.MaxFile+1<<20)
	f.commit("A model", map[string]string{"clusters.yaml": "x", "model": string(large)})
	r := f.open()
	last := f.poll(r, "").Hash
	copy(large, "changed")
	f.commit("Another", map[string]string{"clusters.yaml": "y", "model": string(large)})
	c := f.poll(r, last)
	if have, err := fs.ReadFile(c.Files, "clusters.yaml"); err != nil || string(have) != "y" {
		t.Errorf("%q, %v", have, err)
	}
	_, err := fs.ReadFile(c.Files, "model")
	wantError(t, err, "model: 65.0 MiB is more than the 64 MiB allowed for a file")
}

// A commit that passes a limit is fetched once, and the next one is read.
func TestPassedLimit(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	f.commit("A fleet", map[string]string{"clusters.yaml": "x"})
	r := f.open()
	last := f.poll(r, "").Hash
	deep := strings.Repeat("a/", 120) + "file"
	f.commit("Deep", map[string]string{deep: "x"})
	fresh := f.open()
	for r, last := range map[*Repository]string{r: last, fresh: ""} {
		wantError(t, pollError(r, last), "directories are nested deeper than 100: limit passed; a newer commit without that is read again")
		f.server.Requests()
		wantError(t, pollError(r, last), "directories are nested deeper than 100")
		if asked := f.server.Requests(); len(asked) > 2 {
			t.Errorf("after %q, the commit is fetched again: %q", last, asked)
		}
	}
	f.git("update-ref", "refs/heads/main", last)
	f.commit("Flat", map[string]string{"clusters.yaml": "y"})
	if c := f.poll(r, last); c.Subject != "Flat" {
		t.Errorf("%q is read", c.Subject)
	}
}

func pollError(r *Repository, last string) error {
	_, _, err := r.Poll(context.Background(), last)
	return err
}

func sizeOf(t *testing.T, dir string) (size int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			size += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return size
}

// For a small change of a large file the server sends a delta on an object in the cache.
// git accepts the pack in the cache.
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
