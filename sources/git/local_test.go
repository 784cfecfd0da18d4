package git

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gitopsd.dev/sources"
)

// A work tree that has the branch checked out moves along with it.
func TestUpdateWorkTree(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	f.commit("A fleet", fleet)
	dir := f.workTree()
	lock := filepath.Join(dir, sources.LockFile)
	f.cfg = Config{URL: dir, Branch: "main"}
	r := f.open()
	update := func(path, content string) error {
		_, wrote, err := r.Update(t.Context(), path, "Lock", constant(content))
		if err == nil && !wrote {
			t.Errorf("nothing was written")
		}
		return err
	}
	wantLock := func(dir, want string) {
		t.Helper()
		if have, err := os.ReadFile(filepath.Join(dir, sources.LockFile)); err != nil || string(have) != want {
			t.Errorf("the lock in %s: %q, %v, want %q", dir, have, err, want)
		}
		if have := run(t, dir, "show", "HEAD:clusters.lock"); have+"\n" != want {
			t.Errorf("the lock in HEAD of %s: %q, want %q", dir, have, want)
		}
	}
	if err := update(sources.LockFile, "lock 1\n"); err != nil {
		t.Fatal(err)
	}
	wantLock(dir, "lock 1\n")
	wantClean(t, dir)
	if err := os.Chmod(lock, 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "commit", "--quiet", "-am", "Executable")

	// Other changes of people's stay what they are.
	for name, content := range map[string]string{"clusters.yaml": "edited", "clusters/prod/ns.yaml": "staged", "new": "untracked"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run(t, dir, "add", "clusters/prod/ns.yaml")
	before := run(t, dir, "status", "--porcelain")
	if err := update(sources.LockFile, "lock 2\n"); err != nil {
		t.Fatal(err)
	}
	wantLock(dir, "lock 2\n")
	if info, err := os.Stat(lock); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v; want the mode kept", info.Mode(), err)
	}
	if after := run(t, dir, "status", "--porcelain"); after != before {
		t.Errorf("git status was\n%s\nand is\n%s", before, after)
	}
	run(t, dir, "reset", "--quiet", "--hard")
	run(t, dir, "clean", "--quiet", "-f")

	// Index formats, a sparse checkout, a linked work tree, another branch.
	for _, version := range []string{"4", "2"} {
		run(t, dir, "update-index", "--index-version", version)
		if err := update(sources.LockFile, "index version "+version+"\n"); err != nil {
			t.Fatal(err)
		}
		wantLock(dir, "index version "+version+"\n")
		wantClean(t, dir)
	}
	run(t, dir, "sparse-checkout", "set", "--no-cone", "/clusters.yaml")
	if err := update(sources.LockFile, "sparse\n"); err != nil {
		t.Fatal(err)
	}
	wantClean(t, dir)
	if _, err := os.Stat(lock); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock is in a work tree that is not to have it: %v", err)
	}
	run(t, dir, "sparse-checkout", "disable")
	wantLock(dir, "sparse\n")

	run(t, dir, "checkout", "--quiet", "-b", "topic")
	linked := filepath.Join(t.TempDir(), "linked")
	run(t, dir, "worktree", "add", "--quiet", linked, "main")
	if err := update("clusters/prod/deep/clusters.lock", "in a directory\n"); err != nil {
		t.Fatal(err)
	}
	if err := update(sources.LockFile, "linked\n"); err != nil {
		t.Fatal(err)
	}
	wantLock(linked, "linked\n")
	wantLock(dir, "sparse\n")
	wantClean(t, dir)
	wantClean(t, linked)

	// Opened by the linked work tree.
	f.cfg.URL = linked
	r = f.open()
	if err := update(sources.LockFile, "by the linked one\n"); err != nil {
		t.Fatal(err)
	}
	wantLock(linked, "by the linked one\n")
	run(t, dir, "worktree", "remove", linked)
	f.cfg.URL = dir
	r = f.open()
	if err := update(sources.LockFile, "nobody has it\n"); err != nil {
		t.Fatal(err)
	}
	wantClean(t, dir)
}

