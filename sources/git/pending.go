package git

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strings"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git/objects"
	"gitopsd.dev/sources/git/store"
	"gitopsd.dev/sources/git/wire"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// The refs for pending records. The second is for servers that only accept branches.
const (
	pendingRef       = "refs/gitopsd/pending"
	pendingBranchRef = "refs/heads/gitopsd/pending"
)

// pendingState is the last known state of the pending records.
type pendingState struct {
	// ref in use; empty if there was none.
	ref string
	// at is the commit that ref named when it was last read or written; zero if
	// it did not exist.
	at plumbing.Hash
	// content is nil if there are no records of the branch, and others are the files with
	// those of other branches. unreadable reports whether ref has something else.
	content    []byte
	others     []objects.Entry
	unreadable bool
}

// ErrUnreadable is in the chain of errors about a pending ref that does not have records
// as WritePending writes them.
var ErrUnreadable = errors.New("the content cannot be read")

// ReadPending returns the pending records of the branch, or nil if there are none. They are
// in a commit on a ref of its own, in the file clusters.lock.<branch>; other branches have
// other files there. They are written before anything is applied that depends on them, so
// that after a crash before the lock commit the next process finds them. Without such a
// file, the records are those in clusters.lock, where they were kept for all branches; the
// next WritePending or ClearPending removes that.
//
// Everyone who may push to the ref can change them. The error is [ErrUnreadable] if the
// ref does not name such a commit, and otherwise one of Poll's. The next WritePending
// replaces an unreadable commit. If the ref has not moved since it was last read, nothing
// is fetched.
func (r *Repository) ReadPending(ctx context.Context) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	state, err := r.readPending(ctx)
	if err != nil && !errors.Is(err, ErrUnreadable) {
		return nil, r.wrap(fmt.Errorf("pending records: %w", err))
	}
	r.pending = state
	if err != nil {
		return nil, r.wrap(fmt.Errorf("pending records on %s: %w", state.ref, err))
	}
	return state.content, nil
}

func (r *Repository) readPending(ctx context.Context) (pendingState, error) {
	var failed error
	var last pendingState
	for range fetchTries {
		state, err := r.findPending(ctx)
		if err != nil || state.ref == "" {
			return state, err
		}
		if state.ref == r.pending.ref && state.at == r.pending.at {
			if r.pending.unreadable {
				return r.pending, ErrUnreadable
			}
			return r.pending, nil
		}
		// Neither verified nor signed: the records are a hint, which the registry has to
		// confirm.
		o, commit, err := r.read(ctx, state.at)
		state.unreadable = isUnreadable(err)
		if err == nil {
			if err = r.readRecords(&state, o, commit); err == nil {
				return state, nil
			}
			state.unreadable = !errors.Is(err, store.ErrDamaged)
		}
		if ctx.Err() != nil {
			return pendingState{}, err
		}
		last, failed = state, err
	}
	if !last.unreadable { // the server or the cache failed
		return pendingState{}, failed
	}
	return last, fmt.Errorf("%w: %w", ErrUnreadable, failed)
}

// pendingFile is the file with the branch's records.
func (r *Repository) pendingFile() string {
	return sources.LockFile + "." + url.PathEscape(r.cfg.Branch)
}

