package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/upgrade"
	"gitopsd.dev/render/edit"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/local"
)

func newBump(g *global) *cobra.Command {
	var (
		o          fleetOptions
		clusters   []string
		prerelease bool
		out        bumpOutput
		all        bool
	)
	cmd := &cobra.Command{
		Use:   "bump PACKAGE[@VERSION] | --all",
		Short: "Move the declarations of a package to another version, and lock it",
		Long: `Bump changes the version of a package in the working tree, in the file and line
that kustomize takes it from: a declaration, a base, a component or a patch.
Nothing else in the files changes. Then it updates clusters.lock as ` + "`gitopsd lock`" + `
does, and prints what the new version changes in the package's types, with the
annotation that allows a breaking change.

PACKAGE is a repository, its last part, or the name of a declaration. VERSION is
a tag, a digest, tag@digest, a range ("^1.2") or latest; the default is the newest
of the same major version. The default, a range and latest respect the
constraints of other packages in the cluster. A declaration by tag stays one by
tag; a digest in it is renewed.

With --all every declared package goes to the newest version of its major version. A
package that cannot be moved is an error, and the others are moved all the same.
Clusters and declarations that cannot be read are left out, with a note.

With --cluster only the named clusters are moved. A file that other clusters use
too is then an error, and so is another digest for a tag that they have. The
result is rendered and resolved before anything is written. If a run is
interrupted while writing, the next completes it. With --dry-run nothing is
written.`,
		Example: `  gitopsd bump provider-helm
  gitopsd bump provider-helm@v0.20.0 --cluster dev
  gitopsd bump --all --dry-run
  gitopsd bump xpkg.crossplane.io/crossplane-contrib/provider-helm@latest`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case all && len(args) > 0:
				return errors.New("--all moves every package: leave it out, or the name of the package")
			case !all && (len(args) != 1 || args[0] == "" || args[0][0] == '@'):
				return errors.New("name one package: gitopsd bump PACKAGE[@VERSION]; `gitopsd outdated` lists those with newer versions, and --all moves them")
			}
			return nil
		},
		ValidArgsFunction: completeFirst(completePackages(&o.tree)),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := upgrade.Request{Clusters: clusters}
			if all {
				return runBump(cmd, g, &o, req, prerelease, out)
			}
			var named bool
			if req.Package, req.Version, named = strings.Cut(args[0], "@"); named && req.Version == "" {
				return fmt.Errorf("%s: no version after the @; leave it out for the newest of the same major version", args[0])
			}
			if i := strings.LastIndexByte(req.Package, ':'); i > strings.LastIndexByte(req.Package, '/') {
				return fmt.Errorf("%s: a version comes after an @: write gitopsd bump %s@%s", args[0], req.Package[:i], args[0][i+1:])
			}
			return runBump(cmd, g, &o, req, prerelease, out)
		},
	}
	o.registerOnline(cmd)
	f := cmd.Flags()
	o.tree.registerClusters(cmd, &clusters, "all that declare the package")
	f.BoolVar(&prerelease, "prerelease", false, "count pre-releases as newer versions")
	f.BoolVar(&all, "all", false, "move every declared package to the newest version of its major version")
	annotate(f, "all", noVariable) // elsewhere it shows more
	f.BoolVar(&out.dryRun, "dry-run", false, "show what would be written, and write nothing")
	f.BoolVar(&out.details, "details", false, "show what changes in each type, not only what breaks")
	return cmd
}

// bumpOutput are the flags for the result of a bump.
type bumpOutput struct {
	// dryRun shows the bump without writing it.
	dryRun bool
	// details shows all changes of types, not only those that break.
	details bool
}

