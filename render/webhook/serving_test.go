package webhook_test

import (
	"strings"
	"testing"

	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/webhook"
)

// Unserved returns the reason why none of the cluster's objects serves a package's webhooks.
func TestUnserved(t *testing.T) {
	t.Parallel()
	const (
		hooks    = "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: h, labels: {gitopsd.dev/package: p}}, webhooks: [{name: a, clientConfig: {service: {namespace: ns, name: s}}}]}"
		service  = "{apiVersion: v1, kind: Service, metadata: {name: s, namespace: ns}, spec: {selector: {app: a}}}"
		workload = "spec: {template: {metadata: {labels: {app: a, b: c}}}}}"
		deployed = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: ns}, " + workload
	)
	for _, tt := range []struct{ name, hooks, others, want string }{
		{name: "served", hooks: hooks, others: service + "\n---\n" + deployed},
		{name: "by a StatefulSet", hooks: hooks, others: service + "\n---\n{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: d, namespace: ns}, " + workload},
		{name: "by a pod", hooks: hooks, others: service + "\n---\n{apiVersion: v1, kind: Pod, metadata: {name: d, namespace: ns, labels: {app: a}}}"},
		{name: "by endpoints of somebody's own", hooks: hooks, others: "{apiVersion: v1, kind: Service, metadata: {name: s, namespace: ns}, spec: {}}"},
		{name: "by another name", hooks: hooks, others: "{apiVersion: v1, kind: Service, metadata: {name: s, namespace: ns}, spec: {type: ExternalName, selector: {app: a}}}"},
		{name: "a plain manifest", hooks: "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: h}, webhooks: [{name: a, clientConfig: {service: {namespace: ns, name: s}}}]}"},
		{name: "by URL", hooks: "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: h, labels: {gitopsd.dev/package: p}}, webhooks: [{name: a, clientConfig: {url: x}}]}"},
		{name: "no Service", hooks: hooks, others: strings.Replace(deployed, "name: d,", "name: d, labels: {gitopsd.dev/package: p},", 1), want: "the cluster does not get service/ns/s"},
		{name: "no controller", hooks: hooks, others: deployed, want: "its package has no controller, and the cluster no service/ns/s"},
		{name: "no workload", hooks: hooks, others: service, want: "service/ns/s selects the pods of no workload"},
		{name: "another namespace", hooks: hooks, others: service + "\n---\n{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: other}, " + workload, want: "service/ns/s selects the pods of no workload"},
		{name: "other labels", hooks: hooks, others: "{apiVersion: v1, kind: Service, metadata: {name: s, namespace: ns}, spec: {selector: {app: b}}}\n---\n" + deployed, want: "service/ns/s selects the pods of no workload"},
		{name: "scaled down", hooks: hooks, others: service + "\n---\n{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: ns}, spec: {replicas: 0, template: {metadata: {labels: {app: a}}}}}", want: "deployment.apps/ns/d has no replicas"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			text := tt.hooks
			if tt.others != "" {
				text += "\n---\n" + tt.others
			}
			objects := manifesttest.Objects(t, text)
			if have := webhook.Unserved(objects, objects[0]); have != tt.want {
				t.Errorf("have %q, want %q", have, tt.want)
			}
		})
	}
}

// A webhook that fails closed for resources that its own server needs keeps the server
// down.
func TestTraps(t *testing.T) {
	t.Parallel()
	const (
		others = "{apiVersion: v1, kind: Service, metadata: {name: s, namespace: ns}, spec: {selector: {app: a}}}\n---\n" +
			"{apiVersion: v1, kind: Namespace, metadata: {name: ns, labels: {tier: system}}}\n---\n" +
			"{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: ns}, spec: {template: {metadata: {labels: {app: a, b: c}}}}}\n---\n"
		rules = "{apiGroups: ['', apps], resources: [pods, secrets, deployments], operations: ['*']}"
		all   = "pods deployments secrets"
	)
	for _, tt := range []struct{ name, hook, rules, want string }{
		{"listed", "", rules, all},
		{"everything", "failurePolicy: Fail", "{apiGroups: ['*'], resources: ['*/*'], operations: ['*']}", "pods replicasets deployments secrets"},
		{"failures ignored", "failurePolicy: Ignore", rules, ""},
		{"own types", "", "{apiGroups: [e.org], resources: ['*'], operations: ['*']}", ""},
		{"subresources", "", "{apiGroups: [''], resources: [pods/exec], operations: ['*']}", ""},
		{"deletion", "", "{apiGroups: [''], resources: [pods], operations: [DELETE]}", ""},
		{"cluster-wide objects", "", "{apiGroups: [''], resources: ['*'], operations: ['*'], scope: Cluster}", ""},
		{"the namespace is left out", "namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [ns]}]}", rules, ""},
		{"another is left out", "namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system]}]}", rules, all},
		{"by label", "namespaceSelector: {matchExpressions: [{key: tier, operator: DoesNotExist}]}", rules, ""},
		{"namespaces that ask for it", "namespaceSelector: {matchLabels: {x: y}}", rules, ""},
		{"namespaces that have a label", "namespaceSelector: {matchExpressions: [{key: x, operator: Exists}]}", rules, ""},
		{"one of some namespaces", "namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [ns, x]}]}", rules, all},
		{"its pods", "objectSelector: {matchLabels: {b: c}}", rules, "pods"},
		{"other pods", "objectSelector: {matchLabels: {b: d}}", rules, ""},
		{"conditions", "matchConditions: [{name: c, expression: e}]", rules, ""},
	} {
		hook := strings.TrimSuffix("clientConfig: {service: {namespace: ns, name: s}}, rules: ["+tt.rules+"], "+tt.hook, ", ")
		objects := manifesttest.Objects(t, others+"{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: h, labels: {gitopsd.dev/package: p}}, webhooks: [{name: a, "+hook+"}]}")
		resources, namespace := webhook.Traps(objects, objects[3])
		if have := strings.Join(resources, " "); have != tt.want || tt.want != "" && namespace != "ns" {
			t.Errorf("%s: have %q in %q, want %q", tt.name, have, namespace, tt.want)
		}
	}
}
