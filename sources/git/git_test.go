package git

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gitopsd.dev/sources"
	"gitopsd.dev/testscripts/gitserver"
)

var fleet = map[string]string{
	"clusters.yaml":                        "kind: Cluster\n",
	"clusters/prod/kustomization.yaml":     "resources: [ns.yaml]\n",
	"clusters/prod/ns.yaml":                "kind: Namespace\n",
	"clusters.d/sorts between":             "the directory and its files\n",
	"clusters/prod/deep/er/and/deeper.txt": "x",
	"empty":                                "",
}

func TestPoll(t *testing.T) {
	everyWay(t, func(t *testing.T, f *fixture) {
		first := f.commit("A fleet\n\nWith more text.", fleet)
		r := f.open()
		c := f.poll(r, "")
		if c.Hash != first || c.Subject != "A fleet" || c.Author != "Dev Eloper <dev@example.com>" || c.Time.IsZero() {
			t.Errorf("%+v, want commit %s", c, first)
		}
		wantFiles(t, c, fleet)

		if _, changed, err := r.Poll(t.Context(), first); changed || err != nil {
			t.Errorf("an unchanged branch: changed %t, error %v", changed, err)
		}

		second := f.commit("Another file", map[string]string{"clusters/dev/a": "b"})
		c2 := f.poll(r, first)
		if c2.Hash != second {
			t.Errorf("commit %s, want %s", c2.Hash, second)
		}
		if len(read(t, c2)) != len(fleet)+1 {
			t.Errorf("%v, want one file more than %v", sorted(read(t, c2)), sorted(fleet))
		}
		wantFiles(t, c, fleet) // the one before stays as it was

		// A branch that is forced back, and to a commit without ancestors.
		f.git("update-ref", "refs/heads/main", first)
		wantFiles(t, f.poll(r, second), fleet)
		alone := f.git("commit-tree", "-m", "Alone", second+":clusters")
		f.git("update-ref", "refs/heads/main", alone)
		f.git("reflog", "expire", "--expire=now", "--all")
		f.git("gc", "--quiet", "--prune=now") // what was there before is gone
		c3 := f.poll(r, first)
		if c3.Subject != "Alone" || read(t, c3)["prod/ns.yaml"] != "kind: Namespace\n" {
			t.Errorf("%q with %v", c3.Subject, read(t, c3))
		}
	})
}

