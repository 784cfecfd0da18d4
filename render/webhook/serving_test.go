package webhook_test

import (
	"testing"

	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/webhook"
)

// A package's webhooks are registered only if something among the cluster's objects is
// going to serve them.
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
		{name: "no Service", hooks: hooks, others: deployed, want: "the cluster does not get service/ns/s"},
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
