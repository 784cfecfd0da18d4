package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/spf13/cobra"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git"
	"gitopsd.dev/sources/lockfile"
)

func newLockMerge() *cobra.Command {
	return &cobra.Command{
		Use:   "merge BASE OURS THEIRS",
		Short: "Merge three versions of clusters.lock, for git merge",
		Long: `Merge is a merge driver for Git. It merges two versions of clusters.lock that
come from BASE, and writes the result to OURS. The result has the changes of both sides.
If both changed the same line differently, both lines are kept between conflict
markers, and the exit status is 1. So are both files if a line in one of the three cannot
be read. Lines about conversion rules need no decision: the next gitopsd lock writes the
digest of the merged rules.

Configure it once for the repository:

    echo 'clusters.lock merge=gitopsd' >> .gitattributes

and in each clone; in others Git merges the lock like any other text:

    git config merge.gitopsd.driver 'gitopsd lock merge %O %A %B'`,
		Example:           `  gitopsd lock merge %O %A %B`,
		Args:              cobra.ExactArgs(3),
		ValidArgsFunction: completeNothing,
		RunE: func(_ *cobra.Command, args []string) error {
			var locks [3]*lockfile.File
			var texts [3][]byte
			var unread error
			for i, name := range args {
				var err error
				if texts[i], err = os.ReadFile(name); err != nil {
					return err
				}
				// If there are several ancestors, Git merges these first, and BASE may
				// have conflicts.
				if locks[i], _, err = lockfile.Mend(name, texts[i]); err != nil {
					unread = errors.Join(unread, err)
				}
			}
			if unread != nil {
				// Git takes OURS for the result if a driver fails, so it must have THEIRS too.
				both := slices.Concat([]byte("<<<<<<< ours\n"), texts[1], []byte("=======\n"), texts[2], []byte(">>>>>>> theirs\n"))
				if err := replaceFile(args[1], both); err != nil {
					return err
				}
				return fmt.Errorf("%w\nBoth sides are now between conflict markers in %s. Run `gitopsd lock`, which names the lines to mend there", unread, sources.LockFile)
			}
			merged := lockfile.Merge(locks[0], locks[1], locks[2])
			if err := replaceFile(args[1], merged.FormatConflicts(locks[1], locks[2])); err != nil {
				return err
			}
			return errors.Join(merged.Contradictions()...)
		},
	}
}

// mendLock reads the lock of a working tree. If Git has both sides of an unmerged lock, it
// merges these by their ancestor, unless the file has been edited since. Notes that a
// person should read go to stderr.
func mendLock(tree *workingTree, stderr io.Writer) (lock *lockfile.File, mended bool, err error) {
	text, err := fs.ReadFile(tree.commit.Files, sources.LockFile)
	if errors.Is(err, fs.ErrNotExist) {
		return new(lockfile.File), false, nil
	} else if err != nil {
		return nil, false, err
	}
	lock, marked, err := lockfile.Mend(sources.LockFile, text)
	if err != nil {
		return nil, marked, err
	}
	base, ours, theirs, err := unmerged(tree.root)
	switch {
	case err != nil && marked:
		return nil, true, err
	case err != nil || ours == nil || theirs == nil:
		return lock, marked, nil // an index that cannot be read matters only to a conflict
	case !marked && !bytes.Equal(text, ours): // edited; if not, a merge driver did not run
		return lock, false, nil
	}
	var stages [3]*lockfile.File
	for i, text := range [][]byte{base, ours, theirs} {
		if stages[i], _, err = lockfile.Mend(fmt.Sprintf("%s (stage %d)", sources.LockFile, i+1), text); err == nil {
			continue
		}
		if marked {
			return lock, true, nil // the file has the lines of both sides, and a person mended them
		}
		return nil, true, fmt.Errorf("%w\nGit has not merged %s, and the file has the lines of one side. Add those of `git show :3:%s` that you want, and run `git add %s`", err, sources.LockFile, sources.LockFile, sources.LockFile)
	}
	merged := lockfile.Merge(stages[0], stages[1], stages[2])
	if marked {
		return merged, true, nil
	}
	if bytes.Equal(merged.Format(), lock.Format()) {
		return lock, false, nil
	}
	fmt.Fprintf(stderr, "Note: Git has not merged %s, and the file has the lines of one side; those of the other are merged now. If the file is as you want it, run `git add %s` first.\n", sources.LockFile, sources.LockFile)
	return merged, true, nil
}

// unmerged returns the three versions of the lock below root that Git has not merged, as
// [git.Directory.Stages] does, and none outside of a repository.
func unmerged(root string) (base, ours, theirs []byte, err error) {
	repo, err := git.OpenDir(root)
	if errors.Is(err, git.ErrRepositoryNotFound) {
		return nil, nil, nil, nil
	} else if err != nil {
		return nil, nil, nil, err
	}
	defer repo.Close()
	return repo.Stages(path.Join(repo.Path, sources.LockFile))
}
