package git

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git/objects"
	"gitopsd.dev/sources/git/store"
	"gitopsd.dev/sources/git/wire"

	"github.com/go-git/go-git/v5/plumbing"
)

// TreesConfig configures [Trees]. Dir is required.
type TreesConfig struct {
	// Dir is the directory for the cache, made if it does not exist. Any number
	// of processes may share it.
	Dir string
	// CAFile holds PEM certificates of authorities to trust beside the
	// system's, for HTTPS.
	CAFile string
	// Allowed returns an error for a repository that servers must not redirect to. If it
	// is nil, redirects are not followed.
	Allowed func(repository string) error
}

// Trees fetches single commits of repositories other than the fleet's, over HTTP(S) and
// without credentials. It fetches each commit once, since the hash covers the files. It
// is safe for concurrent use.
//
// A commit belongs to a repository if a branch or tag contains it (belongs.go). It is not
// enough that the server has the commit: forges keep the objects of a repository and of
// its forks, which anybody may make, in one place.
//
// The cache has a store for each commit, which gets its name once it is complete and
// verified. A commit that was not used for a month is removed.
type Trees struct {
	cfg TreesConfig

	mu    sync.Mutex
	trees map[sources.Tree]*tree
}

// tree is a requested commit.
type tree struct {
	// busy is held while it is fetched. It is a channel so that waiting for it
	// can be cancelled.
	busy chan struct{}
	// used is the time of the last request; guarded by Trees.mu.
	used time.Time

	// Guarded by busy:
	store *store.Store // nil until it is fetched
	files fs.FS
	// err is the last error. It is returned until again, so as not to wait in each pass
	// for a server that fails slowly.
	err   error
	again time.Time
}

const (
	// maxOpen bounds the open commits.
	maxOpen = 16
	// The pause after a failure is pauseFactor times the duration of the try, and at
	// least minPause.
	pauseFactor = 4
	minPause    = time.Second
	// keepUnused is how long an unused commit stays in the cache, keepPartial is how
	// long an incomplete one of a killed process does.
	keepUnused  = 30 * 24 * time.Hour
	keepPartial = time.Hour
)

// NewTrees returns Trees. It fails if Dir cannot be made. It does not connect.
func NewTrees(cfg TreesConfig) (*Trees, error) {
	if cfg.Dir == "" {
		return nil, errors.New("remote bases need a directory for their cache")
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("cache directory: %w", err)
	}
	return &Trees{cfg: cfg, trees: make(map[sources.Tree]*tree)}, nil
}

// Fetch returns the files of a commit, from the cache or the repository. It has
// the limits of the fleet repository ([sources.ErrLimit]). It fails if the repository is
// not public, if none of its branches and tags contains the commit, and if Allowed
// refuses a redirect.
func (t *Trees) Fetch(ctx context.Context, of sources.Tree) (fs.FS, error) {
	it := t.get(of)
	select {
	case it.busy <- struct{}{}:
		defer func() { <-it.busy }()
	case <-ctx.Done():
		return nil, fmt.Errorf("git repository %s: waiting for commit %s: %w", of.Repository, of.Commit, context.Cause(ctx))
	}
	if it.store != nil && !it.store.Damaged() {
		return it.files, nil
	}
	if it.err != nil && time.Now().Before(it.again) {
		return nil, it.err
	}
	started := time.Now()
	s, files, err := t.open(ctx, of)
	if err == nil {
		it.store, it.files, it.err = s, files, nil
		return files, nil
	}
	err = fmt.Errorf("git repository %s: %w", of.Repository, err)
	if !errors.Is(err, context.Canceled) { // otherwise the server is not at fault
		it.err, it.again = err, time.Now().Add(max(minPause, pauseFactor*time.Since(started)))
	}
	return nil, err
}

// get returns the entry of a commit. If there are too many, it forgets the least recently
// used one. Its files stay readable.
func (t *Trees) get(of sources.Tree) *tree {
	t.mu.Lock()
	defer t.mu.Unlock()
	it := t.trees[of]
	if it == nil {
		if len(t.trees) >= maxOpen {
			var oldest sources.Tree
			for name, other := range t.trees {
				if first := t.trees[oldest]; first == nil || other.used.Before(first.used) {
					oldest = name
				}
			}
			delete(t.trees, oldest)
		}
		it = &tree{busy: make(chan struct{}, 1)}
		t.trees[of] = it
	}
	it.used = time.Now()
	return it
}

