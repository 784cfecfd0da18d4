package cli

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"gitopsd.dev/reconcile/applications"
	"gitopsd.dev/reconcile/etcd/namespaces"
	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/hub"
	"gitopsd.dev/reconcile/kube/kubeconfig"
	"gitopsd.dev/reconcile/target"
	"gitopsd.dev/reconcile/target/claim"
)

// targetOptions are the flags for published clusters.
type targetOptions struct {
	lifetime  time.Duration
	claims    []string
	plugins   bool
	addresses []string
}

func (o *targetOptions) register(f *pflag.FlagSet) {
	f.DurationVar(&o.lifetime, "connection-lifetime", target.DefaultLifetime, "how long teams' tokens for published clusters are valid; they are replaced when a third is left")
	f.StringSliceVar(&o.claims, "claims", claim.DefaultKinds, "kinds of objects that become KubernetesTargets once the cluster that they stand for is there, as Kind.group; empty for none")
	annotate(f, "claims", emptyCounts)
	f.BoolVar(&o.plugins, "allow-plugins", false, "let the kubeconfigs in connection Secrets that teams bring run exec and auth-provider plugins, as the daemon")
	f.StringSliceVar(&o.addresses, "allow-addresses", nil, "addresses and ranges, such as 127.0.0.0/8, that connections of targets may name although they belong to the daemon's own machine, are link-local, or serve the metadata of a cloud")
}

// accept returns which kubeconfigs are accepted in connection Secrets.
func (o *targetOptions) accept() kubeconfig.Accept {
	if o.plugins {
		return kubeconfig.Plugins
	}
	return kubeconfig.Restricted
}

// controllers returns a function that makes the controllers of one home. reach says which
// addresses connection Secrets may name, runs how applications are run, and etcd where etcd
// namespaces are.
func (o *targetOptions) controllers(clusters *hub.Connector, reach kubeconfig.Reach, runs applications.Config, etcd namespaces.Config) (func() []home.Controller, error) {
	kinds, err := claim.ParseKinds(o.claims)
	if err != nil {
		return nil, fmt.Errorf("--claims: %w", err)
	}
	runs.Claims = kinds
	cfg := target.Config{Clusters: clusters, Lifetime: o.lifetime, Accept: o.accept(), Reach: reach}
	if _, err := target.New(cfg); err != nil {
		return nil, fmt.Errorf("--connection-lifetime: %w", err)
	}
	if _, err := applications.New(runs); err != nil {
		return nil, err
	}
	return func() []home.Controller {
		targets, _ := target.New(cfg) // both are checked above
		apps, _ := applications.New(runs)
		return []home.Controller{targets, claim.New(kinds), apps, namespaces.New(etcd)}
	}, nil
}