// runBump moves the package of a request, or all if it names none.
func runBump(cmd *cobra.Command, g *global, o *fleetOptions, req upgrade.Request, prerelease bool, out bumpOutput) error {
	tree, err := o.tree.open(cmd.Context())
	if err != nil {
		return err
	}
	defer tree.Close()
	o.registry.approve = true
	upgrader, err := o.registry.upgrader(g, nil, prerelease)
	if err != nil {
		return err
	}
	p := startProgress(cmd.ErrOrStderr())
	defer p.stop()
	p.step("resolving %s", cmp.Or(req.Package, "all packages"))
	commit, seen := tree.commit, edit.NewSnapshot(tree.commit.Files)
	commit.Files = seen
	b, err := bump(cmd.Context(), upgrader, commit, req)
	p.stop()
	if b == nil {
		return err
	}
	if !out.dryRun {
		if err := committable(cmd.Context(), tree.root, sources.LockFile); err != nil {
			return err
		}
		if err := writeBump(tree.root, seen, b); err != nil {
			return err
		}
	}
	printBump(cmd.OutOrStdout(), b, out.details)
	if err == nil && b.Nothing() {
		fmt.Fprintln(cmd.OutOrStdout(), "every declared package is the newest of its major version")
	}
	if out.dryRun {
		fmt.Fprintln(cmd.ErrOrStderr(), "nothing was written (--dry-run)")
	}
	return err
}

// bump computes a bump. With --all it may return both a bump and an error.
func bump(ctx context.Context, u *upgrade.Upgrader, commit sources.Commit, req upgrade.Request) (*upgrade.Bump, error) {
	if req.Package == "" {
		return u.BumpAll(ctx, commit, req.Clusters)
	}
	return u.Bump(ctx, commit, req)
}

// writeBump writes the declarations, then the lock. If it is interrupted in between, the next
// run changes the other declarations, and has the same result. It writes nothing if a file is
// not as the bump has seen it: another bump or a person may have changed it meanwhile.
func writeBump(root string, seen *edit.Snapshot, b *upgrade.Bump) error {
	names := slices.Sorted(maps.Keys(b.Files))
	if err := asSeen(seen, append(names, sources.LockFile)...); err != nil {
		return err
	}
	for _, name := range names {
		if err := local.WriteFile(root, name, b.Files[name]); err != nil {
			return fmt.Errorf("%w; correct that and run the command again to complete it", err)
		}
	}
	if text := b.Lock.Format(); string(text) != string(b.Before.Format()) {
		return local.WriteLock(root, text)
	}
	return nil
}

// asSeen returns an error if one of the files is not as it was read.
func asSeen(seen *edit.Snapshot, names ...string) error {
	for _, name := range names {
		if seen.Changed(name) {
			return fmt.Errorf("%s was changed meanwhile; nothing was written: run the command again", name)
		}
	}
	return nil
}

func printBump(w io.Writer, b *upgrade.Bump, details bool) {
	w = show.Cleaned(w) // some of it is from a registry
	for _, e := range b.Edits {
		fmt.Fprintf(w, "%s: %s -> %s (%s)\n", e.Place, e.Text, e.To, prose.Some(e.Clusters, 4))
	}
	for _, note := range b.Notes {
		fmt.Fprintln(w, note)
	}
	if diff := lockDiff(b.Before, b.Lock); len(diff) > 0 {
		fmt.Fprintf(w, "\n%s:\n", sources.LockFile)
		for _, line := range diff {
			fmt.Fprintln(w, line)
		}
	}
	for _, m := range b.Moves {
		fmt.Fprintf(w, "\n%s in %s: %s\n", moved(m), prose.Some(m.Clusters, 4), cmp.Or(m.Error, m.Types.String()))
		writeChanges(w, "  ", m.Changes, details)
	}
	for _, m := range b.Moves {
		switch text := m.Allowance(); {
		case text == "":
		case m.Undeclared != nil:
			fmt.Fprintf(w, "\nThis breaks somebody, and `gitopsd run` refuses it until a declaration says why it is fine. %s is a dependency; declare it in %s:\n\n%s", m.Declaration, prose.Some(m.Clusters, 4), text)
		default:
			fmt.Fprintf(w, "\nThis breaks somebody, and `gitopsd run` refuses it until the declaration of %s says why it is fine:\n\n%s", m.Declaration, text)
		}
	}
}

func moved(m *upgrade.Move) string {
	from, to := sources.Abbreviate(m.From), sources.Abbreviate(m.To)
	switch {
	case m.From == "":
		return m.Repository + " " + to + ", new"
	case m.To == "":
		return m.Repository + " " + from + ", no longer needed"
	case from == to: // a tag that moved
		digest := func(d sources.Digest) string { return " (" + sources.Abbreviate(string(d)) + ")" }
		from, to = from+digest(m.FromDigest), to+digest(m.ToDigest)
	}
	return m.Repository + " " + from + " -> " + to
}
