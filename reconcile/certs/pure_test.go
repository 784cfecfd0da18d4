package certs

import (
	"strings"
	"testing"
	"time"

	"gitopsd.dev/reconcile/certs/rotation"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/render/converter"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources/clusters"
)

// What an annotation asks for that cannot be had is an error of the object that carries
// it, and says what to write. No cluster is asked.
func TestNamesNothing(t *testing.T) {
	t.Parallel()
	completer, err := New(Config{Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, object, want string }{
		{"no Service", `{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.a, annotations: {gitopsd.dev/inject-ca: Service/acme/gone}}}`,
			"gitopsd.dev/inject-ca: the repository has no service/acme/gone for this cluster; correct the name, or name a Secret (Secret/<namespace>/<name>)"},
		{"no certificate", `{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.a, annotations: {gitopsd.dev/inject-ca: acme/plain}}}`,
			"gitopsd.dev/inject-ca: service/acme/plain has no certificate of gitopsd's; annotate it with gitopsd.dev/serving-cert: <name of a Secret>"},
		{"no name", `{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.a, annotations: {gitopsd.dev/inject-ca: plain}}}`,
			`gitopsd.dev/inject-ca: "plain": want Service/<namespace>/<name> or Secret/<namespace>/<name>`},
		{"a path", `{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.a, annotations: {gitopsd.dev/inject-ca: Secret/a/b/c}}}`,
			`gitopsd.dev/inject-ca: "Secret/a/b/c": want Service/<namespace>/<name> or Secret/<namespace>/<name>`},
		{"no bundle", `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: acme, annotations: {gitopsd.dev/inject-ca: acme/plain}}}`,
			"gitopsd.dev/inject-ca: a ConfigMap holds no CA bundle; remove the annotation"},
		{"no conversion", `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: a.b, annotations: {gitopsd.dev/inject-ca: acme/plain}}, spec: {conversion: {strategy: None}}}`,
			"gitopsd.dev/inject-ca: the definition does not convert by webhook (spec.conversion.webhook.clientConfig); remove the annotation"},
		{"no Service at all", `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: acme, annotations: {gitopsd.dev/serving-cert: b}}}`,
			"gitopsd.dev/serving-cert: only Services have serving certificates; remove the annotation"},
		{"gitopsd's own", `{apiVersion: v1, kind: Service, metadata: {name: a, namespace: gitopsd-system, annotations: {gitopsd.dev/serving-cert: serving-ca.gitopsd-system.a}}}`,
			"gitopsd.dev/serving-cert: names that begin with serving-ca. are those of gitopsd's own CAs; name another"},
		{"no Secret", `{apiVersion: v1, kind: Service, metadata: {name: a, namespace: acme, annotations: {gitopsd.dev/serving-cert: a/b}}}`,
			`gitopsd.dev/serving-cert: "a/b" is no name of a Secret`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := desired.Registered(clusters.Cluster{Name: "dev"}, "")
			u.Objects = manifesttest.Set(t, "{apiVersion: v1, kind: Service, metadata: {name: plain, namespace: acme}}\n---\n"+tt.object)
			done, err := completer.Complete(t.Context(), unit.Request{Unit: u, Objects: u.Objects})
			if err != nil {
				t.Fatal(err)
			}
			for id, why := range done.Refused {
				if why != tt.want {
					t.Errorf("%s: %s\nwant %s", id, why, tt.want)
				}
			}
			if len(done.Refused) != 1 {
				t.Errorf("refused: %v", done.Refused)
			}
		})
	}
}

