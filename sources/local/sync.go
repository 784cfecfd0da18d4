package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// SyncDir writes the files of a directory in the fleet repository root, in the order of
// names, which have slashes, and as [WriteFile] does. It then removes other files for
// which owned returns true. If the directory has any for which it does not, it may be the
// wrong one, and SyncDir fails before it changes anything, as it does for a symbolic
// link. It returns the number of changed files.
func SyncDir(root, dir string, names []string, content func(name string) ([]byte, error), owned func(name string) bool) (changed int, err error) {
	if dir = path.Clean(filepath.ToSlash(dir)); !fs.ValidPath(dir) || dir == "." {
		return 0, fmt.Errorf("%s: name a directory below the root of the fleet repository", dir)
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	there, err := filesIn(r, dir)
	if err != nil {
		return 0, err
	}
	for _, name := range there {
		if !owned(name) && !strings.HasSuffix(name, tmpSuffix) {
			return 0, fmt.Errorf("%s: has %s, which does not belong to it; name a directory for nothing else, or remove that file", dir, name)
		}
	}
	for _, name := range names {
		text, err := content(name)
		if err != nil {
			return changed, err
		}
		full := path.Join(dir, name)
		if have, err := r.ReadFile(filepath.FromSlash(full)); err == nil && string(have) == string(text) {
			continue
		}
		if err := r.MkdirAll(filepath.FromSlash(path.Dir(full)), 0o777); err != nil {
			return changed, err
		}
		if err := WriteFile(root, full, text); err != nil {
			return changed, err
		}
		changed++
	}
	for _, name := range there {
		if slices.Contains(names, name) {
			continue
		}
		if err := r.Remove(filepath.FromSlash(path.Join(dir, name))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return changed, err
		}
		changed++
	}
	return changed, nil
}

// filesIn returns the files below a directory, or none if it does not exist.
func filesIn(r *os.Root, dir string) ([]string, error) {
	info, err := r.Lstat(filepath.FromSlash(dir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, fmt.Errorf("%s: is not a directory", dir)
	}
	var names []string
	err = fs.WalkDir(r.FS(), dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, name[len(dir)+1:])
		}
		return err
	})
	return names, err
}
