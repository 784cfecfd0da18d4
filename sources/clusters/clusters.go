// Package clusters reads clusters.yaml, the registry of clusters at the root of
// a fleet repository: a stream of gitopsd.dev/v1alpha1 documents, one for each
// cluster and at most one with rules for the versions of packages.
//
// Decoding is strict, document by document (parse.go): an error names file, line and
// key, and concerns its own document only. Parts of a document are checked in
// conversion.go, etcd.go, publish.go and packages.go. Other packages read
// credentials, render paths and talk to clusters.
package clusters

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/rules"
)

// APIVersion of every document in the registry.
const APIVersion = "gitopsd.dev/v1alpha1"

// Registry is what clusters.yaml declares.
type Registry struct {
	// Clusters in the order of the file, valid ones only, names unique.
	Clusters []Cluster
	// Broken names the clusters with errors in their documents. They were not removed:
	// their objects and lock records must stay as they are.
	Broken []string
	// Rules are the fleet's rules for versions of packages. RulesErr is why they are
	// unknown, if they are; then no version may be chosen.
	Rules    rules.Rules
	RulesErr error
	// Faulty reports whether the file has errors. A missing cluster may then be the one
	// in a faulty document.
	Faulty bool
}

// ownNamespace is gitopsd's namespace in each cluster, and the daemon's.
const ownNamespace = "gitopsd-system"

// RemoveAnnotation on a Cluster, with the cluster's own name as its value, removes
// everything that was applied to the cluster. Keep the document until that is done: it
// says how to reach the cluster. Deleting a document leaves its cluster as it is.
const RemoveAnnotation = "gitopsd.dev/remove"

// annotations are all annotations of group gitopsd.dev that a Cluster may have.
// render/manifest describes the others.
var annotations = []string{"gitopsd.dev/actors", "gitopsd.dev/adopt", "gitopsd.dev/allow-prune", RemoveAnnotation}

// Cluster is one Cluster document.
type Cluster struct {
	// Name is unique in the registry: a DNS label of at most 63 characters.
	Name string
	// Labels are the document's, for selectors: valid, and none of gitopsd's own.
	Labels map[string]string
	// Annotations are the document's; gitopsd.dev/allow-prune is one.
	Annotations map[string]string
	// Remove reports whether the cluster is to be emptied; see
	// [RemoveAnnotation].
	Remove bool
	// Line is where the document starts in the registry.
	Line int
	// Spec is the document's spec, checked.
	Spec Spec
}

// Spec is the desired state of a cluster.
type Spec struct {
	// Path is the directory in the repository that kustomize builds, clean
	// and relative.
	Path string `yaml:"path"`
	// Kubeconfig says where the credentials are.
	Kubeconfig Kubeconfig `yaml:"kubeconfig"`
	// Context of the kubeconfig; empty for its current context.
	Context string `yaml:"context"`
	// ServiceAccount is impersonated in the cluster, "name" (in the namespace
	// gitopsd-system) or "namespace/name"; empty for the kubeconfig's own rights.
	ServiceAccount string `yaml:"serviceAccount"`
	// Packages is how packages are installed: Expand (default), or Delegate to
	// the Crossplane in the cluster.
	Packages string `yaml:"packages"`
	// Patches are kustomize patches for everything rendered.
	Patches []Patch `yaml:"patches"`
	// DependsOn names clusters that must be ready first.
	DependsOn []string `yaml:"dependsOn"`
	// Drift says how to treat drift: Correct (default) or Report.
	Drift string `yaml:"drift"`
	// Pins says who refuses objects that are pinned to another type or controller than
	// the cluster has: plan and run for Check (default), and the cluster's API server
	// too for Enforce, whoever creates them.
	Pins string `yaml:"pins"`
	// Breaking says which breaking changes of types are allowed without an annotation,
	// if they harm no object: for Schema (default) only changes back to earlier types,
	// for Data all. The default may be set for all clusters in the Packages document.
	Breaking string `yaml:"breaking"`
	// Certificates says who signs the certificates of the cluster's Services.
	Certificates Certificates `yaml:"certificates"`
	// Conversion says where the conversion rules among the cluster's manifests are
	// served; nil for nowhere.
	Conversion *Conversion `yaml:"conversion"`
	// Etcd configures etcd namespaces; nil for none.
	Etcd *Etcd `yaml:"etcd"`
	// Publish lists the namespaces of other clusters that this one is published to.
	Publish []Publication `yaml:"publish"`
	// Targets installs the definitions of KubernetesTarget and KubernetesApplication and
	// serves objects of these kinds, even if the repository has none.
	Targets bool `yaml:"targets"`
	// Suspend leaves the cluster alone.
	Suspend bool `yaml:"suspend"`
	// Health has expressions that judge the objects of kinds, at most one for each.
	Health []HealthRule `yaml:"health"`
	// UnknownHealth is the health of objects that no rule can judge: Ready (default) or
	// Unready.
	UnknownHealth string `yaml:"unknownHealth"`
}

