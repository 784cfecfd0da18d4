package git

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git/objects"
	"gitopsd.dev/sources/git/store"
	"gitopsd.dev/sources/git/wire"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/gofrs/flock"
)

// remote is a connection to the repository, with a cache of fetched objects.
//
// The cache directory has a lock file and a directory for each generation of the store.
// The newest is in use. There are others if a process was killed.
type remote struct {
	client  *wire.Client
	mayPush func(context.Context) error // may be nil
	dir     string
	lock    *flock.Flock

	// busy is held while a goroutine uses store. It is a channel so that waiting for it
	// can be cancelled.
	busy  chan struct{}
	store *store.Store // nil before the first use
	// tooLarge is the last commit that passed a limit, with the error: it is fetched once.
	tooLarge    plumbing.Hash
	tooLargeErr error
}

func openRemote(cfg Config, loc location) (*remote, error) {
	if cfg.Dir == "" {
		return nil, errors.New("it needs a directory for its cache")
	}
	wireConfig := wire.Config{URL: loc.url, Dir: loc.dir, CAFile: cfg.CAFile, SSHKeyFile: cfg.SSHKeyFile, KnownHostsFile: cfg.KnownHostsFile, Log: cfg.Log}
	if loc.url != nil && loc.url.Scheme != "ssh" {
		wireConfig.Credentials = credentials(cfg, loc)
	}
	client, err := wire.New(wireConfig)
	if err != nil {
		return nil, err
	}
	r := &remote{client: client, mayPush: cfg.MayPush, dir: cfg.Dir, lock: flock.New(filepath.Join(cfg.Dir, "lock")), busy: make(chan struct{}, 1)}
	if err := r.claim(); err != nil {
		return nil, err
	}
	return r, nil
}

// claim locks the cache directory. Both may have been deleted, and another process may have
// made and locked them since.
func (r *remote) claim() error {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return fmt.Errorf("cache directory: %w", err)
	}
	if r.claimed() {
		return nil
	}
	_ = r.lock.Unlock() // of a deleted file
	if ok, err := r.lock.TryLock(); err != nil {
		return fmt.Errorf("cache directory: %w", err)
	} else if !ok {
		return fmt.Errorf("the cache directory %s is in use by another `gitopsd run` of this repository: see `gitopsd status`. One daemon works on a fleet; give another --cache-dir to the daemon of another fleet, such as that of another branch, or to one that waits by the same --lease", r.dir)
	}
	return nil
}

// claimed reports whether the lock is on the file that other processes see.
func (r *remote) claimed() bool {
	held, err := r.lock.Stat()
	if err != nil || !r.lock.Locked() {
		return false
	}
	seen, err := os.Stat(r.lock.Path())
	return err == nil && os.SameFile(held, seen)
}

// credentials returns the credentials for HTTP, from Token, the file, the fields, or the URL.
func credentials(cfg Config, loc location) func(context.Context) (string, string, error) {
	username, password := cmp.Or(cfg.Username, loc.username), cmp.Or(cfg.Password, loc.password)
	return func(ctx context.Context) (string, string, error) {
		password := password
		if cfg.Token != nil {
			var err error
			if password, err = cfg.Token(ctx); err != nil {
				return "", "", err
			}
		} else if cfg.PasswordFile != "" {
			content, err := os.ReadFile(cfg.PasswordFile)
			if err != nil {
				return "", "", fmt.Errorf("password file: %w", err)
			}
			if password = strings.TrimSpace(string(content)); password == "" {
				return "", "", fmt.Errorf("password file %s is empty", cfg.PasswordFile)
			}
		}
		if password == "" {
			return username, "", nil
		}
		// For tokens forges ignore the name, but require one.
		return cmp.Or(username, "git"), password, nil
	}
}

func (r *remote) close() error {
	r.client.Close()
	return r.lock.Unlock()
}

func (r *remote) refs(ctx context.Context, names ...string) (map[string]plumbing.Hash, error) {
	list, err := r.client.List(ctx, 0, names...)
	if err != nil {
		return nil, err
	}
	refs := make(map[string]plumbing.Hash, len(names))
	for _, ref := range list {
		if slices.Contains(names, ref.Name) { // the server takes names as prefixes
			refs[ref.Name] = plumbing.NewHash(ref.Hash)
		}
	}
	return refs, nil
}

func (r *remote) branches(ctx context.Context, most int) ([]string, error) {
	list, err := r.client.List(ctx, most, headsPrefix)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(list))
	for i, ref := range list {
		names[i] = strings.TrimPrefix(ref.Name, headsPrefix)
	}
	return names, nil
}

func (r *remote) push(ctx context.Context, u refUpdate) error {
	var pack []byte
	if !u.now.IsZero() {
		var err error
		if pack, err = objects.EncodePack(u.objects); err != nil {
			return err
		}
	}
	if r.mayPush != nil {
		if err := r.mayPush(ctx); err != nil {
			return err
		}
	}
	if err := r.client.Push(ctx, u.ref, u.old.String(), u.now.String(), pack); err != nil {
		return err
	}
	if u.keep {
		r.keep(ctx, u.now, pack)
	}
	return nil
}

