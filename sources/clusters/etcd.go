package clusters

import (
	"net/url"
	"strings"
)

// etcd checks spec.etcd by itself and sets its defaults. etcdNamespaces checks it
// against the other documents.
func (p *parser) etcd(e *Etcd, at finder) {
	if e == nil {
		return
	}
	fail := p.failBelow(at, "spec", "etcd")
	switch {
	case e.Namespace == "" && e.Proxy == nil:
		fail("", "want proxy: {image: <image of gitopsd>} or proxy: {url: https://<where the cluster reaches the daemon>}, for the EtcdNamespaces among the cluster's manifests, or namespace: <name>, for a key space of the cluster's own, or both")
	case e.Namespace != "" && !dnsLabel.MatchString(e.Namespace):
		fail("namespace", "%q; want at most 63 lower-case letters, digits and '-', such as the name of the cluster", e.Namespace)
	}
	switch proxy := e.Proxy; {
	case proxy == nil:
	case proxy.URL == "":
		checkWorkload(fail, "proxy", proxy.Image, &proxy.Replicas, "since API servers cannot reach their keys without the proxy")
	case proxy.Image != "" || proxy.Replicas != nil || proxy.GRPCGo:
		fail("proxy", "want either image, for a proxy in the cluster, or url, where the cluster reaches the daemon")
	default:
		proxy.URL = strings.TrimRight(proxy.URL, "/")
		if u, err := url.Parse(proxy.URL); err != nil || u.Scheme != "https" || u.Hostname() == "" || !validPort(u.Port()) || u.Path != "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
			fail("proxy.url", "want https://<host>:<port>, as in --etcd-servers of an API server")
		}
	}
}

// etcdNamespaces checks across documents that no two clusters share a key space.
func (p *parser) etcdNamespaces() {
	first := make(map[string]Cluster)
	bad := make(map[string]bool)
	for _, c := range p.registry.Clusters {
		if c.Spec.Etcd == nil || c.Spec.Etcd.Namespace == "" {
			continue
		}
		name := c.Spec.Etcd.Namespace
		if other, taken := first[name]; taken {
			p.fail(c.Line, "spec.etcd.namespace", "cluster %s names %q, which is the key space of cluster %s (line %d): name another", c.Name, name, other.Name, other.Line)
			bad[c.Name], bad[other.Name] = true, true
			continue
		}
		first[name] = c
	}
	p.spoil(func(c Cluster) bool { return bad[c.Name] })
}