// The values of Spec.Packages, Spec.Drift, Spec.Pins, Spec.Breaking and
// Spec.UnknownHealth.
const (
	Expand   = "expand"
	Delegate = "delegate"
	Correct  = "correct"
	Report   = "report"
	Check    = "check"
	Enforce  = "enforce"
	Schema   = "schema"
	Data     = "data"
	Ready    = "ready"
	Unready  = "unready"
)

// Certificates says who signs certificates.
type Certificates struct {
	// Authority names a Secret in the cluster's namespace gitopsd-system with the CA's
	// certificate in tls.crt and its key in tls.key. If it is empty, gitopsd makes a CA
	// for each Service.
	Authority string `yaml:"authority"`
}

// Conversion says where the cluster's API server finds the webhook that converts objects
// by rules. Exactly one field is set.
type Conversion struct {
	// Service runs a server in the cluster.
	Service *ConversionService `yaml:"service"`
	// URL is the daemon's address as seen from the cluster: https, a host, and optionally
	// a port and a path that does not end in a slash.
	URL string `yaml:"url"`
}

// ConversionService is a conversion server in the cluster.
type ConversionService struct {
	// Image is gitopsd's, with a tag or a digest.
	Image string `yaml:"image"`
	// Replicas is the number of pods, at least one. It is never nil: the default is 2.
	Replicas *int `yaml:"replicas"`
}

// Etcd configures a cluster's etcd namespaces. At least one field is set.
type Etcd struct {
	// Namespace is the cluster's own key space, a DNS label that is unique among
	// clusters.
	Namespace string `yaml:"namespace"`
	// Proxy serves the EtcdNamespaces among the cluster's manifests; if it is nil, they
	// are refused.
	Proxy *EtcdProxy `yaml:"proxy"`
}

// NeedsDaemon reports whether API servers of the cluster, or in it, are served by the daemon
// itself.
func (s *Spec) NeedsDaemon() bool { return len(s.Served()) > 0 }

// Served returns the fields by which the daemon itself serves API servers of the cluster, or in
// it.
func (s *Spec) Served() []string {
	var fields []string
	if s.Conversion != nil && s.Conversion.URL != "" {
		fields = append(fields, "spec.conversion")
	}
	if s.Etcd != nil && s.Etcd.Proxy != nil && s.Etcd.Proxy.URL != "" {
		fields = append(fields, "spec.etcd.proxy")
	}
	return fields
}

// EtcdProxy is the daemon, if URL is set, or a Deployment beside each EtcdNamespace, if
// the other fields are.
type EtcdProxy struct {
	// Image is gitopsd's, with a tag or a digest.
	Image string `yaml:"image"`
	// Replicas is the number of pods of each, at least one. It is never nil with an
	// Image: the default is 2.
	Replicas *int `yaml:"replicas"`
	// GRPCGo makes pods serve with grpc-go, as gitopsd etcd-proxy --grpc-go does.
	GRPCGo bool `yaml:"grpcGo"`
	// URL is the daemon's address as seen from the cluster: https, a host and a port.
	URL string `yaml:"url"`
}

// HealthRule judges the objects of a kind, as reconcile/health describes.
type HealthRule struct {
	// Group of the kind, empty for the core group.
	Group string `yaml:"group"`
	Kind  string `yaml:"kind"`
	// InProgress, Failed and Current are expressions that give true or false, and
	// Message one that gives a string. Only Current is required.
	InProgress string `yaml:"inProgress"`
	Failed     string `yaml:"failed"`
	Current    string `yaml:"current"`
	Message    string `yaml:"message"`
	// Line is where the rule starts in the registry.
	Line int `yaml:"-"`
}

// Kubeconfig says where a cluster's credentials are. Exactly one field is set.
type Kubeconfig struct {
	// SecretRef names a Secret in the daemon's own namespace that carries the
	// label gitopsd.dev/cluster with the cluster's name.
	SecretRef *SecretRef `yaml:"secretRef"`
	// ClusterProfileRef names a ClusterProfile (KEP-4322) in the daemon's own namespace
	// that carries the label gitopsd.dev/cluster with the cluster's name. The kubeconfig
	// is in the profile's Secret beside it.
	ClusterProfileRef *ClusterProfileRef `yaml:"clusterProfileRef"`
	// File is a path inside the daemon's --kubeconfig-dir.
	File string `yaml:"file"`
	// InCluster names the cluster that the daemon runs in. The daemon must have been
	// started with --allow-in-cluster.
	InCluster bool `yaml:"inCluster"`
}

// place is equal for kubeconfigs that are written differently and are the same.
func (k Kubeconfig) place() [3]string {
	switch {
	case k.SecretRef != nil:
		return [3]string{"secret", k.SecretRef.Name, cmp.Or(k.SecretRef.Key, "kubeconfig")}
	case k.ClusterProfileRef != nil:
		return [3]string{"profile", k.ClusterProfileRef.Name}
	case k.File != "":
		return [3]string{"file", path.Clean(k.File)}
	}
	return [3]string{}
}

// SecretRef names a Secret and the key in it.
type SecretRef struct {
	Name string `yaml:"name"`
	// Key in the Secret's data; "kubeconfig" when empty.
	Key string `yaml:"key"`
}

