package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/validate"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/oci"
	"gitopsd.dev/sources/rules"
	"gitopsd.dev/sources/xpkg"
)

func newPackage(g *global) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "package",
		Short: "Build and publish packages",
		Long: `Package builds packages in Crossplane's OCI format from a directory of YAML, and
publishes them. It does not need the Crossplane CLI.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPackageBuild(g), newPackagePush(g))
	return cmd
}

func newPackageBuild(g *global) *cobra.Command {
	var registry registryOptions
	var output, runtime string
	cmd := &cobra.Command{
		Use:   "build DIR -o FILE",
		Short: "Build a package from a directory of YAML",
		Long: `Build makes a package from the YAML files in a directory. One of them is the
package's metadata (kind Provider, Configuration or Function of
meta.pkg.crossplane.io, by custom in crossplane.yaml), the others are its content.
The same files give the same bytes, and so the same digest. A CustomResourceDefinition
that no API server would accept is an error.

With --runtime-image the package is added to the image of its controller, so that one
image is both. The flag names a file that "docker save" or another tool wrote, or a
reference in a registry. If the image is for several platforms, so is the package.
Without the flag, a Provider has the controller that its metadata names in
spec.controller.image, or none: a package may have types alone.

The annotation ` + rules.RetractAnnotation + ` in the metadata retracts published
versions, as in go.mod: "v1.2.0: loses data; [v1.3.0, v1.3.4]: …". Only the highest
version of a package counts, so repeat the lines in later versions.`,
		Example: `  gitopsd package build ./my-types -o my-types.xpkg
  gitopsd package build ./provider -o provider.xpkg --runtime-image ghcr.io/me/provider-controller:v1.0.0
  gitopsd package push my-types.xpkg registry.example.org/platform/my-types:v1.0.0`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output == "" {
				return fmt.Errorf("-o is required: the package file to write, for instance my-types.xpkg")
			}
			if err := checkBuild(args[0], output); err != nil {
				return err
			}
			image, err := buildPackage(cmd, g, &registry, args[0], runtime)
			if err != nil {
				return err
			}
			defer image.Close()
			if err := image.WriteFile(output); err != nil {
				return err
			}
			if image.Alone() {
				fmt.Fprintln(cmd.ErrOrStderr(), "types alone are packed; for a controller, add --runtime-image IMAGE, or name its image in spec.controller.image of the metadata")
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", image.Digest())
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "package file to write (required)")
	annotate(cmd.Flags(), "output", noVariable) // elsewhere it is a format
	cmd.Flags().StringVar(&runtime, "runtime-image", "", "image of the package's controller, a file or a reference")
	refuseEmpty(cmd.Flags(), "runtime-image")
	registry.registerClient(cmd)
	return cmd
}

// checkBuild returns an error unless dir is a directory, and output none of its files that a
// package is made of.
func checkBuild(dir, output string) error {
	switch info, err := os.Stat(dir); {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	}
	old, err := os.Stat(output)
	if err != nil {
		return nil // it is a new file, or writing it fails
	}
	return walkYAML(dir, func(name string) error {
		if info, err := os.Stat(name); err == nil && os.SameFile(info, old) {
			return fmt.Errorf("-o %s: the package is made of that file; name a new one, for instance %s.xpkg", output, filepath.Base(dir))
		}
		return nil
	})
}

// buildPackage builds a directory, on top of a runtime image if one is named.
func buildPackage(cmd *cobra.Command, g *global, registry *registryOptions, dir, runtime string) (*xpkg.Image, error) {
	if runtime == "" {
		image, err := xpkg.Build(os.DirFS(dir), checkDefinition)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		return image, nil
	}
	var from xpkg.Runtime
	if _, err := os.Stat(runtime); err == nil {
		image, err := xpkg.Open(runtime)
		if err != nil {
			return nil, err
		}
		defer image.Close()
		from = xpkg.Runtime{Source: image, Digest: image.Digest()}
	} else {
		ref, err := sources.ParseRef(runtime)
		if err != nil {
			return nil, fmt.Errorf("--runtime-image %s is neither a file nor a reference: %w", runtime, err)
		}
		if !strings.HasPrefix(runtime, ref.Repository) {
			// Packages and container images have different registries by default.
			return nil, fmt.Errorf("--runtime-image %s is no file, and names no registry, as docker.io/library/alpine:3 does", runtime)
		}
		client, err := registry.client(g.log(false))
		if err != nil {
			return nil, err
		}
		p := startProgress(cmd.ErrOrStderr())
		defer p.stop()
		p.step("fetching %s", ref)
		digest, err := client.Resolve(cmd.Context(), ref)
		if err != nil {
			return nil, err
		}
		from = xpkg.Runtime{Source: client, Repository: ref.Repository, Digest: digest}
	}
	image, err := xpkg.BuildWithRuntime(cmd.Context(), os.DirFS(dir), from, checkDefinition)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return image, nil
}

// checkDefinition returns the reasons why an API server would refuse an object of a package, if it
// is a CustomResourceDefinition.
func checkDefinition(tree map[string]any) []string {
	if manifest.KindOf(tree) != manifest.CRD {
		return nil
	}
	causes, err := validate.Definition(tree)
	if err != nil {
		return []string{err.Error()}
	}
	var texts []string
	for _, c := range causes {
		text := c.Why
		if c.Path != "" {
			text = c.Path + ": " + text
		}
		texts = append(texts, text)
	}
	return texts
}

func newPackagePush(g *global) *cobra.Command {
	var registry registryOptions
	var move bool
	cmd := &cobra.Command{
		Use:   "push FILE... REFERENCE",
		Short: "Publish a package file in a registry",
		Long: `Push uploads a package file to a registry, with the credentials in Docker's
