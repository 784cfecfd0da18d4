package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"gitopsd.dev/sources/resolve"
)

func newRender(g *global) *cobra.Command {
	var (
		t        treeOptions
		registry registryOptions
		cluster  string
	)
	cmd := &cobra.Command{
		Use:   "render --cluster NAME",
		Short: "Print a cluster's objects as YAML",
		Long: `Render prints what a registered cluster is wanted to have: its kustomization
with packages expanded and the cluster's patches applied, as a stream of YAML
documents in a stable order. It talks to no cluster and writes nothing; packages
come from the cache or the registry, by the digests in clusters.lock.`,
		Example: `  gitopsd render --cluster prod-eu
  gitopsd render --cluster prod-eu | kubectl diff --server-side -f -`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: completeNothing,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cluster == "" {
				return errors.New("--cluster is required: the name of a registered cluster")
			}
			root, err := t.root()
			if err != nil {
				return err
			}
			commit, files, err := tree(root)
			if err != nil {
				return err
			}
			defer files.Close()
			computer, err := registry.computer(g.log(false), resolve.Add, nil, []string{cluster})
			if err != nil {
				return err
			}
			state, err := compute(cmd.Context(), cmd, computer, commit)
			if err != nil {
				return err
			}
			c := state.Get(cluster)
			if c == nil {
				return state.Err() // its registration is broken
			}
			if c.Objects != nil {
				if err := c.Objects.WriteYAML(cmd.OutOrStdout()); err != nil {
					return err
				}
			}
			return errors.Join(append([]error{c.Err}, c.Faults...)...)
		},
	}
	t.register(cmd)
	registry.register(cmd)
	cmd.Flags().StringVar(&cluster, "cluster", "", "name of the registered cluster (required)")
	_ = cmd.RegisterFlagCompletionFunc("cluster", completeRegistered(&t)) // an error means that the flag does not exist
	return cmd
}
