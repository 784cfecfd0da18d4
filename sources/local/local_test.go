package local

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"gitopsd.dev/sources"
)

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

func open(t *testing.T, dir string) *Tree {
	t.Helper()
	tree, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	return tree
}

func TestFindRoot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"fleet/clusters.yaml": "", "fleet/clusters/prod/x": "",
		"fleet/nested/.git/HEAD": "", "fleet/nested/sub/x": "",
	})
	fleet := filepath.Join(dir, "fleet")
	for _, sub := range []string{"", "clusters", "clusters/prod"} {
		if root, err := FindRoot(filepath.Join(fleet, sub)); err != nil || root != fleet {
			t.Errorf("from %q: %s, %v, want %s", sub, root, err, fleet)
		}
	}
	for _, tt := range []struct{ dir, want string }{
		{dir: filepath.Join(fleet, "nested", "sub"), want: "up to " + filepath.Join(fleet, "nested")},
		{dir: dir, want: "is not in a fleet repository: there is no clusters.yaml"},
		{dir: filepath.Join(dir, "nope"), want: "no such file"},
		{dir: filepath.Join(fleet, "clusters.yaml"), want: "is not a directory"},
	} {
		if root, err := FindRoot(tt.dir); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("from %s: %s, %v, want an error with %q", tt.dir, root, err, tt.want)
		}
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"clusters.yaml": "kind: Cluster\n", "clusters/prod/ns.yaml": "kind: Namespace\n",
		".git/config": "[core]", "clusters/.Git/x": "x", ".gitignore": "x",
	})
	c := open(t, dir).Commit()
	if c.Hash != "" || c.Subject != "working tree "+dir {
		t.Errorf("%+v", c)
	}
	if err := fstest.TestFS(c.Files, "clusters.yaml", "clusters/prod/ns.yaml", ".gitignore"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{".git", ".git/config", "clusters/.Git", "clusters/.git/x", "nope", "clusters.yaml/x"} {
		if content, err := fs.ReadFile(c.Files, name); err == nil {
			t.Errorf("%s can be read: %q", name, content)
		}
	}
	for _, list := range []func() ([]fs.DirEntry, error){
		func() ([]fs.DirEntry, error) { return fs.ReadDir(c.Files, ".") },
		func() ([]fs.DirEntry, error) {
			d, err := c.Files.Open(".")
			if err != nil {
				return nil, err
			}
			defer d.Close()
			return d.(fs.ReadDirFile).ReadDir(-1)
		},
	} {
		entries, err := list()
		if err != nil || len(entries) != 3 {
			t.Errorf("%v, %v, want three entries", entries, err)
		}
	}
	// A name with a backslash is unusual, and one that a commit can hold.
	write(t, dir, map[string]string{`dir/a\b.yaml`: "backslash"})
	if list, err := fs.ReadDir(c.Files, "dir"); err != nil || len(list) != 1 || list[0].Name() != `a\b.yaml` {
		t.Errorf("%v, %v", list, err)
	}
	if content, err := fs.ReadFile(c.Files, `dir/a\b.yaml`); err != nil || string(content) != "backslash" {
		t.Errorf("%q, %v", content, err)
	}
	// Files are those on disk, not those of when it was opened.
	write(t, dir, map[string]string{"clusters.yaml": "changed"})
	if content, err := fs.ReadFile(c.Files, "clusters.yaml"); err != nil || string(content) != "changed" {
		t.Errorf("%q, %v", content, err)
	}
	if _, err := Open(filepath.Join(dir, "nope"), nil); err == nil {
		t.Error("a directory that is not there can be opened")
	}
}

