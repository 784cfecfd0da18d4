package git

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"gitopsd.dev/sources"
)

// Twenty people push while locks are committed: every commit lands, in one line,
// and each lock commit was made from what it stands on.
func TestUpdateRace(t *testing.T) {
	t.Parallel()
	for _, w := range []way{wayBy("http"), wayBy("ssh"), wayBy("directory")} {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			testUpdateRace(newFixture(t, w))
		})
	}
}

func testUpdateRace(f *fixture) {
	f.commit("A fleet", fleet)
	const pushers, each, updaters, updates = 20, 1, 3, 3
	var wg sync.WaitGroup
	var calls atomic.Int32
	for p := range pushers {
		wg.Go(func() {
			for n := range each {
				name := fmt.Sprintf("pusher-%d-%d", p, n)
				if _, err := f.repo.Commit(f.Context(), "main", name, map[string]string{name: name}); err != nil {
					f.Error(err)
				}
			}
		})
	}
	for u := range updaters {
		r := f.open()
		wg.Go(func() {
			for n := range updates {
				name := fmt.Sprintf("updater-%d-%d", u, n)
				// A daemon that lost the race ten times comes back.
				err := ErrMoved
				for errors.Is(err, ErrMoved) {
					_, _, err = r.Update(f.Context(), sources.LockFile, name, func(head sources.Commit) ([]byte, error) {
						calls.Add(1)
						return fmt.Appendf(nil, "%s on %s\n", name, head.Hash), nil
					})
				}
				if err != nil {
					f.Error(err)
				}
			}
		})
	}
	wg.Wait()
	f.Logf("%d updates took %d tries", updaters*updates, calls.Load())

	subjects := strings.Split(f.git("log", "--format=%s", "main"), "\n")
	if want := 1 + pushers*each + updaters*updates; len(subjects) != want || len(slices.Compact(slices.Sorted(slices.Values(subjects)))) != want {
		f.Errorf("%d commits, want %d: %v", len(subjects), want, subjects)
	}
	if have := f.git("rev-list", "--min-parents=2", "main"); have != "" {
		f.Errorf("there are merges: %s", have)
	}
	for line := range strings.SplitSeq(f.git("log", "--format=%H %P %s", "--grep=^updater", "main"), "\n") {
		hash, parent, subject := strings.Fields(line)[0], strings.Fields(line)[1], strings.Fields(line)[2]
		if have := f.git("show", hash+":clusters.lock"); have != subject+" on "+parent {
			f.Errorf("commit %q on %s holds %q", subject, parent, have)
		}
		if have := f.git("show", "--format=", "--name-only", hash); have != sources.LockFile {
			f.Errorf("commit %q touches %s", subject, have)
		}
	}
	f.fsck()
}

// The same with people's git, each in a clone of their own.
func TestUpdateRaceWithGit(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	f.commit("A fleet", fleet)
	const pushers = 6
	push := func(name string) error {
		dir := filepath.Join(t.TempDir(), "tree")
		if _, err := runErr(t.Context(), f.repo.Dir, "clone", "--quiet", f.server.URL("fleet"), dir); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			return err
		}
		run(t, dir, "add", name)
		run(t, dir, "commit", "--quiet", "-m", name)
		for {
			_, err := runErr(t.Context(), dir, "push", "--quiet", "origin", "main")
			if err == nil || t.Context().Err() != nil {
				return err
			}
			if _, err := runErr(t.Context(), dir, "pull", "--quiet", "--rebase"); err != nil {
				return err
			}
		}
	}
	var wg sync.WaitGroup
	for n := range pushers {
		wg.Go(func() {
			if err := push(fmt.Sprintf("pusher-%d", n)); err != nil {
				t.Error(err)
			}
		})
	}
	r := f.open()
	const locks = 6
	for n := range locks {
		err := ErrMoved
		for errors.Is(err, ErrMoved) {
			_, _, err = r.Update(t.Context(), sources.LockFile, fmt.Sprintf("lock-%d", n), constant(fmt.Sprintf("lock %d\n", n)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	wantFiles := len(fleet) + pushers + 1
	if have := strings.Split(f.git("ls-tree", "-r", "--name-only", "main"), "\n"); len(have) != wantFiles {
		t.Errorf("%d files, want %d: %v", len(have), wantFiles, have)
	}
	if have := f.git("rev-list", "--count", "main"); have != fmt.Sprint(1+pushers+locks) {
		t.Errorf("%s commits, want %d", have, 1+pushers+locks)
	}
	f.fsck()
}

// One Repository used by several goroutines: a poll loop, a push webhook, the
// lock, the pending records, and readers of snapshots.
func TestSharedRepository(t *testing.T) {
	everyWay(t, func(t *testing.T, f *fixture) {
		f.commit("A fleet", fleet)
		r := f.open()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				last := ""
				for range 10 {
					c, changed, err := r.Poll(t.Context(), last)
					if err != nil {
						t.Error(err)
					} else if changed {
						last = c.Hash
						read(t, c)
					}
				}
			})
		}
		wg.Go(func() {
			for n := range 5 {
				if _, _, err := r.Update(t.Context(), sources.LockFile, "Lock", constant(fmt.Sprintf("lock %d\n", n))); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for n := range 5 {
				if err := r.WritePending(t.Context(), fmt.Appendf(nil, "records %d\n", n)); err != nil {
					t.Error(err)
				}
				if have, err := r.ReadPending(t.Context()); err != nil || string(have) != fmt.Sprintf("records %d\n", n) {
					t.Errorf("%q, %v", have, err)
				}
			}
		})
		wg.Wait()
		f.fsck()
	})
}

// The server moves the branch between our look and our push.
func TestUpdateLosesRaces(t *testing.T) {
	for _, w := range remoteWays() {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, w)
			f.commit("A fleet", fleet)
			r := f.open()
			f.server.RejectPushes(f.repo, "main", 3)
			_, wrote, err := r.Update(t.Context(), sources.LockFile, "Lock", constant("lock\n"))
			if err != nil || !wrote {
				t.Fatal(wrote, err)
			}
			if have := f.git("log", "--format=%s", "main"); have != "Lock\n"+strings.Repeat("Somebody else was faster\n", 3)+"A fleet" {
				t.Errorf("log:\n%s", have)
			}
			if w.name != "http" {
				return
			}
			f.server.RejectPushes(f.repo, "main", 0)
			_, _, err = r.Update(t.Context(), sources.LockFile, "Lock", constant("lock 2\n"))
			wantError(t, err, "clusters.lock was not committed in 10 tries: ")
			if !errors.Is(err, ErrMoved) {
				t.Errorf("%v is not ErrMoved", err)
			}
		})
	}
}