// keep adds a pushed commit to the cache. If that fails, it is fetched later.
func (r *remote) keep(ctx context.Context, h plumbing.Hash, pack []byte) {
	if r.acquire(ctx) != nil {
		return
	}
	defer r.release()
	if r.store != nil && r.claimed() {
		_ = r.store.Add(h, func(_ []plumbing.Hash, sink func(io.Reader) error) error { return sink(bytes.NewReader(pack)) })
	}
}

// acquire waits until no other goroutine changes the store.
func (r *remote) acquire(ctx context.Context) error {
	select {
	case r.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *remote) release() { <-r.busy }

// snapshot returns a reader of the commit h and everything below its tree. It fetches
// missing objects. If there is no room for a new store, the one that is due goes on.
func (r *remote) snapshot(ctx context.Context, h plumbing.Hash) (objects.Reader, error) {
	if err := r.acquire(ctx); err != nil {
		return nil, err
	}
	defer r.release()
	if r.store == nil && r.claimed() {
		r.store = r.reopen()
	}
	if r.tooLargeErr != nil && h == r.tooLarge {
		return nil, r.tooLargeErr
	}
	s := r.store
	if s != nil && !s.Due() {
		if s.Has(h) {
			return s, nil
		}
		if r.claimed() {
			err := r.fetch(ctx, s, h)
			if err == nil {
				return s, nil
			}
			_, gone := os.Stat(s.Dir)
			if !errors.Is(err, store.ErrDamaged) && !errors.Is(gone, fs.ErrNotExist) && !errors.Is(err, sources.ErrLimit) {
				return nil, err
			}
		}
		// Objects of complete commits are missing, or the cache was deleted: start again. So it
		// does if a limit is passed: a small change of a large file is read as a whole, for which
		// there is a limit, while the file itself is not.
	}
	renewed, err := r.renew(ctx, h)
	if err == nil {
		return renewed, nil
	}
	if s != nil && s.Due() && !s.Damaged() {
		if s.Has(h) {
			return s, nil
		}
		if _, local := errors.AsType[*fs.PathError](err); local && r.claimed() && r.fetch(ctx, s, h) == nil {
			return s, nil
		}
	}
	if errors.Is(err, sources.ErrLimit) {
		err = fmt.Errorf("commit %s: %w; a newer commit without that is read again (large files belong elsewhere, for instance in Git LFS)", sources.ShortHash(h.String()), err)
		r.tooLarge, r.tooLargeErr = h, err
	}
	return nil, err
}

// renew fetches the commit h into a new store, which replaces the old one once
// it is complete.
func (r *remote) renew(ctx context.Context, h plumbing.Hash) (objects.Reader, error) {
	if err := r.claim(); err != nil {
		return nil, err
	}
	generation := 1
	for _, g := range r.generations() {
		generation = max(generation, g+1)
	}
	s, err := store.New(r.generation(generation))
	if err != nil {
		return nil, fmt.Errorf("cache directory: %w", err)
	}
	if err := r.fetch(ctx, s, h); err != nil {
		os.RemoveAll(s.Dir)
		return nil, err
	}
	r.store = s
	r.removeOthers(s.Dir)
	return s, nil
}

func (r *remote) fetch(ctx context.Context, s *store.Store, h plumbing.Hash) error {
	return s.Add(h, func(have []plumbing.Hash, sink func(io.Reader) error) error {
		names := make([]string, len(have))
		for i, h := range have {
			names[i] = h.String()
		}
		return r.client.Fetch(ctx, h.String(), names, sink)
	})
}

// reopen returns the newest complete store, or nil, and removes the others.
func (r *remote) reopen() *store.Store {
	for _, g := range slices.Backward(r.generations()) {
		if s, err := store.Open(r.generation(g)); err == nil {
			r.removeOthers(s.Dir)
			return s
		}
	}
	r.removeOthers("")
	return nil
}

const generationPrefix = "objects-"

func (r *remote) generation(n int) string {
	return filepath.Join(r.dir, generationPrefix+strconv.Itoa(n))
}

// generations lists the stores in the cache directory, oldest first.
func (r *remote) generations() []int {
	entries, _ := os.ReadDir(r.dir) // an unreadable one has none
	var all []int
	for _, e := range entries {
		if suffix, ok := strings.CutPrefix(e.Name(), generationPrefix); ok {
			if n, err := strconv.Atoi(suffix); err == nil && n > 0 {
				all = append(all, n)
			}
		}
	}
	slices.Sort(all)
	return all
}

// removeOthers removes all stores except the one in dir. Snapshots in use keep their
// files open. A store that cannot be removed is removed the next time.
func (r *remote) removeOthers(dir string) {
	for _, g := range r.generations() {
		if other := r.generation(g); other != dir {
			os.RemoveAll(other)
		}
	}
}

// damaged reports whether the last snapshot can no longer be read.
func (r *remote) damaged() bool {
	select {
	case r.busy <- struct{}{}:
		defer r.release()
		return r.store != nil && r.store.Damaged()
	default:
		return false // being fetched
	}
}