// Only bundles are filled in; what was rendered stays as it is.
func TestFill(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ object, want, unknown string }{
		{"{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.a}, spec: {service: {name: s}}}",
			`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.a"},"spec":{"caBundle":"Q0E=","service":{"name":"s"}}}`, "spec.caBundle"},
		{"{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: a}, webhooks: [{name: w, clientConfig: {url: u}}, {name: v}]}",
			`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingWebhookConfiguration","metadata":{"name":"a"},"webhooks":[{"clientConfig":{"caBundle":"Q0E=","url":"u"},"name":"w"},{"clientConfig":{"caBundle":"Q0E="},"name":"v"}]}`,
			"webhooks[name=w].clientConfig.caBundle webhooks[name=v].clientConfig.caBundle"},
		{"{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: a.b}, spec: {conversion: {strategy: Webhook, webhook: {clientConfig: {url: u}}}}}",
			`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"a.b"},"spec":{"conversion":{"strategy":"Webhook","webhook":{"clientConfig":{"caBundle":"Q0E=","url":"u"}}}}}`,
			"spec.conversion.webhook.clientConfig.caBundle"},
		// A Service's CA is for its own webhooks: the system's roots verify a URL.
		{"{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: a, annotations: {gitopsd.dev/inject-ca: ns/s}}, webhooks: [{name: u, clientConfig: {url: u}}, {name: s, clientConfig: {service: {namespace: ns, name: s}}}, {name: t, clientConfig: {service: {namespace: ns, name: t}}}]}",
			`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingWebhookConfiguration","metadata":{"annotations":{"gitopsd.dev/inject-ca":"ns/s"},"name":"a"},"webhooks":[{"clientConfig":{"url":"u"},"name":"u"},{"clientConfig":{"caBundle":"Q0E=","service":{"name":"s","namespace":"ns"}},"name":"s"},{"clientConfig":{"service":{"name":"t","namespace":"ns"}},"name":"t"}]}`,
			"webhooks[name=s].clientConfig.caBundle"},
	} {
		o := manifesttest.Objects(t, tt.object)[0]
		before := string(o.AppendJSON(nil))
		filled, err := fill(o, []byte("CA"))
		if err != nil {
			t.Fatal(err)
		}
		if have := string(filled.AppendJSON(nil)); have != tt.want {
			t.Errorf("have %s\nwant %s", have, tt.want)
		}
		if string(o.AppendJSON(nil)) != before {
			t.Errorf("the rendered object was changed")
		}
		empty, err := fill(o, nil)
		if err != nil || strings.Join(empty.Unknown(), " ") != tt.unknown || string(empty.AppendJSON(nil)) != before {
			t.Errorf("unknown %q, %v", empty.Unknown(), err)
		}
	}
}

// The policy leaves time for each step.
func TestPolicy(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	for _, tt := range []struct {
		config Config
		want   string
	}{
		{Config{Policy: rotation.Policy{Authority: 365 * day, Leaf: 90 * day, Settle: time.Minute}}, ""},
		{Config{Policy: rotation.Policy{Authority: 9 * time.Second, Leaf: 3 * time.Second, Settle: time.Second}}, ""},
		{Config{Policy: rotation.Policy{Authority: 365 * day, Leaf: 0, Settle: 0}}, "certificates that are valid for 0s: use at least 3s"},
		{Config{Policy: rotation.Policy{Authority: 200 * day, Leaf: 90 * day, Settle: 0}}, "CAs that are valid for 4800h0m0s: use at least three times the lifetime of certificates, 6480h0m0s"},
		{Config{Policy: rotation.Policy{Authority: 365 * day, Leaf: 90 * day, Settle: 31 * day}}, "settling for 744h0m0s: use at most a third of the lifetime of certificates, 720h0m0s"},
		{Config{Policy: rotation.Policy{Authority: 365 * day, Leaf: 90 * day, Settle: 0}, Authority: "a/b"}, `"a/b" is no name of a Secret`},
	} {
		text := ""
		if _, err := New(tt.config); err != nil {
			text = err.Error()
		}
		if text != tt.want {
			t.Errorf("error %q, want %q", text, tt.want)
		}
	}
}

// The Secret that records the CA of a conversion server goes and stays with the server.
func TestJournalOfConverter(t *testing.T) {
	if id := journalOf(converter.Service()); !converter.Part(id) {
		t.Errorf("%s is no part of the conversion server", id)
	}
}
