package etcd

import (
	"cmp"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"sync"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/workload"
	"gitopsd.dev/sources"
)

// Port is the port of the proxy and its Service.
const Port = 2379

// DefaultReplicas is the default number of pods of a proxy.
const DefaultReplicas = 2

// suffix is the suffix of the names of the proxy's objects.
const suffix = "-etcd"

// memory is the memory limit of a pod, and softMemory its GOMEMLIMIT.
const memory, softMemory = "512Mi", "440MiB"

// directory is the directory of the proxy's files.
const directory = "/etcd"

// NamespaceFile has the [Namespace], as JSON, and EndpointsFile the client URLs of etcd's
// members, one per line.
const (
	NamespaceFile = "namespace.json"
	EndpointsFile = "endpoints"
)

// Files are the files of the proxy's directory, and their keys in the Secret, which cannot
// have slashes.
var Files = []workload.File{
	{Key: NamespaceFile, Path: NamespaceFile},
	{Key: EndpointsFile, Path: EndpointsFile},
	{Key: "upstream.crt", Path: "upstream/tls.crt"},
	{Key: "upstream.key", Path: "upstream/tls.key"},
	{Key: "upstream-ca.crt", Path: "upstream/ca.crt"},
	{Key: "server.crt", Path: "server/tls.crt"},
	{Key: "server.key", Path: "server/tls.key"},
	{Key: "client-ca.crt", Path: "client-ca.crt"},
}

// ProxySecret returns the name of the Secret with the directory of an EtcdNamespace's
// proxy.
func ProxySecret(name string) string { return name + suffix + "-proxy" }

// Proxy is how a cluster runs the proxies of its EtcdNamespaces.
type Proxy struct {
	// Image is the image of gitopsd; empty if the cluster runs no proxies.
	Image string
	// Replicas is the number of pods; 0 means [DefaultReplicas].
	Replicas int
	// GRPCGo makes the pods serve with the library grpc-go.
	GRPCGo bool
	// URL is the daemon's address if it serves instead of proxies in the cluster; empty
	// if it does not.
	URL string
}

// Service returns the Service of an EtcdNamespace's proxy.
func (d *Declaration) Service() manifest.ID {
	return manifest.Service.ID(d.Namespace, d.Name+suffix)
}

// Address returns the URL of the proxy, for --etcd-servers of an API server.
func (d *Declaration) Address() string {
	return fmt.Sprintf("https://%s:%d", d.DNSNames()[1], Port)
}

// DNSNames returns the DNS names of the Service. [Declaration.Address] uses the second.
func (d *Declaration) DNSNames() []string {
	name := d.Name + suffix + "." + d.Namespace
	return []string{name, name + ".svc", name + ".svc.cluster.local"}
}

// Objects returns the objects of the proxy for a declaration. The proxy reads its
// directory from the Secret that reconcile/etcd/namespaces writes. There are none if the
// daemon serves.
func Objects(d *Declaration, p Proxy) ([]*manifest.Object, error) {
	if p.URL != "" {
		return nil, nil
	}
	w := workload.Workload{
		Namespace: d.Namespace, Name: d.Name + suffix,
		Labels: map[string]string{"app.kubernetes.io/name": "gitopsd-etcd-proxy", "app.kubernetes.io/instance": d.Name},
		Image:  p.Image, Replicas: cmp.Or(p.Replicas, DefaultReplicas),
		Args:   []string{"etcd-proxy", "--log-format=json", "--dir=" + directory},
		Port:   workload.Port{Name: "etcd", Service: Port, Pod: Port},
		Volume: workload.Volume{Name: "etcd", Secret: ProxySecret(d.Name), Path: directory, Files: Files},
		Memory: memory, SoftMemory: softMemory, Origin: d.Origin,
	}
	if p.GRPCGo {
		w.Args = append(w.Args, "--grpc-go")
	}
	service := func() (*manifest.Object, error) { return w.Service(nil) }
	return workload.Objects(w.ServiceAccount, service, w.DisruptionBudget, w.Deployment)
}

// Beside returns the IDs of the objects that [Objects] makes.
func (d *Declaration) Beside() []manifest.ID {
	var all []manifest.ID
	for _, kind := range []manifest.GroupKind{manifest.ServiceAccount, manifest.Service, manifest.DisruptionBudget, manifest.Deployment} {
		all = append(all, kind.ID(d.Namespace, d.Name+suffix))
	}
	return all
}

// Writes returns the Secrets and ConfigMaps that reconcile/etcd/namespaces writes in the
// namespace of the declaration.
func (d *Declaration) Writes() []manifest.ID {
	all := []manifest.ID{manifest.Secret.ID(d.Namespace, ProxySecret(d.Name))}
	for _, c := range d.Certificates {
		all = append(all, manifest.Secret.ID(d.Namespace, c.Secret))
	}
	for _, name := range d.CAConfigMaps {
		all = append(all, manifest.ConfigMap.ID(d.Namespace, name))
	}
	return all
}

//go:embed definition.yaml
var definition string

// Definition returns the CRD of EtcdNamespace.
var Definition = sync.OnceValues(func() (*manifest.Object, error) {
	docs, err := sources.DecodeYAML(strings.NewReader(definition), sources.Limits{Bytes: 1 << 20})
	if err != nil {
		return nil, err
	}
	return manifest.New(docs[0].Tree, manifest.Origin{For: "etcd namespaces"})
})

// Defines reports whether an object is the definition of EtcdNamespace.
func Defines(id manifest.ID) bool {
	return id == manifest.CRD.ID("", "etcdnamespaces."+manifest.Group)
}

// AddDefinition adds the definition to the objects of a cluster, unless the repository
// has it itself.
func AddDefinition(objects []*manifest.Object) ([]*manifest.Object, error) {
	if slices.ContainsFunc(objects, func(o *manifest.Object) bool { return Defines(o.ID()) }) {
		return objects, nil
	}
	o, err := Definition()
	if err != nil {
		return nil, err
	}
	return append(slices.Clip(objects), o), nil
}

// Misspelled returns the kind of gitopsd's group that an unknown kind of this group most
// likely means; false for existing kinds and for other groups.
func Misspelled(kind manifest.GroupKind) (manifest.GroupKind, bool) {
	meant := manifest.EtcdNamespace
	if kind.Group != meant.Group || kind == meant || sources.Distance(strings.ToLower(kind.Kind), strings.ToLower(meant.Kind)) > 3 {
		return manifest.GroupKind{}, false
	}
	return meant, true
}
