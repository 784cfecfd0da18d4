package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"time"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git/objects"
	"gitopsd.dev/sources/git/wire"

	"github.com/go-git/go-git/v5/plumbing"
)

// updateTries bounds the tries of an Update if others push first.
const updateTries = 10

// Update makes a commit on the branch that changes one file, given by its path with
// slashes relative to the root. Content returns the file's new content for the newest
// commit. Update returns the new commit, or the newest one if the file has that content
// already, and reports whether it made a commit.
//
// The push is not forced. If others push first, content is called again with their
// commit. The error is [ErrMoved] after ten tries, a [*RefusedError] if the server
// refuses the push, for instance by a hook or a protected branch, content's, or one of
// Poll's: nothing is built on a commit that is not trusted.
func (r *Repository) Update(ctx context.Context, path, message string, content func(head sources.Commit) ([]byte, error)) (commit sources.Commit, wrote bool, err error) {
	for try := 1; ; try++ {
		commit, wrote, err := r.tryUpdate(ctx, path, message, content)
		if err == nil {
			return commit, wrote, nil
		}
		again, ok := errors.AsType[retryError](err)
		if !ok {
			return sources.Commit{}, wrote, r.wrap(err)
		}
		if try == updateTries {
			return sources.Commit{}, false, r.wrap(fmt.Errorf("%s was not committed in %d tries: %w", path, try, again.error))
		}
		if err := pause(ctx, try); err != nil {
			return sources.Commit{}, false, r.wrap(err)
		}
	}
}

// retryError is an error that another try may not meet.
type retryError struct{ error }

// pause waits for a random time that grows with the tries.
func pause(ctx context.Context, try int) error {
	longest := min(10*time.Millisecond<<try, 500*time.Millisecond)
	timer := time.NewTimer(rand.N(longest))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *Repository) tryUpdate(ctx context.Context, path, message string, content func(sources.Commit) ([]byte, error)) (sources.Commit, bool, error) {
	head, err := r.head(ctx)
	if err != nil {
		return sources.Commit{}, false, err
	}
	o, commit, err := r.commit(ctx, head)
	if errors.Is(err, wire.ErrUnknownObject) {
		return sources.Commit{}, false, retryError{err}
	} else if err != nil {
		return sources.Commit{}, false, err
	}
	now, err := content(commit)
	if err != nil {
		return sources.Commit{}, false, err
	}
	was, err := fs.ReadFile(commit.Files, path)
	if err == nil && bytes.Equal(was, now) {
		return commit, false, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return sources.Commit{}, false, err
	}
	u, err := r.build(ctx, o, head, path, message, now)
	if err != nil {
		return sources.Commit{}, false, err
	}
	if err := r.origin.push(ctx, u); err != nil {
		return r.judge(ctx, u, err)
	}
	_, commit, err = r.commit(ctx, u.now)
	return commit, true, err
}

// build makes a commit on head that replaces one file.
func (r *Repository) build(ctx context.Context, o objects.Reader, head plumbing.Hash, path, message string, content []byte) (refUpdate, error) {
	parent, err := objects.ReadCommit(o, head)
	if err != nil {
		return refUpdate{}, err
	}
	blob := objects.NewRaw(plumbing.BlobObject, content)
	trees, err := objects.Graft(o, parent.TreeHash, path, blob.Hash)
	if err != nil {
		return refUpdate{}, err
	}
	c, err := objects.EncodeCommit(r.cfg.Name, r.cfg.Mail, message, trees[len(trees)-1].Hash, head)
	if err != nil {
		return refUpdate{}, err
	}
	if c, err = r.sign(ctx, head, c); err != nil {
		return refUpdate{}, err
	}
	return refUpdate{
		ref:     headsPrefix + r.cfg.Branch,
		old:     head,
		now:     c.Hash,
		objects: append(append([]objects.Raw{blob}, trees...), c),
		keep:    true,
	}, nil
}

// judge handles a failed push. It looks up the branch, since the server may have accepted
// the commit before the connection broke, or may report a lost race in unknown words.
func (r *Repository) judge(ctx context.Context, u refUpdate, failed error) (sources.Commit, bool, error) {
	if errors.Is(failed, ErrMoved) {
		return sources.Commit{}, false, retryError{failed}
	}
	refused, ok := errors.AsType[*RefusedError](failed)
	if ok && refused.ByHook() || ctx.Err() != nil {
		return sources.Commit{}, false, failed
	}
	head, err := r.head(ctx)
	switch {
	case err != nil:
		return sources.Commit{}, false, failed
	case head == u.now:
		_, commit, err := r.commit(ctx, u.now)
		return commit, true, err
	case ok && (head != u.old || refused.Passing()):
		return sources.Commit{}, false, retryError{failed}
	}
	return sources.Commit{}, false, failed
}
