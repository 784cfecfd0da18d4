// Package local is a fleet repository as it is on disk: the working tree that
// `gitopsd plan`, `lock` and `render` work on.
//
// It reads files below a root and nothing else (Open), finds that root (Root),
// tells of changes (watch.go), and writes the lock (WriteLock), which is the
// only file it ever writes. Commits of the same repository are sources/git's.
package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gitopsd.dev/sources"
)

// Root returns the directory that holds clusters.yaml: dir, or the nearest above
// it that has the file.
func Root(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(abs); err != nil {
		return "", fmt.Errorf("fleet repository: %w", err)
	} else if !info.IsDir() {
		return "", fmt.Errorf("fleet repository: %s is not a directory", abs)
	}
	for at := abs; ; {
		if _, err := os.Stat(filepath.Join(at, sources.RegistryFile)); err == nil {
			return at, nil
		}
		up := filepath.Dir(at)
		if _, err := os.Stat(filepath.Join(at, ".git")); err == nil || up == at {
			return "", fmt.Errorf("no %s in %s or above it: run this in a fleet repository, or name one with --repo", sources.RegistryFile, abs)
		}
		at = up
	}
}

// Open returns the files below root, read-only. Nothing outside of root is
// reachable, by symbolic links neither, and nothing in .git.
func Open(root string) (fs.FS, error) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("fleet repository: %w", err)
	}
	return tree{r.FS()}, nil
}

// tree hides Git's own files.
type tree struct{ files fs.FS }

var errGit = errors.New("belongs to Git, not to the fleet")

func check(op, name string) error {
	if !fs.ValidPath(name) {
		return &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	for part := range strings.SplitSeq(name, "/") {
		if strings.EqualFold(part, ".git") {
			return &fs.PathError{Op: op, Path: name, Err: errGit}
		}
	}
	return nil
}

// Open implements fs.FS.
func (t tree) Open(name string) (fs.File, error) {
	if err := check("open", name); err != nil {
		return nil, err
	}
	return t.files.Open(name)
}

// ReadFile implements fs.ReadFileFS.
func (t tree) ReadFile(name string) ([]byte, error) {
	if err := check("read", name); err != nil {
		return nil, err
	}
	return fs.ReadFile(t.files, name)
}

// ReadDir implements fs.ReadDirFS.
func (t tree) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := check("readdir", name); err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(t.files, name)
	kept := entries[:0]
	for _, e := range entries {
		if !strings.EqualFold(e.Name(), ".git") {
			kept = append(kept, e)
		}
	}
	return kept, err
}

// Stat implements fs.StatFS.
func (t tree) Stat(name string) (fs.FileInfo, error) {
	if err := check("stat", name); err != nil {
		return nil, err
	}
	return fs.Stat(t.files, name)
}

// ReadLink implements fs.ReadLinkFS.
func (t tree) ReadLink(name string) (string, error) {
	if err := check("readlink", name); err != nil {
		return "", err
	}
	return fs.ReadLink(t.files, name)
}

// Lstat implements fs.ReadLinkFS.
func (t tree) Lstat(name string) (fs.FileInfo, error) {
	if err := check("lstat", name); err != nil {
		return nil, err
	}
	return fs.Lstat(t.files, name)
}

// WriteLock replaces clusters.lock in root, whole or not at all. The file keeps
// its mode.
func WriteLock(root string, content []byte) (err error) {
	name := filepath.Join(root, sources.LockFile)
	defer func() {
		if err != nil {
			err = fmt.Errorf("writing %s: %w", name, err)
		}
	}()
	mode := fs.FileMode(0o644)
	if info, err := os.Lstat(name); err == nil {
		if !info.Mode().IsRegular() {
			return errors.New("it is not a regular file")
		}
		mode = info.Mode().Perm()
	}
	f, err := os.CreateTemp(root, "."+sources.LockFile+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
