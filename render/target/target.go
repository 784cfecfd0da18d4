// Package target renders the objects of published clusters: the definitions of
// KubernetesTarget and KubernetesApplication, the KubernetesTargets that registrations ask
// for, and the ServiceAccounts that connections use in published clusters. They are
// planned, applied and pruned with the other objects of their cluster.
//
// reconcile/target maintains the connections, and render/target/placement places
// applications on targets.
package target

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"sync"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/sources"
)

// Group is the API group of targets and applications.
const Group = manifest.GroupWorkload

// Version is the version of KubernetesTarget.
const Version = "v1alpha1"

// The kinds of the group.
var (
	Target      = manifest.Target
	Application = manifest.Application
)

// AutomaticLabel, "true", is on the KubernetesTargets that gitopsd makes.
const AutomaticLabel = Group + "/autotarget"

// Publication is a cluster that is published to a namespace of another, its home.
type Publication struct {
	// Home and Cluster are registered names.
	Home, Cluster string
	// Namespace is a namespace of the home.
	Namespace string
	// Role is a ClusterRole of the cluster; empty if connections need no account there.
	Role string
	// Automatic reports whether the home gets a KubernetesTarget for it.
	Automatic bool
	// Labels are the labels of the KubernetesTarget.
	Labels map[string]string
	// Line is the line of the publication in the registry of clusters.
	Line int
}

//go:embed definitions.yaml
var definitions string

// Definitions returns the CRDs of the group.
var Definitions = sync.OnceValues(func() ([]*manifest.Object, error) {
	docs, err := sources.DecodeYAML(strings.NewReader(definitions), sources.Limits{Bytes: 1 << 20})
	if err != nil {
		return nil, err
	}
	var all []*manifest.Object
	for _, doc := range docs {
		o, err := manifest.New(doc.Tree, manifest.Origin{For: "targets and applications"})
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return all, nil
})

// Defines reports whether an object is one of the definitions.
func Defines(id manifest.ID) bool {
	return id.Is(manifest.CRD) && (id.Name == definition(Target) || id.Name == definition(Application))
}

func definition(kind manifest.GroupKind) string {
	return strings.ToLower(kind.Kind) + "s." + kind.Group
}

// AddDefinitions adds the definitions that the repository does not have itself to the
// objects of a cluster, if always is set or the cluster has targets or applications.
func AddDefinitions(objects []*manifest.Object, always bool) ([]*manifest.Object, error) {
	there := make(map[manifest.ID]bool)
	for _, o := range objects {
		there[o.ID()] = Defines(o.ID())
		always = always || o.ID().Group == Group
	}
	if !always {
		return objects, nil
	}
	all, err := Definitions()
	if err != nil {
		return nil, err
	}
	objects = slices.Clip(objects)
	for _, o := range all {
		if !there[o.ID()] {
			objects = append(objects, o)
		}
	}
	return objects, nil
}

// The prefixes of an account's name, and of the name of its binding.
const (
	accountPrefix = "target."
	bindingPrefix = "gitopsd-"
)

// Account returns the ServiceAccount that connections of a home's namespace use in a
// published cluster.
func Account(home, namespace string) manifest.ID {
	return manifest.ServiceAccount.ID(runtime.Namespace, accountPrefix+home+"."+namespace)
}

// Grant returns the objects of the published cluster: the ServiceAccount and its binding to
// the role. There are none without a role.
func Grant(p Publication) ([]*manifest.Object, error) {
	if p.Role == "" {
		return nil, nil
	}
	account := Account(p.Home, p.Namespace)
	return p.objects(
		manifest.NewTree(account, map[string]any{"automountServiceAccountToken": false}), // no pod runs as it
		map[string]any{
			"apiVersion": manifest.ClusterRoleBinding.APIVersion("v1"), "kind": manifest.ClusterRoleBinding.Kind,
			// Another role needs another binding: roleRef cannot change.
			"metadata": map[string]any{"name": bindingPrefix + account.Name, "annotations": map[string]any{manifest.ReplaceAnnotation: "true"}},
			"roleRef":  map[string]any{"apiGroup": manifest.GroupRBAC, "kind": manifest.ClusterRole.Kind, "name": p.Role},
			"subjects": []any{map[string]any{"kind": account.Kind, "name": account.Name, "namespace": account.Namespace}},
		},
	)
}

// Made reports whether an object of a cluster's inventory is made from the registry.
// automatic is the value of its AutomaticLabel.
func Made(id manifest.ID, automatic string) bool {
	switch {
	case id.Is(manifest.ServiceAccount):
		return id.Namespace == runtime.Namespace && strings.HasPrefix(id.Name, accountPrefix)
	case id.Is(manifest.ClusterRoleBinding):
		return strings.HasPrefix(id.Name, bindingPrefix+accountPrefix)
	case id.Is(Target):
		return automatic == "true"
	}
	return Defines(id)
}

// Automatic returns the KubernetesTarget of the home, with the name of the cluster.
func Automatic(p Publication) ([]*manifest.Object, error) {
	labels := manifest.FromTextMap(p.Labels)
	labels[AutomaticLabel] = "true"
	return p.objects(map[string]any{
		"apiVersion": Target.APIVersion(Version), "kind": Target.Kind,
		"metadata": map[string]any{"name": p.Cluster, "namespace": p.Namespace, "labels": labels},
		"spec":     map[string]any{"clusterRef": map[string]any{"apiVersion": manifest.Group + "/v1alpha1", "kind": "Cluster", "name": p.Cluster}},
	})
}

func (p *Publication) objects(trees ...map[string]any) ([]*manifest.Object, error) {
	var all []*manifest.Object
	for _, tree := range trees {
		o, err := manifest.New(tree, manifest.Origin{File: sources.RegistryFile, Line: p.Line})
		if err != nil {
			return nil, fmt.Errorf("spec.publish: %w", err)
		}
		all = append(all, o)
	}
	return all, nil
}
