package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
)

// maxKubeconfig bounds a kubeconfig, in bytes.
const maxKubeconfig = 1 << 20

// connector finds the credentials of registered clusters.
type connector struct {
	// dir holds kubeconfig files; empty when files are not allowed.
	dir string
	// hub is where kubeconfig Secrets are.
	hub *hub
	// allowInCluster lets clusters be registered as the one the process runs
	// in.
	allowInCluster bool
	// contexts of the user's own kubeconfig by cluster; they go first.
	contexts map[string]string
}

// connect makes the client of a registered cluster.
func (c *connector) connect(ctx context.Context, cl clusters.Cluster) (*kube.Client, error) {
	cfg := kube.Config{Name: cl.Name, Context: cl.Spec.Context, UserAgent: "gitopsd/" + version()}
	if context, own := c.contexts[cl.Name]; own {
		cfg.Trusted, cfg.Context = true, context
		return kube.New(cfg)
	}
	if sa := cl.Spec.ServiceAccount; sa != "" {
		ns, name, _ := strings.Cut(sa, "/")
		cfg.ServiceAccount = &kube.ServiceAccount{Namespace: ns, Name: name}
	}
	k := cl.Spec.Kubeconfig
	var err error
	switch {
	case k.InCluster:
		if !c.allowInCluster {
			return nil, fmt.Errorf("spec.kubeconfig.inCluster: the daemon was not started with --allow-in-cluster")
		}
		cfg.InCluster = true
	case k.File != "":
		cfg.Kubeconfig, err = c.file(k.File)
	default:
		cfg.Kubeconfig, err = c.secret(ctx, cl.Name, *k.SecretRef)
	}
	if err != nil {
		return nil, err
	}
	return kube.New(cfg)
}

// file reads a kubeconfig inside the directory that was allowed; os.Root keeps
// links from leading out of it.
func (c *connector) file(name string) ([]byte, error) {
	if c.dir == "" {
		return nil, fmt.Errorf("spec.kubeconfig.file %s: no directory for such files was named; use --kubeconfig-dir, or --context for your own", name)
	}
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig-dir: %w", err)
	}
	defer root.Close()
	f, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("spec.kubeconfig.file %s: not found in %s", name, c.dir)
	} else if err != nil {
		return nil, fmt.Errorf("spec.kubeconfig.file: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxKubeconfig+1))
	if err == nil && len(text) > maxKubeconfig {
		err = fmt.Errorf("more than %d bytes", maxKubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("spec.kubeconfig.file %s: %w", name, err)
	}
	return text, nil
}

// secret reads a kubeconfig from a Secret in the daemon's own namespace of the
// hub. Errors never hold any of its content.
func (c *connector) secret(ctx context.Context, cluster string, ref clusters.SecretRef) ([]byte, error) {
	c.hub.needing.Do(func() { close(c.hub.needed) })
	s, err := c.hub.secret(ctx, ref.Name)
	if err != nil {
		return nil, fmt.Errorf("spec.kubeconfig.secretRef: %w", err)
	}
	where := fmt.Sprintf("Secret %s/%s", c.hub.namespace, ref.Name)
	if s.labels[manifest.ClusterLabel] != cluster {
		return nil, fmt.Errorf("spec.kubeconfig.secretRef: %s does not carry the label %s: %s, which allows this cluster to use it", where, manifest.ClusterLabel, cluster)
	}
	text, err := s.entry(where, cmp.Or(ref.Key, "kubeconfig"))
	if err != nil {
		return nil, fmt.Errorf("spec.kubeconfig.secretRef: %w", err)
	}
	return text, nil
}

// liveOptions are the flags of commands on this machine that look at clusters.
type liveOptions struct {
	kubeconfigDir  string
	hub, namespace string
	contexts       []string
}

func (o *liveOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.kubeconfigDir, "kubeconfig-dir", "", "directory that spec.kubeconfig.file of clusters is relative to")
	f.StringVar(&o.hub, "kubeconfig", "", "kubeconfig file of the hub, for kubeconfigs, pull secrets and public keys that are Secrets there")
	f.StringVar(&o.namespace, "namespace", "gitopsd-system", "namespace of the Secrets in the hub")
	f.StringSliceVar(&o.contexts, "context", nil, "cluster=context: use this context of your own kubeconfig for a cluster")
}

// connector finds credentials; where a hub is named, packages' Secrets are read
// from it too.
func (o *liveOptions) connector(packages *registryOptions) (*connector, error) {
	contexts, err := parseContexts(o.contexts)
	if err != nil {
		return nil, err
	}
	c := &connector{dir: o.kubeconfigDir, hub: newHub(o.hub, o.namespace), contexts: contexts}
	if o.hub != "" {
		packages.hub = c.hub
	}
	return c, nil
}

// check says which of the contexts are for clusters that are not registered: a
// slip of the pen would else mean another cluster, or none.
func (c *connector) check(r *clusters.Registry) error {
	for _, name := range slices.Sorted(maps.Keys(c.contexts)) {
		if r.Removed(name) {
			return fmt.Errorf("--context %s=%s: cluster %q is not registered in %s", name, c.contexts[name], name, sources.RegistryFile)
		}
	}
	return nil
}

// special says which clusters are not brought to what their manifests say:
// suspended ones, and those that are to be emptied.
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

// ownNamespace is the namespace that the process runs in.
func ownNamespace() string {
	const file = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
	if text, err := os.ReadFile(file); err == nil {
		return strings.TrimSpace(string(text))
	}
	return "gitopsd-system"
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
