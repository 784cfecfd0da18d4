// Package local reads a working tree of the fleet repository: its files,
// committed or not, for plan and lock before a pull request. It watches them
// for changes (watch.go), writes the lock and other files (lock.go), and keeps a
// directory of files up to date (sync.go).
//
// It does not use Git: sources/git reads the commits of a repository on disk.
package local

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"gitopsd.dev/sources"
)

// MaxFile is the largest file that is read, in bytes. It is the same as for commits.
const MaxFile = 64 << 20

// FindRoot returns the root of the fleet repository that dir is in: dir or the
// nearest directory above it with clusters.yaml, within the Git repository. It
// fails if there is none.
func FindRoot(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(abs); err != nil {
		return "", err
	} else if !info.IsDir() {
		return "", fmt.Errorf("%s is not a directory", abs)
	}
	for root := abs; ; root = filepath.Dir(root) {
		if _, err := os.Lstat(filepath.Join(root, sources.RegistryFile)); err == nil {
			return root, nil
		}
		_, err := os.Lstat(filepath.Join(root, ".git"))
		if err == nil || root == filepath.Dir(root) {
			return "", fmt.Errorf("%s is not in a fleet repository: there is no %s from there up to %s; go to one, or name its directory", abs, sources.RegistryFile, root)
		}
	}
}

// Tree is a working tree. It is safe for concurrent use.
type Tree struct {
	// Dir is its root.
	Dir string

	root *os.Root

	ignored map[string]bool
}

// Open opens the working tree dir. Its files and directories that Git ignores are left out:
// ignored has their names, with slashes. The caller closes the tree.
func Open(dir string, ignored []string) (*Tree, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, fmt.Errorf("working tree: %w", err)
	}
	t := &Tree{Dir: abs, root: root, ignored: make(map[string]bool, len(ignored))}
	for _, name := range ignored {
		t.ignored[name] = true
	}
	return t, nil
}

// Close closes the tree. Its files must not be read afterwards.
func (t *Tree) Close() error { return t.root.Close() }

// Commit returns the tree as a commit without a hash. Its files are read from disk when
// they are used.
//
// They are the files that a commit could have: regular files and directories
// without .git, and without what Git ignores ([sources.ErrIgnored]). A symbolic link is listed but
// not followed. Another repository, such as a submodule, is listed as neither a file nor a
// directory ([fs.ModeIrregular]), and cannot be opened.
func (t *Tree) Commit() sources.Commit {
	return sources.Commit{Subject: "working tree " + t.Dir, Files: files{root: t.root, fsys: t.root.FS(), ignored: t.ignored}}
}

// files is the file system of a Tree. The root allows no access outside.
type files struct {
	root    *os.Root
	fsys    fs.FS
	ignored map[string]bool
}

// Optional interfaces that save an Open, and the one for symbolic links.
var (
	_ fs.ReadFileFS = files{}
	_ fs.ReadDirFS  = files{}
	_ fs.StatFS     = files{}
	_ fs.ReadLinkFS = files{}
)

// The errors for files that a commit cannot hold, and for symbolic links.
var (
	errRepository = errors.New("is a submodule or another Git repository, which `gitopsd run` does not fetch; put its files into the repository, or name its address as a remote base")
	errSymlink    = errors.New("is a symbolic link, which is not followed in a fleet repository; put the file itself there")
	errSpecial    = errors.New("is neither a file nor a directory")
)

// check fails unless name is a regular file or a directory, and its parents are
// directories. If name is a symbolic link, it returns the link's info with the error.
func (f files) check(op, name string) (fs.FileInfo, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	for i := 0; i < len(name); i++ {
		if name[i] != '/' {
			continue
		}
		if _, err := f.checkOne(op, name[:i]); err != nil {
			return nil, err
		}
	}
	return f.checkOne(op, name)
}