// What somebody is working on is not overwritten.
func TestUpdateWorkTreeWithChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	f.commit("A fleet", map[string]string{"clusters.yaml": "", sources.LockFile: "lock 1\n"})
	for _, tt := range []struct {
		name   string
		change func(dir, lock string) error
		path   string
		want   string
	}{
		{name: "edited", want: "it has changes that are not committed", change: func(_, lock string) error {
			return os.WriteFile(lock, []byte("mine"), 0o644)
		}},
		{name: "staged", want: "a change of it is staged", change: func(dir, lock string) error {
			err := os.WriteFile(lock, []byte("mine"), 0o644)
			run(t, dir, "add", lock)
			return err
		}},
		{name: "removed", want: "it was removed", change: func(_, lock string) error { return os.Remove(lock) }},
		{name: "removal staged", want: "its removal is staged", change: func(dir, lock string) error {
			run(t, dir, "rm", "--quiet", "--cached", lock)
			return nil
		}},
		{name: "a link", want: "it is not a file", change: func(_, lock string) error {
			return errors.Join(os.Remove(lock), os.Symlink("clusters.yaml", lock))
		}},
		{name: "untracked", path: "other.lock", want: "it has changes that are not committed", change: func(dir, _ string) error {
			return os.WriteFile(filepath.Join(dir, "other.lock"), []byte("mine"), 0o644)
		}},
		{name: "added", path: "other.lock", want: "a change of it is staged", change: func(dir, _ string) error {
			err := os.WriteFile(filepath.Join(dir, "other.lock"), []byte("mine"), 0o644)
			run(t, dir, "add", "--intent-to-add", "other.lock")
			return err
		}},
		{name: "merge", want: "in the middle of a merge", change: func(dir, lock string) error {
			run(t, dir, "checkout", "--quiet", "-b", "topic")
			err := os.WriteFile(lock, []byte("theirs"), 0o644)
			run(t, dir, "commit", "--quiet", "-am", "Theirs")
			run(t, dir, "checkout", "--quiet", "main")
			err = errors.Join(err, os.WriteFile(lock, []byte("ours"), 0o644))
			run(t, dir, "commit", "--quiet", "-am", "Ours")
			if _, mergeErr := runErr(t.Context(), dir, "merge", "topic"); mergeErr == nil {
				t.Error("the merge has no conflict")
			}
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "tree")
			run(t, t.TempDir(), "clone", "--quiet", f.repo.Dir, dir)
			if err := tt.change(dir, filepath.Join(dir, sources.LockFile)); err != nil {
				t.Fatal(err)
			}
			head, status := run(t, dir, "rev-parse", "HEAD"), run(t, dir, "status", "--porcelain")
			r, err := Open(Config{URL: dir, Branch: "main"})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			path := tt.path
			if path == "" {
				path = sources.LockFile
			}
			_, _, err = r.Update(t.Context(), path, "Lock", constant("lock 2\n"))
			wantError(t, err, dir, "branch main is checked out", path, tt.want, "commit or undo that")
			if have := run(t, dir, "rev-parse", "HEAD"); have != head {
				t.Errorf("HEAD has moved to %s", have)
			}
			if have := run(t, dir, "status", "--porcelain"); have != status {
				t.Errorf("git status was\n%s\nand is\n%s", status, have)
			}
		})
	}
}