// partial is the prefix of incomplete directories.
const partial = "fetching-"

// open opens a commit, and fetches it if it is not in the cache.
func (t *Trees) open(ctx context.Context, of sources.Tree) (*store.Store, fs.FS, error) {
	s, err := t.store(ctx, of)
	if err != nil {
		return nil, nil, err
	}
	c, err := objects.ReadCommit(s, plumbing.NewHash(of.Commit))
	if err != nil {
		return nil, nil, err
	}
	return s, objects.NewCommit(s, c).Files, nil
}

func (t *Trees) store(ctx context.Context, of sources.Tree) (*store.Store, error) {
	// Two repositories may share a commit, and each must be proven to have it. The
	// name says for which one this is proven.
	dir := filepath.Join(t.cfg.Dir, sources.DigestOf([]byte("belongs to "+of.Repository)).Short()+"-"+of.Commit)
	s, err := store.Open(dir)
	if err == nil && s.Has(plumbing.NewHash(of.Commit)) {
		now := time.Now()
		_ = os.Chtimes(dir, now, now) // for clean; an error is harmless
		return s, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		if err := os.RemoveAll(dir); err != nil {
			return nil, fmt.Errorf("cache directory: %w", err)
		}
	}
	t.clean()
	if err := os.MkdirAll(t.cfg.Dir, 0o700); err != nil { // it may be deleted at any time
		return nil, fmt.Errorf("cache directory: %w", err)
	}
	tmp, err := os.MkdirTemp(t.cfg.Dir, partial)
	if err != nil {
		return nil, fmt.Errorf("cache directory: %w", err)
	}
	defer os.RemoveAll(tmp)
	if s, err = store.New(filepath.Join(tmp, "objects")); err != nil {
		return nil, fmt.Errorf("cache directory: %w", err)
	}
	if err := t.fetch(ctx, s, of); err != nil {
		return nil, err
	}
	// If another process was faster, this store is used without a name.
	if err := os.Rename(s.Dir, dir); err == nil {
		s.Dir = dir
	}
	return s, nil
}

func (t *Trees) fetch(ctx context.Context, s *store.Store, of sources.Tree) error {
	loc, err := parseURL(of.Repository)
	if err != nil {
		return err
	}
	cfg := wire.Config{URL: loc.url, Redirect: t.redirect, CAFile: t.cfg.CAFile}
	if loc.url == nil || loc.url.Scheme == "ssh" {
		return errors.New("only HTTP and HTTPS need no credentials")
	}
	client, err := wire.New(cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	err = s.Add(plumbing.NewHash(of.Commit), func(_ []plumbing.Hash, sink func(io.Reader) error) error {
		return client.Fetch(ctx, of.Commit, nil, sink)
	})
	if err == nil {
		err = belongs(ctx, client, filepath.Dir(s.Dir), of.Commit)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("fetching commit %s took too long: %w; if the repository is that large, add timeout= to its address, in seconds", of.Commit, err)
	case errors.Is(err, wire.ErrUnknownObject):
		return fmt.Errorf("commit %s: %w; it may not be pushed yet, or be another repository's", of.Commit, err)
	case errors.Is(err, ErrAuthentication), errors.Is(err, ErrRepositoryNotFound):
		return fmt.Errorf("%w: it is private, or not there; remote bases are fetched without credentials", reason(err))
	}
	return err
}

func (t *Trees) redirect(to *url.URL) error {
	if t.cfg.Allowed == nil {
		return fmt.Errorf("the server redirects to %s: use that URL", to.Redacted())
	}
	if err := t.cfg.Allowed(to.String()); err != nil {
		return fmt.Errorf("the server redirects to %s: %w", to.Redacted(), err)
	}
	return nil
}

// reason returns the sentinel in the chain of err, without advice about credentials.
func reason(err error) error {
	if errors.Is(err, ErrAuthentication) {
		return ErrAuthentication
	}
	return ErrRepositoryNotFound
}

// clean removes unused commits from the cache.
func (t *Trees) clean() {
	entries, _ := os.ReadDir(t.cfg.Dir) // nothing to remove in an unreadable one
	for _, e := range entries {
		keep := keepUnused
		if strings.HasPrefix(e.Name(), partial) {
			keep = keepPartial
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > keep {
			os.RemoveAll(filepath.Join(t.cfg.Dir, e.Name()))
		}
	}
}
