package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
)

// placeOptions are the flags of commands that work in clusters, registered or not, whatever
// the repository declares for them.
type placeOptions struct {
	tree     treeOptions
	live     liveOptions
	clusters []string
}

func (o *placeOptions) register(cmd *cobra.Command) {
	o.tree.register(cmd)
	o.live.register(cmd)
	cmd.Flags().Lookup("context").Usage = "context of your own kubeconfig, for a cluster that need not be registered, or cluster=context for a registered one"
	completeFlag(cmd, "context", completePairs(completeRegistered(&o.tree), true))
	o.tree.registerClusters(cmd, &o.clusters, "all")
}

// registry reads the registry of the working tree, and returns the clusters that --cluster
// names, or all. Even with an error it returns the clusters that have none.
func (o *placeOptions) registry(ctx context.Context) (*clusters.Registry, []clusters.Cluster, error) {
	tree, err := o.tree.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer tree.Close()
	text, err := fs.ReadFile(tree.commit.Files, sources.RegistryFile)
	if err != nil {
		return nil, nil, err
	}
	registry, faults := clusters.Parse(sources.RegistryFile, text)
	if len(o.clusters) == 0 {
		return registry, registry.Clusters, faults
	}
	var list []clusters.Cluster
	for _, name := range o.clusters {
		cl, ok := registry.Get(name)
		if !ok {
			return nil, nil, errors.Join(fmt.Errorf("--cluster %s: no such cluster is registered in %s%s", name, sources.RegistryFile, registry.Meant(name)), faults)
		}
		list = append(list, cl)
	}
	return registry, list, nil
}

// asked is a cluster to read objects from.
type asked struct {
	clusters.Cluster // has only a name if the cluster is not registered
	connect          func(context.Context) (*kube.Client, error)
}

// places returns the clusters to read objects from. An error may be about some clusters
// while others are returned.
func (o *placeOptions) places(ctx context.Context) (list []asked, err error) {
	pairs := slices.DeleteFunc(slices.Clone(o.live.contexts), func(name string) bool {
		if strings.Contains(name, "=") {
			return false
		}
		list = append(list, asked{clusters.Cluster{Name: name}, func(context.Context) (*kube.Client, error) {
			return kube.New(kube.Config{Name: name, Trusted: true, Context: name, UserAgent: userAgent()})
		}})
		return true
	})
	if len(list) > 0 && len(o.clusters)+len(pairs) == 0 {
		return list, nil
	}
	live := o.live
	live.contexts = pairs
	connector, err := live.connector(new(registryOptions))
	if err != nil {
		return nil, err
	}
	registry, named, faults := o.registry(ctx)
	if registry == nil {
		return nil, faults
	}
	if err := connector.Check(registry); err != nil {
		return nil, err
	}
	for _, cl := range named {
		list = append(list, asked{cl, func(ctx context.Context) (*kube.Client, error) { return connector.Connect(ctx, cl) }})
	}
	return list, faults
}

// readAtOnce is how many clusters are read at the same time.
const readAtOnce = 8
