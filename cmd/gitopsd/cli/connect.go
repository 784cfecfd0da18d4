package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/hub"
	"gitopsd.dev/sources/clusters"
)

// liveOptions are the flags of commands on this machine that read clusters.
type liveOptions struct {
	kubeconfigDir  string
	hub, namespace string
	contexts       []string
}

func (o *liveOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.kubeconfigDir, "kubeconfig-dir", "", "directory that spec.kubeconfig.file of clusters is relative to")
	f.StringVar(&o.hub, "kubeconfig", "", "kubeconfig file of the hub, for kubeconfigs, pull secrets and public keys that are Secrets there")
	annotate(f, "kubeconfig", mustExist)
	f.StringVar(&o.namespace, "namespace", hub.DefaultNamespace, "namespace of the Secrets in the hub")
	f.StringSliceVar(&o.contexts, "context", nil, "cluster=context: use this context of your own kubeconfig for a cluster")
}

// connector returns the connector to registered clusters. If a hub is configured, packages
// read their Secrets from it too.
func (o *liveOptions) connector(packages *registryOptions) (*hub.Connector, error) {
	contexts, err := parseContexts(o.contexts)
	if err != nil {
		return nil, err
	}
	own := hub.New(hub.Config{Kubeconfig: o.hub, Namespace: o.namespace, UserAgent: userAgent()})
	if o.hub != "" {
		packages.hub = own
	}
	return &hub.Connector{Hub: own, Dir: o.kubeconfigDir, Contexts: contexts}, nil
}

// special returns notes on clusters that are suspended or to be emptied.
func special(state *desired.State) []string {
	var notes []string
	for _, c := range state.Clusters {
		switch {
		case c.Spec.Suspend:
			notes = append(notes, fmt.Sprintf("cluster %s is suspended (spec.suspend): `gitopsd run` leaves it as it is", c.Name))
		case c.Remove:
			notes = append(notes, fmt.Sprintf("cluster %s is to be emptied (%s): `gitopsd run` removes everything that it applied there", c.Name, clusters.RemoveAnnotation))
		}
	}
	return notes
}

// parseContexts reads cluster=context pairs.
func parseContexts(pairs []string) (map[string]string, error) {
	contexts := make(map[string]string)
	for _, pair := range pairs {
		cluster, context, ok := strings.Cut(pair, "=")
		if !ok || cluster == "" || context == "" {
			return nil, fmt.Errorf("--context %q: want cluster=context, the context of your own kubeconfig for a registered cluster", pair)
		}
		contexts[cluster] = context
	}
	return contexts, nil
}
