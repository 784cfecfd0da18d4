package git

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gitopsd.dev/sources"
)

// A work tree that has the branch checked out moves along with it. What somebody
// is working on is not overwritten.
func TestUpdateWorkTree(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	for _, lock := range []string{"lock -1\n", "lock 0\n", "lock 1\n"} {
		f.commit("A fleet", map[string]string{"clusters.yaml": "", sources.LockFile: lock})
	}
	write := func(t *testing.T, name string) {
		if err := os.WriteFile(name, []byte("mine"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, dir string)
		want   string // in the error
		has    string // the lock in the work tree
	}{
		{name: "clean", has: "lock 2\n", change: func(*testing.T, string) {}},
		{name: "untracked", has: "lock 2\n", change: func(t *testing.T, dir string) { write(t, filepath.Join(dir, "new")) }},
		{name: "another branch", has: "lock 1\n", change: func(t *testing.T, dir string) {
			run(t, dir, "switch", "--quiet", "--create", "topic")
		}},
		{name: "edited", has: "mine", want: "Working directory has unstaged changes; commit or stash them", change: func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, sources.LockFile))
		}},
		{name: "another file is edited", has: "lock 1\n", want: "Working directory has unstaged changes", change: func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "clusters.yaml"))
		}},
		{name: "staged", has: "mine", want: "Working directory has staged changes", change: func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, sources.LockFile))
			run(t, dir, "add", sources.LockFile)
		}},
		{name: "untracked in the way", has: "mine", want: "Untracked working tree file 'clusters.lock' would be overwritten", change: func(t *testing.T, dir string) {
			run(t, dir, "rm", "--quiet", sources.LockFile)
			run(t, dir, "commit", "--quiet", "--message", "No lock")
			write(t, filepath.Join(dir, sources.LockFile))
		}},
		{name: "locked index", has: "lock 1\n", want: "If .git/index.lock is there, another git process works in the repository, or one has crashed: remove that file", change: func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, ".git/index.lock"))
		}},
		{name: "rebase", has: "lock 0\n", want: "currently checked out; finish the rebase or bisect", change: func(t *testing.T, dir string) {
			run(t, dir, "-c", "sequence.editor=echo break >", "rebase", "--interactive", "HEAD~1")
		}},
		{name: "bisect", has: "lock 0\n", want: "currently checked out; finish the rebase or bisect", change: func(t *testing.T, dir string) {
			run(t, dir, "bisect", "start", "main", "main~2")
		}},
		{name: "rebase in a linked work tree", has: "lock 1\n", want: "currently checked out; finish the rebase or bisect", change: func(t *testing.T, dir string) {
			other := filepath.Join(t.TempDir(), "other")
			run(t, dir, "switch", "--quiet", "--detach")
			run(t, dir, "worktree", "add", "--quiet", other, "main")
			run(t, other, "-c", "sequence.editor=echo break >", "rebase", "--interactive", "HEAD~1")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "tree")
			run(t, t.TempDir(), "clone", "--quiet", f.repo.Dir, dir)
			tt.change(t, dir)
			linked := filepath.Join(t.TempDir(), "linked")
			if run(t, dir, "branch", "--show-current") == "topic" {
				run(t, dir, "worktree", "add", "--quiet", linked, "main")
			}
			head, status := run(t, dir, "rev-parse", "main"), run(t, dir, "status", "--porcelain")
			r, err := Open(Config{URL: dir, Branch: "main", Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			commit, wrote, err := r.Update(t.Context(), sources.LockFile, "Lock", constant("lock 2\n"))
			if tt.want != "" {
				wantError(t, err, dir, "git refused the push to refs/heads/main: ", tt.want)
			} else if err != nil || !wrote {
				t.Fatal(wrote, err)
			} else {
				head = commit.Hash
			}
			if have := run(t, dir, "rev-parse", "main"); have != head {
				t.Errorf("main is at %s, want %s", have, head)
			}
			if have := run(t, dir, "status", "--porcelain"); have != status {
				t.Errorf("git status was\n%s\nand is\n%s", status, have)
			}
			if have, err := os.ReadFile(filepath.Join(dir, sources.LockFile)); err != nil || string(have) != tt.has {
				t.Errorf("the lock in the work tree is %q, %v, want %q", have, err, tt.has)
			}
			if have, err := os.ReadFile(filepath.Join(linked, sources.LockFile)); err == nil && string(have) != "lock 2\n" {
				t.Errorf("the lock in the linked work tree is %q", have)
			}
		})
	}
}

