// Package runtime makes what a Provider's controller needs in a cluster without
// Crossplane: a ServiceAccount, its rights, a Deployment, and a Service if the
// package has webhooks. A package with types alone has no controller, and gets the
// rights of people only. It follows Crossplane's own runtime (names of labels,
// ports and environment, security context, rights), so that a provider that runs
// there runs here.
//
// Some things differ. The Deployment has the package's name, not the revision's,
// and strategy Recreate, so that a new version rolls in place and two versions
// never reconcile the same objects; see [LeaderElectionAnnotation]. And where
// Crossplane has a controller that grants rights, the rights are objects here,
// rendered with everything else. Pull secrets stand in the Deployment alone: the
// ServiceAccount's are a list with one owner, and on some platforms that is another
// controller. The root file system is read-only, with an empty /tmp. There is no
// REVISION_UID, since there is no object for a revision, and no client certificate:
// Crossplane's is for a plugin interface that version 2 no longer has.
//
// A DeploymentRuntimeConfig can change any of this (config.go). Webhook
// configurations get the Service's name from render/webhook.
package runtime

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

const (
	// Namespace is the namespace in which controllers run.
	Namespace = "gitopsd-system"
	// WebhookPort is the port of a controller's webhooks and of its Service.
	WebhookPort = 9443

	familyLabel     = manifest.ProviderLabel + "-family"
	metricsPort     = 8080
	minReadySeconds = 5
	servingCerts    = "/tls/server"
	userID          = 2000 // Crossplane's, for user and group
)

// Controller is a Provider in a cluster, with what it runs, if anything.
type Controller struct {
	// Selected is the package: its declaration, pin and content.
	Selected sources.Selected
	// Types are the CustomResourceDefinitions of the package.
	Types []*manifest.Object
	// Webhooks reports whether the package has any.
	Webhooks bool
	// Config is what a DeploymentRuntimeConfig sets; nil for none.
	Config *Config
}

// Image returns the controller's image: the one that the configuration sets, else the
// package's, by digest. It is empty for a package without a controller.
func (c Controller) Image() string { return cmp.Or(c.Config.Image(), c.Selected.Runtime) }

// Objects returns the objects of the controller, the same in every cluster. The
// [Rights] of its account depend on the cluster's other packages. It fails if a
// package may not define one of the types, or if the Service cannot have the
// package's name.
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

// workload returns what runs the controller.
func workload(c Controller) ([]map[string]any, error) {
	var trees []map[string]any
	if account := c.serviceAccount(); c.makesAccount() {
		trees = append(trees, account.apply(object(manifest.ServiceAccount, account.Name, Namespace, nil)))
	}
	d := c.deployment()
	trees = append(trees, d.apply(object(manifest.Deployment, d.Name, Namespace, map[string]any{"spec": deployment(c)})))
	if !c.Webhooks {
		return trees, nil
	}
	service := c.service()
	if !dnsLabel.MatchString(service.Name) {
		return nil, fmt.Errorf("name %q: the package has webhooks, so that its Service gets that name, which must be at most 63 lower-case letters, digits and '-', and begin with a letter", service.Name)
	}
	return append(trees, service.apply(object(manifest.Service, service.Name, Namespace, map[string]any{"spec": map[string]any{
		"selector": map[string]any{manifest.PackageLabel: c.Selected.Declaration.Name},
		"ports": []any{map[string]any{
			"name": "webhook", "protocol": "TCP", "port": int64(WebhookPort), "targetPort": "webhook",
		}},
	}}))), nil
}

// System returns the namespace in which controllers run. One that is there is taken
// over: operators create it for what a package needs before it starts, such as a CA.
func System() (*manifest.Object, error) {
	o, err := manifest.New(object(manifest.Namespace, Namespace, "", nil), manifest.Origin{For: "the packages' controllers"})
	if err != nil {
		return nil, err
	}
	return o.WithMetadata(nil, map[string]string{manifest.AdoptAnnotation: "true"}), nil
}

// object returns an object of version v1 of its kind.
func object(kind manifest.GroupKind, name, namespace string, rest map[string]any) map[string]any {
	meta := map[string]any{"name": name}
	if namespace != "" {
		meta["namespace"] = namespace
	}
	tree := map[string]any{"apiVersion": kind.APIVersion("v1"), "kind": kind.Kind, "metadata": meta}
	for k, v := range rest {
		tree[k] = v
	}
	return tree
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

// labelValue cuts a name to the length of a label's value.
func labelValue(s string) string {
	return strings.TrimRight(s[:min(len(s), 63)], "-._")
}
