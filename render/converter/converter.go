// Package converter makes the workload that converts a cluster's objects by conversion
// rules, for clusters with spec.conversion.service: a Deployment of gitopsd itself
// (gitopsd conversion-server), behind a Service for which reconcile/certs keeps a
// certificate. The rules are in ConfigMaps (render/conversion/bundle), which the
// workload follows.
//
// The Deployment names the rules that a pod must have compiled before it is ready. So
// when it is ready in its newest generation, the new rules are served, and
// reconcile/apply lets CustomResourceDefinitions name them. A pod serves every other
// bundle that it sees as well: those that a definition still names.
package converter

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/conversion/bundle"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
)

const (
	// Name is the name of the Deployment, the Service and what belongs to them.
	Name = "gitopsd-conversion"
	// Port is the Service's.
	Port = 443
	// DefaultReplicas is the number of pods.
	DefaultReplicas = 2

	containerName = "gitopsd"

	secretName = Name + "-tls"
	// authorityName is the Secret in which reconcile/certs records the Service's CA.
	authorityName = "serving-ca." + runtime.Namespace + "." + Name
	tlsDir        = "/tls"
	tlsPort       = 9443
	healthPort    = 8080
	userID        = 65532

	// grace is how long a pod may take to end, in seconds. It goes on serving for a
	// part of it, until no API server has its address any more.
	grace = 60
	// memory is a pod's limit in MiB; garbage is collected more often near softMemory.
	memory, softMemory = "512Mi", "440MiB"
)

// Config is the workload of one cluster.
type Config struct {
	// Image is gitopsd's; required.
	Image string
	// Replicas is the number of pods; 0 means [DefaultReplicas].
	Replicas int
}

// Service returns the Service by which API servers reach the workload.
func Service() manifest.ID { return manifest.Service.ID(runtime.Namespace, Name) }

// Workload returns the Deployment.
func Workload() manifest.ID { return manifest.Deployment.ID(runtime.Namespace, Name) }

// Part reports whether an object is of the workload: its Deployment or Service, or
// something that these need.
func Part(id manifest.ID) bool {
	if id.Namespace != runtime.Namespace {
		return false
	}
	if id.Is(manifest.ConfigMap) {
		return strings.HasPrefix(id.Name, bundle.Prefix)
	}
	return id.Name == Name || id.Is(manifest.Secret) && (id.Name == secretName || id.Name == authorityName)
}

// Argument names a set in the arguments of the server: the last two parts of the path
// of its requests, "widgets.example.io/0f3a…".
func Argument(set *conversion.Set) string {
	p := conversion.Path("", set.Name(), set.Digest())
	return set.Name() + "/" + path.Base(p)
}

// Require returns the Deployment with arguments that name sets: those that its pods
// must have compiled to be ready. It fails if no container can be told, since
// definitions would name rules that nobody serves.
func Require(deployment *manifest.Object, sets []*conversion.Set) (*manifest.Object, error) {
	var required []string
	for _, s := range sets {
		required = append(required, "--require="+Argument(s))
	}
	slices.Sort(required)
	tree := maps.Clone(deployment.Tree())
	at := tree
	for _, field := range []string{"spec", "template", "spec"} {
		inner, _ := at[field].(map[string]any)
		inner = maps.Clone(inner)
		if inner == nil {
			inner = make(map[string]any)
		}
		at[field], at = inner, inner
	}
	told := false
	containers := slices.Clone(manifest.List(at, "containers"))
	for i, c := range containers {
		if container, _ := c.(map[string]any); container["name"] == containerName {
			container = maps.Clone(container)
			args := slices.Clone(manifest.List(container, "args"))
			for _, r := range required {
				args = append(args, r)
			}
			container["args"], containers[i], told = args, container, true
		}
	}
	if !told {
		return nil, fmt.Errorf("%s has no container %s after spec.patches, and its pods cannot be told which conversion rules they need: leave the container its name", deployment.ID(), containerName)
	}
	at["containers"] = containers
	return manifest.New(tree, deployment.Origin())
}