// readRecords reads the files of a pending commit.
func (r *Repository) readRecords(state *pendingState, o objects.Reader, commit sources.Commit) error {
	for _, name := range []string{r.pendingFile(), sources.LockFile} {
		content, err := fs.ReadFile(commit.Files, name)
		if err == nil {
			state.content = content
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	c, err := objects.ReadCommit(o, state.at)
	if err != nil {
		return err
	}
	tree, err := o.Read(plumbing.TreeObject, c.TreeHash)
	if err != nil {
		return err
	}
	entries, err := objects.ParseTree(tree)
	for _, e := range entries {
		if strings.HasPrefix(e.Name, sources.LockFile+".") && e.Name != r.pendingFile() && e.Mode == filemode.Regular {
			state.others = append(state.others, e)
		}
	}
	return err
}

// isUnreadable reports whether an error of read is about what the ref names, and not
// about the server or the cache.
func isUnreadable(err error) bool {
	_, invalid := errors.AsType[*store.InvalidError](err)
	return invalid || errors.Is(err, sources.ErrLimit) || errors.Is(err, wire.ErrUnknownObject)
}

// findPending looks up the ref of the pending records. The state's ref is empty if there
// is none.
func (r *Repository) findPending(ctx context.Context) (pendingState, error) {
	names := r.pendingRefs()
	refs, err := r.origin.refs(ctx, names...)
	if err != nil {
		return pendingState{}, err
	}
	for _, name := range names {
		if at, ok := refs[name]; ok {
			return pendingState{ref: name, at: at}, nil
		}
	}
	return pendingState{}, nil
}

// pendingRefs returns the refs to use, in order of preference.
func (r *Repository) pendingRefs() []string {
	if r.cfg.PendingBranch {
		return []string{pendingBranchRef}
	}
	return []string{pendingRef, pendingBranchRef}
}

// WritePending replaces the pending records that the last ReadPending or WritePending
// saw. The error is [ErrMoved] if others have changed them since: read and merge them,
// and try again. It is a [*RefusedError] if the server refuses both refs, and otherwise
// one of Poll's.
func (r *Repository) WritePending(ctx context.Context, content []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.putPending(ctx, "Records of a pass under way", content); err != nil {
		return r.wrap(fmt.Errorf("pending records: %w", err))
	}
	return nil
}

// putPending pushes a commit with the branch's records, or without them if content is nil,
// and with the files of other branches.
func (r *Repository) putPending(ctx context.Context, message string, content []byte) error {
	var list []objects.Raw
	entries := slices.Clone(r.pending.others)
	if content != nil {
		blob := objects.NewRaw(plumbing.BlobObject, content)
		list = append(list, blob)
		entries = append(entries, objects.Entry{Name: r.pendingFile(), Mode: filemode.Regular, Hash: blob.Hash})
	}
	tree := objects.EncodeTree(entries)
	var parents []plumbing.Hash
	if !r.pending.at.IsZero() && !r.pending.unreadable {
		// As a child of the old commit, it is not a forced push.
		parents = []plumbing.Hash{r.pending.at}
	}
	c, err := objects.EncodeCommit(r.cfg.Name, r.cfg.Mail, message, tree.Hash, parents...)
	if err != nil {
		return err
	}
	u := refUpdate{old: r.pending.at, now: c.Hash, objects: append(list, tree, c)}
	names := r.pendingRefs()
	if r.pending.ref != "" {
		names = []string{r.pending.ref}
	}
	var refusals error
	for _, name := range names {
		u.ref = name
		err := r.pushPending(ctx, u)
		if err == nil {
			r.pending = pendingState{ref: name, at: c.Hash, content: content, others: r.pending.others}
			return nil
		}
		refusals = errors.Join(refusals, err)
		if refused, ok := errors.AsType[*RefusedError](err); !ok || errors.Is(err, ErrMoved) || refused.Passing() {
			return err
		}
	}
	return refusals
}

// ClearPending removes the pending records that the last ReadPending or WritePending
// saw. It fails as WritePending does.
func (r *Repository) ClearPending(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending.at.IsZero() || r.pending.content == nil && !r.pending.unreadable {
		return nil
	}
	if err := r.removePending(ctx); err != nil {
		return r.wrap(fmt.Errorf("pending records: %w", err))
	}
	return nil
}

// removePending deletes the ref, unless other branches have records there.
func (r *Repository) removePending(ctx context.Context) error {
	if len(r.pending.others) > 0 {
		return r.putPending(ctx, "Records of other branches", nil)
	}
	err := r.pushPending(ctx, refUpdate{ref: r.pending.ref, old: r.pending.at})
	if _, refused := errors.AsType[*RefusedError](err); refused && !errors.Is(err, ErrMoved) {
		return r.putPending(ctx, "No records", nil) // some servers do not allow deletion
	}
	if err == nil {
		r.pending = pendingState{ref: r.pending.ref}
	}
	return err
}

// pushPending pushes. If there is no answer, it looks whether the push has arrived.
func (r *Repository) pushPending(ctx context.Context, u refUpdate) error {
	err := r.origin.push(ctx, u)
	if _, refused := errors.AsType[*RefusedError](err); err == nil || refused || errors.Is(err, ErrMoved) || ctx.Err() != nil {
		return err
	}
	if refs, listErr := r.origin.refs(ctx, u.ref); listErr == nil && refs[u.ref] == u.now {
		return nil
	}
	return err
}
