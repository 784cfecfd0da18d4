package clusters

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

// Publication publishes a cluster to a namespace of another: the namespace gets
// connections to the cluster, and a KubernetesTarget for it.
type Publication struct {
	// Cluster is the home, the registered cluster that has the namespace.
	Cluster string `yaml:"cluster"`
	// Namespace in the home: a DNS label.
	Namespace string `yaml:"namespace"`
	// Role is a ClusterRole of the published cluster. Connections have it in the whole
	// cluster. It is empty if Credentials is Registered.
	Role string `yaml:"role"`
	// Credentials of the connections: Token (default) or Registered.
	Credentials string `yaml:"credentials"`
	// Target is Automatic (default), which gives the namespace a KubernetesTarget with
	// the cluster's name, or Manual, which gives it none.
	Target string `yaml:"target"`
	// Line is where the entry starts in the registry.
	Line int `yaml:"-"`
}

// The values of Publication.Credentials and Publication.Target.
const (
	// Token is a short-lived token of a ServiceAccount of the namespace's own.
	Token = "token"
	// Registered are the credentials that the cluster is registered with.
	Registered = "connection"

	Automatic = "automatic"
	Manual    = "manual"
)

// Publication returns the publication to a namespace of a home, and reports whether
// there is one.
func (c *Cluster) Publication(home, namespace string) (Publication, bool) {
	i := slices.IndexFunc(c.Spec.Publish, func(p Publication) bool { return p.Cluster == home && p.Namespace == namespace })
	if i < 0 {
		return Publication{}, false
	}
	return c.Spec.Publish[i], true
}

// PublishedTo reports whether any cluster is published to a namespace of the home.
func (r *Registry) PublishedTo(home string) bool {
	return slices.ContainsFunc(r.Clusters, func(c Cluster) bool {
		return slices.ContainsFunc(c.Spec.Publish, func(p Publication) bool { return p.Cluster == home })
	})
}

// roleName matches the names of ClusterRoles: path segments, often with colons.
var roleName = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9._:]{0,252}$`)

// publish checks a cluster's publications by themselves and sets their defaults.
// publications checks them against the other documents.
func (p *parser) publish(c *Cluster, at finder) {
	seen := make(map[[2]string]int)
	for i := range c.Spec.Publish {
		pub := &c.Spec.Publish[i]
		key := []string{"spec", "publish", strconv.Itoa(i)}
		pub.Line = at.line(key...)
		fail := p.failBelow(at, key...)
		if !dnsLabel.MatchString(pub.Cluster) {
			fail("cluster", "%q is no cluster name: name the registered cluster that has the namespace", pub.Cluster)
		}
		if !dnsLabel.MatchString(pub.Namespace) {
			fail("namespace", "%q is no name of a namespace", pub.Namespace)
		}
		if pub.Namespace == ownNamespace {
			fail("namespace", "gitopsd keeps its own credentials in namespace %s, and publishes nothing to it; choose another", ownNamespace)
		}
		oneOf(fail, "credentials", &pub.Credentials, Token, Registered)
		switch {
		case pub.Credentials == Token && pub.Role == "":
			fail("role", "is missing: name the ClusterRole that the namespace gets in this cluster, such as edit, or set credentials: connection")
		case pub.Credentials == Token && !roleName.MatchString(pub.Role):
			fail("role", "%q is no name of a ClusterRole", pub.Role)
		case pub.Credentials == Registered && pub.Role != "":
			fail("role", "means nothing with credentials: connection, which hands out the credentials of this registration; remove one of them")
		}
		if pub.Credentials == Registered {
			switch {
			case c.Spec.Kubeconfig.InCluster:
				fail("credentials", "connection needs a kubeconfig to hand out, and the cluster is registered with inCluster; use a role")
			case c.Spec.ServiceAccount != "":
				fail("credentials", "connection would hand out more than gitopsd itself uses, which is limited by spec.serviceAccount; use a role")
			}
		}
		oneOf(fail, "target", &pub.Target, Automatic, Manual)
		to := [2]string{pub.Cluster, pub.Namespace}
		if first, twice := seen[to]; twice {
			fail("namespace", "%s of cluster %s is at line %d already", pub.Namespace, pub.Cluster, first)
		}
		seen[to] = pub.Line
	}
}

// publications checks across documents that homes are registered. A home with errors in
// its document is registered too.
func (p *parser) publications() {
	r := &p.registry
	bad := make(map[string]bool)
	for _, c := range r.Clusters {
		for i, pub := range c.Spec.Publish {
			if _, there := r.Get(pub.Cluster); !there && !p.unnamed && !slices.Contains(r.Broken, pub.Cluster) {
				p.fail(pub.Line, fmt.Sprintf("spec.publish.%d.cluster", i), "cluster %s is published to %q, which is not registered", c.Name, pub.Cluster)
				bad[c.Name] = true
			}
		}
	}
	p.spoil(func(c Cluster) bool { return bad[c.Name] })
}
