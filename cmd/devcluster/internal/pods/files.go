package pods

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// current is the name of the link in a volume to the directory with its files, the same
// as in a kubelet's volumes.
const current = "..data"

// replaceFiles makes dir contain exactly these files, by relative path. Readers see either
// all old or all new files: dir has links through ..data, which is a link to the directory
// of one version and is replaced by rename.
func replaceFiles(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	before, err := os.Readlink(filepath.Join(dir, current))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	version, err := os.MkdirTemp(dir, "..version-")
	if err != nil {
		return err
	}
	if err := writeAll(version, files); err != nil {
		return errors.Join(err, os.RemoveAll(version))
	}
	if err := pointTo(dir, filepath.Base(version)); err != nil {
		return errors.Join(err, os.RemoveAll(version))
	}
	err = linkAll(dir, files)
	if before != "" {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, before)))
	}
	return err
}

// pointTo makes the files in a version's directory the current ones.
func pointTo(dir, version string) error {
	next := filepath.Join(dir, "..next")
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(version, next); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(dir, current))
}

func writeAll(dir string, files map[string][]byte) error {
	for path, text := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// linkAll makes the links to the files, or to their directories, and removes all other
// entries, including those that the pod's processes have created.
func linkAll(dir string, files map[string][]byte) error {
	names := map[string]bool{}
	for path := range files {
		name, _, _ := strings.Cut(filepath.Clean(path), string(filepath.Separator))
		names[name] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if names[e.Name()] && e.Type() == fs.ModeSymlink {
			delete(names, e.Name()) // is there
		} else if !strings.HasPrefix(e.Name(), "..") {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	for name := range names {
		if err := os.Symlink(filepath.Join(current, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
