// Package converter renders the workload that converts a cluster's objects by conversion
// rules, for clusters with spec.conversion.service: a Deployment that runs gitopsd
// conversion-server, and a Service with a certificate from reconcile/certs. The workload
// watches the rules in ConfigMaps (render/conversion/bundle).
//
// The Deployment's arguments name the rules that a pod must have compiled before it is
// ready. So when the newest generation of the Deployment is ready, it serves the new
// rules, and reconcile/apply lets CustomResourceDefinitions refer to them. Pods also serve
// all other bundles, to which definitions may still refer.
package converter

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/conversion/bundle"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/render/workload"
)

const (
	// Port is the port of the Service.
	Port = 443

	// name is the name of the Deployment, the Service and the objects that they need.
	name            = "gitopsd-conversion"
	defaultReplicas = 2

	secretName = name + "-tls"
	// authorityName is the Secret in which reconcile/certs records the Service's CA.
	authorityName = manifest.ServingCAPrefix + runtime.Namespace + "." + name
	tlsDir        = "/tls"
	tlsPort       = 9443

	// memory is the limit of a pod; garbage is collected more often near softMemory.
	memory, softMemory = "512Mi", "440MiB"
)

// Config configures the workload of one cluster.
type Config struct {
	// Image is gitopsd's image; required.
	Image string
	// Replicas is the number of pods; 0 means 2.
	Replicas int
}

// Service returns the ID of the Service through which API servers reach the workload.
func Service() manifest.ID { return manifest.Service.ID(runtime.Namespace, name) }

// Workload returns the ID of the Deployment.
func Workload() manifest.ID { return manifest.Deployment.ID(runtime.Namespace, name) }

// Part reports whether an object belongs to the workload: its Deployment or Service, or
// an object that these need.
func Part(id manifest.ID) bool {
	if id.Namespace != runtime.Namespace {
		return false
	}
	if id.Is(manifest.ConfigMap) {
		return strings.HasPrefix(id.Name, bundle.Prefix)
	}
	return id.Name == name || id.Is(manifest.Secret) && (id.Name == secretName || id.Name == authorityName)
}

// Argument returns the name of a set in the arguments of the server: the last two parts
// of the path of its requests, "widgets.example.io/0f3a…".
func Argument(set *conversion.Set) string {
	p := conversion.Path("", set.Name(), set.Digest())
	return set.Name() + "/" + path.Base(p)
}

// Require returns the Deployment with arguments that name the sets that its pods must
// have compiled to be ready. It fails if there is no container for the arguments, since
// definitions would refer to rules that nobody serves.
func Require(deployment *manifest.Object, sets []*conversion.Set) (*manifest.Object, error) {
	var required []string
	for _, s := range sets {
		required = append(required, "--require="+Argument(s))
	}
	slices.Sort(required)
	way := []string{"spec", "template", "spec", "containers"}
	told := false
	containers := slices.Clone(manifest.List(deployment.Tree(), way...))
	for i, c := range containers {
		if container, _ := c.(map[string]any); container["name"] == workload.Container {
			args := slices.Concat(manifest.List(container, "args"), manifest.FromTexts(required))
			containers[i], told = manifest.With(container, args, "args"), true
		}
	}
	if !told {
		return nil, fmt.Errorf("%s has no container %s after spec.patches, and so no arguments that name the conversion rules that its pods need: keep the name of the container", deployment.ID(), workload.Container)
	}
	return manifest.New(manifest.With(deployment.Tree(), containers, way...), deployment.Origin())
}

// Objects returns the workload's objects, without the ConfigMaps of the bundles. The
// Deployment requires no rules yet; see [Require].
func Objects(c Config) ([]*manifest.Object, error) {
	w := workload.Workload{
		Namespace: runtime.Namespace, Name: name, Labels: map[string]string{"app.kubernetes.io/name": name},
		Image: c.Image, Replicas: cmp.Or(c.Replicas, defaultReplicas),
		Args:   []string{"conversion-server", "--log-format=json", "--tls-dir=" + tlsDir},
		Port:   workload.Port{Name: "https", Service: Port, Pod: tlsPort},
		Volume: workload.Volume{Name: "tls", Secret: secretName, Path: tlsDir},
		Memory: memory, SoftMemory: softMemory, Origin: manifest.Origin{For: "spec.conversion of the Cluster"},
	}
	return workload.Objects(
		w.ServiceAccount,
		func() (*manifest.Object, error) {
			return w.Object(manifest.Role, map[string]any{"rules": []any{map[string]any{
				"apiGroups": []any{""}, "resources": []any{"configmaps"}, "verbs": []any{"get", "list", "watch"},
			}}})
		},
		func() (*manifest.Object, error) {
			return w.Object(manifest.RoleBinding, map[string]any{
				"roleRef":  map[string]any{"apiGroup": manifest.GroupRBAC, "kind": manifest.Role.Kind, "name": name},
				"subjects": []any{map[string]any{"kind": manifest.ServiceAccount.Kind, "name": name, "namespace": runtime.Namespace}},
			})
		},
		func() (*manifest.Object, error) {
			return w.Service(map[string]string{manifest.ServingCertAnnotation: secretName})
		},
		w.DisruptionBudget, w.Deployment,
	)
}
