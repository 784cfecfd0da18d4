package git

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git/objects"
	"gitopsd.dev/sources/git/store"
	"gitopsd.dev/sources/git/wire"

	"github.com/go-git/go-git/v5/plumbing"
)

// The limits of the proof that a commit belongs to a repository. The commits of
// the largest repositories, without their files, are some 100 MB.
const (
	maxTips         = 50_000    // branches and tags
	maxHistoryBytes = 256 << 20 // of the pack
)

// errForeign is in the chain of the error for a commit that no branch or tag
// contains.
var errForeign = errors.New("no branch and no tag of the repository leads to it")

// belongs verifies that a branch or tag in the server's current list contains a commit. If
// it is not a tip, the history is fetched into a store below dir. The store hashes every
// commit, so that the server cannot make up a history.
func belongs(ctx context.Context, client *wire.Client, dir, commit string) error {
	refs, err := client.Tips(ctx, maxTips)
	if err != nil {
		return err
	}
	var tips []string
	for _, ref := range refs {
		tips = append(tips, cmp.Or(ref.Peeled, ref.Hash))
	}
	slices.Sort(tips)
	tips = slices.Compact(tips)
	if slices.Contains(tips, commit) {
		return nil
	}
	if len(tips) > 0 {
		s, err := history(ctx, client, filepath.Join(dir, "history"), tips)
		if err != nil {
			return fmt.Errorf("looking for commit %s in the history of branches and tags: %w", commit, err)
		}
		if leads(s, tips, plumbing.NewHash(commit)) {
			return nil
		}
	}
	return fmt.Errorf("commit %s: %w; it may be a fork's, or of a branch that is gone: name a commit that a branch or tag has, or tag it", commit, errForeign)
}

// history fetches the commits of tips and all their ancestors.
func history(ctx context.Context, client *wire.Client, dir string, tips []string) (*store.Store, error) {
	s, err := store.New(dir)
	if err != nil {
		return nil, err
	}
	return s, s.AddPart(func(sink func(io.Reader) error) error {
		return client.History(ctx, tips, func(pack io.Reader) error { return sink(&bounded{r: pack, left: maxHistoryBytes}) })
	})
}

// leads reports whether one of tips is the commit, or descends from it.
func leads(s *store.Store, tips []string, commit plumbing.Hash) bool {
	var next []plumbing.Hash
	seen := make(map[plumbing.Hash]bool)
	visit := func(h plumbing.Hash) {
		if !seen[h] {
			seen[h] = true
			next = append(next, h)
		}
	}
	for _, tip := range tips {
		visit(plumbing.NewHash(tip))
	}
	for len(next) > 0 {
		h := next[len(next)-1]
		next = next[:len(next)-1]
		if h == commit {
			return true
		}
		c, err := objects.ReadCommit(s, h)
		if err != nil {
			continue // the tip is not a commit, or the server's clone is shallow
		}
		for _, parent := range c.ParentHashes {
			visit(parent)
		}
	}
	return false
}

// bounded returns an error for more than left bytes.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("more than %d MiB; name a commit that is the tip of a branch or tag: %w", maxHistoryBytes>>20, sources.ErrLimit)
	}
	return n, err
}