configuration, and prints the reference with the digest. Several files, each for
another platform, become one package with an index. Push refuses invalid packages. It
also refuses a tag that names another package already, since fleets that have locked
the tag would refuse the new content, and one that it may not look up. Push the package
under a new version, or move the tag with --move-tag.`,
		Example: `  gitopsd package push my-types.xpkg registry.example.org/platform/my-types:v1.0.0
  gitopsd package push provider-amd64.xpkg provider-arm64.xpkg registry.example.org/platform/provider:v1.0.0`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			files, reference := args[:len(args)-1], args[len(args)-1]
			ref, err := sources.ParseRef(reference)
			if err != nil {
				return err
			}
			registry.mirrors = nil // packages are published in the registry itself
			client, err := registry.client(g.log(false))
			if err != nil {
				return err
			}
			image, err := xpkg.OpenFiles(cmd.Context(), files)
			if err != nil {
				return err
			}
			defer image.Close()
			p := startProgress(cmd.ErrOrStderr())
			defer p.stop()
			p.step("pushing %s", ref)
			if !move {
				if err := untaken(cmd.Context(), client, ref, image); err != nil {
					return err
				}
			}
			err = image.Push(cmd.Context(), client, ref)
			p.stop()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), sources.Pin{Ref: ref, Digest: image.Digest()})
			return err
		},
	}
	cmd.Flags().BoolVar(&move, "move-tag", false, "push even if the tag names or may name another package already, and move the tag")
	registry.registerClient(cmd)
	return cmd
}

// untaken returns an error if a tag names another package already, or if the account may push
// and not read, so that it cannot be known.
func untaken(ctx context.Context, client *oci.Client, ref sources.Ref, image *xpkg.Image) error {
	if ref.Tag == "" {
		return nil
	}
	tag := sources.Ref{Repository: ref.Repository, Tag: ref.Tag}
	there, err := client.Resolve(ctx, tag)
	if failed, ok := errors.AsType[*oci.Error](err); ok && failed.Reason == oci.Unauthorized {
		// Some registries answer that for a repository that does not exist yet. Pushing
		// the package without its tag makes it.
		if err := image.Push(ctx, client, sources.Ref{Repository: ref.Repository, Digest: image.Digest()}); err != nil {
			return err
		}
		there, err = client.Resolve(ctx, tag)
	}
	failed, _ := errors.AsType[*oci.Error](err)
	switch {
	case err == nil && there != image.Digest():
		return fmt.Errorf("%s is %s already, and this package is %s: fleets that have locked the tag would refuse it; push it under a new version, or move the tag with --move-tag", tag, there, image.Digest())
	case failed != nil && failed.Reason == oci.NotFound:
		return nil
	case failed != nil && failed.Reason == oci.Unauthorized:
		return fmt.Errorf("%w\nThis account may push and not read, so that it cannot be checked whether the tag %s names another package already. If it does not, or should be moved, add --move-tag", err, ref.Tag)
	}
	return err
}