// People commit and collect garbage beside the daemon, in one repository.
func TestLocalRace(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	f.commit("A fleet", fleet)
	dir := f.workTree()
	run(t, dir, "switch", "--quiet", "--create", "topic")
	f.cfg = Config{URL: dir, Branch: "main"}
	r := f.open()

	const each = 8
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := range each {
			name := fmt.Sprintf("topic-%d", n)
			if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
				t.Error(err)
			}
			if _, err := runErr(t.Context(), dir, "add", name); err != nil {
				t.Error(err)
			}
			if _, err := runErr(t.Context(), dir, "commit", "--quiet", "-m", name); err != nil {
				t.Error(err)
			}
			// It gives up when others hold locks that it wants.
			if _, err := runErr(t.Context(), dir, "gc", "--quiet"); err != nil && !strings.Contains(err.Error(), "cannot lock ref") {
				t.Error(err)
			}
		}
	})
	wg.Go(func() {
		for n := range each {
			err := ErrMoved
			for errors.Is(err, ErrMoved) {
				_, _, err = r.Update(t.Context(), sources.LockFile, "Lock", constant(fmt.Sprintf("lock %d\n", n)))
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	for _, branch := range []string{"main", "topic"} {
		if have := run(t, dir, "rev-list", "--count", branch); have != fmt.Sprint(1+each) {
			t.Errorf("%s commits on %s, want %d", have, branch, 1+each)
		}
	}
	if have := run(t, dir, "status", "--porcelain"); have != "" {
		t.Errorf("git status:\n%s", have)
	}
	run(t, dir, "fsck", "--strict", "--full")
}

// A repository is used from all sides at once: the loop polls, commits and keeps
// records, while workers ask which commit comes after which and files are read.
func TestUseFromAllSides(t *testing.T) {
	t.Parallel()
	for _, w := range []way{wayBy("http"), wayBy("ssh"), wayBy("directory")} {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, w)
			f.commit("A fleet", fleet)
			second := f.commit("A second commit", map[string]string{"README.md": "two"})
			r := f.open()
			ctx := t.Context()
			const rounds = 4
			var wg sync.WaitGroup
			each := func(do func(n int) error) {
				wg.Go(func() {
					for n := range rounds {
						if err := do(n); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			each(func(int) error {
				commit, _, err := r.Poll(ctx, "")
				if err == nil {
					_, err = fs.ReadFile(commit.Files, sources.RegistryFile)
				}
				return err
			})
			each(func(n int) error {
				_, _, err := r.Update(ctx, sources.LockFile, "Lock", func(sources.Commit) ([]byte, error) { return fmt.Appendf(nil, "%d", n), nil })
				return err
			})
			each(func(n int) error {
				if _, err := r.ReadPending(ctx); err != nil {
					return err
				}
				if n%2 == 1 {
					return r.ClearPending(ctx)
				}
				return r.WritePending(ctx, fmt.Appendf(nil, "%d", n))
			})
			for range 2 {
				each(func(int) error {
					head, err := r.Head(ctx)
					if err == nil {
						_, _, err = r.Parent(ctx, head)
					}
					return err
				})
				each(func(int) error {
					parent, ok, err := r.Parent(ctx, second)
					if err == nil && (!ok || parent.Subject != "A fleet") {
						err = fmt.Errorf("parent %v %q", ok, parent.Subject)
					}
					return err
				})
			}
			wg.Wait()
			f.fsck()
		})
	}
}

// Each push asks first, also those after a race that was lost.
func TestMayPush(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	f.commit("A fleet", fleet)
	refused := errors.New("another one is the leader")
	asked, allowed := 0, 1
	f.cfg.MayPush = func(context.Context) error {
		if asked++; asked > allowed {
			return refused
		}
		return nil
	}
	r := f.open()
	_, wrote, err := r.Update(f.Context(), sources.LockFile, "Lock", func(sources.Commit) ([]byte, error) {
		f.commit("Faster", map[string]string{"file": fmt.Sprint(asked)})
		return []byte("a lock\n"), nil
	})
	if wrote || !errors.Is(err, refused) || asked != 2 {
		t.Errorf("asked %d times: %v, %v", asked, wrote, err)
	}
	if err := r.WritePending(f.Context(), []byte("lines\n")); !errors.Is(err, refused) {
		t.Error(err)
	}
	allowed = asked + 1
	if err := r.WritePending(f.Context(), []byte("lines\n")); err != nil {
		t.Error(err)
	}
	if err := r.ClearPending(f.Context()); !errors.Is(err, refused) {
		t.Error(err)
	}
	if refs := f.git("for-each-ref", "--format=%(refname)"); refs != "refs/gitopsd/pending\nrefs/heads/main" {
		t.Errorf("the refs are %q", refs)
	}
}
