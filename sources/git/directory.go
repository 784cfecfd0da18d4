package git

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git/objects"
	"gitopsd.dev/sources/git/wire"

	gogit "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/index"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// Directory reads the commits of a repository on this machine. It is safe for
// concurrent use.
type Directory struct {
	// Root is the root of the work tree, or the bare repository.
	Root string
	// Path is the opened directory relative to Root, with slashes; "." for Root
	// itself.
	Path string

	local *local
}

// OpenDir opens the repository that dir is in. The error is
// [ErrRepositoryNotFound] if there is none.
func OpenDir(dir string) (*Directory, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(abs); err != nil {
		return nil, err
	} else if !info.IsDir() {
		abs = filepath.Dir(abs)
	}
	for root := abs; ; root = filepath.Dir(root) {
		l, err := openLocal(root)
		if errors.Is(err, ErrRepositoryNotFound) {
			if root == filepath.Dir(root) {
				return nil, fmt.Errorf("%w: neither %s nor a directory above it is one", ErrRepositoryNotFound, abs)
			}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("git repository %s: %w", root, err)
		}
		rel, err := filepath.Rel(root, abs)
		if err != nil {
			return nil, err
		}
		return &Directory{Root: root, Path: filepath.ToSlash(rel), local: l}, nil
	}
}

// Close closes the files that are kept open. Commits must not be used
// afterwards.
func (d *Directory) Close() error { return d.local.close() }

// Commit returns the commit that rev names: a branch, a tag, a hash or its
// beginning, HEAD, or one of these with ~2, ^ and the like (gitrevisions(7)).
// It fails if there is no such commit in the repository.
func (d *Directory) Commit(rev string) (sources.Commit, error) {
	h, err := d.resolve(rev)
	if err == nil {
		var c sources.Commit
		if c, err = d.commit(h); err == nil {
			return c, nil
		}
	}
	switch missing := errors.Is(err, plumbing.ErrReferenceNotFound); {
	case (missing || errors.Is(err, plumbing.ErrObjectNotFound)) && d.shallow():
		err = errors.New("it is not in this clone, which is shallow: get the rest with git fetch --unshallow, or in CI with the setting for the depth of the clone")
	case missing:
		err = errors.New("there is no such branch, tag or commit here; it may have to be fetched first")
	}
	return sources.Commit{}, fmt.Errorf("git repository %s: revision %q: %w", d.Root, rev, err)
}

// shallow reports whether the repository lacks the older part of its history.
func (d *Directory) shallow() bool {
	d.local.mu.Lock()
	defer d.local.mu.Unlock()
	cut, err := d.local.storage.Shallow()
	return err == nil && len(cut) > 0
}