func (f files) checkOne(op, name string) (fs.FileInfo, error) {
	if hidden(path.Base(name)) {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
	}
	info, err := f.root.Lstat(filepath.FromSlash(name))
	if err != nil {
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) {
			err = pathErr.Err
		}
		return nil, &fs.PathError{Op: op, Path: name, Err: err}
	}
	switch mode := info.Mode(); {
	case mode.IsDir() && f.isRepository(name):
		return nil, &fs.PathError{Op: op, Path: name, Err: errRepository}
	case f.ignored[name]:
		return nil, &fs.PathError{Op: op, Path: name, Err: sources.ErrIgnored}
	case mode.IsRegular(), mode.IsDir():
		return info, nil
	case mode&fs.ModeSymlink != 0:
		return info, &fs.PathError{Op: op, Path: name, Err: errSymlink}
	default:
		// Opening it may block for ever.
		return nil, &fs.PathError{Op: op, Path: name, Err: errSpecial}
	}
}

// isRepository reports whether a directory below the root is a Git repository of its own. A
// submodule has a file .git, or in old repositories a directory.
func (f files) isRepository(dir string) bool {
	if dir == "." {
		return false
	}
	git := filepath.Join(filepath.FromSlash(dir), ".git")
	info, err := f.root.Lstat(git)
	if err != nil || info.Mode().IsRegular() {
		return err == nil
	}
	_, err = f.root.Lstat(filepath.Join(git, "HEAD"))
	return err == nil
}

// hidden reports whether a commit cannot have a file of that name.
func hidden(name string) bool { return strings.EqualFold(name, ".git") }

func (f files) Open(name string) (fs.File, error) {
	info, err := f.check("open", name)
	if err != nil {
		return nil, err
	}
	file, err := f.fsys.Open(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return file, nil
	}
	dir, ok := file.(fs.ReadDirFile)
	if !ok {
		return file, nil
	}
	return openDir{dir, f, name}, nil
}

// openDir is an open directory without hidden entries.
type openDir struct {
	fs.ReadDirFile
	files files
	name  string
}

func (d openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	for {
		list, err := d.ReadDirFile.ReadDir(n)
		list = d.files.visible(d.name, list)
		if n <= 0 || err != nil || len(list) > 0 {
			return list, err
		}
	}
}

// visible returns the entries of a directory that a commit would list.
func (f files) visible(dir string, list []fs.DirEntry) []fs.DirEntry {
	list = slices.DeleteFunc(list, func(e fs.DirEntry) bool {
		return hidden(e.Name()) || f.ignored[path.Join(dir, e.Name())]
	})
	for i, e := range list {
		if e.IsDir() && f.isRepository(path.Join(dir, e.Name())) {
			list[i] = repository{e}
		}
	}
	return list
}

// repository is the entry of a directory that is a Git repository of its own.
type repository struct{ fs.DirEntry }

func (r repository) IsDir() bool       { return false }
func (r repository) Type() fs.FileMode { return fs.ModeIrregular }

func (f files) ReadDir(name string) ([]fs.DirEntry, error) {
	if _, err := f.check("open", name); err != nil {
		return nil, err
	}
	list, err := fs.ReadDir(f.fsys, name)
	return f.visible(name, list), err
}

func (f files) Stat(name string) (fs.FileInfo, error) {
	info, err := f.check("stat", name)
	if err != nil {
		return nil, err
	}
	return info, nil
}

// Lstat implements fs.ReadLinkFS.
func (f files) Lstat(name string) (fs.FileInfo, error) {
	info, err := f.check("lstat", name)
	if info == nil {
		return nil, err
	}
	return info, nil
}

// ReadLink implements fs.ReadLinkFS. The target has slashes on every system.
func (f files) ReadLink(name string) (string, error) {
	if _, err := f.Lstat(name); err != nil {
		return "", err
	}
	target, err := f.root.Readlink(filepath.FromSlash(name))
	return filepath.ToSlash(target), err
}

func (f files) ReadFile(name string) ([]byte, error) {
	info, err := f.check("read", name)
	if err != nil {
		return nil, err
	}
	file, err := f.fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, MaxFile+1))
	if err == nil && len(content) > MaxFile {
		err = &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("%d MiB is more than the %d MiB allowed for a file: %w", info.Size()>>20, MaxFile>>20, sources.ErrLimit)}
	}
	if err != nil {
		return nil, err
	}
	return content, nil
}
