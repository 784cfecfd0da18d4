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

// TreesConfig says how commits of other repositories are fetched. Dir is
// required.
type TreesConfig struct {
	// Dir is the directory for their cache, made if it is not there. Any
	// number of processes may share it.
	Dir string
	// CAFile holds PEM certificates of authorities to trust beside the
	// system's, for HTTPS.
	CAFile string
	// Allowed says whether a repository may be used to which a server redirects
	// from another; its error says why not. Nil follows no redirect.
	Allowed func(repository string) error
}

// Trees fetches single commits of repositories that are not the fleet's, over
// HTTP(S) and without credentials, and keeps them: the hash of the commit is the
// name of all its files, so that one that was fetched is never asked for again.
// It is safe for concurrent use.
//
// A commit counts as a repository's if a branch or tag of it leads there
// (belongs.go). That a server hands it out says less: forges keep the objects of
// a repository and of its forks, which anybody may make, in one place.
//
// The cache has a store for each commit, which appears under its name complete
// and verified. What was not used for a month goes.
type Trees struct {
	cfg TreesConfig

	mu    sync.Mutex
	trees map[sources.Tree]*tree
}

// tree is a commit that was asked for.
type tree struct {
	// busy is held by whoever fetches it. It is a channel so that waiting for
	// it can be cancelled.
	busy chan struct{}
	// used is when it was last asked for; under the mutex of Trees.
	used time.Time

	// Under busy:
	store *store.Store // nil as long as it is not here
	files fs.FS
	// err is how fetching failed last, and stands until again: a server that
	// takes its time to fail is not waited for in each pass.
	err   error
	again time.Time
}

const (
	// maxOpen is how many commits are kept open.
	maxOpen = 16
	// pauseFactor times as long as it took to fail, at least minPause, is the
	// pause before the next try.
	pauseFactor = 4
	minPause    = time.Second
	// keepUnused is how long a commit stays in the cache that nobody uses, and
	// keepPartial what a process left behind that died.
	keepUnused  = 30 * 24 * time.Hour
	keepPartial = time.Hour
)

// NewTrees prepares fetching. It does not connect.
func NewTrees(cfg TreesConfig) (*Trees, error) {
	if cfg.Dir == "" {
		return nil, errors.New("remote bases need a directory for their cache")
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("cache directory: %w", err)
	}
	return &Trees{cfg: cfg, trees: make(map[sources.Tree]*tree)}, nil
}

// Fetch returns the files of a commit, from the cache if it is there. The limits
// of the fleet repository hold for it.
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
	if !errors.Is(err, context.Canceled) { // which says nothing of the server
		it.err, it.again = err, time.Now().Add(max(minPause, pauseFactor*time.Since(started)))
	}
	return nil, err
}

// get returns the entry of a commit, and forgets the one that was not asked for
// longest if there are too many. What is still read of that stays readable.
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

// partial is the prefix of directories that are not complete.
const partial = "fetching-"

// open opens a commit, which it fetches if it is not in the cache.
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
	// Two repositories may have a commit in common, but who may use one is not
	// thereby allowed to say that the other has it.
	// What is under this name was seen to belong to the repository.
	dir := filepath.Join(t.cfg.Dir, sources.DigestOf([]byte("belongs to "+of.Repository)).Short()+"-"+of.Commit)
	s, err := store.Open(dir)
	if err == nil && s.Has(plumbing.NewHash(of.Commit)) {
		now := time.Now()
		_ = os.Chtimes(dir, now, now) // failing is harmless
		return s, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		if err := os.RemoveAll(dir); err != nil {
			return nil, fmt.Errorf("cache directory: %w", err)
		}
	}
	t.clean()
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
	// Where another process was faster, ours is read on, open as it is.
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
	cfg := wire.Config{URL: loc.url, Redirect: t.redirect}
	if loc.url == nil || loc.url.Scheme == "ssh" {
		return errors.New("only HTTP and HTTPS need no credentials")
	}
	if t.cfg.CAFile != "" {
		if cfg.CAs, err = os.ReadFile(t.cfg.CAFile); err != nil {
			return fmt.Errorf("CA file: %w", err)
		}
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

// reason is what callers decide on, without the advice for those who have
// credentials.
func reason(err error) error {
	if errors.Is(err, ErrAuthentication) {
		return ErrAuthentication
	}
	return ErrRepositoryNotFound
}

// clean removes from the cache what is no longer of use.
func (t *Trees) clean() {
	entries, _ := os.ReadDir(t.cfg.Dir) // one that cannot be read has nothing to remove
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