// The numbers behind "a pass over an unchanged fleet asks Git for one ref".
func TestPollRequests(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	first := f.commit("A fleet", fleet)
	r := f.open()
	c := f.poll(r, "")
	want := []string{
		"GET /fleet.git/info/refs?service=git-upload-pack v2",
		"POST /fleet.git/git-upload-pack v2", // one ref
		"POST /fleet.git/git-upload-pack v2", // the commit
	}
	wantRequests := func(want ...string) {
		t.Helper()
		if have := f.server.Requests(); strings.Join(have, "\n") != strings.Join(want, "\n") {
			t.Errorf("requests\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
		}
	}
	wantRequests(want...)
	for range 3 {
		if _, changed, err := r.Poll(t.Context(), c.Hash); changed || err != nil {
			t.Fatal(changed, err)
		}
	}
	wantRequests(want[1], want[1], want[1])

	// What is in the cache is not fetched again, neither by this process nor
	// by the next.
	f.commit("Second", map[string]string{"a": "b"})
	c = f.poll(r, c.Hash)
	wantRequests(want[1], want[1])
	f.git("update-ref", "refs/heads/main", first)
	c = f.poll(r, c.Hash)
	wantRequests(want[1])
	dir := f.origin(r).dir
	r.Close()
	cfg := f.cfg
	cfg.Dir = dir
	r = f.openWith(cfg)
	wantFiles(t, f.poll(r, ""), fleet)
	wantRequests(want[0], want[1])
}

func TestUpdate(t *testing.T) {
	everyWay(t, func(t *testing.T, f *fixture) {
		first := f.commit("A fleet", fleet)
		r := f.open()
		var heads []string
		c, wrote, err := r.Update(t.Context(), sources.LockFile, "Lock\n\nThe digests of 1 package.", func(head sources.Commit) ([]byte, error) {
			heads = append(heads, head.Hash)
			return []byte("lock 1\n"), nil
		})
		if err != nil || !wrote {
			t.Fatal(wrote, err)
		}
		if len(heads) != 1 || heads[0] != first {
			t.Errorf("content was called with %v, want %s", heads, first)
		}
		if have := f.git("rev-parse", "main"); have != c.Hash {
			t.Errorf("main is at %s, the commit is %s", have, c.Hash)
		}
		if c.Subject != "Lock" || c.Author != "gitopsd <gitopsd@localhost>" {
			t.Errorf("%q by %q", c.Subject, c.Author)
		}
		if have := read(t, c)[sources.LockFile]; have != "lock 1\n" {
			t.Errorf("the commit returned has the lock %q", have)
		}
		if have := f.git("show", "--format=%P %B", "--name-status", "main"); have != first+" Lock\n\nThe digests of 1 package.\n\n\nA\tclusters.lock" {
			t.Errorf("git show says\n%s", have)
		}
		if _, changed, err := r.Poll(t.Context(), c.Hash); changed || err != nil {
			t.Errorf("our own commit is a change: %t, %v", changed, err)
		}

		c2, wrote, err := r.Update(t.Context(), sources.LockFile, "Lock", constant("lock 1\n"))
		if err != nil || wrote || c2.Hash != c.Hash {
			t.Errorf("equal bytes: commit %s, wrote %t, %v", c2.Hash, wrote, err)
		}
		other := errors.New("no")
		if _, _, err := r.Update(t.Context(), sources.LockFile, "Lock", func(sources.Commit) ([]byte, error) { return nil, other }); !errors.Is(err, other) {
			t.Errorf("error %v, want that of content", err)
		}

		// In a directory that is there, one that is not, and over an
		// executable file.
		f.git("update-ref", "refs/heads/main", f.git("commit-tree", "-m", "Modes", "-p", "main", f.mktree(
			"100755 blob "+f.git("rev-parse", "main:clusters.lock")+"\tclusters.lock",
			"040000 tree "+f.git("rev-parse", "main:clusters")+"\tclusters",
			"120000 blob "+f.git("rev-parse", "main:empty")+"\tlink",
		)))
		for _, path := range []string{"clusters.lock", "clusters/prod/clusters.lock", "new/dir/clusters.lock"} {
			if _, wrote, err := r.Update(t.Context(), path, "Lock", constant("lock 2\n")); err != nil || !wrote {
				t.Fatal(path, wrote, err)
			}
			if have := f.git("show", "--format=", "--name-only", "main"); have != path {
				t.Errorf("the commit touches %s, want %s", have, path)
			}
		}
		if have := f.git("ls-tree", "main", "clusters.lock", "link"); !strings.HasPrefix(have, "100755 blob") || !strings.Contains(have, "120000 blob") {
			t.Errorf("modes have changed:\n%s", have)
		}
		_, _, err = r.Update(t.Context(), "clusters", "Lock", constant("x"))
		wantError(t, err, "clusters", "is a directory")
		_, _, err = r.Update(t.Context(), "link", "Lock", constant("x"))
		wantError(t, err, "link", "symbolic link")
		for _, path := range []string{"../x", "/x", "", ".", ".git/config", "dir/.GIT"} {
			if _, _, err := r.Update(t.Context(), path, "Lock", constant("x")); err == nil {
				t.Errorf("the path %q can be written", path)
			}
		}
		f.fsck()
	})
}

func TestBranchNotFound(t *testing.T) {
	everyWay(t, func(t *testing.T, f *fixture) {
		r := f.open()
		_, _, err := r.Poll(t.Context(), "")
		wantError(t, err, r.Describe(), "the repository is empty", "branch main")
		if !errors.Is(err, ErrBranchNotFound) {
			t.Errorf("%v is not ErrBranchNotFound", err)
		}
		if _, _, err := r.Update(t.Context(), sources.LockFile, "Lock", constant("x")); !errors.Is(err, ErrBranchNotFound) {
			t.Errorf("%v is not ErrBranchNotFound", err)
		}
		for _, b := range []string{"master", "mainly", "v1"} {
			if _, err := f.repo.Commit(t.Context(), b, "First", fleet); err != nil {
				t.Fatal(err)
			}
		}
		_, _, err = r.Poll(t.Context(), "")
		wantError(t, err, "no branch main", "mainly, master, v1")
		if !errors.Is(err, ErrBranchNotFound) {
			t.Errorf("%v is not ErrBranchNotFound", err)
		}
		f.commit("Now", fleet)
		f.poll(r, "")
	})
}

// Each branch has its own pending records. Those in the file for all branches, as they were kept
// once, are read by every branch that has no others, and are removed by the first.
func TestPendingOfBranches(t *testing.T) {
	everyWay(t, func(t *testing.T, f *fixture) {
		f.commit("A fleet", fleet)
		f.git("branch", "release/1.0", "main")
		open := func(branch string) *Repository {
			f.cfg.Branch = branch
			return f.open()
		}
		main, release := open("main"), open("release/1.0")
		read := func(r *Repository, want string) {
			t.Helper()
			if have, err := r.ReadPending(t.Context()); err != nil || string(have) != want {
				t.Fatalf("pending %q, %v, want %q", have, err, want)
			}
		}
		write := func(r *Repository, content string) {
			t.Helper()
			if err := r.WritePending(t.Context(), []byte(content)); err != nil {
				t.Fatal(err)
			}
		}
		clear := func(r *Repository) {
			t.Helper()
			if err := r.ClearPending(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		holds := func(want string) {
			t.Helper()
			if have := f.git("for-each-ref", pendingRef); want == "" && have == "" {
				return
			}
			if have := strings.Join(strings.Fields(f.git("ls-tree", "-r", "--name-only", pendingRef)), " "); have != want {
				t.Errorf("the pending commit holds %q, want %q", have, want)
			}
		}
		write(main, "one\n")
		read(release, "")
		write(release, "two\n")
		if err := main.WritePending(t.Context(), []byte("three\n")); !errors.Is(err, ErrMoved) {
			t.Errorf("a write over another branch's: %v, want ErrMoved", err)
		}
		read(main, "one\n")
		write(main, "three\n")
		holds("clusters.lock.main clusters.lock.release%2F1.0")
		read(release, "two\n")
		clear(release)
		holds("clusters.lock.main")
		clear(release)
		read(main, "three\n")
		clear(main)
		holds("")

		// An older version wrote the file for all.
		blob := f.git("rev-parse", "main:"+sources.RegistryFile)
		old := f.mktree("100644 blob " + blob + "\t" + sources.LockFile)
		f.git("update-ref", pendingRef, f.git("commit-tree", "-m", "x", old))
		read(main, fleet[sources.RegistryFile])
		read(release, fleet[sources.RegistryFile])
		write(main, "four\n")
		holds("clusters.lock.main")
		read(release, "")
		f.git("update-ref", pendingRef, f.git("commit-tree", "-m", "x", old))
		read(release, fleet[sources.RegistryFile])
		clear(release)
		holds("")
		f.fsck()
	})
}

// A pending ref without records is an error, unlike a missing one, and is replaced or
// removed like any other.
func TestPendingGarbled(t *testing.T) {
	everyWay(t, func(t *testing.T, f *fixture) {
		f.commit("A fleet", fleet)
		blob := f.git("rev-parse", "main:"+sources.RegistryFile)
		f.git("tag", "-a", "-m", "a tag", "tag", "main")
		tag := f.git("rev-parse", "tag")
		f.git("tag", "-d", "tag")
		directory := f.mktree("040000 tree " + f.git("rev-parse", "main^{tree}") + "\t" + sources.LockFile)
		for n, garbled := range []string{blob, f.git("commit-tree", "-m", "a directory", directory), f.git("rev-parse", "main^{tree}"), tag} {
			replace := n%2 == 0
			f.git("update-ref", pendingRef, garbled)
			r := f.open()
			for range 2 {
				if have, err := r.ReadPending(t.Context()); !errors.Is(err, ErrUnreadable) || have != nil {
					t.Fatalf("pending %q, %v, want ErrUnreadable", have, err)
				}
			}
			if !replace {
				if err := r.ClearPending(t.Context()); err != nil {
					t.Error(err)
				}
				continue
			}
			if err := r.WritePending(t.Context(), []byte("one\n")); err != nil {
				t.Fatal(err)
			}
			if have, err := r.ReadPending(t.Context()); err != nil || string(have) != "one\n" {
				t.Errorf("pending %q, %v", have, err)
			}
		}
		if have := f.git("for-each-ref", "--format=%(refname)"); have != "refs/heads/main" {
			t.Errorf("refs left: %s", have)
		}
	})
}

// Records that cannot be fetched are an error that is not about them. They are read as
// soon as they can be.
func TestPendingOutOfReach(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(t *testing.T, f *fixture, cfg *Config) (mend func()){
		"server fails": func(_ *testing.T, f *fixture, _ *Config) func() {
			for range fetchTries { // the ref is answered, its commit is not
				f.server.Fail(gitserver.Fault{Service: "git-upload-pack", Times: 1, Before: func() error { return nil }})
				f.server.Fail(gitserver.Fault{Service: "git-upload-pack", Times: 1, Status: 500})
			}
			return f.server.Heal
		},
		"cache not writable": func(t *testing.T, _ *fixture, cfg *Config) func() {
			if err := errors.Join(os.RemoveAll(cfg.Dir), os.WriteFile(cfg.Dir, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			return func() { os.Remove(cfg.Dir) }
		},
		"password file gone": func(t *testing.T, f *fixture, cfg *Config) func() {
			// It is removed after the ref was answered.
			f.server.Fail(gitserver.Fault{Service: "git-upload-pack", Times: 1, Before: func() error { return os.Remove(cfg.PasswordFile) }})
			return func() { os.WriteFile(cfg.PasswordFile, []byte("secret"), 0o600) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, wayBy("http"))
			f.commit("A fleet", fleet)
			if err := f.open().WritePending(t.Context(), []byte("one\n")); err != nil {
				t.Fatal(err)
			}
			cfg := f.cfg
			cfg.Dir, cfg.PasswordFile = filepath.Join(t.TempDir(), "cache"), filepath.Join(t.TempDir(), "password")
			if err := os.WriteFile(cfg.PasswordFile, []byte("secret"), 0o600); err != nil {
				t.Fatal(err)
			}
			r := f.openWith(cfg)
			mend := test(t, f, &cfg)
			have, err := r.ReadPending(t.Context())
			if err == nil || errors.Is(err, ErrUnreadable) {
				t.Errorf("pending %q, %v, want another error", have, err)
			}
			mend()
			if have, err := r.ReadPending(t.Context()); err != nil || string(have) != "one\n" {
				t.Errorf("then: pending %q, %v", have, err)
			}
		})
	}
}

func TestPending(t *testing.T) {
	everyWay(t, func(t *testing.T, f *fixture) {
		f.commit("A fleet", fleet)
		r := f.open()
		wantPending := func(r *Repository, want string) {
			t.Helper()
			have, err := r.ReadPending(t.Context())
			if err != nil || string(have) != want || (have == nil) != (want == "") {
				t.Fatalf("pending %q, %v, want %q", have, err, want)
			}
		}
		write := func(r *Repository, content string) {
			t.Helper()
			if err := r.WritePending(t.Context(), []byte(content)); err != nil {
				t.Fatal(err)
			}
		}
		wantPending(r, "")
		if err := r.ClearPending(t.Context()); err != nil {
			t.Fatal(err)
		}
		write(r, "one\n")
		wantPending(r, "one\n")
		write(r, "two\n")
		if have := f.git("ls-tree", "-r", "--name-only", pendingRef); have != "clusters.lock.main" {
			t.Errorf("the pending commit holds %q", have)
		}

		// Another process, which has not read what is there.
		r2 := f.open()
		if err := r2.WritePending(t.Context(), []byte("three\n")); !errors.Is(err, ErrMoved) {
			t.Errorf("a write over records never read: %v, want ErrMoved", err)
		}
		wantPending(r2, "two\n")
		write(r2, "three\n")
		if err := r.WritePending(t.Context(), []byte("four\n")); !errors.Is(err, ErrMoved) {
			t.Errorf("a write over another's: %v, want ErrMoved", err)
		}
		if err := r.ClearPending(t.Context()); !errors.Is(err, ErrMoved) {
			t.Errorf("clearing another's: %v, want ErrMoved", err)
		}
		wantPending(r, "three\n")
		f.git("pack-refs", "--all")
		wantPending(r, "three\n")
		if err := r.ClearPending(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantPending(r, "")
		wantPending(r2, "")
		if have := f.git("for-each-ref", "--format=%(refname)"); have != "refs/heads/main" {
			t.Errorf("refs left: %s", have)
		}
		write(r, "five\n")
		f.fsck()
	})
}

func (f *fixture) origin(r *Repository) *remote { return r.origin }
