package target

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"k8s.io/client-go/tools/clientcmd/api"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/kube/kubeconfig"
	"gitopsd.dev/reconcile/target/connection"
	"gitopsd.dev/render/target"
	"gitopsd.dev/sources/clusters"
)

// grants makes connections to one cluster for the targets of one pass.
type grants struct {
	*pass
	cluster string

	// entry was read at version or later.
	entry   *kubeconfig.Entry
	version string
	client  *kube.Client
	// failed is why the cluster cannot be used in this pass.
	failed error
}

func (g *grants) close() {
	if g.client != nil {
		g.client.Close()
	}
}

// offer keeps the Secret of a target. taken is why the name of the Secret cannot be used; empty
// if it can.
func (p *pass) offer(ctx context.Context, g *grants, k *known, d decision) (taken string, err error) {
	version, known := p.cfg.Clusters.Version(d.cluster)
	h := &k.held
	fresh := h.fits(d.cluster.Name, d.publication) && (h.renew.IsZero() || p.now.Before(h.renew))
	if fresh && h.compared && (!known || version == k.from) {
		return "", nil
	}
	asking := ctx
	if d.renews() {
		var cancel func()
		asking, cancel = context.WithTimeoutCause(ctx, renewLimit, errors.New("it does not answer"))
		defer cancel()
	}
	entry, err := g.reach(asking, d.cluster)
	if err != nil {
		return "", err
	}
	var made *connection.Connection
	var expires, renew time.Time
	switch {
	case d.publication.Credentials == clusters.Registered:
		if made, err = registered(entry); err != nil {
			return "", err
		}
		renew = p.now.Add(10 * othersPause) // the kubeconfig may be replaced unnoticed
	case withoutCredentials(entry.Cluster) != nil:
		return "", withoutCredentials(entry.Cluster)
	case fresh && h.reaches(entry.Cluster):
		made, expires, renew = connection.New(entry.Cluster, &api.AuthInfo{Token: h.token()}), h.expires, h.renew
	default:
		token, until, err := g.token(asking, d)
		if err != nil {
			return "", err
		}
		made, expires, renew = connection.New(entry.Cluster, &api.AuthInfo{Token: token}), until, p.renewal(p.now, until)
	}
	data, err := made.Data()
	if err != nil {
		return "", err
	}
	if !h.same(data) || !h.fits(d.cluster.Name, d.publication) {
		if taken, err = p.write(ctx, k, d, data); err != nil || taken != "" {
			return taken, err
		}
	}
	h.compared, h.expires, h.renew, k.from = true, expires, renew, g.version
	h.refused = ""
	if err := made.Check(p.cfg.Reach); err != nil {
		h.refused = err.Error()
	}
	return "", nil
}

// registered returns a connection with the credentials of a cluster's registration.
func registered(e *kubeconfig.Entry) (*connection.Connection, error) {
	if e.User.Impersonate != "" {
		return nil, fmt.Errorf("the kubeconfig of the registration impersonates %q, which a connection cannot hold in all of its forms; publish the cluster with a role", e.User.Impersonate)
	}
	return connection.New(e.Cluster, e.User), nil
}

// withoutCredentials returns an error if the proxy URL of a cluster has credentials: they are
// the daemon's, and must not be handed out with a team's token.
func withoutCredentials(c *api.Cluster) error {
	if proxy, err := url.Parse(c.ProxyURL); err != nil || proxy.User != nil {
		return errors.New("the kubeconfig of the registration has credentials in proxy-url, which every connection would hand out; use a proxy that needs none")
	}
	return nil
}

// reach returns the kubeconfig entry of the cluster's registration.
func (g *grants) reach(ctx context.Context, c clusters.Cluster) (*kubeconfig.Entry, error) {
	if g.entry != nil || g.failed != nil {
		return g.entry, g.failed
	}
	version, _ := g.cfg.Clusters.Version(c) // first: a replacement meanwhile is noticed in the next pass
	entry, err := g.cfg.Clusters.Entry(ctx, c)
	if err != nil {
		g.failed = fmt.Errorf("cluster %s: %w", g.cluster, err)
		return nil, g.failed
	}
	g.entry, g.version = entry, version
	return entry, nil
}

// token requests a token of the account of a target's namespace.
func (g *grants) token(ctx context.Context, d decision) (string, time.Time, error) {
	if g.failed != nil {
		return "", time.Time{}, g.failed
	}
	if g.client == nil {
		client, err := g.cfg.Clusters.Connect(ctx, d.cluster)
		if err != nil {
			g.failed = fmt.Errorf("cluster %s: %w", g.cluster, err)
			return "", time.Time{}, g.failed
		}
		g.client = client
	}
	account := target.Account(d.publication.Cluster, d.publication.Namespace)
	token, until, err := g.client.Token(ctx, kube.ServiceAccount{Namespace: account.Namespace, Name: account.Name}, g.cfg.Lifetime)
	if kube.IsClusterWide(err) {
		g.failed = err
	}
	if kube.ClassOf(err) == kube.NotFound {
		return "", time.Time{}, fmt.Errorf("cluster %s has no %s yet, by which connections of this namespace act; see the state of that cluster", g.cluster, account)
	}
	if err == nil && !g.now.Before(until) {
		err = errors.New("cluster " + g.cluster + ": the token that it gave has expired: compare its clock with that of this machine")
	}
	return token, until, err
}
