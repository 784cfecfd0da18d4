package webhook

import (
	"fmt"
	"slices"

	"gitopsd.dev/render/manifest"
)

// Services lists the Services that the API server sends requests to because of an
// object: a webhook configuration, an APIService, or a CRD that converts by webhook.
// Webhooks with a URL have none.
func Services(tree map[string]any) []manifest.ID {
	var list []manifest.ID
	for _, c := range clients(tree) {
		namespace, name := manifest.Text(c.config, "service", "namespace"), manifest.Text(c.config, "service", "name")
		if id := manifest.Service.ID(namespace, name); name != "" && !slices.Contains(list, id) {
			list = append(list, id)
		}
	}
	return list
}

// pods has the kinds that run pods, but for Jobs, whose pods end.
var pods = append(slices.Clip(manifest.Workloads), manifest.ReplicaSet, manifest.Pod)

// Servers finds the workloads behind a Service among a cluster's objects. known is
// false if the objects do not tell: the Service is not one of them, or is not for
// pods that it selects.
func Servers(objects []*manifest.Object, service manifest.ID) (servers []*manifest.Object, known bool) {
	i := slices.IndexFunc(objects, func(o *manifest.Object) bool { return o.ID() == service })
	if i < 0 {
		return nil, false
	}
	spec := manifest.Mapping(objects[i].Tree(), "spec")
	selector := manifest.Mapping(spec, "selector")
	if len(selector) == 0 || manifest.Text(spec, "type") == "ExternalName" {
		return nil, false
	}
	for _, o := range objects {
		if id := o.ID(); id.Namespace == service.Namespace && id.Is(pods...) && selects(selector, podLabels(o)) {
			servers = append(servers, o)
		}
	}
	return servers, true
}

func podLabels(o *manifest.Object) map[string]any {
	if o.ID().Is(manifest.Pod) {
		return manifest.Mapping(o.Tree(), "metadata", "labels")
	}
	return manifest.Mapping(o.Tree(), "spec", "template", "metadata", "labels")
}

func selects(selector, labels map[string]any) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// Unserved returns why nothing is going to serve the webhooks of a package's object,
// "" if something is, or if the objects do not tell. A webhook that nobody serves and
// that fails closed blocks whatever it is for.
func Unserved(objects []*manifest.Object, o *manifest.Object) string {
	if o.Label(manifest.PackageLabel) == "" {
		return ""
	}
	for _, service := range Services(o.Tree()) {
		servers, known := Servers(objects, service)
		switch {
		case !known && !slices.ContainsFunc(objects, func(o *manifest.Object) bool { return o.ID() == service }):
			return fmt.Sprintf("the cluster does not get %s", service)
		case !known:
		case len(servers) == 0:
			return fmt.Sprintf("%s selects the pods of no workload", service)
		case !slices.ContainsFunc(servers, runs):
			return fmt.Sprintf("%s has no replicas", servers[0].ID())
		}
	}
	return ""
}

// runs reports whether a workload is to have pods.
func runs(o *manifest.Object) bool {
	replicas, set := manifest.Mapping(o.Tree(), "spec")["replicas"]
	return !set || replicas != int64(0)
}
