package webhook

import (
	"fmt"
	"maps"
	"slices"

	"gitopsd.dev/render/manifest"
)

// Services returns the Services that the API server sends requests to for a webhook
// configuration, an APIService, or a CRD that converts by webhook. Webhooks with a URL
// have none.
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

// pods are the kinds that run pods, except Jobs, since their pods end.
var pods = append(slices.Clip(manifest.Workloads), manifest.ReplicaSet, manifest.Pod)

// Servers returns the workloads that a Service selects among a cluster's objects. known is
// false if the Service is not one of the objects or has no selector for pods.
func Servers(objects []*manifest.Object, service manifest.ID) (servers []*manifest.Object, known bool) {
	found := manifest.Find(objects, service)
	if found == nil {
		return nil, false
	}
	spec := manifest.Mapping(found.Tree(), "spec")
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

// Unserved returns the reason why nothing is going to serve the webhooks of a package's
// object; "" if something is, or if that is not known. A webhook that fails closed without
// a server blocks all requests that it is for.
func Unserved(objects []*manifest.Object, o *manifest.Object) string {
	pkg := o.Label(manifest.PackageLabel)
	if pkg == "" {
		return ""
	}
	for _, service := range Services(o.Tree()) {
		servers, known := Servers(objects, service)
		switch there := manifest.Find(objects, service) != nil; {
		case !there && !slices.ContainsFunc(objects, func(o *manifest.Object) bool {
			return o.ID().Is(manifest.Workloads...) && o.Label(manifest.PackageLabel) == pkg
		}):
			return fmt.Sprintf("its package has no controller, and the cluster no %s", service)
		case !there:
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

// runs reports whether a workload has at least one replica.
func runs(o *manifest.Object) bool {
	replicas, set := manifest.Mapping(o.Tree(), "spec")["replicas"]
	return !set || replicas != int64(0)
}

// needs are the writes that start a controller and renew its certificate.
var needs = []struct{ group, resource, operation string }{
	{"", "pods", "CREATE"}, {"apps", "replicasets", "CREATE"}, {"apps", "deployments", "UPDATE"}, {"", "secrets", "UPDATE"},
}

// Traps returns the resources for which a package's webhooks fail closed although their own
// server needs these resources to start, and the namespace of the server. Once the server is
// down, it stays down. Webhooks with match conditions are assumed to leave them out.
func Traps(objects []*manifest.Object, o *manifest.Object) (resources []string, namespace string) {
	if !o.ID().Is(manifest.Webhooks...) || o.Label(manifest.PackageLabel) == "" {
		return nil, ""
	}
	for _, w := range manifest.List(o.Tree(), "webhooks") {
		hook, _ := w.(map[string]any)
		service := manifest.Mapping(hook, "clientConfig", "service")
		in := manifest.Text(service, "namespace")
		servers, _ := Servers(objects, manifest.Service.ID(in, manifest.Text(service, "name")))
		if len(servers) == 0 || hook["failurePolicy"] == "Ignore" || len(manifest.List(hook, "matchConditions")) > 0 ||
			!meets(namespaceLabels(objects, in), manifest.Mapping(hook, "namespaceSelector")) {
			continue
		}
		selector := manifest.Mapping(hook, "objectSelector")
		for _, need := range needs {
			if need.resource != "pods" && len(selector) > 0 || !meets(podLabels(servers[0]), selector) {
				continue
			}
			if !slices.Contains(resources, need.resource) && slices.ContainsFunc(manifest.List(hook, "rules"), func(r any) bool {
				rule, _ := r.(map[string]any)
				return rule["scope"] != "Cluster" && Matches(rule, need.group, need.resource, need.operation)
			}) {
				resources, namespace = append(resources, need.resource), in
			}
		}
	}
	return resources, namespace
}

// Matches reports whether a rule of a webhook or policy matches one of some operations on a
// resource, in any version and scope.
func Matches(rule map[string]any, group, resource string, operations ...string) bool {
	has := func(field string, wanted ...string) bool {
		return slices.ContainsFunc(manifest.Texts(rule, field), func(v string) bool { return v == "*" || slices.Contains(wanted, v) })
	}
	return has("apiGroups", group) && has("resources", "*/*", resource) && has("operations", operations...)
}

// namespaceLabels returns the known labels of a namespace.
func namespaceLabels(objects []*manifest.Object, name string) map[string]any {
	labels := map[string]any{"kubernetes.io/metadata.name": name}
	if o := manifest.Find(objects, manifest.Namespace.ID("", name)); o != nil {
		maps.Copy(labels, manifest.Mapping(o.Tree(), "metadata", "labels"))
	}
	return labels
}

// meets reports whether labels match a LabelSelector. All labels match an empty one.
func meets(labels, selector map[string]any) bool {
	return selects(manifest.Mapping(selector, "matchLabels"), labels) && !slices.ContainsFunc(manifest.List(selector, "matchExpressions"), func(e any) bool {
		expression, _ := e.(map[string]any)
		value, has := labels[manifest.Text(expression, "key")]
		in := slices.Contains(manifest.List(expression, "values"), value)
		switch expression["operator"] {
		case "In":
			return !in
		case "NotIn":
			return has && in
		case "Exists":
			return !has
		case "DoesNotExist":
			return has
		}
		return false
	})
}