// Files that a commit cannot have, and symbolic links, cannot be read.
func TestFilesThatAreNone(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	write(t, outside, map[string]string{"secret": "s3cr3t", "dir/x": ""})
	dir := t.TempDir()
	write(t, dir, map[string]string{"file": "", "dir/file": "", "module/.git": "gitdir: ../.git/modules/module", "module/sub/x": "", "clone/.git/HEAD": ""})
	for name, target := range map[string]string{
		"inside": "file", "dirlink": "dir", "outside": filepath.Join(outside, "secret"), "outdir": outside,
		"up": "../" + filepath.Base(outside) + "/secret", "dangling": "nope", "dir/.git": ".",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	socket, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if err := os.Truncate(filepath.Join(dir, "file"), MaxFile+1); err != nil {
		t.Fatal(err)
	}
	files := open(t, dir).Commit().Files
	for name, want := range map[string]string{
		"inside": "inside: is a symbolic link", "dirlink": "dirlink: is a symbolic link", "dirlink/file": "dirlink: is a symbolic link",
		"outside": "outside: is a symbolic link", "outdir/secret": "outdir: is a symbolic link", "up": "up: is a symbolic link",
		"dangling": "dangling: is a symbolic link", "dir/.git": "file does not exist", "socket": "socket: is neither a file nor a directory",
		"module": "module: is a submodule or another Git repository", "module/sub/x": "module: is a submodule", "clone": "clone: is a submodule",
	} {
		_, openErr := files.Open(name)
		_, statErr := fs.Stat(files, name)
		_, readErr := fs.ReadFile(files, name)
		_, dirErr := fs.ReadDir(files, name)
		for _, err := range []error{openErr, statErr, readErr, dirErr} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want an error with %q", name, err, want)
			}
		}
	}
	if target, err := fs.ReadLink(files, "inside"); err != nil || target != "file" {
		t.Errorf("the link leads to %q, %v", target, err)
	}
	if info, err := fs.Lstat(files, "inside"); err != nil || info.Mode().Type() != fs.ModeSymlink {
		t.Errorf("the link is %v, %v", info, err)
	}
	for name, want := range map[string]string{
		"dirlink/file": "dirlink: is a symbolic link", "dir/.git": "file does not exist", "module": "module: is a submodule",
	} {
		if _, err := fs.ReadLink(files, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", name, err, want)
		}
	}
	root, err := files.Open(".")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	opened, err := root.(fs.ReadDirFile).ReadDir(-1)
	listed, listErr := fs.ReadDir(files, ".")
	for _, e := range append(listed, opened...) {
		if repository := e.Name() == "module" || e.Name() == "clone"; repository != (e.Type() == fs.ModeIrregular) || repository && e.IsDir() {
			t.Errorf("%s is listed as %v", e.Name(), e.Type())
		}
	}
	if err := errors.Join(err, listErr); err != nil || len(listed) != len(opened) {
		t.Errorf("listed are %v and %v, %v", listed, opened, err)
	}
	if _, err := fs.ReadFile(files, "file"); !errors.Is(err, sources.ErrLimit) || !strings.Contains(err.Error(), "read file: 64 MiB is more than the 64 MiB") {
		t.Errorf("a huge file: %v", err)
	}
	if _, err := fs.ReadFile(files, "../"+filepath.Base(outside)+"/secret"); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("a path that leaves the tree: %v", err)
	}
}

func TestWriteLock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lock := filepath.Join(dir, sources.LockFile)
	wantLock := func(want string) {
		t.Helper()
		if have, err := os.ReadFile(lock); err != nil || string(have) != want {
			t.Errorf("%q, %v, want %q", have, err, want)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("left: %v, %v", entries, err)
		}
	}
	for _, content := range []string{"one\n", "two\n", ""} {
		if err := WriteLock(dir, []byte(content)); err != nil {
			t.Fatal(err)
		}
		wantLock(content)
	}
	if err := os.Chmod(lock, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := WriteLock(dir, []byte("three\n")); err != nil {
		t.Fatal(err)
	}
	wantLock("three\n")
	before, err := os.Stat(lock)
	if err != nil || before.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v, want the mode kept", before.Mode(), err)
	}
	if err := WriteLock(dir, []byte("three\n")); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(lock); err != nil || !os.SameFile(before, after) {
		t.Errorf("the same content was written again: %v", err)
	}

	if err := errors.Join(os.Remove(lock), os.Symlink("elsewhere", lock)); err != nil {
		t.Fatal(err)
	}
	if err := WriteLock(dir, []byte("four\n")); err == nil || !strings.Contains(err.Error(), "clusters.lock: it is not a regular file") {
		t.Errorf("over a link: %v", err)
	}
	if err := WriteLock(filepath.Join(dir, "nope"), nil); err == nil || !strings.HasPrefix(err.Error(), "clusters.lock: ") {
		t.Errorf("in no directory: %v", err)
	}
}

// A file deep in the tree is replaced where it is, with its mode; links lead
// nowhere.
func TestWriteFile(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "clusters/dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "clusters/dev/db.yaml")
	if err := os.WriteFile(name, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(dir, "clusters/dev/db.yaml", []byte("new")); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(name)
	info, statErr := os.Stat(name)
	if err != nil || statErr != nil || string(content) != "new" || info.Mode().Perm() != 0o600 {
		t.Errorf("%q, %v, %v, %v", content, info.Mode(), err, statErr)
	}
	if entries, err := os.ReadDir(filepath.Dir(name)); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"link/db.yaml", "../db.yaml", "nowhere/db.yaml"} {
		if err := WriteFile(dir, bad, []byte("new")); err == nil || !strings.HasPrefix(err.Error(), bad+": ") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 0 {
		t.Errorf("written outside: %v, %v", entries, err)
	}
}
