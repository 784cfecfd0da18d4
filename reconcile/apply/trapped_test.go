package apply

import (
	"errors"
	"testing"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// An object comes with advice if a webhook refuses it whose server may need it.
func TestTrapped(t *testing.T) {
	t.Parallel()
	x := &execution{desired: manifesttest.Objects(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: system}}\n---\n"+
		"{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: p.w}, webhooks: [{name: a.e.org, clientConfig: {service: {namespace: system, name: p}}}]}")}
	const advice = "its server is in the same namespace; if it needs this object to come up, delete the configuration, which is registered again once the server is ready, and have it leave out the namespace: kubectl delete validatingwebhookconfiguration p.w"
	deployment := manifest.Deployment.ID("system", "p")
	for _, tt := range []struct {
		name string
		id   manifest.ID
		err  error
		want string
	}{
		{"no answer", deployment, &kube.Error{Class: kube.WebhookFailed, Webhook: "a.e.org"}, advice},
		{"denied", deployment, &kube.Error{Class: kube.Refused, Webhook: "a.e.org"}, ""},
		{"another webhook", deployment, &kube.Error{Class: kube.WebhookFailed, Webhook: "b.e.org"}, ""},
		{"another namespace", manifest.Deployment.ID("apps", "p"), &kube.Error{Class: kube.WebhookFailed, Webhook: "a.e.org"}, ""},
		{"no namespace", manifest.Namespace.ID("", "apps"), &kube.Error{Class: kube.WebhookFailed, Webhook: "a.e.org"}, ""},
		{"another error", deployment, errors.New("x"), ""},
	} {
		if have := x.trapped(tt.id, tt.err); have != tt.want {
			t.Errorf("%s: have %q", tt.name, have)
		}
	}
}
