package hub

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/errgroup"
)

const (
	// identifyTime bounds the time to identify one cluster: longer than it takes to find out
	// that it cannot be connected to. identifying is how many are identified at a time.
	identifyTime = 15 * time.Second
	identifying  = 8
)

// Alone returns an error unless all other registered clusters that are not to be emptied are
// known to be others than the one that client reaches. Clusters are compared by the UID of
// the Namespace kube-system, or of gitopsd's own if the account may not read that. One that
// cannot be connected to counts as another one if its address is another, and its CAs are
// others.
func (c *Connector) Alone(ctx context.Context, client *kube.Client, registered []clusters.Cluster) error {
	others := slices.DeleteFunc(slices.Clone(registered), func(o clusters.Cluster) bool { return o.Remove || o.Name == client.Name() })
	if len(others) == 0 {
		return nil
	}
	own, err := identify(ctx, client)
	if err != nil {
		return fmt.Errorf("it is not emptied, since it may be another registered cluster: %w", err)
	}
	errs := make([]error, len(others))
	var g errgroup.Group
	g.SetLimit(identifying)
	for i, other := range others {
		g.Go(func() error {
			errs[i] = c.another(ctx, client, own, other)
			return nil
		})
	}
	_ = g.Wait() // the errors are in errs
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return errs[i]
	}
	return ctx.Err()
}

// another returns an error unless a registered cluster is known to be another one than that
// which client reaches, and which own identifies.
func (c *Connector) another(ctx context.Context, client *kube.Client, own identity, other clusters.Cluster) error {
	unknown := func(err error) error {
		return fmt.Errorf("it is not emptied before it is known whether it is also cluster %s: %w", other.Name, err)
	}
	there, err := c.Connect(ctx, other)
	if err != nil {
		return unknown(err)
	}
	defer there.Close()
	id, err := identify(ctx, there)
	same, known := own.compare(id)
	switch {
	case unconnected(err):
		if same = address(there) == address(client); !same && !verifiedByOthers(there, client) {
			return unknown(fmt.Errorf("%w; its kubeconfig has a certificate authority of this cluster's, or one of the two names none; make it reachable, or take its document out of clusters.yaml until it is", err))
		}
	case err != nil:
		return unknown(err)
	case !known:
		return unknown(fmt.Errorf("their accounts may not both get the Namespace %s", namespaces[0]))
	}
	if same {
		return fmt.Errorf("it is not emptied: it is also cluster %s, whose kubeconfig leads to the same API server; to rename a cluster, remove the old document", other.Name)
	}
	return nil
}

// unconnected reports whether there was no connection. A server that only cannot be verified,
// or that breaks connections, may be any cluster's.
func unconnected(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// address returns the address of a client's API server in one form.
func address(client *kube.Client) string {
	u, err := url.Parse(client.Server())
	if err != nil {
		return client.Server()
	}
	return strings.ToLower(u.Hostname()) + ":" + cmp.Or(u.Port(), "443") + strings.TrimRight(u.Path, "/")
}

// verifiedByOthers reports whether two clients verify their API servers with different CAs,
// each with its own.
func verifiedByOthers(a, b *kube.Client) bool {
	as, bs := authorities(a), authorities(b)
	return len(as) > 0 && len(bs) > 0 && !slices.ContainsFunc(as, func(ca string) bool { return slices.Contains(bs, ca) })
}

// authorities returns the keys of the CAs that a client verifies its API server with. A renewed
// certificate has the same key.
func authorities(client *kube.Client) []string {
	var keys []string
	for rest := client.Roots(); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return keys
		}
		if ca, err := x509.ParseCertificate(block.Bytes); err == nil {
			keys = append(keys, string(ca.RawSubjectPublicKeyInfo))
		}
	}
}

// namespaces are those whose UIDs identify a cluster.
var namespaces = [...]string{"kube-system", runtime.Namespace}

// identity has the UIDs of the namespaces; empty for one that the account may not read, or
// that does not exist.
type identity [len(namespaces)]string

// compare reports whether two identities are of one cluster, if that is known.
func (id identity) compare(other identity) (same, known bool) {
	for i := range id {
		if id[i] != "" && other[i] != "" {
			return id[i] == other[i], true
		}
	}
	return false, false
}

// identify identifies a cluster. It fails if no UID is known.
func identify(ctx context.Context, client *kube.Client) (id identity, err error) {
	ctx, cancel := context.WithTimeout(ctx, identifyTime)
	defer cancel()
	t, err := client.Kind(ctx, manifest.Namespace.Group, manifest.Namespace.Kind)
	if err != nil {
		return id, err
	}
	for i, name := range namespaces {
		meta, failed := client.GetMetadata(ctx, t, manifest.Namespace.ID("", name))
		if err = cmp.Or(err, failed); failed == nil {
			id[i] = string(meta.UID)
		}
	}
	if id != (identity{}) {
		return id, nil
	}
	return id, err
}
