package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"gitopsd.dev/cmd/gitopsd/findings"
	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/reconcile/verify"
	"gitopsd.dev/reconcile/verify/live"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/errgroup"
	"gitopsd.dev/sources/lockfile"
)

type verifyOptions struct {
	fleetOptions
	live     liveOptions
	clusters []string
	output   outputFlag
	all      bool
}

func newVerify(g *global) *cobra.Command {
	var o verifyOptions
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Prove that clusters have the same types, in definition and in behaviour",
		Long: `Verify reads the live clusters and compares them with the working tree of the
fleet repository, with clusters.lock and with each other, type by type:

  definition  the schemas that the API servers have, from CRDs and XRDs
  behaviour   the controllers: the images that run, by the IDs that nodes report,
              with their arguments and environment, the ConfigMaps and Secrets that
              these come from, and the rights of their accounts; for XRDs the
              Compositions and Functions, and the types that are composed; and other
              workloads whose ServiceAccounts may write the types
  admission   webhooks and admission policies that match a type, declared or not

A type of a plain manifest names its controller by the annotation
` + manifest.ControllerAnnotation + `: <namespace>/<name>, a Deployment, StatefulSet or
DaemonSet of the same cluster. For a type without a controller only the definition is
verified, and the report says so. Types that the repository does not define are only
compared between clusters. Values of environment variables, arguments, ConfigMaps and
Secrets are never shown, nor their hashes. Secrets with certificates, and Secrets that
the account may not read, are left out, and the report says so.

A workload that the repository does not declare and that may write a type is a
finding, unless the Cluster's annotation ` + "`" + manifest.ActorsAnnotation + "`" + ` names its
ServiceAccount. Workloads that may write everything are left out, and counted.

It changes nothing, and uses the same credentials as ` + "`gitopsd plan`" + `. Errors go to
stderr; JSON and Markdown have them too.

The exit status is 0 if everything was verified and agrees, 2 if something differs,
and 1 for an error or if something could not be verified.`,
		Example: `  gitopsd verify --context dev=my-dev --context prod=my-prod
  gitopsd verify --kubeconfig-dir ~/.kube/fleet --cluster dev --cluster prod
  gitopsd verify -o json | jq '.findings[] | {kind, package, types}'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: completeNothing,
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(cmd, g) },
	}
	f := cmd.Flags()
	o.register(cmd)
	o.live.register(cmd)
	completeFlag(cmd, "context", completePairs(completeRegistered(&o.tree), false))
	o.tree.registerClusters(cmd, &o.clusters, "all")
	o.output.register(cmd, "text", "json", "markdown")
	f.BoolVar(&o.all, "all", false, "show every finding, type and field instead of folding long lists (text)")
	return cmd
}

func (o *verifyOptions) run(cmd *cobra.Command, g *global) error {
	if err := o.output.check(); err != nil {
		return err
	}
	found, faults, err := o.report(cmd, g)
	if err != nil {
		if o.output.document() {
			err = errors.Join(err, o.print(cmd, g, verify.Failed(problemTexts(err)...)))
		}
		return err
	}
	found.Fail(problemTexts(faults)...)
	switch err := o.print(cmd, g, found); {
	case err != nil:
		return err
	case len(found.NotVerified) > 0:
		return errors.Join(faults, errors.New("not everything could be verified; see the reasons in the report"))
	case faults != nil:
		return faults
	case found.Verdict == verify.Different:
		return exitError(2)
	}
	return nil
}

// report makes the report. faults are the errors of the registry; the clusters without any are
// in the report.
func (o *verifyOptions) report(cmd *cobra.Command, g *global) (found *verify.Report, faults, err error) {
	connector, err := o.live.connector(&o.registry)
	if err != nil {
		return nil, nil, err
	}
	fleet, err := o.open(cmd, g, o.clusters...)
	if err != nil {
		return nil, nil, err
	}
	defer fleet.Close()
	packages, err := o.registry.packagesIn(fleet.Commit.Files, g.log(false))
	if err != nil {
		return nil, nil, err
	}
	if err := connector.Check(fleet.Registry); err != nil {
		return nil, nil, err
	}
	reader := live.New(live.Config{
		Connect: connector.Connect,
		Platforms: func(ctx context.Context, repository string, d sources.Digest) ([]sources.Child, error) {
			return packages.Platforms(ctx, fleet.Origin(repository), d)
		},
		Images: fleet.Lock.Images(),
	})
	defer reader.Close()
	log := g.log(false)
	owner := fleetOf(cmd.Context(), fleet.root, nil)
	found, err = o.verify(cmd, fleet.State, reader, func(ctx context.Context, c *desired.Unit) (*plan.Plan, error) {
		return planOf(ctx, connector, c, owner, log, (*unit.Connection).Decide)
	})
	return found, fleet.RegistryErr, err
}

func (o *verifyOptions) print(cmd *cobra.Command, g *global, found *verify.Report) error {
	w := cmd.OutOrStdout()
	switch o.output.format {
	case "json":
		return show.JSON(w, found)
	case "markdown":
		return findings.WriteMarkdown(w, found)
	}
	return findings.WriteText(w, found, show.Options{Colour: g.colour(w), All: o.all, Width: columns(w)})
}

func (o *verifyOptions) verify(cmd *cobra.Command, state *desired.State, reader *live.Reader, plans func(context.Context, *desired.Unit) (*plan.Plan, error)) (*verify.Report, error) {
	ctx := cmd.Context()
	progress := startProgress(cmd.ErrOrStderr())
	defer progress.stop()
	progress.step("reading %s", prose.Count(len(state.Clusters), "cluster"))
	var repository verify.Repository
	facts := make([]verify.Facts, len(state.Clusters))
	for i, c := range state.Clusters {
		facts[i] = repository.Wanted(ctx, c)
	}
	if err := reader.Read(ctx, state.Clusters, facts); err != nil {
		return nil, err
	}
	unexplained := planBehind(ctx, state, facts, reader.Images(), plans)
	progress.step("comparing %s", prose.Count(len(state.Clusters), "cluster"))
	found := verify.Compare(ctx, facts, verify.Options{
		Images: reader.Images(),
		Tree: func(cluster string, id manifest.ID) (map[string]any, error) {
			i := slices.IndexFunc(facts, func(c verify.Facts) bool { return c.Name == cluster })
			if d := facts[i].Definitions[id]; d.Rendered != nil && slices.Equal(d.Rendered, d.Live) {
				return state.Clusters[i].Objects.Get(id).Tree(), nil // the live one is the same
			}
			return reader.Tree(ctx, cluster, id)
		},
	})
	found.Notes = append(found.Notes, special(state)...)
	found.Notes = append(found.Notes, unexplained...)
	if state.LockChanged() {
		found.Notes = append(found.Notes, "clusters.lock lacks some declared packages; they were resolved for this report only, and `gitopsd lock` records them")
	}
	return found, ctx.Err()
}

// planBehind plans the clusters that differ from the rendered objects, several at a time, and
// records in facts what was not applied and why. It returns notes on clusters that could not
// be planned.
func planBehind(ctx context.Context, state *desired.State, facts []verify.Facts, images []lockfile.Image, plans func(context.Context, *desired.Unit) (*plan.Plan, error)) []string {
	notes := make([]string, len(facts))
	var g errgroup.Group
	g.SetLimit(readAtOnce)
	for i := range facts {
		if !facts[i].Behind(images) {
			continue
		}
		g.Go(func() error {
			p, err := plans(ctx, state.Clusters[i])
			if err != nil {
				notes[i] = fmt.Sprintf("cluster %s: it is unknown which differences are somebody's changes and which are not applied yet: %s", facts[i].Name, problem.Message(err))
				return nil
			}
			facts[i].Explain(p)
			return nil
		})
	}
	_ = g.Wait() // each cluster has its own note
	return slices.DeleteFunc(notes, func(n string) bool { return n == "" })
}