// ClusterProfileRef names a ClusterProfile.
type ClusterProfileRef struct {
	Name string `yaml:"name"`
}

// Patch is a kustomize patch and the objects that it applies to.
type Patch struct {
	Target *Selector `yaml:"target"`
	// Patch is a strategic merge patch or a list of JSON 6902 operations, as
	// YAML in a string.
	Patch string `yaml:"patch"`
	// Line is where the patch starts in the registry.
	Line int `yaml:"-"`
}

// Access is a cluster's credentials and the account that gitopsd impersonates. Clusters
// with equal Access share a connection. It is comparable.
type Access struct {
	Secret                  SecretRef
	ClusterProfile, File    string
	InCluster               bool
	Context, ServiceAccount string
}

// Access returns how the cluster is reached.
func (s *Spec) Access() Access {
	a := Access{File: s.Kubeconfig.File, InCluster: s.Kubeconfig.InCluster, Context: s.Context, ServiceAccount: s.ServiceAccount}
	if s.Kubeconfig.SecretRef != nil {
		a.Secret = *s.Kubeconfig.SecretRef
	}
	if s.Kubeconfig.ClusterProfileRef != nil {
		a.ClusterProfile = s.Kubeconfig.ClusterProfileRef.Name
	}
	return a
}

// Selector selects objects as kustomize does: names and kinds are anchored
// regular expressions.
type Selector struct {
	Group              string `yaml:"group"`
	Version            string `yaml:"version"`
	Kind               string `yaml:"kind"`
	Name               string `yaml:"name"`
	Namespace          string `yaml:"namespace"`
	LabelSelector      string `yaml:"labelSelector"`
	AnnotationSelector string `yaml:"annotationSelector"`
}

// Meant returns "; did you mean <cluster>?" for a name that is not registered, empty if no
// cluster's is near.
func (r *Registry) Meant(name string) string {
	names := slices.Clone(r.Broken)
	for _, c := range r.Clusters {
		names = append(names, c.Name)
	}
	return sources.Meant(name, names)
}

// Get returns the cluster of that name.
func (r *Registry) Get(name string) (Cluster, bool) {
	i := slices.IndexFunc(r.Clusters, func(c Cluster) bool { return c.Name == name })
	if i < 0 {
		return Cluster{}, false
	}
	return r.Clusters[i], true
}

// Removed reports whether a cluster that was registered once was removed from the
// registry on purpose. It is false while the file has errors.
func (r *Registry) Removed(name string) bool {
	_, there := r.Get(name)
	return !there && !r.Faulty
}

// Error is a fault in one document.
type Error struct {
	File string
	Line int
	// Key is the path of the field at fault, for instance "spec.path"; empty
	// for the document as a whole.
	Key string
	Msg string
}

func (e *Error) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Msg)
	}
	return fmt.Sprintf("%s:%d: %s: %s", e.File, e.Line, e.Key, e.Msg)
}

// Parse reads the registry. The valid documents are returned even with an
// error. The error joins an [*Error] for each fault.
func Parse(file string, data []byte) (*Registry, error) {
	p := &parser{file: file}
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		// The YAML library would read it, but nothing here finds the documents.
		p.fail(1, "", "the file is in UTF-16; save it as UTF-8")
		p.packagesUnknown(1)
		p.registry.Faulty = true
		return &p.registry, errors.Join(p.errs...)
	}
	chunks, open := split(data)
	for _, chunk := range chunks {
		p.document(chunk)
	}
	if open > 0 {
		p.fail(open, "", "the file ends where a document begins: restore what was cut off, or remove the marker")
	}
	p.dependencies()
	p.publications()
	p.etcdNamespaces()
	p.removals()
	if len(p.registry.Clusters) == 0 && len(p.errs) == 0 {
		p.fail(1, "", "registers no cluster, which is taken for an accident: every cluster is left as it is; restore a document, or stop the daemon if none is to be left")
	}
	p.breaking()
	p.registry.Faulty = len(p.errs) > 0
	return &p.registry, errors.Join(p.errs...)
}

// chunk is the text of one document and the line it starts at, from 1.
type chunk struct {
	line int
	text string
}

// split cuts a stream at its document markers before anything is parsed, so that a
// syntax error stays inside its document. A line that starts with "---" ends a document
// everywhere: block scalars are indented. Open is the line of a marker at the end of the
// stream, 0 if there is none.
func split(data []byte) (chunks []chunk, open int) {
	start, line := 1, 0
	var text strings.Builder
	flush := func() {
		if strings.TrimSpace(text.String()) != "" {
			chunks = append(chunks, chunk{start, text.String()})
		}
		text.Reset()
	}
	for l := range strings.Lines(string(data)) {
		line++
		if rest, ok := strings.CutPrefix(l, "---"); ok && (strings.TrimSpace(rest) == "" || rest[0] == ' ') {
			flush()
			start, open = line, line
			l = "   " + rest // keeps columns, and anything that follows the marker
		}
		text.WriteString(l)
	}
	if strings.TrimSpace(text.String()) != "" {
		open = 0
	}
	flush()
	return chunks, open
}
