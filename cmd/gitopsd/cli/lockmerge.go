package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

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
markers, and the exit status is 1. Lines about conversion rules
need no decision: the next gitopsd lock writes the digest of the merged rules.

Configure it once for the repository:

    echo 'clusters.lock merge=gitopsd' >> .gitattributes

and in each clone; in others Git merges the lock like any other text:

    git config merge.gitopsd.driver 'gitopsd lock merge %O %A %B'`,
		Example:           `  gitopsd lock merge %O %A %B`,
		Args:              cobra.ExactArgs(3),
		ValidArgsFunction: completeNothing,
		RunE: func(_ *cobra.Command, args []string) error {
			var locks [3]*lockfile.File
			for i, name := range args {
				text, err := os.ReadFile(name)
				if err != nil {
					return err
				}
				// If there are several ancestors, Git merges these first, and BASE may
				// have conflicts.
				if locks[i], _, err = lockfile.Mend(name, text); err != nil {
					return err
				}
			}
			merged := lockfile.Merge(locks[0], locks[1], locks[2])
			if err := replaceFile(args[1], merged.FormatConflicts(locks[1], locks[2])); err != nil {
				return err
			}
			return errors.Join(merged.Contradictions()...)
		},
	}
}

// mendLock reads the lock of a working tree. If it has conflict markers and Git still has
// both sides, it merges these by their ancestor.
func mendLock(tree *workingTree) (lock *lockfile.File, mended bool, err error) {
	text, err := fs.ReadFile(tree.commit.Files, sources.LockFile)
	if errors.Is(err, fs.ErrNotExist) {
		return new(lockfile.File), false, nil
	} else if err != nil {
		return nil, false, err
	}
	lock, mended, err = lockfile.Mend(sources.LockFile, text)
	if err != nil || !mended {
		return lock, mended, err
	}
	repo, err := git.OpenDir(tree.root)
	if errors.Is(err, git.ErrRepositoryNotFound) {
		return lock, true, nil
	} else if err != nil {
		return nil, true, err
	}
	defer repo.Close()
	base, ours, theirs, err := repo.Stages(path.Join(repo.Path, sources.LockFile))
	if err != nil || ours == nil || theirs == nil {
		return lock, true, err
	}
	var stages [3]*lockfile.File
	for i, text := range [][]byte{base, ours, theirs} {
		if stages[i], _, err = lockfile.Mend(fmt.Sprintf("%s (stage %d)", sources.LockFile, i+1), text); err != nil {
			return nil, true, err
		}
	}
	return lockfile.Merge(stages[0], stages[1], stages[2]), true, nil
}
