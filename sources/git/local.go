package git

import (
	"errors"
	"fmt"
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
	format "github.com/go-git/go-git/v5/plumbing/format/config"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"github.com/go-git/go-git/v5/storage/filesystem/dotgit"
)

// local reads the objects of a repository in a directory, which git commands may change
// at the same time.
type local struct {
	mu      sync.Mutex // storage is not safe for concurrent use
	storage *filesystem.Storage
	partial bool
}

// localCache bounds the memory for objects.
const localCache = 8 * cache.MiByte

// openLocal opens the repository in dir, which is bare or the root of a work
// tree.
func openLocal(dir string) (*local, error) {
	gitDir, err := findGitDir(dir)
	if err != nil {
		return nil, err
	}
	common := commonDir(gitDir)
	var files billy.Filesystem = osfs.New(common)
	if common != gitDir { // a linked work tree
		files = dotgit.NewRepositoryFilesystem(osfs.New(gitDir), files)
	}
	l := &local{storage: filesystem.NewStorageWithOptions(files, cache.NewObjectLRU(localCache), filesystem.Options{
		MaxOpenDescriptors: 16,
		AlternatesFS:       osfs.New("/"),
	})}
	cfg, err := l.storage.Config()
	if err != nil {
		return nil, fmt.Errorf("its configuration: %w", err)
	}
	if err := supported(cfg); err != nil {
		return nil, err
	}
	l.partial = isPartial(cfg)
	return l, nil
}

// findGitDir returns the directory with the HEAD of the repository in dir.
func findGitDir(dir string) (string, error) {
	dotGit := filepath.Join(dir, ".git")
	if info, err := os.Stat(dotGit); err == nil && !info.IsDir() { // a linked work tree, or a submodule
		content, err := os.ReadFile(dotGit)
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
	return "", ErrRepositoryNotFound
}

// commonDir returns the directory with the objects and branches, which linked work trees share.
func commonDir(gitDir string) string {
	if content, err := os.ReadFile(filepath.Join(gitDir, "commondir")); err == nil {
		return resolvePath(gitDir, strings.TrimSpace(string(content)))
	}
	return gitDir
}

// isGitDir reports whether a directory is a repository by gitrepository-layout(5).
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

// supported returns an error for a repository in an unsupported format.
func supported(cfg *config.Config) error {
	if v := cfg.Core.RepositoryFormatVersion; v != "" && v != "0" && v != "1" {
		return fmt.Errorf("its format has the version %s; 0 and 1 are supported", v)
	}
	for _, o := range cfg.Raw.Section("extensions").Options {
		switch key, value := strings.ToLower(o.Key), strings.ToLower(o.Value); {
		case key == "objectformat" && value != "sha1":
			return fmt.Errorf("its object format is %s; only sha1 is supported", o.Value)
		case key == "refstorage" && value != "files":
			return fmt.Errorf("its %s is %s, which is not supported; serve it by ssh or https instead", o.Key, o.Value)
		}
	}
	return nil
}

// isPartial reports whether a repository may lack objects that a remote promised to have
// (partial-clone(7)).
func isPartial(cfg *config.Config) bool {
	old := cfg.Raw.Section("extensions").HasOption("partialClone") // before Git 2.24
	return old || slices.ContainsFunc(cfg.Raw.Section("remote").Subsections, func(r *format.Subsection) bool {
		return r.Option("promisor") == "true"
	})
}

func (l *local) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.storage.Close()
}

// unreadable is the error for an object that is missing or damaged.
func (l *local) unreadable(h plumbing.Hash, err error) error {
	if l.partial && errors.Is(err, plumbing.ErrObjectNotFound) {
		return fmt.Errorf("object %s: %w in this clone, which is partial (git clone --filter); get the rest with git fetch --refetch --no-filter", h, err)
	}
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
		return nil, l.unreadable(h, err)
	}
	return content, objects.Check(t, h, content)
}

// Size implements objects.Reader.
func (l *local) Size(h plumbing.Hash) (int64, error) {
	size, err := fresh(l, func() (int64, error) { return l.sizeLocked(h) })
	if err != nil {
		return 0, l.unreadable(h, err)
	}
	return size, nil
}

func (l *local) sizeLocked(h plumbing.Hash) (int64, error) {
	size, err := l.storage.EncodedObjectSize(h)
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		// EncodedObjectSize does not look into alternates.
		obj, err := l.storage.EncodedObject(plumbing.AnyObject, h)
		if err != nil {
			return 0, err
		}
		return obj.Size(), nil
	}
	return size, err
}

// fresh reads from the storage, and tries again if that fails, since git gc may have moved
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