// A daemon killed between work tree, index and branch finds the file or the
// index as it was about to make them.
func TestUpdateWorkTreeAfterCrash(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	f.commit("A fleet", fleet)
	for _, stage := range []string{"file", "index"} {
		dir := f.workTree()
		if err := os.WriteFile(filepath.Join(dir, sources.LockFile), []byte("lock\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if stage == "index" {
			run(t, dir, "add", sources.LockFile)
		}
		f.cfg = Config{URL: dir, Branch: "main"}
		if _, wrote, err := f.open().Update(t.Context(), sources.LockFile, "Lock", constant("lock\n")); err != nil || !wrote {
			t.Fatal(stage, wrote, err)
		}
		wantClean(t, dir)
	}
}

// Locks of git commands are honoured.
func TestLocalLocks(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	f.commit("A fleet", fleet)
	dir := f.workTree()
	f.cfg = Config{URL: dir, Branch: "main"}
	r := f.open()
	for _, lock := range []string{"index.lock", "refs/heads/main.lock"} {
		name := filepath.Join(dir, ".git", lock)
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		_, _, err := r.Update(t.Context(), sources.LockFile, "Lock", constant("lock\n"))
		wantError(t, err, name+" exists", "remove that file")
		if err := os.Remove(name); err != nil {
			t.Error(err)
		}
		wantClean(t, dir)
	}
}

func TestOpenDir(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	first := f.commit("First", fleet)
	second := f.commit("Second", map[string]string{"clusters.yaml": "two"})
	f.git("tag", "-a", "-m", "A tag", "v1", first)
	dir := f.workTree()
	run(t, dir, "config", "extensions.worktreeConfig", "true")
	linked := filepath.Join(t.TempDir(), "linked")
	run(t, dir, "worktree", "add", "--quiet", "--detach", linked, first)
	shared := filepath.Join(t.TempDir(), "shared")
	run(t, t.TempDir(), "clone", "--quiet", "--shared", dir, shared)

	for _, tt := range []struct{ dir, root, path, rev, want string }{
		{dir: dir, root: dir, path: ".", rev: "HEAD", want: second},
		{dir: filepath.Join(dir, "clusters", "prod"), root: dir, path: "clusters/prod", rev: "main~1", want: first},
		{dir: dir, root: dir, path: ".", rev: "v1", want: first},
		{dir: dir, root: dir, path: ".", rev: "origin/main", want: second},
		{dir: dir, root: dir, path: ".", rev: first[:7], want: first},
		{dir: filepath.Join(linked, "clusters"), root: linked, path: "clusters", rev: "HEAD", want: first},
		{dir: linked, root: linked, path: ".", rev: "main", want: second},
		{dir: shared, root: shared, path: ".", rev: "HEAD^", want: first},
		{dir: f.repo.Dir, root: f.repo.Dir, path: ".", rev: "main", want: second},
	} {
		d, err := OpenDir(tt.dir)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if d.Root != tt.root || d.Path != tt.path {
			t.Errorf("OpenDir(%s) has root %s and path %s, want %s and %s", tt.dir, d.Root, d.Path, tt.root, tt.path)
		}
		c, err := d.Commit(tt.rev)
		if err != nil || c.Hash != tt.want {
			t.Errorf("%s in %s: %s, %v, want %s", tt.rev, tt.dir, c.Hash, err, tt.want)
			continue
		}
		if have := read(t, c)["clusters/prod/ns.yaml"]; have != fleet["clusters/prod/ns.yaml"] {
			t.Errorf("%s in %s has the file %q", tt.rev, tt.dir, have)
		}
	}
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, rev := range []string{"nope", "HEAD~20", "^1", "~", "", "@{", "HEAD^{/nothing}", ":/", strings.Repeat("f", 40)} {
		_, err := d.Commit(rev)
		wantError(t, err, dir, `"`+rev+`"`)
	}
	_, err = OpenDir(t.TempDir())
	wantError(t, err, "repository not found", "nor a directory above")
}

func TestLastChange(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	first := f.commit("First", map[string]string{"a": "1", "dir/b": "1", "dir/c": "1"})
	second := f.commit("Second", map[string]string{"a": "2", "dir/b": "2"})
	third := f.commit("Third", map[string]string{"a": "3"})
	dir := f.workTree()
	// A branch that changes dir/c is merged: neither the merge nor main did.
	run(t, dir, "switch", "--quiet", "--create", "side", first)
	if err := os.WriteFile(filepath.Join(dir, "dir", "c"), []byte("2"), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "commit", "--quiet", "--all", "--message", "Side")
	side := strings.TrimSpace(run(t, dir, "rev-parse", "HEAD"))
	run(t, dir, "switch", "--quiet", "main")
	run(t, dir, "merge", "--quiet", "--no-edit", "side")
	shallow := filepath.Join(t.TempDir(), "shallow")
	run(t, t.TempDir(), "clone", "--quiet", "--depth", "2", f.server.URL("fleet"), shallow)

	for _, tt := range []struct{ dir, rev, name, want string }{
		{dir: dir, rev: "HEAD", name: "a", want: third},
		{dir: dir, rev: "HEAD", name: "dir/b", want: second},
		{dir: dir, rev: "HEAD", name: "dir/c", want: side},
		{dir: dir, rev: second, name: "a", want: second},
		{dir: dir, rev: "HEAD", name: "none"},
		{dir: filepath.Join(dir, "dir"), rev: "HEAD", name: "b", want: second},
		{dir: shallow, rev: "HEAD", name: "a", want: third},
		{dir: shallow, rev: "HEAD", name: "dir/b"},
	} {
		d, err := OpenDir(tt.dir)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		c, found, err := d.LastChange(tt.rev, tt.name)
		if err != nil || found != (tt.want != "") || c.Hash != tt.want {
			t.Errorf("%s at %s in %s was changed last by %q, %v, %v, want %q", tt.name, tt.rev, tt.dir, c.Hash, found, err, tt.want)
		}
		if tt.want != "" {
			if log := strings.TrimSpace(run(t, tt.dir, "log", "-1", "--format=%H", tt.rev, "--", tt.name)); log != tt.want {
				t.Errorf("git log says %s of %s, want %s", log, tt.name, tt.want)
			}
		}
	}
}
