package git

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"gitopsd.dev/sources/git/objects"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"github.com/go-git/go-git/v5/storage/filesystem/dotgit"
)

// local is the origin of a repository in a directory. Objects are read where
// they are and written as loose ones, refs by Git's locking rules, so that git
// commands may run at the same time.
type local struct {
	// common is the directory with objects and refs: the bare repository, or
	// .git of the main work tree.
	common string
	// gitDir is the directory with HEAD and index of the work tree that was
	// named; it is common unless that is a linked one.
	gitDir string
	bare   bool
	// workTree is core.worktree, or the directory that common is in.
	workTree string

	mu      sync.Mutex // storage is not safe for concurrent use
	storage *filesystem.Storage
}

// localCache bounds the objects that are kept in memory.
const localCache = 8 * cache.MiByte

// openLocal opens the repository that dir is: a bare one, or the root of a work
// tree.
func openLocal(dir string) (*local, error) {
	gitDir, err := findGitDir(dir)
	if err != nil {
		return nil, err
	}
	l := &local{common: gitDir, gitDir: gitDir}
	if content, err := os.ReadFile(filepath.Join(gitDir, "commondir")); err == nil {
		l.common = resolvePath(gitDir, strings.TrimSpace(string(content)))
	}
	var files billy.Filesystem = osfs.New(l.common)
	if l.common != l.gitDir {
		files = dotgit.NewRepositoryFilesystem(osfs.New(l.gitDir), files)
	}
	l.storage = filesystem.NewStorageWithOptions(files, cache.NewObjectLRU(localCache), filesystem.Options{
		MaxOpenDescriptors: 16,
		AlternatesFS:       osfs.New("/"),
	})
	cfg, err := l.storage.Config()
	if err != nil {
		return nil, fmt.Errorf("its configuration: %w", err)
	}
	if err := supported(cfg); err != nil {
		return nil, err
	}
	l.bare = cfg.Core.IsBare
	l.workTree = filepath.Dir(l.common)
	if w := cfg.Raw.Section("core").Option("worktree"); w != "" {
		l.workTree = resolvePath(l.common, w)
	}
	return l, nil
}

// findGitDir returns the directory with the HEAD of the repository dir.
func findGitDir(dir string) (string, error) {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("%w: there is no such directory", ErrRepositoryNotFound)
	case err != nil:
		return "", err
	case !info.IsDir():
		return "", fmt.Errorf("%w: it is a file, not a directory", ErrRepositoryNotFound)
	}
	dotGit := filepath.Join(dir, ".git")
	info, err = os.Stat(dotGit)
	if err == nil && !info.IsDir() { // a linked work tree, or a submodule
		content, err := readSmallFile(dotGit)
		if err != nil {
			return "", err
		}
		target, ok := strings.CutPrefix(strings.TrimSpace(string(content)), "gitdir: ")
		if !ok {
			return "", fmt.Errorf("%w: %s does not say where the repository is", ErrRepositoryNotFound, dotGit)
		}
		dotGit = resolvePath(dir, target)
	}
	for _, candidate := range []string{dotGit, dir} {
		if isGitDir(candidate) {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("%w: the directory is neither a bare repository nor the root of a work tree", ErrRepositoryNotFound)
}

// isGitDir follows gitrepository-layout(5).
func isGitDir(dir string) bool {
	if _, err := os.Stat(filepath.Join(dir, "HEAD")); err != nil {
		return false
	}
	if _, err := os.Stat(filepath.Join(dir, "commondir")); err == nil {
		return true
	}
	info, err := os.Stat(filepath.Join(dir, "objects"))
	return err == nil && info.IsDir()
}

func resolvePath(base, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(base, path)
}

// supported refuses repositories in forms that would be misread.
func supported(cfg *config.Config) error {
	if v := cfg.Core.RepositoryFormatVersion; v != "" && v != "0" && v != "1" {
		return fmt.Errorf("its format has the version %s; 0 and 1 are supported", v)
	}
	for _, o := range cfg.Raw.Section("extensions").Options {
		switch key, value := strings.ToLower(o.Key), strings.ToLower(o.Value); {
		case key == "objectformat" && value != "sha1", key == "refstorage" && value != "files":
			return fmt.Errorf("its %s is %s, which is not supported; serve it by ssh or https instead", o.Key, o.Value)
		case key == "partialclone":
			return errors.New("it is a partial clone, which does not hold everything; clone it without --filter")
		}
	}
	return nil
}

func (l *local) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.storage.Close()
}

