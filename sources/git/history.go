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

// maxHistory bounds the commits that LastChange looks at.
const maxHistory = 100_000

// LastChange returns the last commit up to rev that changed a file, as `git log -1 rev --
// file` does. The name is relative to Path. It reports whether the commit was found: not
// if the file does not exist, or the commit was not fetched. It fails if rev does not name
// a commit, or objects cannot be read.
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

// fileAt returns a commit and the blob of a file in it, or the zero hash if there is no
// such file.
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
