package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/kube/kubeconfig"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
)

// Connector connects to registered clusters with credentials that the operator
// allows for them.
type Connector struct {
	// Hub has the kubeconfig Secrets; required.
	Hub *Hub
	// Dir holds kubeconfig files; empty if files are not allowed.
	Dir string
	// AllowInCluster allows clusters to be registered as the one that the process
	// runs in.
	AllowInCluster bool
	// Contexts are contexts of the user's own kubeconfig that replace the registered
	// credentials, by cluster.
	Contexts map[string]string
	// MayWrite is that of [kube.Config], for all clusters; may be nil.
	MayWrite func(context.Context) error
}

// Connect returns the client of a registered cluster. It reads the credentials and
// sends nothing to the cluster. Errors name the key of the registration at fault, or
// are of type [*kube.Error] if the hub did not answer.
func (c *Connector) Connect(ctx context.Context, cl clusters.Cluster) (*kube.Client, error) {
	cfg := kube.Config{Name: cl.Name, Context: cl.Spec.Context, UserAgent: c.Hub.cfg.UserAgent, MayWrite: c.MayWrite}
	if context, own := c.Contexts[cl.Name]; own {
		cfg.Trusted, cfg.Context = true, context
		return kube.New(cfg)
	}
	if sa := cl.Spec.ServiceAccount; sa != "" {
		ns, name, _ := strings.Cut(sa, "/")
		cfg.ServiceAccount = &kube.ServiceAccount{Namespace: ns, Name: name}
	}
	text, where, err := c.kubeconfig(ctx, cl)
	if err != nil {
		return nil, err
	}
	cfg.Kubeconfig, cfg.InCluster = text, cl.Spec.Kubeconfig.InCluster
	client, err := kube.New(cfg)
	if err != nil {
		var errs []error
		for _, p := range problem.Of(err) {
			p.Reason = where + ": " + p.Reason
			errs = append(errs, p)
		}
		return nil, errors.Join(errs...)
	}
	return client, nil
}

// Entry returns the address of a registered cluster with the credentials of its
// registration, or without any for the cluster that the process runs in. It sends nothing to
// the cluster. Errors are those of Connect.
func (c *Connector) Entry(ctx context.Context, cl clusters.Cluster) (*kubeconfig.Entry, error) {
	text, _, err := c.kubeconfig(ctx, cl)
	switch {
	case err != nil:
		return nil, err
	case cl.Spec.Kubeconfig.InCluster:
		return kubeconfig.InCluster()
	}
	return kubeconfig.Parse(text, cl.Spec.Context, kubeconfig.Restricted)
}

// kubeconfig reads the kubeconfig that a registration names, and returns the name with its
// key, for errors. It is nil for the cluster that the process runs in.
func (c *Connector) kubeconfig(ctx context.Context, cl clusters.Cluster) (text []byte, where string, err error) {
	k := cl.Spec.Kubeconfig
	switch {
	case k.InCluster:
		where = "spec.kubeconfig.inCluster"
		if !c.AllowInCluster {
			err = fmt.Errorf("%s: the daemon was not started with --allow-in-cluster", where)
		}
		return nil, where, err
	case k.File != "":
		where = "spec.kubeconfig.file " + k.File
		if text, err = c.file(k.File); err != nil {
			err = fmt.Errorf("%s: %w", where, err)
		}
	case k.ClusterProfileRef != nil:
		where = "spec.kubeconfig.clusterProfileRef " + k.ClusterProfileRef.Name
		if text, err = c.Hub.profile(ctx, cl.Name, k.ClusterProfileRef.Name); err != nil {
			err = fmt.Errorf("spec.kubeconfig.clusterProfileRef: %w", err)
		}
	default:
		where = "spec.kubeconfig.secretRef " + k.SecretRef.Name
		if text, err = c.secret(ctx, cl.Name, *k.SecretRef); err != nil {
			err = fmt.Errorf("spec.kubeconfig.secretRef: %w", err)
		}
	}
	return text, where, err
}

// Version returns the version of the credentials that Connect would use, if that is
// known without a request. When it changes, the cluster needs a new connection.
func (c *Connector) Version(cl clusters.Cluster) (version string, known bool) {
	k := cl.Spec.Kubeconfig
	switch {
	case k.InCluster:
		text, err := os.ReadFile(podCA)
		return string(sources.DigestOf(text)), err == nil
	case k.File != "":
		text, err := c.file(k.File)
		return string(sources.DigestOf(text)), err == nil
	case k.ClusterProfileRef != nil: // a replaced one is read when the old one fails
		return "", false
	}
	return c.Hub.version(k.SecretRef.Name)
}

// Check returns an error if a context is for a cluster that is not registered: a
// misspelt name would connect to another cluster, or to none.
func (c *Connector) Check(r *clusters.Registry) error {
	for _, name := range slices.Sorted(maps.Keys(c.Contexts)) {
		if r.Removed(name) {
			return fmt.Errorf("--context %s=%s: cluster %q is not registered in %s%s", name, c.Contexts[name], name, sources.RegistryFile, r.Meant(name))
		}
	}
	return nil
}

// file reads a kubeconfig below the allowed directory.
func (c *Connector) file(name string) ([]byte, error) {
	if c.Dir == "" {
		return nil, errors.New("no directory for such files was named; use --kubeconfig-dir, or --context for your own")
	}
	text, exists, err := readBelow(c.Dir, name)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig-dir: %w", err)
	}
	if !exists {
		return nil, fmt.Errorf("not found in %s", c.Dir)
	}
	return text, nil
}

// kubeconfigKey is the key of a Secret's kubeconfig, unless the registration names another.
const kubeconfigKey = "kubeconfig"

// secret reads a kubeconfig from a Secret of the hub that the cluster may use.
func (c *Connector) secret(ctx context.Context, cluster string, ref clusters.SecretRef) ([]byte, error) {
	c.Hub.needing.Do(func() { close(c.Hub.needed) })
	s, err := c.Hub.secret(ctx, ref.Name)
	switch {
	case kube.ClassOf(err) == kube.NotFound:
		return nil, fmt.Errorf("%s is not in the hub; make it there, labelled %s: %s, with a kubeconfig under the key %s", c.Hub.where(ref.Name), manifest.ClusterLabel, cluster, cmp.Or(ref.Key, kubeconfigKey))
	case errors.Is(err, errNoHub) && c.Contexts != nil:
		return nil, fmt.Errorf("%w; to use a context of your own kubeconfig for this cluster, add --context %s=CONTEXT", err, cluster)
	case errors.Is(err, errNoHub):
		return nil, fmt.Errorf("%w; name it with --kubeconfig, or register a file of --kubeconfig-dir: kubeconfig: {file: %s.yaml}", err, cluster)
	case err != nil:
		return nil, err
	}
	if s.labels[manifest.ClusterLabel] != cluster {
		return nil, fmt.Errorf("%s does not carry the label %s: %s, which allows this cluster to use it", s.where, manifest.ClusterLabel, cluster)
	}
	return s.entry(cmp.Or(ref.Key, kubeconfigKey))
}
