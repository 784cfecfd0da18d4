package git

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"gitopsd.dev/sources"
)

func TestFiles(t *testing.T) {
	everyWay(t, func(t *testing.T, f *fixture) {
		files := map[string]string{"big": strings.Repeat("0123456789abcdef", 1<<14)}
		for name, content := range fleet {
			files[name] = content
		}
		f.commit("A fleet", files)
		c := f.poll(f.open(), "")
		if err := fstest.TestFS(c.Files, sorted(files)...); err != nil {
			t.Error(err)
		}
		wantFiles(t, c, files)

		// Many readers at once.
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { wantFiles(t, c, files) })
		}
		wg.Wait()

		for _, name := range []string{"/clusters.yaml", "clusters/", "./empty", "clusters/../empty", "nope", "empty/x", "clusters.yaml/../empty", ""} {
			if _, err := fs.ReadFile(c.Files, name); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrInvalid) {
				t.Errorf("ReadFile(%q): %v", name, err)
			}
		}
		if _, err := fs.ReadFile(c.Files, "clusters"); err == nil {
			t.Error("a directory can be read as a file")
		}
		if _, err := fs.ReadDir(c.Files, "empty"); err == nil {
			t.Error("a file can be read as a directory")
		}
	})
}

// The content has a name that stays the same while all files but one do.
func TestContent(t *testing.T) {
	everyWay(t, func(t *testing.T, f *fixture) {
		content := func(hash string) string {
			t.Helper()
			c := f.poll(f.open(), "")
			if c.Hash != hash {
				t.Fatalf("polled %s, want %s", c.Hash, hash)
			}
			name, err := c.Files.(sources.ContentFS).Content("clusters.lock")
			if err != nil || name == "" {
				t.Fatalf("%q, %v", name, err)
			}
			return name
		}
		first := content(f.commit("first", map[string]string{"a": "1", "b/clusters.lock": "1", "clusters.lock": "1"}))
		if again := content(f.commit("the lock", map[string]string{"clusters.lock": "2"})); again != first {
			t.Error("the lock changes it")
		}
		seen := map[string]string{first: "first"}
		for _, file := range []string{"a", "b/clusters.lock", "c"} {
			now := content(f.commit(file, map[string]string{file: "2"}))
			if before, ok := seen[now]; ok {
				t.Errorf("%s: the same as %s", file, before)
			}
			seen[now] = file
		}
	})
}

// Git has entries besides files and directories.
func TestFilesThatAreNone(t *testing.T) {
	everyWay(t, func(t *testing.T, f *fixture) {
		f.commit("A fleet", map[string]string{"dir/file": "content", "run.sh": "#!/bin/sh\n"})
		blob, tree, commit := f.git("rev-parse", "main:dir/file"), f.git("rev-parse", "main:dir"), f.git("rev-parse", "main")
		root := f.mktreeRaw(
			"100644 blob "+blob+"\tfile",
			"100664 blob "+blob+"\told-mode",
			"100755 blob "+blob+"\trun.sh",
			"120000 blob "+blob+"\tlink",
			"160000 commit "+commit+"\tsubmodule",
			"040000 tree "+tree+"\tdir",
			"040000 tree "+f.git("mktree", "--missing")+"\tnothing",
		)
		f.git("update-ref", "refs/heads/main", f.git("commit-tree", "-m", "Odd", root))
		c := f.poll(f.open(), "")
		list, err := fs.ReadDir(c.Files, ".")
		if err != nil {
			t.Fatal(err)
		}
		var have []string
		for _, e := range list {
			have = append(have, e.Name()+" "+e.Type().String())
		}
		want := "dir d---------, file ----------, link L---------, nothing d---------, old-mode ----------, run.sh ----------, submodule ?---------"
		if strings.Join(have, ", ") != want {
			t.Errorf("the root lists\n%s\nwant\n%s", strings.Join(have, ", "), want)
		}
		for _, name := range []string{"link", "link/file"} {
			_, err := c.Files.Open(name)
			wantError(t, err, "open link: is a symbolic link")
			_, err = fs.Stat(c.Files, name)
			wantError(t, err, "stat link: is a symbolic link")
		}
		if target, err := fs.ReadLink(c.Files, "link"); err != nil || target != "content" {
			t.Errorf("the link leads to %q, %v", target, err)
		}
		if info, err := fs.Lstat(c.Files, "link"); err != nil || info.Mode().Type() != fs.ModeSymlink {
			t.Errorf("the link is %v, %v", info, err)
		}
		for name, want := range map[string]string{
			"link/file": "readlink link: is a symbolic link", "file": "readlink file: invalid argument", "submodule": "readlink submodule: is a submodule",
		} {
			_, err := fs.ReadLink(c.Files, name)
			wantError(t, err, want)
		}
		for _, name := range []string{"submodule", "submodule/file"} {
			_, err := fs.Stat(c.Files, name)
			wantError(t, err, "stat submodule: is a submodule, which is not fetched")
		}
		if info, err := fs.Stat(c.Files, "run.sh"); err != nil || info.Mode() != 0o555 {
			t.Errorf("run.sh: %v, %v", info, err)
		}
		if list, err := fs.ReadDir(c.Files, "nothing"); err != nil || len(list) != 0 {
			t.Errorf("an empty directory: %v, %v", list, err)
		}
	})
}

