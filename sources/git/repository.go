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
	// name is the repository's in the names of fleets.
	name   string
	origin *remote

	mu      sync.Mutex // of pending
	pending pendingState
}

// refUpdate is a compare-and-swap of one ref.
type refUpdate struct {
	ref string
	// old is what ref must name, zero if it must not be there; now is what it
	// names then, zero if it is to be gone.
	old, now plumbing.Hash
	// objects are those that now needs and old does not have.
	objects []objects.Raw
	// keep says that now is read soon, and is worth a place in the cache.
	keep bool
}

const headsPrefix = "refs/heads/"

// Close gives back the cache directory and drops connections.
func (r *Repository) Close() error { return r.origin.close() }

// Describe is the repository's URL without credentials, or its directory.
func (r *Repository) Describe() string { return r.describe }

// wrap makes err name the repository.
func (r *Repository) wrap(err error) error {
	return fmt.Errorf("git repository %s: %w", r.describe, err)
}

// fetchTries is how often a commit is looked for that is gone when it is
// fetched, because the branch was forced to another one meanwhile.
const fetchTries = 3

// Poll looks at the branch. If its commit is not last, or last cannot be read
// any more because the cache was damaged, it returns the commit and true. last
// is empty at the first poll.
//
// An unchanged poll asks the server for one ref and nothing else.
func (r *Repository) Poll(ctx context.Context, last string) (commit sources.Commit, changed bool, err error) {
	for try := 1; ; try++ {
		head, err := r.head(ctx)
		if err != nil {
			return sources.Commit{}, false, r.wrap(err)
		}
		if head.String() == last && !r.origin.damaged() {
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

// Head returns the name of the branch's newest commit, and fetches nothing.
func (r *Repository) Head(ctx context.Context) (string, error) {
	h, err := r.head(ctx)
	if err != nil {
		return "", r.wrap(err)
	}
	return h.String(), nil
}

// Parent returns the commit before a commit, its first parent; false if it has
// none.
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
	if _, commit, err = r.commit(ctx, c.ParentHashes[0]); err != nil {
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
	case len(names) == 0:
		return plumbing.ZeroHash, fmt.Errorf("%w: the repository is empty; push a first commit with %s to the branch %s", ErrBranchNotFound, sources.RegistryFile, r.cfg.Branch)
	case len(names) == most:
		names = append(names, "…")
	}
	return plumbing.ZeroHash, fmt.Errorf("%w: there is no branch %s; there are %s", ErrBranchNotFound, r.cfg.Branch, strings.Join(names, ", "))
}

// commit reads a commit and the objects below it.
func (r *Repository) commit(ctx context.Context, h plumbing.Hash) (objects.Reader, sources.Commit, error) {
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
