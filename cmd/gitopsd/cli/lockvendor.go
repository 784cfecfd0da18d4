package cli

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git"
	"gitopsd.dev/sources/local"
	"gitopsd.dev/sources/oci"
	"gitopsd.dev/sources/resolve"
)

func newLockVendor(g *global) *cobra.Command {
	var o fleetOptions
	cmd := &cobra.Command{
		Use:   "vendor DIRECTORY",
		Short: "Copy the locked packages into a directory of the fleet repository",
		Long: `Vendor writes the packages that clusters.lock selects into a directory of the fleet
repository, as an OCI image layout: indexes, manifests, the layers with package.yaml,
and the signatures that policies ask for. Images of controllers are left out; nodes pull
them. Nothing else may be in the directory. Packages that the lock no longer selects are
removed from it.

Commit the directory. Commands with --vendor=DIRECTORY then ask no registry. They read
everything by the digest in the lock, hash it, and verify signatures as always. A tag
that is not in the lock is an error: run ` + "`gitopsd lock`" + ` and vendor again where
registries can be reached.

The lock must have everything that the declarations ask for; otherwise nothing is
written. Old files stay in the directory until all new ones are there.`,
		Example: `  gitopsd lock vendor vendor/packages
  gitopsd plan --vendor vendor/packages
  gitopsd lock --check --vendor vendor/packages`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, args []string) error { return runLockVendor(cmd, g, &o, args[0]) },
	}
	o.registerOnline(cmd)
	return cmd
}

func runLockVendor(cmd *cobra.Command, g *global, o *fleetOptions, dir string) error {
	dir, err := vendorDir(dir)
	if err != nil {
		return err
	}
	tree, err := o.tree.open(cmd.Context())
	if err != nil {
		return err
	}
	defer tree.Close()
	log := g.log(false)
	client, err := o.registry.client(log)
	if err != nil {
		return err
	}
	recorder := oci.NewRecorder()
	secrets := o.registry.secrets()
	// With a directory for evidence, evidence in it would not be read from the registry.
	cfg := o.registry.packagesAt(log, secrets, "", func(from sources.Origin) oci.Reader {
		return recorder.Reader(clientAt(client, secrets, from))
	})
	state, err := o.readLocked(cmd, cfg, tree)
	if err != nil {
		return err
	}
	if state.LockChanged() {
		return fmt.Errorf("%s is not what the declarations ask for; run `gitopsd lock` first", sources.LockFile)
	}
	files, err := recorder.Files(cmd.Context(), git.MaxFile)
	if err != nil {
		return err
	}
	var names, paths []string
	content := make(map[string]func(context.Context) ([]byte, error))
	for _, f := range files {
		names, content[f.Name] = append(names, f.Name), f.Content
		paths = append(paths, path.Join(dir, f.Name))
	}
	if err := committable(cmd.Context(), tree.root, paths...); err != nil {
		return err
	}
	changed, err := local.SyncDir(tree.root, dir, names, func(name string) ([]byte, error) { return content[name](cmd.Context()) }, oci.Owned)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s, %d changed\n", filepath.Join(tree.root, filepath.FromSlash(dir)), prose.Count(len(files), "file"), changed)
	return o.verifyVendored(cmd, tree, dir, log)
}

// readLocked reads the packages of a working tree by its lock.
func (o *fleetOptions) readLocked(cmd *cobra.Command, cfg resolve.Config, tree *workingTree) (*desired.State, error) {
	cfg.Mode = resolve.Readonly
	all := desired.Config{Resolve: cfg}
	if err := o.registry.allowRemote(&all); err != nil {
		return nil, err
	}
	state, err := compute(cmd.Context(), cmd, desired.New(all), tree.commit)
	if err != nil {
		return nil, err
	}
	return state, state.Err()
}

// verifyVendored reads all packages again, from the directory.
func (o *fleetOptions) verifyVendored(cmd *cobra.Command, tree *workingTree, dir string, log *slog.Logger) error {
	layout := oci.OpenLayout(tree.commit.Files, dir)
	cfg := o.registry.packagesAt(log, o.registry.secrets(), "", func(sources.Origin) oci.Reader { return layout })
	if _, err := o.readLocked(cmd, cfg, tree); err != nil {
		return fmt.Errorf("%s was written, but is not complete: %w", dir, err)
	}
	return nil
}

// vendorDir checks the name of a directory in the fleet repository.
func vendorDir(name string) (string, error) {
	dir := path.Clean(filepath.ToSlash(name))
	if !fs.ValidPath(dir) || dir == "." || strings.Contains(dir, `\`) {
		return "", fmt.Errorf("%s: name a directory below the root of the fleet repository, from there", name)
	}
	if first, _, _ := strings.Cut(dir, "/"); strings.EqualFold(first, ".git") {
		return "", fmt.Errorf("%s: that is Git's own; name a directory whose files are committed", name)
	}
	return dir, nil
}
