// Package local is the fleet repository as it lies on somebody's disk: the files
// of a working tree, committed or not, for plan and lock before a pull request.
// It says when they change (watch.go), and writes the lock.
//
// It knows nothing of Git; commits, also those of a repository on disk, are
// sources/git's.
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

// MaxFile is the largest file that is read, in bytes; the same holds for commits.
const MaxFile = 64 << 20

// FindRoot returns the fleet repository that dir is in: dir itself or the
// nearest directory above it that holds clusters.yaml, but not above the root of
// a Git repository.
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
}

// Open opens the working tree dir. Close it when its files are no longer read.
func Open(dir string) (*Tree, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, fmt.Errorf("working tree: %w", err)
	}
	return &Tree{Dir: abs, root: root}, nil
}

// Close ends the use of the tree's files.
func (t *Tree) Close() error { return t.root.Close() }

// Commit returns the tree in the form of a commit without a name. Its files are
// those on disk at the time they are read.
//
// They are the ones that a commit of them would have: regular files and
// directories. A symbolic link is listed but not followed, wherever it leads,
// and what is in .git is not there.
func (t *Tree) Commit() sources.Commit {
	return sources.Commit{Subject: "working tree " + t.Dir, Files: files{root: t.root, fsys: t.root.FS()}}
}

// files is the file system of a Tree. The root keeps every access inside.
type files struct {
	root *os.Root
	fsys fs.FS
}

// The optional interfaces that spare an Open.
var (
	_ fs.ReadFileFS = files{}
	_ fs.ReadDirFS  = files{}
	_ fs.StatFS     = files{}
)

// The errors for what a commit could not hold, or holds but is not followed.
var (
	errSymlink = errors.New("is a symbolic link, which is not followed in a fleet repository; put the file itself there")
	errSpecial = errors.New("is neither a file nor a directory")
)

// check makes sure that name is a regular file or a directory, by way of
// directories.
func (f files) check(op, name string) (fs.FileInfo, error) {
	if !fs.ValidPath(name) || strings.Contains(name, `\`) {
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
	case mode.IsRegular(), mode.IsDir():
		return info, nil
	case mode&fs.ModeSymlink != 0:
		return nil, &fs.PathError{Op: op, Path: name, Err: errSymlink}
	default:
		// Opening one may block for ever.
		return nil, &fs.PathError{Op: op, Path: name, Err: errSpecial}
	}
}

// hidden is the name of what no commit can hold.
func hidden(name string) bool { return strings.EqualFold(name, ".git") }

func (f files) Open(name string) (fs.File, error) {
	info, err := f.check("open", name)
	if err != nil {
		return nil, err
	}
	file, err := f.fsys.Open(name)
	if err != nil || !info.IsDir() {
		return file, err
	}
	dir, ok := file.(fs.ReadDirFile)
	if !ok {
		return file, nil
	}
	return openDir{dir}, nil
}

// openDir is an open directory, less what is hidden.
type openDir struct{ fs.ReadDirFile }

func (d openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	for {
		list, err := d.ReadDirFile.ReadDir(n)
		list = visible(list)
		if n <= 0 || err != nil || len(list) > 0 {
			return list, err
		}
	}
}

func visible(list []fs.DirEntry) []fs.DirEntry {
	return slices.DeleteFunc(list, func(e fs.DirEntry) bool { return hidden(e.Name()) || strings.Contains(e.Name(), `\`) })
}

func (f files) ReadDir(name string) ([]fs.DirEntry, error) {
	if _, err := f.check("open", name); err != nil {
		return nil, err
	}
	list, err := fs.ReadDir(f.fsys, name)
	return visible(list), err
}

func (f files) Stat(name string) (fs.FileInfo, error) { return f.check("stat", name) }

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
		err = &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("%d MiB are more than the %d MiB that are read of one file: %w", info.Size()>>20, MaxFile>>20, sources.ErrLimit)}
	}
	if err != nil {
		return nil, err
	}
	return content, nil
}