// The hooks of a repository in a directory run, and see nothing of gitopsd's
// settings.
func TestLocalHook(t *testing.T) {
	f := newFixture(t, wayBy("directory"))
	f.commit("A fleet", fleet)
	t.Setenv("GITOPSD_GIT_PASSWORD", "s3cr3t")
	t.Setenv("GIT_DIR", t.TempDir())
	if err := f.repo.Hook("pre-receive", "#!/bin/sh\necho \"no lock today$GITOPSD_GIT_PASSWORD\"\nexit 1\n"); err != nil {
		t.Fatal(err)
	}
	_, _, err := f.open().Update(t.Context(), sources.LockFile, "Lock", constant("lock\n"))
	wantError(t, err, "pre-receive hook declined", "no lock today")
}

// A repository that is gone is not another one of a similar name.
func TestLocalGone(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	f.commit("A fleet", fleet)
	dir := f.workTree()
	f.cfg = Config{URL: dir, Branch: "main"}
	r := f.open()
	c := f.poll(r, "")
	if err := os.Rename(dir, dir+".git"); err != nil {
		t.Fatal(err)
	}
	_, _, err := r.Poll(t.Context(), c.Hash)
	wantError(t, err, dir, "repository not found", "the directory does not exist")
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
	shallow := filepath.Join(t.TempDir(), "shallow")
	run(t, t.TempDir(), "clone", "--quiet", "--depth", "1", f.server.URL("fleet"), shallow)
	s, err := OpenDir(shallow)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, rev := range []string{"HEAD~1", "v1", first} {
		_, err := s.Commit(rev)
		wantError(t, err, shallow, `"`+rev+`"`, "git fetch --unshallow")
	}
}

// A partial clone lacks the old files, and says how to get them.
func TestOpenDirPartial(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	f.commit("First", map[string]string{"clusters.yaml": "one"})
	f.commit("Second", map[string]string{"clusters.yaml": "two"})
	f.git("config", "uploadpack.allowFilter", "true")
	dir := filepath.Join(t.TempDir(), "partial")
	run(t, t.TempDir(), "clone", "--quiet", "--filter=blob:none", f.server.URL("fleet"), dir)
	file := func(rev string) (string, error) {
		d, err := OpenDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		c, err := d.Commit(rev)
		if err != nil {
			t.Fatal(err)
		}
		content, err := fs.ReadFile(c.Files, "clusters.yaml")
		return string(content), err
	}
	if have, err := file("HEAD"); err != nil || have != "two" {
		t.Errorf("HEAD has %q, %v", have, err)
	}
	_, err := file("HEAD~1")
	wantError(t, err, "not found in this clone, which is partial", "git fetch --refetch --no-filter")
	// Maintenance would go on in the background, also while the directory is removed.
	run(t, dir, "fetch", "--quiet", "--refetch", "--no-filter", "--no-auto-maintenance")
	if have, err := file("HEAD~1"); err != nil || have != "one" {
		t.Errorf("with everything fetched, HEAD~1 has %q, %v", have, err)
	}
}

func TestOpenDirUnsupported(t *testing.T) {
	t.Parallel()
	sha256 := t.TempDir()
	run(t, sha256, "init", "--quiet", "--object-format=sha256")
	reftable := t.TempDir() // Git before 2.45 cannot make one
	run(t, reftable, "init", "--quiet")
	run(t, reftable, "config", "core.repositoryFormatVersion", "1")
	run(t, reftable, "config", "extensions.refStorage", "reftable")
	_, err := OpenDir(sha256)
	wantError(t, err, sha256, "its object format is sha256; only sha1 is supported")
	_, err = OpenDir(reftable)
	wantError(t, err, reftable, "its refStorage is reftable, which is not supported; serve it by ssh or https instead")
}

// Head names the branch that is checked out, and Uncommitted tells files that no commit has.
func TestWorkTree(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	f.commit("A fleet", fleet)
	dir := f.workTree()
	check := func(head string, changed bool) {
		t.Helper()
		d, err := OpenDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if have, err := d.Head(); err != nil || have != head {
			t.Errorf("HEAD is %q, %v, want %q", have, err, head)
		}
		if have, err := d.Uncommitted(t.Context()); err != nil || have != changed {
			t.Errorf("changed %t, %v, want %t", have, err, changed)
		}
	}
	check("main", false)
	sparse := func() bool {
		t.Helper()
		d, err := OpenDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		is, err := d.Sparse(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return is
	}
	if sparse() {
		t.Error("a whole work tree is sparse")
	}
	run(t, dir, "sparse-checkout", "set", "--no-cone", "/*")
	if !sparse() {
		t.Error("a sparse work tree is not")
	}
	run(t, dir, "sparse-checkout", "disable")
	run(t, dir, "switch", "--quiet", "--create", "feature/one")
	check("feature/one", false)
	if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	check("feature/one", true)
	run(t, dir, "switch", "--quiet", "--detach")
	check("", true)
	bare, err := OpenDir(f.repo.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer bare.Close()
	if _, err := bare.Uncommitted(t.Context()); err == nil {
		t.Error("a bare repository has a work tree")
	}
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
