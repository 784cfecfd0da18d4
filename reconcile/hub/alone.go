package hub

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/errgroup"
)

const (
	// identifyTime bounds the time to identify one cluster, and identifying how many are
	// identified at a time.
	identifyTime = 5 * time.Second
	identifying  = 8
)

// Alone returns an error if another registered cluster that is not to be emptied is the one
// that client reaches: it has the same API server, or the same UID of the Namespace
// kube-system. It also does if it cannot find the address of one. A cluster that does not
// answer is compared by its address alone.
func (c *Connector) Alone(ctx context.Context, client *kube.Client, registered []clusters.Cluster) error {
	own := identify(ctx, client)
	errs := make([]error, len(registered))
	var g errgroup.Group
	g.SetLimit(identifying)
	for i, other := range registered {
		if other.Remove || other.Name == client.Name() {
			continue
		}
		g.Go(func() error {
			errs[i] = c.another(ctx, client, own, other)
			return nil
		})
	}
	_ = g.Wait() // the errors are in errs
	i := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if i < 0 {
		return ctx.Err()
	}
	return errs[i]
}

// another returns an error unless a registered cluster is known to be another one than that
// which client reaches, whose UID is own.
func (c *Connector) another(ctx context.Context, client *kube.Client, own string, other clusters.Cluster) error {
	there, err := c.Connect(ctx, other)
	if err != nil {
		return fmt.Errorf("it is not emptied, since it may be cluster %s: %w", other.Name, err)
	}
	defer there.Close()
	if address(there) == address(client) || own != "" && identify(ctx, there) == own {
		return fmt.Errorf("it is not emptied: it is also cluster %s, whose kubeconfig leads to the same API server; to rename a cluster, remove the old document", other.Name)
	}
	return nil
}

// address returns the address of a client's API server in one form.
func address(client *kube.Client) string {
	u, err := url.Parse(client.Server())
	if err != nil {
		return client.Server()
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	return strings.ToLower(u.Hostname()) + ":" + port + strings.TrimRight(u.Path, "/")
}

// identify returns the UID of a cluster's Namespace kube-system; empty if it is not known.
func identify(ctx context.Context, client *kube.Client) string {
	ctx, cancel := context.WithTimeout(ctx, identifyTime)
	defer cancel()
	t, err := client.Kind(ctx, manifest.Namespace.Group, manifest.Namespace.Kind)
	if err != nil {
		return ""
	}
	meta, err := client.GetMetadata(ctx, t, manifest.Namespace.ID("", "kube-system"))
	if err != nil {
		return ""
	}
	return string(meta.UID)
}