// Revisions returns HEAD and the names of branches, remote branches and tags, sorted. It
// fails if the refs cannot be read.
func (d *Directory) Revisions() ([]string, error) {
	d.local.mu.Lock()
	defer d.local.mu.Unlock()
	refs, err := d.local.storage.IterReferences()
	if err != nil {
		return nil, fmt.Errorf("git repository %s: its refs: %w", d.Root, err)
	}
	names := []string{"HEAD"}
	err = refs.ForEach(func(r *plumbing.Reference) error {
		if n := r.Name(); (n.IsBranch() || n.IsRemote() || n.IsTag()) && n.Short() != "" {
			names = append(names, n.Short())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("git repository %s: its refs: %w", d.Root, err)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Head returns the name of the branch that HEAD names, even if it has no commit yet; "" if HEAD
// is a commit. It fails if HEAD cannot be read.
func (d *Directory) Head() (branch string, err error) {
	d.local.mu.Lock()
	defer d.local.mu.Unlock()
	ref, err := d.local.storage.Reference(plumbing.HEAD)
	if err != nil {
		return "", fmt.Errorf("git repository %s: HEAD: %w", d.Root, err)
	}
	if ref.Type() != plumbing.SymbolicReference {
		return "", nil
	}
	return ref.Target().Short(), nil
}

// Uncommitted reports whether the work tree has changes that HEAD does not have, files that git
// does not know included. It asks git, and fails if git does, as in a bare repository.
func (d *Directory) Uncommitted(ctx context.Context) (bool, error) {
	return wire.Uncommitted(ctx, d.Root)
}

// Sparse reports whether the work tree may lack files of HEAD (git-sparse-checkout(1)). It asks
// git, and fails if git does.
func (d *Directory) Sparse(ctx context.Context) (bool, error) { return wire.Sparse(ctx, d.Root) }

// Ignored returns the files and directories below Path that Git ignores, relative to it; none
// if Git ignores Path itself. It asks git, and fails if git does.
func (d *Directory) Ignored(ctx context.Context) ([]string, error) {
	// Below an ignored directory git ls-files fails, so it is run at the root.
	all, err := wire.Ignored(ctx, d.Root)
	if err != nil || d.Path == "." {
		return all, err
	}
	var below []string
	for _, name := range all {
		if name == d.Path || strings.HasPrefix(d.Path, name+"/") {
			return nil, nil
		}
		if rest, ok := strings.CutPrefix(name, d.Path+"/"); ok {
			below = append(below, rest)
		}
	}
	return below, nil
}

// WouldIgnore returns those of the names, relative to Path, that Git ignores, or would if there
// were such files; none if Git ignores Path itself. It asks git, and fails if git does.
func (d *Directory) WouldIgnore(ctx context.Context, names ...string) ([]string, error) {
	all := []string{d.Path}
	if d.Path == "." {
		all = nil // git does not take it
	}
	for _, name := range names {
		all = append(all, path.Join(d.Path, name))
	}
	all, err := wire.WouldIgnore(ctx, d.Root, all)
	if err != nil || slices.Contains(all, d.Path) {
		return nil, err
	}
	for i, name := range all {
		all[i] = strings.TrimPrefix(name, d.Path+"/")
	}
	return all, nil
}

// Stages returns the versions of a file with a merge conflict: the common ancestor's,
// ours and theirs. A version that does not exist is nil; without a conflict all are. It
// fails if the index or a version cannot be read.
func (d *Directory) Stages(name string) (base, ours, theirs []byte, err error) {
	d.local.mu.Lock()
	files, err := d.local.storage.Index()
	d.local.mu.Unlock()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("git repository %s: its index: %w", d.Root, err)
	}
	for _, e := range files.Entries {
		into := map[index.Stage]*[]byte{index.AncestorMode: &base, index.OurMode: &ours, index.TheirMode: &theirs}[e.Stage]
		if e.Name != name || into == nil {
			continue
		}
		if *into, err = d.local.Read(plumbing.BlobObject, e.Hash); err != nil {
			return nil, nil, nil, fmt.Errorf("git repository %s: %s: %w", d.Root, name, err)
		}
	}
	return base, ours, theirs, nil
}

func (d *Directory) commit(h plumbing.Hash) (sources.Commit, error) {
	c, err := objects.ReadCommit(d.local, h)
	if err != nil {
		return sources.Commit{}, err
	}
	return objects.NewCommit(d.local, c), nil
}

// withoutConfig hides extensions from go-git, which accepts fewer than openLocal.
type withoutConfig struct{ *filesystem.Storage }

func (withoutConfig) Config() (*config.Config, error) { return config.NewConfig(), nil }

func (d *Directory) resolve(rev string) (plumbing.Hash, error) {
	return fresh(d.local, func() (h plumbing.Hash, err error) {
		defer func() {
			if p := recover(); p != nil { // go-git's, on revisions like ^ alone
				err = errors.New("it is not a revision that is understood here")
			}
		}()
		d.local.storage.Reindex()
		repo, err := gogit.Open(withoutConfig{d.local.storage}, nil)
		if err != nil {
			return h, err
		}
		found, err := repo.ResolveRevision(plumbing.Revision(rev))
		if err != nil {
			return h, err
		}
		return *found, nil
	})
}
