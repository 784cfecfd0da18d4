package cli

import (
	"cmp"
	"context"
	"io/fs"
	"log/slog"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/git"
	"gitopsd.dev/sources/local"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/resolve"
)

// Completion asks no registry and no cluster: names come from the working tree and its lock,
// from packages in the cache, and from the user's kubeconfig. Files that cannot be read are
// skipped. So are names that mean something else to a shell, since whoever can push to the
// repository chooses some of them.

// completion is cobra's type of a function that completes an argument or a flag.
type completion = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective)

// completeNothing completes arguments that are neither files nor known words.
func completeNothing(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// complete returns a completion by names, without those that are given already.
func complete(names func() []string) completion {
	return func(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		return beginning(begun, names(), args), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFirst returns a completion for only the first argument.
func completeFirst(c completion) completion {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return completeNothing(cmd, args, begun)
		}
		return c(cmd, args, begun)
	}
}

// orFiles returns a completion by c, or by files where c finds nothing.
func orFiles(c completion) completion {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		found, directive := c(cmd, args, begun)
		return found, directive &^ cobra.ShellCompDirectiveNoFileComp
	}
}

// plainName matches a name that needs no quotes in any shell.
var plainName = regexp.MustCompile(`^[\pL\pN_./:@%+,][\pL\pN_./:@%+,=-]*$`)

// beginning returns the plain names that begin with begun, without those in given.
func beginning(begun string, names, given []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return !strings.HasPrefix(name, begun) || slices.Contains(given, name) || !plainName.MatchString(name)
	})
}

// completeFlag sets the completion of a flag.
func completeFlag(cmd *cobra.Command, flag string, c completion) {
	_ = cmd.RegisterFlagCompletionFunc(flag, c) // an error means that the flag does not exist
}

// openForCompletion opens the working tree, nil if there is none. It does not wait for git, so
// that the tree has files that Git ignores.
func (o *treeOptions) openForCompletion() *workingTree {
	root, err := local.FindRoot(cmp.Or(o.repo, "."))
	if err != nil {
		return nil
	}
	tree, err := local.Open(root, nil)
	if err != nil {
		return nil
	}
	return &workingTree{root: root, commit: tree.Commit(), tree: tree}
}

// registered returns the names of the registered clusters, none if there is no working tree or
// no registry. With an error they are those whose documents have none.
func (o *treeOptions) registered() ([]string, error) {
	tree := o.openForCompletion()
	if tree == nil {
		return nil, nil
	}
	defer tree.Close()
	text, err := fs.ReadFile(tree.commit.Files, sources.RegistryFile)
	if err != nil {
		return nil, nil
	}
	registry, err := clusters.Parse(sources.RegistryFile, text)
	var names []string
	for _, c := range registry.Clusters {
		names = append(names, c.Name)
	}
	return names, err
}

// completeRegistered completes the names of registered clusters.
func completeRegistered(o *treeOptions) completion {
	return complete(func() []string {
		names, _ := o.registered()
		return names
	})
}

// completePackages completes the packages in the lock: by the last part of the repository, or
// by the whole repository where two end alike or the user has begun it.
func completePackages(o *treeOptions) completion {
	return func(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		tree := o.openForCompletion()
		if tree == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer tree.Close()
		return beginning(begun, lockedPackages(tree.commit.Files, begun), args), cobra.ShellCompDirectiveNoFileComp
	}
}