func (l *local) damaged() bool { return false }

func (l *local) refs(_ context.Context, names ...string) (map[string]plumbing.Hash, error) {
	refs := make(map[string]plumbing.Hash, len(names))
	for _, name := range names {
		h, err := l.ref(name)
		if err != nil {
			return nil, err
		}
		if !h.IsZero() {
			refs[name] = h
		}
	}
	return refs, nil
}

func (l *local) branches(_ context.Context, most int) ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	iter, err := l.storage.IterReferences()
	if err != nil {
		return nil, err
	}
	defer iter.Close()
	var names []string
	for len(names) < most {
		ref, err := iter.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if name, ok := strings.CutPrefix(ref.Name().String(), headsPrefix); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

func (l *local) snapshot(context.Context, plumbing.Hash) (objects.Reader, error) { return l, nil }

// errCorrupt says what to do about objects that are not there or not right.
func errCorrupt(h plumbing.Hash, err error) error {
	return fmt.Errorf("object %s: %w; git fsck tells more", h, err)
}

// Read implements objects.Reader.
func (l *local) Read(t plumbing.ObjectType, h plumbing.Hash) ([]byte, error) {
	content, err := fresh(l, func() ([]byte, error) {
		size, err := l.sizeLocked(h)
		if err != nil {
			return nil, err
		}
		if size > objects.MaxFile {
			return nil, objects.TooLarge(size)
		}
		obj, err := l.storage.EncodedObject(t, h)
		if err != nil {
			return nil, err
		}
		return objects.ReadAll(obj)
	})
	if err != nil {
		return nil, errCorrupt(h, err)
	}
	return content, objects.Check(t, h, content)
}

// Size implements objects.Reader.
func (l *local) Size(h plumbing.Hash) (int64, error) {
	size, err := fresh(l, func() (int64, error) { return l.sizeLocked(h) })
	if err != nil {
		return 0, errCorrupt(h, err)
	}
	return size, nil
}

func (l *local) sizeLocked(h plumbing.Hash) (int64, error) {
	size, err := l.storage.EncodedObjectSize(h)
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		// It does not look into alternates.
		obj, err := l.storage.EncodedObject(plumbing.AnyObject, h)
		if err != nil {
			return 0, err
		}
		return obj.Size(), nil
	}
	return size, err
}

// fresh reads from the storage, and once more after git gc may have moved
// objects to other packs.
func fresh[T any](l *local, read func() (T, error)) (v T, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() {
		if p := recover(); p != nil { // go-git's, on a garbled pack
			err = fmt.Errorf("it cannot be read: %v", p)
		}
	}()
	if v, err = read(); err != nil {
		l.storage.Reindex()
		v, err = read()
	}
	return v, err
}

func (l *local) push(_ context.Context, u refUpdate) (err error) {
	// In the order in which git commit locks.
	var index *checkout
	if u.file.path != "" {
		if index, err = l.lockCheckout(u); err != nil {
			return err
		}
		defer index.unlock()
	}
	ref, err := l.lockRef(u.ref)
	if err != nil {
		return err
	}
	defer ref.unlock()
	at, err := l.ref(u.ref)
	if err != nil {
		return err
	}
	if at != u.old {
		return fmt.Errorf("%w: %s is at %s, not at %s", ErrMoved, u.ref, at, u.old)
	}
	if u.now.IsZero() {
		return ref.remove()
	}
	if err := l.write(u.objects); err != nil {
		return err
	}
	// From here on a crash leaves what the next Update repairs: a work tree
	// and index that hold what it is about to write.
	if err := index.update(u.file); err != nil {
		return err
	}
	return ref.set(u.now)
}

// write writes objects durably, before any ref names them.
func (l *local) write(list []objects.Raw) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, obj := range list {
		err := l.writeObject(obj)
		// git gc, at the same time, removes directories that are just empty
		// and objects that it has packed.
		for try := 1; errors.Is(err, fs.ErrNotExist) && try < 5; try++ {
			err = l.writeObject(obj)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *local) writeObject(obj objects.Raw) error {
	if _, err := l.storage.SetEncodedObject(obj.Encoded()); err != nil {
		return err
	}
	name := obj.Hash.String()
	f, err := os.Open(filepath.Join(l.common, "objects", name[:2], name[2:]))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// readSmallFile is for files of one line.
func readSmallFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 64<<10))
}
