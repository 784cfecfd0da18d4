package webhook_test

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/webhook"
)

func TestComplete(t *testing.T) {
	t.Parallel()
	service := webhook.Service{Namespace: "system", Name: "p", Port: 9443}
	for _, tt := range []struct {
		name, doc string
		// want is empty if nothing is needed.
		want, err string
	}{
		{name: "another kind", doc: "{kind: ConfigMap, webhooks: [{}]}"},
		{name: "no webhooks", doc: "{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, webhooks: []}"},
		{name: "no conversion", doc: "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, spec: {names: {}}}"},
		{name: "conversion by nobody", doc: "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, spec: {conversion: {strategy: None}}}"},
		{
			name: "validating",
			doc:  "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, webhooks: [{name: a, clientConfig: {caBundle: eA==, service: {name: x, namespace: y, path: /z, port: 1}}, rules: []}, {name: b}]}",
			want: "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, webhooks: [{name: a, clientConfig: {service: {name: p, namespace: system, path: /z, port: 9443}}, rules: []}, {name: b, clientConfig: {service: {name: p, namespace: system, port: 9443}}}]}",
		},
		{
			name: "conversion",
			doc:  "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, spec: {group: g, conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1beta1], clientConfig: {service: {path: /c}}}}}}",
			want: "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, spec: {group: g, conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1beta1], clientConfig: {service: {path: /c, name: p, namespace: system, port: 9443}}}}}}",
		},
		{
			name: "conversion without details",
			doc:  "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, spec: {conversion: {strategy: Webhook}}}",
			want: "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, spec: {conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {service: {name: p, namespace: system, port: 9443}}}}}}",
		},
		{
			name: "a CA and an injector of its own",
			doc:  "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {annotations: {cert-manager.io/inject-ca-from: a/b, c: d}}, spec: {conversion: {strategy: Webhook, webhook: {clientConfig: {caBundle: eA==, service: {path: /c}}}}}}",
			want: "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {annotations: {c: d}}, spec: {conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {service: {path: /c, name: p, namespace: system, port: 9443}}}}}}",
		},
		{name: "conversion of a single version", doc: "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, spec: {versions: [{name: v1}], conversion: {strategy: Webhook}}}"},
		{name: "by URL", doc: "{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, webhooks: [{}, {clientConfig: {url: 'https://example.org'}}]}", err: "webhooks.1.clientConfig: url: https://example.org: a package's webhooks are served by its controller"},
		{name: "conversion by URL", doc: "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, spec: {conversion: {strategy: Webhook, webhook: {clientConfig: {url: x}}}}}", err: "spec.conversion.webhook.clientConfig: url: x"},
		{name: "webhook", doc: "{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, webhooks: [a]}", err: "webhooks.0: want a mapping"},
		{name: "client config", doc: "{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, webhooks: [{clientConfig: a}]}", err: "webhooks.0.clientConfig: want a mapping"},
		{name: "service", doc: "{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, webhooks: [{clientConfig: {service: a}}]}", err: "webhooks.0.clientConfig: service: want a mapping"},
		{name: "conversion webhook", doc: "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, spec: {conversion: {strategy: Webhook, webhook: a}}}", err: "spec.conversion.webhook: want a mapping"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tree := manifesttest.Tree(t, tt.doc)
			if needed := tt.want != "" || tt.err != ""; webhook.Needed(tree) != needed {
				t.Fatalf("Needed is %t", !needed)
			} else if !needed {
				return
			}
			have, err := webhook.Complete(tree, service)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("have %v, want an error with %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := manifesttest.Tree(t, tt.want); !reflect.DeepEqual(have, want) {
				t.Errorf("have %s\nwant %s", manifest.AppendJSON(nil, have), manifest.AppendJSON(nil, want))
			}
			if !reflect.DeepEqual(tree, manifesttest.Tree(t, tt.doc)) {
				t.Error("the tree that was given has changed")
			}
		})
	}
}

func TestName(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 250)
	for _, tt := range []struct{ pkg, name, want string }{
		{"p", "validating-webhook-configuration", "p.validating-webhook-configuration"},
		{"p", "a.b", "p.a.b"},
		{"p.a", "b", "p.a.b-8c774c32854a3b43"},
		{"p", long, ""},
		{"q", long, ""},
	} {
		have := webhook.Name(tt.pkg, tt.name)
		if tt.want != "" && have != tt.want {
			t.Errorf("%s, %s: have %s, want %s", tt.pkg, tt.name, have, tt.want)
		}
		if len(have) > 253 || !subdomain.MatchString(have) {
			t.Errorf("%s, %s: %s is no name of an object", tt.pkg, tt.name, have)
		}
		if webhook.Name(tt.pkg, tt.name) != have || webhook.Name(tt.pkg+"z", tt.name) == have || webhook.Name(tt.pkg, tt.name+"z") == have {
			t.Errorf("%s, %s: %s is not stable, or not its own", tt.pkg, tt.name, have)
		}
	}
}

// subdomain matches a DNS subdomain (RFC 1123).
var subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// A conversion webhook is removed if it has nothing to convert.
func TestIdle(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		spec string
		want bool
	}{
		{"{versions: [{name: v1}], conversion: {strategy: Webhook, webhook: {clientConfig: {url: x}}}}", true},
		{"{versions: [{name: v1}, {name: v2, served: false}], conversion: {strategy: Webhook}}", false},
		{"{versions: [{name: v1}], conversion: {strategy: None}}", false},
		{"{versions: [{name: v1}]}", false},
		{"{conversion: {strategy: Webhook}}", false},
	} {
		tree := manifesttest.Tree(t, "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, spec: "+tt.spec+"}")
		if have := webhook.Idle(tree); have != tt.want {
			t.Errorf("%s: have %t", tt.spec, have)
		}
		if !tt.want {
			continue
		}
		if have := string(manifest.AppendJSON(nil, webhook.WithoutConversion(tree))); !strings.Contains(have, `"conversion":{"strategy":"None"}`) || !webhook.Idle(tree) {
			t.Errorf("%s: have %s", tt.spec, have)
		}
	}
}
