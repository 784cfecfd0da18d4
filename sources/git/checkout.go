package git

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"gitopsd.dev/sources/git/objects"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/index"
)

// checkout is a work tree that has the branch of an update checked out. File and
// index are changed along with the branch, as git commit would leave them. Its
// index is locked. A nil checkout stands for "none has".
type checkout struct {
	root *os.Root
	lock *lockFile
	// indexTime is when the index was last written.
	indexTime time.Time
	index     *index.Index
	mode      os.FileMode // of the file
	sparse    bool        // the file is not in the work tree, on purpose
}

// lockCheckout finds the work tree that has u's branch checked out, if there is
// one, and locks its index. It fails if the file to be changed is not as in the
// commit there, in the index or in the work tree.
func (l *local) lockCheckout(u refUpdate) (*checkout, error) {
	gitDir, dir, err := l.checkedOut(u.ref)
	if err != nil || gitDir == "" {
		return nil, err
	}
	lock, err := lockPath(filepath.Join(gitDir, "index"))
	if err != nil {
		return nil, err
	}
	c := &checkout{lock: lock}
	if err := c.open(dir, u.file); err != nil {
		c.unlock()
		branch := strings.TrimPrefix(u.ref, headsPrefix)
		return nil, fmt.Errorf("the branch %s is checked out in %s, where %s cannot be updated along with it: %w", branch, dir, u.file.path, err)
	}
	return c, nil
}

// checkedOut returns the directory with HEAD and index, and the root, of the
// work tree that has ref checked out. Git allows one at most.
func (l *local) checkedOut(ref string) (gitDir, root string, err error) {
	if !l.bare && headIs(l.common, ref) {
		return l.common, l.workTree, nil
	}
	linked, err := os.ReadDir(filepath.Join(l.common, "worktrees"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", "", err
	}
	for _, e := range linked {
		gitDir := filepath.Join(l.common, "worktrees", e.Name())
		if !headIs(gitDir, ref) {
			continue
		}
		link, err := readSmallFile(filepath.Join(gitDir, "gitdir"))
		if err != nil {
			continue // being made or removed
		}
		root := filepath.Dir(resolvePath(gitDir, strings.TrimSpace(string(link))))
		if _, err := os.Stat(root); err == nil {
			return gitDir, root, nil
		}
	}
	return "", "", nil
}

func headIs(gitDir, ref string) bool {
	head, err := readSmallFile(filepath.Join(gitDir, "HEAD"))
	return err == nil && strings.TrimSpace(string(head)) == "ref: "+ref
}

// errUncommitted is the error for a file that somebody is working on.
func errUncommitted(what string) error {
	return fmt.Errorf("%s; commit or undo that, or let gitopsd use a bare repository", what)
}

func (c *checkout) open(dir string, file fileChange) error {
	if err := c.readIndex(); err != nil {
		return fmt.Errorf("its index: %w", err)
	}
	if err := c.checkIndex(file); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	c.root = root
	return c.checkFile(file)
}

func (c *checkout) readIndex() error {
	c.index = &index.Index{Version: 2}
	f, err := os.Open(c.lock.name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	c.indexTime = info.ModTime()
	return index.NewDecoder(f).Decode(c.index)
}

// checkIndex makes sure that the file in the index is as it was in the commit,
// or already what it becomes (a process was killed on the way).
func (c *checkout) checkIndex(file fileChange) error {
	seen := file.was == nil
	for _, e := range c.index.Entries {
		if e.Name != file.path {
			continue
		}
		if e.Stage != 0 {
			return errUncommitted("it is in the middle of a merge")
		}
		if e.IntentToAdd || !is(e.Hash, file.was) && !is(e.Hash, file.now) {
			return errUncommitted("a change of it is staged")
		}
		seen, c.sparse = true, e.SkipWorktree
	}
	if !seen {
		return errUncommitted("its removal is staged")
	}
	return nil
}

// is says that h is the name of content.
func is(h plumbing.Hash, content []byte) bool {
	return content != nil && plumbing.ComputeHash(plumbing.BlobObject, content) == h
}

// checkFile does the same for the file in the work tree.
func (c *checkout) checkFile(file fileChange) error {
	c.mode = 0o666
	if c.sparse {
		return nil
	}
	info, err := c.root.Lstat(filepath.FromSlash(file.path))
	switch {
	case errors.Is(err, fs.ErrNotExist) && file.was == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return errUncommitted("it was removed")
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errUncommitted("it is not a file")
	}
	c.mode = info.Mode().Perm()
	f, err := c.root.Open(filepath.FromSlash(file.path))
	if err != nil {
		return err
	}
	defer f.Close()
	have, err := io.ReadAll(io.LimitReader(f, objects.MaxFile+1))
	if err != nil {
		return err
	}
	if file.was != nil && bytes.Equal(have, file.was) || bytes.Equal(have, file.now) {
		return nil
	}
	return errUncommitted("it has changes that are not committed")
}

// update changes the file and then the index.
//
// The index loses its extensions, which are caches that git makes anew, and the
// marks of git update-index --assume-unchanged.
func (c *checkout) update(file fileChange) error {
	if c == nil {
		return nil
	}
	if !c.sparse {
		if err := c.writeFile(file); err != nil {
			return err
		}
	}
	e, err := c.index.Entry(file.path)
	if err != nil {
		e = c.index.Add(file.path)
		e.Mode = filemode.Regular
	}
	// Without the file's times and size, git compares contents at its next
	// command and fills them in.
	*e = index.Entry{Name: e.Name, Mode: e.Mode, SkipWorktree: e.SkipWorktree, Hash: plumbing.ComputeHash(plumbing.BlobObject, file.now)}
	for _, e := range c.index.Entries {
		// Git takes an entry for clean only if its file is older than the
		// index. Those that are not would look older than the new one.
		if !e.ModifiedAt.Before(c.indexTime) {
			e.Size = 0
		}
	}
	var buf bytes.Buffer
	if err := index.NewEncoder(&buf).Encode(c.index); err != nil {
		return err
	}
	if err := c.lock.write(buf.Bytes()); err != nil {
		return err
	}
	return c.lock.commit()
}

// writeFile replaces the file at once, keeping its mode.
func (c *checkout) writeFile(file fileChange) error {
	name := filepath.FromSlash(file.path)
	if dir := path.Dir(file.path); dir != "." {
		if err := c.root.MkdirAll(filepath.FromSlash(dir), 0o777); err != nil {
			return err
		}
	}
	tmp := name + ".gitopsd-tmp"
	f, err := c.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, c.mode)
	if err != nil {
		return err
	}
	_, err = f.Write(file.now)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = c.root.Rename(tmp, name)
	}
	if err != nil {
		c.root.Remove(tmp)
	}
	return err
}

func (c *checkout) unlock() {
	if c == nil {
		return
	}
	c.lock.unlock()
	if c.root != nil {
		c.root.Close()
	}
}
