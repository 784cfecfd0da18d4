package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git"
	"gitopsd.dev/sources/local"
	"gitopsd.dev/sources/resolve"
)

// fleetOptions are the flags of commands that compute the desired state of a fleet
// repository on this machine.
type fleetOptions struct {
	tree     treeOptions
	registry registryOptions
}

func (o *fleetOptions) register(cmd *cobra.Command) {
	o.tree.register(cmd)
	o.registry.register(cmd)
}

// registerOnline adds the flags of commands that need registries.
func (o *fleetOptions) registerOnline(cmd *cobra.Command) {
	o.tree.register(cmd)
	o.registry.registerOnline(cmd)
}

// fleet is a working tree and its desired state, valid until closed.
type fleet struct {
	*workingTree
	*desired.State
}

// open computes the desired state of the working tree, for the named clusters or else for
// all. Versions that the lock lacks are resolved, but not written.
func (o *fleetOptions) open(cmd *cobra.Command, g *global, only ...string) (*fleet, error) {
	tree, err := o.tree.open(cmd.Context())
	if err != nil {
		return nil, err
	}
	computer, err := o.registry.computer(g.log(false), resolve.Add, nil, only)
	if err != nil {
		return nil, errors.Join(err, tree.Close())
	}
	state, err := compute(cmd.Context(), cmd, computer, tree.commit)
	if err != nil {
		return nil, errors.Join(err, tree.Close())
	}
	return &fleet{tree, state}, nil
}

// compute computes the desired state of a commit, and shows progress.
func compute(ctx context.Context, cmd *cobra.Command, c *desired.Computer, commit sources.Commit) (*desired.State, error) {
	defer rendering(cmd, commit).stop()
	return c.Compute(ctx, commit, desired.Earlier{})
}

// rendering shows that a commit is computed.
func rendering(cmd *cobra.Command, commit sources.Commit) *progress {
	p := startProgress(cmd.ErrOrStderr())
	p.step("resolving and rendering %s", commit.Subject)
	return p
}

// treeOptions are the flags of commands that work on a fleet repository on this
// machine.
type treeOptions struct {
	repo string
}

func (o *treeOptions) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.repo, "repo", ".", "directory of the fleet repository, or one below it")
	_ = cmd.MarkFlagDirname("repo") // an error means that the flag does not exist
	annotate(cmd.Flags(), "repo", directory)
}

// registerClusters adds the flag that names registered clusters; all is its default.
func (o *treeOptions) registerClusters(cmd *cobra.Command, names *[]string, all string) {
	cmd.Flags().StringSliceVar(names, "cluster", nil, "name of a registered cluster; may be given more than once (default: "+all+")")
	o.namesClusters(cmd)
}

// namesClusters completes the flag --cluster, and has it refuse empty names.
func (o *treeOptions) namesClusters(cmd *cobra.Command) {
	f := cmd.Flags().Lookup("cluster")
	f.Value, f.DefValue = clusterValue{f.Value}, ""
	annotate(cmd.Flags(), "cluster", emptyCounts)
	completeFlag(cmd, "cluster", completeRegistered(o))
}

// root returns the directory that holds clusters.yaml.
func (o *treeOptions) root() (string, error) {
	if git.IsAddress(o.repo) {
		return "", fmt.Errorf("--repo %s: this command works on a directory; clone the repository first", git.Shown(o.repo))
	}
	root, err := local.FindRoot(o.repo)
	if err != nil {
		return "", fmt.Errorf("--repo: %w", err)
	}
	return root, nil
}

// belowRoot returns a note if the fleet with this root is in a directory of a Git repository; else
// "". It can be planned, and may be copied to a repository of its own, but run reads the root of a
// repository.
func belowRoot(root string) string {
	repo, err := git.OpenDir(root)
	if err != nil {
		return "" // not in Git, or not yet
	}
	defer repo.Close()
	if repo.Path == "." {
		return ""
	}
	return fmt.Sprintf("%s is in %s, and `gitopsd run` finds it only at the root of a Git repository: move the fleet there, or give it a repository of its own", sources.RegistryFile, repo.Path)
}

