// Package runtime makes the objects of a Provider's controller in a cluster without
// Crossplane: a ServiceAccount, its rights, a Deployment, and a Service if the
// package has webhooks. A package without a controller gets only the roles for people.
// Names of labels, ports and environment variables, security contexts and rights are
// those of Crossplane's own runtime, so that its providers run unchanged.
//
// Some things differ. The Deployment has the package's name, not the revision's,
// and the strategy Recreate, so that a new version replaces the old one and two versions
// never reconcile the same objects; see [LeaderElectionAnnotation]. The rights that a
// controller of Crossplane grants are rendered as objects. Pull secrets are only in the
// Deployment: those of a ServiceAccount are a list with one owner, which is another
// controller on some platforms. The root file system is read-only, with an empty /tmp.
// There is no REVISION_UID, since a revision has no object, and no client certificate,
// which Crossplane makes for a plugin interface that version 2 no longer has.
//
// runtime.go makes the objects, rights.go the roles and bindings; config.go applies a
// DeploymentRuntimeConfig, which can change all of this. render/webhook completes webhook
// configurations with the name of the Service.
package runtime

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

const (
	// Namespace is the namespace of controllers.
	Namespace = "gitopsd-system"
	// DaemonName is the name of the daemon's account and Deployment in Namespace, as
	// examples/cluster and examples/deploy install them.
	DaemonName = "gitopsd"
	// WebhookPort is the port of a controller's webhooks and of its Service.
	WebhookPort = 9443

	familyLabel     = manifest.ProviderLabel + "-family"
	metricsPort     = 8080
	minReadySeconds = 5
	servingCerts    = "/tls/server"
	userID          = 2000 // Crossplane's, for user and group
)

// Controller is a Provider in a cluster, and its controller if it has one.
type Controller struct {
	// Selected is the package: its declaration, pin and content.
	Selected sources.Selected
	// Types are the CustomResourceDefinitions of the package.
	Types []*manifest.Object
	// Webhooks reports whether the package has any.
	Webhooks bool
	// Config is the configuration; nil for none.
	Config *Config
}

// Image returns the controller's image, by digest: that of the configuration, else that of
// the package. It is empty for a package without a controller.
func (c Controller) Image() string { return cmp.Or(c.Config.Image(), c.Selected.Runtime) }

// Objects returns the objects of the controller that are the same in every cluster. The
// [Rights] of its account depend on the cluster's other packages. It fails if the
// package must not define one of the types, or if its name is not valid for the Service.
func Objects(c Controller) ([]*manifest.Object, error) {
	trees, err := roles(c)
	if err != nil {
		return nil, err
	}
	if c.Image() != "" {
		own, err := workload(c)
		if err != nil {
			return nil, err
		}
		trees = append(trees, own...)
	}
	objects := make([]*manifest.Object, len(trees))
	for i, tree := range trees {
		if objects[i], err = manifest.New(tree, manifest.Origin{Package: c.Selected.Pin}); err != nil {
			return nil, err
		}
	}
	return objects, nil
}

// workload returns the Deployment of the controller, its ServiceAccount and its Service.
func workload(c Controller) ([]map[string]any, error) {
	var trees []map[string]any
	if account := c.serviceAccount(); c.makesAccount() {
		trees = append(trees, account.apply(manifest.NewTree(manifest.ServiceAccount.ID(Namespace, account.Name), nil)))
	}
	d := c.deployment()
	trees = append(trees, d.apply(manifest.NewTree(manifest.Deployment.ID(Namespace, d.Name), map[string]any{"spec": deployment(c)})))
	if !c.Webhooks {
		return trees, nil
	}
	service := c.service()
	if !dnsLabel.MatchString(service.Name) {
		return nil, fmt.Errorf("name %q: the package has webhooks, so that its Service gets that name, which must be at most 63 lower-case letters, digits and '-', and begin with a letter", service.Name)
	}
	return append(trees, service.apply(manifest.NewTree(manifest.Service.ID(Namespace, service.Name), map[string]any{"spec": map[string]any{
		"selector": map[string]any{manifest.PackageLabel: c.Selected.Declaration.Name},
		"ports": []any{map[string]any{
			"name": "webhook", "protocol": "TCP", "port": int64(WebhookPort), "targetPort": "webhook",
		}},
	}}))), nil
}

// Part reports whether an object may be one of a controller, by its kind and place.
func Part(id manifest.ID) bool {
	if id.Is(manifest.ClusterRole, manifest.ClusterRoleBinding) {
		return strings.HasPrefix(id.Name, roleName(""))
	}
	return id.Namespace == Namespace && id.Is(manifest.Deployment, manifest.Service, manifest.ServiceAccount)
}

// System returns the namespace of controllers. An existing one is adopted, since operators
// create it for objects that a package needs before it starts, such as a CA. It keeps the
// labels that they give it, above all those for pod security.
func System() (*manifest.Object, error) {
	o, err := manifest.New(manifest.NewTree(manifest.Namespace.ID("", Namespace), nil), manifest.Origin{For: "the packages' controllers"})
	if err != nil {
		return nil, err
	}
	return o.WithMetadata(nil, map[string]string{manifest.AdoptAnnotation: "true", manifest.KeepEditsAnnotation: "true"}), nil
}

// Labels returns the labels of a package's objects.
func Labels(d sources.Declaration) map[string]string {
	labels := make(map[string]string, len(d.CommonLabels)+1)
	maps.Copy(labels, d.CommonLabels)
	labels[manifest.PackageLabel] = d.Name
	return labels
}

// dnsLabel matches a Service's name (RFC 1035).
var dnsLabel = regexp.MustCompile(`^[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?$`)

func env(name, fieldPath string) map[string]any {
	// apiVersion is the API server's default.
	return map[string]any{"name": name, "valueFrom": map[string]any{"fieldRef": map[string]any{"apiVersion": "v1", "fieldPath": fieldPath}}}
}

// ServingSecret returns the name of the Secret with the serving certificate of a
// Provider's webhooks, in [Namespace].
func ServingSecret(provider string) string { return provider + "-tls-server" }

// ownName returns the name in the package's metadata, cut to the length of a label's value.
// It returns the declaration's name if the result is not valid.
func ownName(s sources.Selected) string {
	name := s.Package.Meta.Name
	name = strings.TrimRight(name[:min(len(name), validation.LabelValueMaxLength)], "-._")
	if name == "" || len(validation.IsValidLabelValue(name)) > 0 {
		return s.Declaration.Name
	}
	return name
}
