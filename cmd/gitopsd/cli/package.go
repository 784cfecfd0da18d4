package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/xpkg"
)

func newPackage(g *global) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "package",
		Short: "Build and publish packages",
		Long: `Package builds packages in Crossplane's OCI format from a directory of YAML, and
publishes them, for teams that have types to share and no Crossplane CLI.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPackageBuild(), newPackagePush(g))
	return cmd
}

func newPackageBuild() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "build DIR -o FILE",
		Short: "Build a package from a directory of YAML",
		Long: `Build makes a package of the YAML files in a directory: one of them is the
package's metadata (kind Provider, Configuration or Function of
meta.pkg.crossplane.io, by custom in crossplane.yaml), the others are what it
holds. The same files give the same bytes, and so the same digest.`,
		Example: `  gitopsd package build ./my-types -o my-types.xpkg
  gitopsd package push my-types.xpkg registry.example.org/platform/my-types:v1.0.0`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output == "" {
				return fmt.Errorf("-o is required: the package file to write, for instance my-types.xpkg")
			}
			image, err := xpkg.Build(os.DirFS(args[0]))
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if err := image.WriteFile(output); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", image.Digest())
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "package file to write (required)")
	return cmd
}

func newPackagePush(g *global) *cobra.Command {
	var registry registryOptions
	cmd := &cobra.Command{
		Use:   "push FILE REFERENCE",
		Short: "Publish a package file in a registry",
		Long: `Push uploads a package file to a registry, with the credentials of Docker's
configuration, and prints the reference with the digest.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, err := sources.ParseRef(args[1])
			if err != nil {
				return err
			}
			client, err := registry.client(g.log(false))
			if err != nil {
				return err
			}
			p := startProgress(cmd.ErrOrStderr())
			defer p.stop()
			p.step("pushing %s", ref)
			digest, err := xpkg.Push(cmd.Context(), client, args[0], ref)
			p.stop()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), sources.Pin{Ref: ref, Digest: digest})
			return err
		},
	}
	registry.registerClient(cmd)
	return cmd
}