// ignored returns the files and directories below root that Git ignores; none outside of a
// repository. Without git they are not known, and the note says so.
func ignored(ctx context.Context, root string) (names []string, note string) {
	repo, err := git.OpenDir(root)
	if err != nil {
		return nil, "" // not in Git
	}
	defer repo.Close()
	if names, err = repo.Ignored(ctx); err != nil {
		return nil, fmt.Sprintf("files that Git ignores are read here, although `gitopsd run` works without them: git could not list them (%v)", err)
	}
	return names, ""
}

// committable returns an error if Git would ignore one of the files below root that a command is
// about to write: they could not be committed, and the next command would not see them. Without git
// that is not known; see [ignored].
func committable(ctx context.Context, root string, names ...string) error {
	repo, err := git.OpenDir(root)
	if err != nil {
		return nil // not in Git
	}
	defer repo.Close()
	if all, _ := repo.WouldIgnore(ctx, names...); len(all) > 0 {
		return fmt.Errorf("%s: Git would ignore this file, so that it could not be committed; nothing was written. `git check-ignore -v %[1]s` shows the pattern: change that", all[0])
	}
	return nil
}

// withoutFiles returns a note if the checkout of a fleet with this root is sparse; else "".
func withoutFiles(ctx context.Context, root string) string {
	repo, err := git.OpenDir(root)
	if err != nil {
		return "" // not in Git
	}
	defer repo.Close()
	if sparse, _ := repo.Sparse(ctx); !sparse {
		return ""
	}
	return "the checkout is sparse, so files that the fleet needs may be missing here: `git sparse-checkout disable` brings them back"
}

// workingTree is the directory of a fleet repository, valid until closed.
type workingTree struct {
	// root is the directory that holds clusters.yaml.
	root string
	// commit is the tree as a commit, without a hash.
	commit sources.Commit
	// note says why the tree may have files that no commit has; else "".
	note string
	tree *local.Tree
}

// Close closes the directory.
func (w *workingTree) Close() error { return w.tree.Close() }

// open opens the working tree.
func (o *treeOptions) open(ctx context.Context) (*workingTree, error) {
	root, err := o.root()
	if err != nil {
		return nil, err
	}
	return openTree(ctx, root)
}

func openTree(ctx context.Context, root string) (*workingTree, error) {
	names, note := ignored(ctx, root)
	t, err := local.Open(root, names)
	if err != nil {
		return nil, err
	}
	return &workingTree{root: root, commit: t.Commit(), note: note, tree: t}, nil
}

// commitOf reads a revision of the repository that contains root. The commit has the files
// below root, and is valid until the directory is closed.
func commitOf(root, revision string) (sources.Commit, *git.Directory, error) {
	repo, err := git.OpenDir(root)
	if err != nil {
		return sources.Commit{}, nil, err
	}
	commit, err := repo.Commit(revision)
	if err == nil && repo.Path != "." {
		commit.Files, err = fs.Sub(commit.Files, repo.Path)
	}
	if err != nil {
		return sources.Commit{}, nil, errors.Join(err, repo.Close())
	}
	return commit, repo, nil
}

// registerTakeOver adds the flag that names fleets to take over from.
func registerTakeOver(cmd *cobra.Command, fleets *[]string) {
	cmd.Flags().StringSliceVar(fleets, "take-over-from", nil, "fleet to take clusters over from, by the name in the error that refuses them; for a repository or branch that has moved. May be given more than once")
}

// fleetOf returns a fleet that accepts the inventories of every fleet that a working tree may
// belong to: its own repository or a remote's, on any branch. Without a repository or
// remotes, as in an unpacked archive, it accepts all.
func fleetOf(ctx context.Context, root string, takeOver []string) apply.Fleet {
	all := apply.Fleet{Accepts: func(string) bool { return true }}
	repo, err := git.OpenDir(root)
	if err != nil {
		return all
	}
	defer repo.Close()
	trees, remotes, err := repo.Names(ctx)
	if err != nil || len(remotes) == 0 {
		return all
	}
	names := slices.Concat(trees, remotes)
	return apply.Fleet{
		Accepts: func(name string) bool {
			return slices.Contains(takeOver, name) || git.SameRepository(name, names)
		},
		Compared: "this repository's remotes, " + strings.Join(remotes, ", "),
	}
}