// Entries that git itself would not check out, as an attacker would make them.
func TestFilesWithEvilNames(t *testing.T) {
	everyWay(t, func(t *testing.T, f *fixture) {
		f.commit("A fleet", map[string]string{"dir/file": "content"})
		blob, tree := f.rawHash("main:dir/file"), f.rawHash("main:dir")
		var root bytes.Buffer
		for _, e := range []struct{ mode, name, hash string }{
			{"40000", ".", tree}, {"40000", "..", tree}, {"40000", ".GIT", tree}, {"100644", ".git", blob},
			{"100644", "a/b", blob}, {"100644", `a\b`, blob}, {"100644", "fine", blob},
		} {
			root.WriteString(e.mode + " " + e.name + "\x00" + e.hash)
		}
		f.commitTree(root.String())
		c := f.poll(f.open(), "")
		wantFiles(t, c, map[string]string{"fine": "content", `a\b`: "content"})
		for _, name := range []string{".", "..", ".git", ".GIT/file", "a/b", "../file"} {
			if _, err := fs.ReadFile(c.Files, name); err == nil {
				t.Errorf("ReadFile(%q) succeeds", name)
			}
		}

		// Nothing reads a name that is not UTF-8, but whoever lists files can tell of it.
		f.commitTree("100644 not\xffutf8\x00" + blob)
		c = f.poll(f.open(), "")
		if list, err := fs.ReadDir(c.Files, "."); err != nil || len(list) != 1 || list[0].Name() != "not\xffutf8" {
			t.Errorf("listed are %v, %v", list, err)
		}
		if _, err := fs.ReadFile(c.Files, "not\xffutf8"); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("a name that is not UTF-8: %v", err)
		}

		f.commitTree("100644 twice\x00" + blob + "100644 twice\x00" + blob)
		c = f.poll(f.open(), "")
		_, err := fs.ReadFile(c.Files, "twice")
		wantError(t, err, "duplicate entry twice")
	})
}

// A tree that holds one other tree many times, which holds another many times,
// is small in Git and endless to walk.
func TestEndlessTree(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	f.commit("A fleet", map[string]string{"dir/file": "content"})
	h := f.git("rev-parse", "main:dir")
	for range 10 {
		var lines []string
		for _, name := range strings.Split("abcdefghij", "") {
			lines = append(lines, "040000 tree "+h+"\t"+name)
		}
		h = f.mktree(lines...)
	}
	f.git("update-ref", "refs/heads/main", f.git("commit-tree", "-m", "Bomb", h))
	_, _, err := f.open().Poll(t.Context(), "")
	wantError(t, err, "more than 1000000 files")
	if !errors.Is(err, sources.ErrLimit) {
		t.Errorf("%v is not ErrLimit", err)
	}

	h = f.git("rev-parse", "main:a")
	for range 110 {
		h = f.mktree("040000 tree "+f.git("mktree", "--missing")+"\tx", "040000 tree "+h+"\tdown")
	}
	f.git("update-ref", "refs/heads/main", f.git("commit-tree", "-m", "Deep", h))
	_, _, err = f.open().Poll(t.Context(), "")
	wantError(t, err, "deeper than 100")
}

func TestHugeFile(t *testing.T) {
	t.Parallel()
	for _, w := range []way{wayBy("http"), wayBy("directory")} {
		f := newFixture(t, w)
		files := map[string]string{"clusters.yaml": "kind: Cluster\n", "huge": strings.Repeat("\x00", MaxFile+1)}
		f.commit("A fleet", files)
		c := f.poll(f.open(), "")
		if content, err := fs.ReadFile(c.Files, "clusters.yaml"); err != nil || string(content) != files["clusters.yaml"] {
			t.Errorf("%q, %v", content, err)
		}
		if info, err := fs.Stat(c.Files, "huge"); err != nil || info.Size() != MaxFile+1 {
			t.Errorf("%v, %v", info, err)
		}
		_, err := fs.ReadFile(c.Files, "huge")
		wantError(t, err, "read huge", "64.0 MiB is more than the 64 MiB allowed for a file")
		if !errors.Is(err, sources.ErrLimit) {
			t.Errorf("%v is not ErrLimit", err)
		}
		if _, err := fs.ReadFile(c.Files, "clusters.yaml"); err != nil {
			t.Error(err)
		}
	}
}
