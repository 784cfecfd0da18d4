package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/webhook"
)

func newRender(g *global) *cobra.Command {
	var (
		o       fleetOptions
		cluster string
	)
	cmd := &cobra.Command{
		Use:   "render --cluster NAME",
		Short: "Print a cluster's objects as YAML",
		Long: `Render prints the objects that a registered cluster is to have, as a stream of
YAML documents in a stable order: the cluster's kustomization, with packages
expanded and the cluster's patches applied. It talks to no cluster and writes
nothing. Packages come from the cache or the registry, by the digests in
clusters.lock. Comments name the fields that are filled in when an object is
applied.`,
		Example: `  gitopsd render --cluster prod-eu
  gitopsd render --cluster prod-eu | kubectl diff --server-side --force-conflicts -f -`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: completeNothing,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cluster == "" {
				return errors.New("--cluster is required: the name of a registered cluster")
			}
			fleet, err := o.open(cmd, g, cluster)
			if err != nil {
				return err
			}
			defer fleet.Close()
			c := fleet.Get(cluster)
			if c == nil {
				return fleet.Err() // its registration is broken
			}
			if c.Objects != nil {
				if err := c.Objects.WriteYAML(cmd.OutOrStdout(), leftOpen); err != nil {
					return err
				}
			}
			for _, waiting := range c.Waiting {
				fmt.Fprintln(cmd.ErrOrStderr(), waiting)
			}
			return problem.Join(c.Problems())
		},
	}
	o.register(cmd)
	cmd.Flags().StringVar(&cluster, "cluster", "", "name of the registered cluster (required)")
	o.tree.namesClusters(cmd)
	return cmd
}

// leftOpen returns comments on the fields of an object that are filled in when it is applied.
func leftOpen(o *manifest.Object) []string {
	source := o.Annotation(manifest.InjectCAAnnotation)
	if source == "" {
		return nil
	}
	var notes []string
	for _, path := range webhook.Left(o.Tree()) {
		notes = append(notes, fmt.Sprintf("left open: %s, the CA of %s", path, source))
	}
	return notes
}
