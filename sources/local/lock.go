package local

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"gitopsd.dev/sources"
)

// tmpSuffix ends the names of files that are being written.
const tmpSuffix = ".gitopsd-tmp"

// WriteLock replaces clusters.lock in the fleet repository dir, as [WriteFile]
// does.
func WriteLock(dir string, content []byte) error { return WriteFile(dir, sources.LockFile, content) }

// WriteFile replaces a file in the fleet repository dir atomically. Name is its path
// with slashes. The file keeps its mode. If it has the content already, it is not
// touched. WriteFile fails if name is not a regular file, leads out of dir, or cannot be
// written.
func WriteFile(dir, name string, content []byte) error {
	if err := writeFile(dir, filepath.FromSlash(name), content); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func writeFile(dir, name string, content []byte) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	info, err := root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("it is not a regular file; remove what is there")
	default:
		if have, err := root.ReadFile(name); err == nil && bytes.Equal(have, content) {
			return nil
		}
	}
	tmp := fmt.Sprintf("%s.%d%s", name, os.Getpid(), tmpSuffix)
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return err
	}
	if info != nil {
		err = f.Chmod(info.Mode().Perm())
	}
	if err == nil {
		_, err = f.Write(content)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = root.Rename(tmp, name)
	}
	if err != nil {
		root.Remove(tmp)
		return err
	}
	return syncDir(root, filepath.Dir(name))
}

// syncDir makes a rename in a directory durable, if the file system can.
func syncDir(root *os.Root, dir string) error {
	d, err := root.Open(dir)
	if err != nil {
		return err
	}
	_ = d.Sync()
	return d.Close()
}
