// Package workload makes the objects that run a server of gitopsd in a cluster: a
// Deployment without rights, its ServiceAccount, its Service, and a PodDisruptionBudget.
// render/converter and render/etcd have one each, and add their own objects.
package workload

import "gitopsd.dev/render/manifest"

const (
	// Container is the name of the one container of each pod.
	Container = "gitopsd"
	// HealthPort is where pods serve /healthz, /readyz and /metrics.
	HealthPort = 8080

	userID = 65532
	// grace is how long a pod may take to end, in seconds. For a part of it the pod
	// still serves, until no client has its address.
	grace = 60
)

// Workload describes a server.
type Workload struct {
	// Namespace and Name are the same for all objects. Name is a DNS label.
	Namespace, Name string
	// Labels select the pods, and are on all objects.
	Labels map[string]string
	// Image is the image of gitopsd; required.
	Image string
	// Replicas is the number of pods; at least one.
	Replicas int
	// Args are the command of gitopsd and its arguments.
	Args []string
	// Port is the port of the pods and the Service.
	Port Port
	// Volume is the directory that the pods read.
	Volume Volume
	// Memory is the memory limit of a pod, such as "512Mi", and SoftMemory its GOMEMLIMIT,
	// such as "440MiB".
	Memory, SoftMemory string
	// Origin is the origin of the objects.
	Origin manifest.Origin
}

// Port is a port that clients connect to.
type Port struct {
	// Name is the name of the port in the pods and the Service.
	Name string
	// Service and Pod are the numbers of the port in the Service and the pods.
	Service, Pod int
}

// Volume is a Secret that the pods mount.
type Volume struct {
	Name string
	// Secret is the name of the Secret. Pods do not start without it.
	Secret string
	// Path is where it is mounted.
	Path string
	// Files are the keys of the Secret to mount, with their paths in the directory; nil
	// mounts all of them by their names.
	Files []File
}

// File is a key of a Secret, and the path of its file.
type File struct{ Key, Path string }

// Objects calls the functions, methods of a Workload mostly, and returns their objects. It
// ends at the first error.
func Objects(all ...func() (*manifest.Object, error)) ([]*manifest.Object, error) {
	var objects []*manifest.Object
	for _, f := range all {
		o, err := f()
		if err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// ID returns the ID of the workload's object of a kind.
func (w *Workload) ID(kind manifest.GroupKind) manifest.ID { return kind.ID(w.Namespace, w.Name) }

// ServiceAccount returns the ServiceAccount of the pods, which has no rights.
func (w *Workload) ServiceAccount() (*manifest.Object, error) {
	return w.Object(manifest.ServiceAccount, nil)
}

// Service returns the Service of the pods, with annotations.
func (w *Workload) Service(annotations map[string]string) (*manifest.Object, error) {
	o, err := w.Object(manifest.Service, map[string]any{"spec": map[string]any{
		"selector": w.labels(),
		"ports":    []any{map[string]any{"name": w.Port.Name, "protocol": "TCP", "port": int64(w.Port.Service), "targetPort": w.Port.Name}},
	}})
	if err != nil {
		return nil, err
	}
	return o.WithMetadata(nil, annotations), nil
}

// DisruptionBudget returns the PodDisruptionBudget, which allows one pod to be unavailable.
func (w *Workload) DisruptionBudget() (*manifest.Object, error) {
	return w.Object(manifest.DisruptionBudget, map[string]any{"spec": map[string]any{
		"maxUnavailable": int64(1), "selector": map[string]any{"matchLabels": w.labels()},
	}})
}

// Deployment returns the Deployment.
func (w *Workload) Deployment() (*manifest.Object, error) {
	return w.Object(manifest.Deployment, map[string]any{"spec": w.deployment()})
}

// Object returns an object of version v1 with the workload's name and labels.
func (w *Workload) Object(kind manifest.GroupKind, rest map[string]any) (*manifest.Object, error) {
	o, err := manifest.New(manifest.NewTree(w.ID(kind), rest), w.Origin)
	if err != nil {
		return nil, err
	}
	return o.WithMetadata(w.Labels, nil), nil
}

func (w *Workload) labels() map[string]any { return manifest.FromTextMap(w.Labels) }

func (w *Workload) deployment() map[string]any {
	container := map[string]any{
		"name": Container, "image": w.Image, "imagePullPolicy": "IfNotPresent",
		"args": manifest.FromTexts(w.Args),
		"env": []any{
			map[string]any{"name": "GITOPSD_BIND", "valueFrom": map[string]any{"fieldRef": map[string]any{"apiVersion": "v1", "fieldPath": "status.podIP"}}},
			map[string]any{"name": "GOMEMLIMIT", "value": w.SoftMemory},
		},
		"ports": []any{
			map[string]any{"name": w.Port.Name, "containerPort": int64(w.Port.Pod)},
			map[string]any{"name": "health", "containerPort": int64(HealthPort)},
		},
		"readinessProbe": probe("/readyz", 5),
		"livenessProbe":  probe("/healthz", 30),
		"resources": map[string]any{
			"requests": map[string]any{"cpu": "50m", "memory": "64Mi"},
			"limits":   map[string]any{"memory": w.Memory},
		},
		"securityContext": map[string]any{
			"allowPrivilegeEscalation": false, "privileged": false, "readOnlyRootFilesystem": true,
			"capabilities": map[string]any{"drop": []any{"ALL"}},
		},
		"volumeMounts": []any{map[string]any{"name": w.Volume.Name, "mountPath": w.Volume.Path, "readOnly": true}},
	}
	return map[string]any{
		"replicas": int64(w.Replicas),
		"selector": map[string]any{"matchLabels": w.labels()},
		// A pod leaves only once another is ready.
		"strategy": map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxSurge": int64(1), "maxUnavailable": int64(0)}},
		"template": map[string]any{
			"metadata": map[string]any{
				"labels":      w.labels(),
				"annotations": map[string]any{"prometheus.io/scrape": "true", "prometheus.io/port": "8080", "prometheus.io/path": "/metrics"},
			},
			"spec": map[string]any{
				"serviceAccountName": w.Name, "terminationGracePeriodSeconds": int64(grace),
				// gitopsd would read their variables as flags.
				"enableServiceLinks": false,
				"securityContext": map[string]any{
					"runAsNonRoot": true, "runAsUser": int64(userID), "runAsGroup": int64(userID), "fsGroup": int64(userID),
					"seccompProfile": map[string]any{"type": "RuntimeDefault"},
				},
				"topologySpreadConstraints": []any{map[string]any{
					"maxSkew": int64(1), "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
					"labelSelector": map[string]any{"matchLabels": w.labels()},
				}},
				"containers": []any{container},
				"volumes":    []any{map[string]any{"name": w.Volume.Name, "secret": w.Volume.source()}},
			},
		},
	}
}

func (v *Volume) source() map[string]any {
	source := map[string]any{"secretName": v.Secret}
	if v.Files != nil {
		items := make([]any, len(v.Files))
		for i, f := range v.Files {
			items[i] = map[string]any{"key": f.Key, "path": f.Path}
		}
		source["items"] = items
	}
	return source
}

func probe(path string, period int64) map[string]any {
	return map[string]any{"httpGet": map[string]any{"path": path, "port": "health"}, "periodSeconds": period}
}
