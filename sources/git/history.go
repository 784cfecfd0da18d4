package git

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git/objects"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// maxHistory bounds how many commits LastChange goes back.
const maxHistory = 100_000

// LastChange returns the last commit before rev that changed a file, as `git
// log -1 -- file` does. The name is relative to Path. Found is false if the
// file does not exist, or if the commit was not fetched. It fails if rev names
// no commit, or objects cannot be read.
func (d *Directory) LastChange(rev, name string) (commit sources.Commit, found bool, err error) {
	h, err := d.resolve(rev)
	if err != nil {
		return commit, false, fmt.Errorf("git repository %s: revision %q: %w", d.Root, rev, err)
	}
	c, at, err := d.fileAt(h, path.Join(d.Path, name))
	for range maxHistory {
		if err != nil || at == plumbing.ZeroHash {
			break
		}
		same := -1
		var parent *object.Commit
		for i, p := range c.ParentHashes {
			var was plumbing.Hash
			if parent, was, err = d.fileAt(p, path.Join(d.Path, name)); err != nil || was == at {
				same = i
				break
			}
		}
		if same < 0 {
			return objects.NewCommit(d.local, c), true, nil
		}
		c = parent
	}
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		err = nil // a shallow clone
	}
	return commit, false, err
}

// fileAt is a commit, and the blob of a file in it: the zero hash if there is
// none.
func (d *Directory) fileAt(h plumbing.Hash, name string) (*object.Commit, plumbing.Hash, error) {
	c, err := objects.ReadCommit(d.local, h)
	if err != nil {
		return nil, plumbing.ZeroHash, err
	}
	e, err := objects.Lookup(d.local, c.TreeHash, name)
	if errors.Is(err, fs.ErrNotExist) {
		return c, plumbing.ZeroHash, nil
	}
	return c, e.Hash, err
}
