package local

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"gitopsd.dev/sources"
)

// tmpSuffix ends the names of files that are not written yet.
const tmpSuffix = ".gitopsd-tmp"

// WriteLock replaces clusters.lock in the fleet repository dir. Whoever reads it
// meanwhile sees the old content or the new, also after a crash. The file keeps
// its mode; if it holds content already, it is not touched.
func WriteLock(dir string, content []byte) error {
	if err := writeLock(dir, content); err != nil {
		return fmt.Errorf("%s: %w", sources.LockFile, err)
	}
	return nil
}

func writeLock(dir string, content []byte) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	info, err := root.Lstat(sources.LockFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("it is not a regular file; remove what is there")
	default:
		if have, err := root.ReadFile(sources.LockFile); err == nil && bytes.Equal(have, content) {
			return nil
		}
	}
	tmp := fmt.Sprintf("%s.%d%s", sources.LockFile, os.Getpid(), tmpSuffix)
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
		err = root.Rename(tmp, sources.LockFile)
	}
	if err != nil {
		root.Remove(tmp)
		return err
	}
	return syncDir(root)
}

// syncDir makes a rename in the root durable. Some file systems cannot, which is
// no reason to fail.
func syncDir(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	_ = d.Sync()
	return d.Close()
}