func lockedPackages(files fs.FS, begun string) []string {
	text, err := fs.ReadFile(files, sources.LockFile)
	if err != nil {
		return nil
	}
	lock, _, err := lockfile.Mend(sources.LockFile, text)
	if err != nil {
		return nil
	}
	short := make(map[string][]string)
	for _, selections := range lock.AllSelections() {
		for _, s := range selections {
			name := path.Base(s.Repository)
			if !slices.Contains(short[name], s.Repository) {
				short[name] = append(short[name], s.Repository)
			}
		}
	}
	names := make(map[string]bool)
	for name, repositories := range short {
		if len(repositories) == 1 {
			names[name] = true
		}
		for _, r := range repositories {
			if len(repositories) > 1 || begun != "" && strings.HasPrefix(r, begun) {
				names[r] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// objectPatience bounds the time for rendering objects to complete their names.
const objectPatience = 5 * time.Second

// completeObjects completes the objects of registered clusters, from packages in the cache:
// first the kind, then the rest after the slash.
func completeObjects(o *treeOptions, registry *registryOptions) completion {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		kind, _, named := strings.Cut(begun, "/")
		found := make(map[string]bool)
		for _, id := range objectsHere(cmd.Context(), o, *registry) {
			of, _, _ := strings.Cut(id, "/")
			switch {
			case named && of == kind:
				found[id] = true
			case !named:
				found[of+"/"] = true
			}
		}
		directive := cobra.ShellCompDirectiveNoFileComp
		if !named && len(found) > 0 {
			directive |= cobra.ShellCompDirectiveNoSpace // the name follows
		}
		return beginning(begun, slices.Sorted(maps.Keys(found)), args), directive
	}
}

// objectsHere returns the objects that can be rendered without a registry.
func objectsHere(ctx context.Context, o *treeOptions, registry registryOptions) []string {
	tree := o.openForCompletion()
	if tree == nil {
		return nil
	}
	defer tree.Close()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, objectPatience)
	defer cancel()
	registry.offline, registry.remoteBases = true, nil
	computer, err := registry.computer(slog.New(slog.DiscardHandler), resolve.Readonly, nil, nil)
	if err != nil {
		return nil
	}
	state, err := computer.Compute(ctx, tree.commit, desired.Earlier{})
	if err != nil {
		return nil
	}
	var names []string
	for _, c := range state.Clusters {
		if c.Objects == nil {
			continue
		}
		for _, object := range c.Objects.All() {
			names = append(names, object.ID().String())
		}
	}
	return names
}

// completeWhy completes objects and packages.
func completeWhy(o *fleetOptions) completion {
	packages, objects := completePackages(&o.tree), completeObjects(&o.tree, &o.registry)
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		some, directive := objects(cmd, args, begun)
		more, _ := packages(cmd, args, begun)
		if len(more) > 0 && len(some) == 0 {
			directive = cobra.ShellCompDirectiveNoFileComp
		}
		return append(some, more...), directive
	}
}

// completeContexts completes the contexts of the user's kubeconfig.
func completeContexts(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	contexts, _ := kube.Contexts()
	return beginning(begun, contexts, args), cobra.ShellCompDirectiveNoFileComp
}

// completePairs completes cluster=context, or with alone also a context alone.
func completePairs(registered completion, alone bool) completion {
	return func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		contexts, _ := kube.Contexts()
		if cluster, _, pair := strings.Cut(begun, "="); pair {
			for i := range contexts {
				contexts[i] = cluster + "=" + contexts[i]
			}
			return beginning(begun, contexts, nil), cobra.ShellCompDirectiveNoFileComp
		}
		names, directive := registered(cmd, nil, "")
		for i := range names {
			names[i] += "="
		}
		if alone {
			names = append(names, contexts...)
		}
		names = beginning(begun, names, nil)
		if !slices.ContainsFunc(names, func(name string) bool { return !strings.HasSuffix(name, "=") }) {
			directive |= cobra.ShellCompDirectiveNoSpace // the context follows
		}
		return names, directive
	}
}

// completeRevisions completes the branches and tags of the working tree's repository.
func completeRevisions(o *treeOptions) completion {
	return complete(func() []string {
		dir, err := git.OpenDir(cmp.Or(o.repo, "."))
		if err != nil {
			return nil
		}
		defer dir.Close()
		names, _ := dir.Revisions()
		return names
	})
}
