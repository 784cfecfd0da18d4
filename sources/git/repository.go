package git

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git/objects"
	"gitopsd.dev/sources/git/wire"

	"github.com/go-git/go-git/v5/plumbing"
)

// Repository is the fleet repository. It is safe for concurrent use.
type Repository struct {
	cfg      Config
	describe string
	location location
	origin   *remote
	trust    *trust // nil if commits are neither verified nor signed

	mu      sync.Mutex // of pending
	pending pendingState
}

// refUpdate is a compare-and-swap of one ref.
type refUpdate struct {
	ref string
	// old is the object that ref must name, or zero if it must not exist. now is the
	// new object, or zero to delete the ref.
	old, now plumbing.Hash
	// objects are the objects that are new. The last of them is now.
	objects []objects.Raw
	// keep adds now to the cache, to read it soon.
	keep bool
}

const headsPrefix = "refs/heads/"

// Close releases the cache directory and drops connections.
func (r *Repository) Close() error { return r.origin.close() }

// Describe returns the repository's URL without credentials, or its directory.
func (r *Repository) Describe() string { return r.describe }

// wrap makes err name the repository.
func (r *Repository) wrap(err error) error {
	return fmt.Errorf("git repository %s: %w", r.describe, err)
}

// fetchTries bounds how often a ref is looked up because its commit was gone when it was
// fetched, after a forced push.
const fetchTries = 3

// Poll looks up the head of the branch, and reports whether it differs from last, which is
// a commit's hash, or empty for the first poll. If not, the Commit is zero. If the
// cache is damaged, the head counts as different.
//
// The error is [ErrAuthentication], [ErrRepositoryNotFound], [ErrHostKey], [ErrBranchNotFound]
// or [ErrNotTrusted] for these reasons, the last even if the head is last, since the keys may have
// changed. It is the context's if that ended. Other errors mean that the server's answer is not
// valid, or that the cache cannot be written. A poll without a change asks the server for one ref.
func (r *Repository) Poll(ctx context.Context, last string) (commit sources.Commit, changed bool, err error) {
	for try := 1; ; try++ {
		head, err := r.head(ctx)
		if err != nil {
			return sources.Commit{}, false, r.wrap(err)
		}
		if head.String() == last && !r.origin.damaged() {
			if err := r.verify(ctx, head); err != nil {
				return sources.Commit{}, false, r.wrap(err)
			}
			return sources.Commit{}, false, nil
		}
		_, commit, err := r.commit(ctx, head)
		if errors.Is(err, wire.ErrUnknownObject) && try < fetchTries {
			continue
		}
		if err != nil {
			return sources.Commit{}, false, r.wrap(err)
		}
		return commit, true, nil
	}
}

// Head returns the hash of the branch's newest commit, without fetching it, and without a look
// at its signature: it is for the order of commits. It fails as Poll does.
func (r *Repository) Head(ctx context.Context) (string, error) {
	h, err := r.head(ctx)
	if err != nil {
		return "", r.wrap(err)
	}
	return h.String(), nil
}

// Parent returns the first parent of a commit, and reports whether it has one. It fails
// as Poll does, and if the server no longer has the commit.
//
// The parent's signature is not verified: whoever signs a commit vouches for its ancestors, which
// other people may have made without a signature. It is for the order of commits, and for what a
// commit has lost. Its files must not be applied.
func (r *Repository) Parent(ctx context.Context, hash string) (commit sources.Commit, ok bool, err error) {
	o, err := r.origin.snapshot(ctx, plumbing.NewHash(hash))
	if err != nil {
		return commit, false, r.wrap(err)
	}
	c, err := objects.ReadCommit(o, plumbing.NewHash(hash))
	if err != nil {
		return commit, false, r.wrap(err)
	}
	if len(c.ParentHashes) == 0 {
		return commit, false, nil
	}
	if _, commit, err = r.read(ctx, c.ParentHashes[0]); err != nil {
		return commit, false, r.wrap(err)
	}
	return commit, true, nil
}

// head returns the newest commit of the branch.
func (r *Repository) head(ctx context.Context) (plumbing.Hash, error) {
	ref := headsPrefix + r.cfg.Branch
	refs, err := r.origin.refs(ctx, ref)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	if h, ok := refs[ref]; ok {
		return h, nil
	}
	const most = 10
	names, err := r.origin.branches(ctx, most)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	switch {
	case len(names) == 1:
		return plumbing.ZeroHash, fmt.Errorf("%w: there is no branch %s; there is %s: name it with --branch", ErrBranchNotFound, r.cfg.Branch, names[0])
	case len(names) == 0:
		return plumbing.ZeroHash, fmt.Errorf("%w: the repository is empty; push a first commit with %s to the branch %s", ErrBranchNotFound, sources.RegistryFile, r.cfg.Branch)
	case len(names) == most:
		names = append(names, "…")
	}
	return plumbing.ZeroHash, fmt.Errorf("%w: there is no branch %s; there are %s; name one with --branch", ErrBranchNotFound, r.cfg.Branch, strings.Join(names, ", "))
}

// commit reads a commit that may be acted upon, and the objects below it.
func (r *Repository) commit(ctx context.Context, h plumbing.Hash) (objects.Reader, sources.Commit, error) {
	o, commit, err := r.read(ctx, h)
	if err == nil {
		err = r.verify(ctx, h)
	}
	if err != nil {
		return nil, sources.Commit{}, err
	}
	return o, commit, nil
}

// read reads any commit and the objects below it.
func (r *Repository) read(ctx context.Context, h plumbing.Hash) (objects.Reader, sources.Commit, error) {
	o, err := r.origin.snapshot(ctx, h)
	if err != nil {
		return nil, sources.Commit{}, err
	}
	c, err := objects.ReadCommit(o, h)
	if err != nil {
		return nil, sources.Commit{}, err
	}
	return o, objects.NewCommit(o, c), nil
}