// Objects returns the workload's objects, without the ConfigMaps of the bundles. The
// Deployment requires no rules yet; see [Require].
func Objects(c Config) ([]*manifest.Object, error) {
	labels := map[string]any{"app.kubernetes.io/name": Name}
	named := func(kind manifest.GroupKind, version string, rest map[string]any) map[string]any {
		tree := map[string]any{"apiVersion": kind.APIVersion(version), "kind": kind.Kind, "metadata": map[string]any{
			"name": Name, "namespace": runtime.Namespace, "labels": labels,
		}}
		for k, v := range rest {
			tree[k] = v
		}
		return tree
	}
	service := named(manifest.Service, "v1", map[string]any{"spec": map[string]any{
		"selector": labels,
		"ports":    []any{map[string]any{"name": "https", "protocol": "TCP", "port": int64(Port), "targetPort": "https"}},
	}})
	service["metadata"].(map[string]any)["annotations"] = map[string]any{manifest.ServingCertAnnotation: secretName}
	trees := []map[string]any{
		named(manifest.ServiceAccount, "v1", nil),
		named(manifest.Role, "v1", map[string]any{"rules": []any{map[string]any{
			"apiGroups": []any{""}, "resources": []any{"configmaps"}, "verbs": []any{"get", "list", "watch"},
		}}}),
		named(manifest.RoleBinding, "v1", map[string]any{
			"roleRef":  map[string]any{"apiGroup": manifest.GroupRBAC, "kind": manifest.Role.Kind, "name": Name},
			"subjects": []any{map[string]any{"kind": manifest.ServiceAccount.Kind, "name": Name, "namespace": runtime.Namespace}},
		}),
		service,
		named(manifest.DisruptionBudget, "v1", map[string]any{"spec": map[string]any{
			"maxUnavailable": int64(1), "selector": map[string]any{"matchLabels": labels},
		}}),
		named(manifest.Deployment, "v1", map[string]any{"spec": deployment(c, labels)}),
	}
	objects := make([]*manifest.Object, len(trees))
	for i, tree := range trees {
		var err error
		if objects[i], err = manifest.New(tree, manifest.Origin{File: "spec.conversion of the Cluster"}); err != nil {
			return nil, err
		}
	}
	return objects, nil
}

func deployment(c Config, labels map[string]any) map[string]any {
	replicas := int64(c.Replicas)
	if replicas == 0 {
		replicas = DefaultReplicas
	}
	container := map[string]any{
		"name": containerName, "image": c.Image, "imagePullPolicy": "IfNotPresent",
		"args": []any{"conversion-server", "--log-format=json", "--tls-dir=" + tlsDir},
		"env": []any{
			map[string]any{"name": "GITOPSD_BIND", "valueFrom": map[string]any{"fieldRef": map[string]any{"apiVersion": "v1", "fieldPath": "status.podIP"}}},
			map[string]any{"name": "GOMEMLIMIT", "value": softMemory},
		},
		"ports": []any{
			map[string]any{"name": "https", "containerPort": int64(tlsPort)},
			map[string]any{"name": "health", "containerPort": int64(healthPort)},
		},
		"readinessProbe": probe("/readyz", 5),
		"livenessProbe":  probe("/healthz", 30),
		"resources": map[string]any{
			"requests": map[string]any{"cpu": "50m", "memory": "64Mi"},
			"limits":   map[string]any{"memory": memory},
		},
		"securityContext": map[string]any{
			"allowPrivilegeEscalation": false, "privileged": false, "readOnlyRootFilesystem": true,
			"capabilities": map[string]any{"drop": []any{"ALL"}},
		},
		"volumeMounts": []any{map[string]any{"name": "tls", "mountPath": tlsDir, "readOnly": true}},
	}
	return map[string]any{
		"replicas": replicas,
		"selector": map[string]any{"matchLabels": labels},
		// A pod leaves only once another is ready.
		"strategy": map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxSurge": int64(1), "maxUnavailable": int64(0)}},
		"template": map[string]any{
			"metadata": map[string]any{
				"labels":      labels,
				"annotations": map[string]any{"prometheus.io/scrape": "true", "prometheus.io/port": "8080", "prometheus.io/path": "/metrics"},
			},
			"spec": map[string]any{
				"serviceAccountName": Name, "terminationGracePeriodSeconds": int64(grace),
				// Their variables would be taken for flags.
				"enableServiceLinks": false,
				"securityContext": map[string]any{
					"runAsNonRoot": true, "runAsUser": int64(userID), "runAsGroup": int64(userID), "fsGroup": int64(userID),
					"seccompProfile": map[string]any{"type": "RuntimeDefault"},
				},
				"topologySpreadConstraints": []any{map[string]any{
					"maxSkew": int64(1), "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
					"labelSelector": map[string]any{"matchLabels": labels},
				}},
				"containers": []any{container},
				"volumes":    []any{map[string]any{"name": "tls", "secret": map[string]any{"secretName": secretName}}},
			},
		},
	}
}

func probe(path string, period int64) map[string]any {
	return map[string]any{"httpGet": map[string]any{"path": path, "port": "health"}, "periodSeconds": period}
}
